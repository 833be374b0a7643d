#!/usr/bin/env python3
"""How each release reads PYTORCH_CUDA_ALLOC_CONF: conf_table.py BUILD OUT.json

BUILD is the folder that build.sh filled. Each string goes through the parser of each release, once as
an environment variable and once through setAllocatorSettings. A result is {"accepted": {what differs
from the defaults}} or {"error": text, "at": "load" | "first use" | "call"}; "said" holds warnings.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

STRINGS = """\
expandable_segments:True
expandable_segments:true
max_split_size_mb:19
max_split_size_mb:20
max_split_size_mb:21
max_split_size_mb:abc
max_split_size_mb:-1
max_split_size_mb:
max_split_size_mb
:

,
foo:1
expandable_segments:True,,max_split_size_mb:64
expandable_segments:True,
,expandable_segments:True
 expandable_segments : True\x20
expandable_segments:False
expandable_segments:1
expandable_segments:
max_split_size_mb:64mb
max_split_size_mb: 64
max_split_size_mb:64.5
max_split_size_mb:64 garbage_collection_threshold:0.8
Max_split_size_mb:64
max_split_size_mb=64
max_split_size_mb:64;garbage_collection_threshold:0.8
roundup_power2_divisions:4
roundup_power2_divisions:3
roundup_power2_divisions:0
roundup_power2_divisions:1
roundup_power2_divisions:[256:1,512:2,1024:4,>:8]
roundup_power2_divisions:[256:1, 512:2, 1024:4, >:8]
roundup_power2_divisions:[256:1,512:2,1024:4,>:8
roundup_power2_divisions:[300:1]
roundup_power2_divisions:[]
roundup_power2_divisions:[256:3]
roundup_power2_divisions:[256:1,512:2,1024:4]
roundup_power2_divisions:[>:8]
roundup_power2_divisions:[512:2,256:4]
roundup_power2_divisions:[65536:2]
garbage_collection_threshold:0.8
garbage_collection_threshold:0
garbage_collection_threshold:0.0
garbage_collection_threshold:1.0
garbage_collection_threshold:1.5
garbage_collection_threshold:abc
max_non_split_rounding_mb:32
max_non_split_rounding_mb:20
max_non_split_rounding_mb:10
large_segment_size_mb:64
large_segment_size_mb:11
large_segment_size_mb:10
large_segment_size_mb:64,max_split_size_mb:32
max_split_size_mb:32,large_segment_size_mb:64
large_segment_size_mb:64,max_split_size_mb:65
max_split_size_mb:65,large_segment_size_mb:64
large_segment_size_mb:64,max_non_split_rounding_mb:32
max_non_split_rounding_mb:32,large_segment_size_mb:64
backend:native
backend:cudaMallocAsync
backend:foo
backend:cudaMallocAsync,max_split_size_mb:64
per_process_memory_fraction:0.5
per_process_memory_fraction:1.0
per_process_memory_fraction:0
per_process_memory_fraction:1.5
throw_on_cudamalloc_oom:True
throw_on_cudamalloc_oom:true
release_lock_on_cudamalloc:True
release_lock_on_hipmalloc:True
pinned_use_cuda_host_register:True
pinned_use_hip_host_register:True
pinned_num_register_threads:3
pinned_num_register_threads:8
pinned_num_register_threads:256
pinned_use_background_threads:True
pinned_reserve_segment_size_mb:100
pinned_max_round_threshold_mb:64
pinned_max_cached_size_mb:64
pinned_free_catch_all:True
graph_capture_record_stream_reuse:True
expandable_segments_reserve:0.5
expandable_segments_reserve_by_class:[a:0.5]
expandable_segments_handle_type:posix_fd
max_split_size_mb:64,max_split_size_mb:128
max_split_size_mb:99999999999999999999
max_split_size_mb:18446744073709551615
max_split_size_mb:17592186044416
""".split("\n")[:-1]

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
BOTH = (
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
)


def run(program, variables, argument=None):
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    environment.update(variables)
    command = [str(program)] + ([argument] if argument is not None else [])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = done.stderr
        match = re.search(r"what\(\):\s+(.*?)(\nException raised from|\n*$)", text, re.DOTALL)
        error = match[1].strip() if match else text.strip() or f"died with {done.returncode}"
        # A crash may come later than the load, but there is no way to tell.
        return {"error": error, "at": "load"}
    result = json.loads(done.stdout)
    if done.stderr.strip():
        result["said"] = done.stderr.strip()
    return result


def outcome(result, defaults):
    """Only what differs from the defaults, to be readable."""
    if "error" in result:
        return result
    said = result.pop("said", None)
    changed = {k: v for k, v in result.items() if defaults.get(k) != v}
    return {"accepted": changed, **({"said": said} if said else {})}


def table(program):
    defaults = run(program, {})
    rows = {}
    for string in STRINGS:
        rows[string] = {
            "environment": outcome(run(program, {VARIABLES[0]: string}), defaults),
            "call": outcome(run(program, {}, string), defaults),
        }
    # Which variables are read at all, and which of two wins.
    alone = {}
    for name in VARIABLES:
        result = outcome(run(program, {name: "max_split_size_mb:64"}), defaults)
        alone[name] = result
    both = {}
    for first, second in BOTH:
        result = run(program, {first: "max_split_size_mb:64", second: "max_split_size_mb:128"})
        size = result.get("max_split_size", 0) >> 20
        both[f"{first} and {second}"] = {64: first, 128: second}.get(size, result)
    # A call after a variable: which settings survive that the call does not name?
    after = run(
        program,
        {VARIABLES[0]: "max_split_size_mb:64,garbage_collection_threshold:0.8,"
         "roundup_power2_divisions:4,expandable_segments:True"},
        "release_lock_on_cudamalloc:True",
    )
    return {
        "defaults": defaults,
        "strings": rows,
        "variable alone": alone,
        "of two variables": both,
        "call after the variable": outcome(after, defaults),
    }


def main():
    build, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    versions = sorted(
        (p.parent.name for p in build.glob("2.*/conf")), key=lambda v: [int(x) for x in v.split(".")]
    )
    tables = {version: table(build / version / "conf") for version in versions}
    out.write_text(json.dumps(tables, indent=1, sort_keys=False) + "\n")
    print(f"{out}: {len(versions)} releases, {len(STRINGS)} strings")


if __name__ == "__main__":
    main()
