"""What `plimsoll watch` shows of this process: a file that is written about once a second. Asks the
allocator's own counters, never the device."""

import atexit
import json
import os
import socket
import time

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class Status:
    def __init__(self, run, history):
        self.run = run
        self.torch = history.torch
        self.device = history.device
        self.common = run.load("plimsoll_history")
        self.folder = None
        self.name = ""
        self.failed = False

    def report(self, steps):
        if self.failed:
            return
        try:
            self.write(steps)
        except Exception as error:
            self.failed = True  # once is enough
            self.run.log("reporting to watch failed: %s: %s" % (type(error).__name__, error))

    def write(self, steps):
        if self.folder is None:
            # Several machines may share the folder.
            host = socket.gethostname().replace("/", "_")
            hook = self.run.hook
            folder = self.run.load("plimsoll_files").Folder
            self.folder = folder(hook) if hook else self.enter_register(folder(self.run.folder))
            self.name = "%s.pid%d.status" % (host, os.getpid())
        devices = map(self.of_device, range(self.device.device_count()))
        text = json.dumps(
            {
                "schema": "plimsoll.status/1",
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "rank": self.common.rank(),
                "wrote": time.time(),
                "optimizer_steps": steps,
                "budget": int(os.environ.get("PLIMSOLL_RUN_BUDGET", "0")) or None,
                "pinned": self.pinned(),
                "devices": [device for device in devices if device is not None],
            }
        )
        self.folder.replace_text(self.name, text)

    def enter_register(self, run):
        """Where `plimsoll watch` looks for runs; `plimsoll run` has entered its own."""
        register = self.run.load("plimsoll_register")
        folder = run.inside("status")
        entry = register.enter(folder.path)
        if entry is not None:
            atexit.register(register.leave, entry, os.getpid())
        return folder

    def pinned(self):
        """Bytes of the host that PyTorch's allocator has page-locked, in use or cached; None where
        this release does not tell. Its own counters: nothing is asked of the device."""
        statistics = getattr(self.torch.cuda.memory, "host_memory_stats_as_nested_dict", None)
        try:
            told = statistics()
            # What is cached is in the one or in the other, by release.
            return int((told.get("reserved_bytes") or told["allocated_bytes"])["current"])
        except Exception:
            return None

    def of_device(self, device):
        # Asks the allocator, not the device.
        statistics = self.device.memory_stats_as_nested_dict(device)
        reserved = statistics.get("reserved_bytes", {}).get("all", {})
        allocated = statistics.get("allocated_bytes", {}).get("all", {})
        if not reserved.get("peak"):
            return None
        uuid = getattr(self.device.get_device_properties(device), "uuid", None)
        return {
            "device": device,
            "gpu": self.driver_index(device),
            "uuid": str(uuid).lower() if uuid is not None else None,
            "allocated": allocated["current"],
            "reserved": reserved["current"],
            "peak_allocated": allocated["peak"],
            "peak_reserved": reserved["peak"],
            "private_pools": self.private_pools(device),
            "rejections": statistics.get("num_oom_rejections"),
        }

    def private_pools(self, device):
        """Bytes in pools of CUDA graphs and of MemPools; None where this release does not tell."""
        try:
            return int(self.device.private_pool_memory_reserved(device))
        except Exception:
            return None

    def driver_index(self, device):
        """As the driver counts, which knows nothing of CUDA_VISIBLE_DEVICES, or of ROCm's."""
        told = [os.environ[name] for name in _VISIBLE if name in os.environ]
        if not told:
            return device
        if len(set(told)) > 1:
            return None  # one counts those that the other lets through
        visible = [entry.strip() for entry in told[0].split(",")]
        return self.common.whole_number(visible[device]) if device < len(visible) else None
