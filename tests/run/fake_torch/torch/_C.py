"""What the extension module has, by release."""

import os
from _thread import RLock

observers = []
metadata = [""]
# The allocator's lock. Up to 2.1 it is held while observers are called.
lock = RLock()
held_for_observers = os.environ.get("FAKE_TORCH") in ("1.13", "2.0", "2.1")
history = {"enabled": False, "entries": [], "most": 0}

if os.environ.get("FAKE_TORCH") != "cpu":

    def _cuda_init():
        pass

    def _cuda_attach_out_of_memory_observer(observer):
        observers.append(observer)

    def _cuda_setMemoryMetadata(text):
        metadata[0] = text

    if os.environ.get("FAKE_TORCH", "2.11") not in ("1.13", "2.0"):

        def _cuda_isHistoryEnabled():
            return history["enabled"]
