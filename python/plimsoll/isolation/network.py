"""Connections beyond this machine, refused in Python: the network is unreachable for `socket`.

A network namespace below (namespaces.py) refuses them to libraries in C and to other programs too.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any, NoReturn

from ..base.patching import Patch

_WHY = "plimsoll predict --run refuses connections; --allow-network allows them"
_HOSTS = "/etc/hosts"


class Refusals:
    """What a script wanted to reach."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def refuse(self, name: str) -> NoReturn:
        self._note(name)
        raise OSError(errno.ENETUNREACH, f"Network is unreachable ({_WHY})")

    def refuse_name(self, name: str) -> NoReturn:
        """As a resolver does that reaches nobody."""
        self._note(name)
        text = f"Temporary failure in name resolution ({_WHY})"
        raise socket.gaierror(socket.EAI_AGAIN, text)

    def _note(self, name: str) -> None:
        if name not in self._names:
            self._names.append(name)

    @property
    def hint(self) -> str | None:
        """For the error that ends the script."""
        if not self._names:
            return None
        more = len(self._names) - 1
        named = self._names[0] + (f" and {more} more" if more else "")
        return f"The script was refused a connection to {named}: --allow-network allows it"


def guarded(refusals: Refusals) -> list[Patch]:
    return [*_connections(refusals), *_resolvers(refusals)]


def _connections(refusals: Refusals) -> list[Patch]:
    kind = socket.socket
    connect, connect_ex, send = kind.connect, kind.connect_ex, kind.sendto
    send_message = kind.sendmsg

    def check(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
            if address and not is_here(self.family, address[0]):
                refusals.refuse(":".join(str(part) for part in address[:2]))

    def checked_connect(self: socket.socket, address: Any) -> None:
        check(self, address)
        connect(self, address)

    def checked_connect_ex(self: socket.socket, address: Any) -> int:
        try:
            check(self, address)
        except OSError as error:
            return error.errno or errno.ENETUNREACH
        return connect_ex(self, address)

    def checked_send(self: socket.socket, data: Any, *rest: Any) -> int:
        check(self, rest[-1])
        return send(self, data, *rest)

    def checked_message(self: socket.socket, *args: Any) -> int:
        if len(args) > 3:
            check(self, args[3])
        return send_message(self, *args)

    return [
        Patch(kind, "connect", checked_connect),
        Patch(kind, "connect_ex", checked_connect_ex),
        Patch(kind, "sendto", checked_send),
        Patch(kind, "sendmsg", checked_message),
    ]


def _resolvers(refusals: Refusals) -> list[Patch]:
    def checked(name: str) -> Patch:
        real = getattr(socket, name)

        def call(host: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_known(host):
                refusals.refuse_name(_text(host))
            return real(host, *args, **kwargs)

        return Patch(socket, name, call)

    names = ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr")
    return [checked(name) for name in names]


def is_here(family: int, host: Any) -> bool:
    """Whether an address is one of this machine's own."""
    name = _text(host)
    if name in ("", "localhost"):
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(name.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        if mapped.is_loopback or mapped.is_unspecified:
            return True
    # Nothing is sent; only addresses that are here can be bound.
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as trial:
        if not is_known(name):
            return False
        trial.bind((name, 0))
        return True
    return False


def is_known(host: Any) -> bool:
    """Whether no other machine has to be asked for the name: it is an address, or written down."""
    name = _text(host)
    if name in ("", "localhost", socket.gethostname()):
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.partition("%")[0])
        return True
    with contextlib.suppress(OSError), open(_HOSTS, errors="replace") as file:
        return any(name in line.partition("#")[0].split()[1:] for line in file)
    return False


def _text(host: Any) -> str:
    if host is None:
        return ""
    return host.decode(errors="replace") if isinstance(host, bytes) else str(host)
