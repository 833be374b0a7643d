"""What the extension module has, by release."""

import os

observers = []
metadata = [""]
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
