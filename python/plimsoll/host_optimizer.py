"""Where the code that `plimsoll plan` prints imports it from."""

from .applying.host_optimizer import HostOptimizer

__all__ = ["HostOptimizer"]
