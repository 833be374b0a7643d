#!/usr/bin/env python3
"""Runs a script as it stands on a GPU that nothing else uses, and adds what it took to a file:

    peaks.py OUT.jsonl NAME SCRIPT [ARGUMENT…]
"""

import atexit
import json
import pathlib
import runpy
import sys

import torch

out, name, script = sys.argv[1:4]
sys.argv = sys.argv[3:]


@atexit.register
def tell():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    row = {
        "name": name,
        "torch": torch.__version__,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "device": total - free,  # as its end leaves it
    }
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")


sys.path.insert(0, str(pathlib.Path(script).resolve().parent))
runpy.run_path(script, run_name="__main__")
