#!/usr/bin/env python3
"""Records what the allocators of releases do: record.py RELEASES BUILD OUT [--only ID…] VERSION…

Each case of cases.json that the release knows (its "since") becomes OUT/VERSION/ID.pickle.xz, a file
as torch.cuda.memory._dump_snapshot() of that release would write it, and OUT/VERSION/ID.json with
the case, the counters of torch.cuda.memory_stats(), and what no snapshot says:
  marks     [entry, call, pool]: calls without an entry of their own, and before which entry they were
  stopped   the message, where the allocator failed with anything but a lack of memory
  counters  address of a segment alive at the end -> its registration_counter (2.11 and later)
  driver    how often each call of the driver was made
"""

import argparse
import json
import lzma
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
# Who called the allocator, as a Python stack: readers look for empty_cache.
FRAMES = {
    "empty_cache": [{"name": "empty_cache", "filename": "torch/cuda/memory.py", "line": 1}],
    "make": [{"name": "make", "filename": "load.cc", "line": 1}],
    "drop": [{"name": "drop", "filename": "load.cc", "line": 2}],
    "make_at_address": [{"name": "make_at_address", "filename": "load.cc", "line": 3}],
    None: [],
}


def minor_of(version):
    return int(version.split(".")[1])


def trace_entry(entry, minor):
    """One entry under the names of that release."""
    action, address, size, stream, time, place, *more = entry
    result = {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": stream,
        "time_us": time,
    }
    if minor >= 8:
        result["compile_context"] = more[1]
    if minor >= 10:
        result["user_metadata"] = more[2]
    if minor >= 15 and more[3]:
        result["internal_metadata"] = more[3]
    if minor >= 12:
        result["pool_id"] = tuple(more[0])
    result["frames"] = FRAMES[place]
    return result


def pick(found, *keys):
    return {key: found[key] for key in keys if key in found}


def segment(found):
    """A segment without what is ours alone."""
    return {
        **pick(found, "device", "address", "total_size", "allocated_size", "active_size",
               "requested_size", "stream", "segment_type"),
        "segment_pool_id": tuple(found["segment_pool_id"]),
        "is_expandable": found["is_expandable"],
        "frames": FRAMES[found["place"]],
        "blocks": [
            {**pick(block, "address", "size", "requested_size", "state"),
             "frames": FRAMES[block["place"]]}
            for block in found["blocks"]
        ],
    }


def settings(found):
    result = pick(
        found, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold",
        "expandable_segments", "pinned_num_register_threads", "release_lock_on_cudamalloc",
        "pinned_use_cuda_host_register", "graph_capture_record_stream_reuse",
        "max_round_threshold", "max_cached_size")
    divisions = found["roundup_power2_divisions"]
    result["roundup_power2_divisions"] = {k: divisions[k] for k in sorted(divisions, key=int)}
    return result


def snapshot(result, minor):
    found = {
        "segments": [segment(s) for s in result["segments"]],
        "device_traces": [[trace_entry(e, minor) for e in result["trace"]]],
        "allocator_settings": settings(result["settings"]),
    }
    if minor >= 5:
        found["external_annotations"] = []
    if minor >= 14:
        found["host_segments"] = []
        found["host_traces"] = []
    return found


def figures(case, result, torch):
    """What torture.py writes beside a recording, and more."""
    spec = dict(case, family="torture")
    if result["fraction"] is not None:
        spec.setdefault("cap_gib", result["fraction"] * result["total"] / 2**30)
    stats = result["stats"]
    return {
        "spec": spec,
        "torch": torch,
        "gpu": "fake H200",
        "total": result["total"],
        "capacity": result["capacity"],
        "fraction": result["fraction"],
        "phases": [],
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "ooms": result["ooms"],
        "oom_messages": result["oom_messages"],
        "stopped": result["stopped"],
        "stats": stats,
        "marks": result["marks"],
        "counters": {
            s["address"]: s["registration_counter"]
            for s in result["segments"] if "registration_counter" in s
        },
        "driver": result["driver"],
    }


def run(program, case):
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_ALLOC_CONF")}
    if case["alloc_conf"]:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = case["alloc_conf"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as spec:
        json.dump(case, spec)
        spec.flush()
        done = subprocess.run(
            [program, spec.name], env=environment, capture_output=True, check=False
        )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(f"exit {done.returncode}: {' '.join(lines[:3])[:200]}")
    return json.loads(done.stdout)


def record(case, version, arguments):
    text = (arguments.releases / version / "torch/version.py").read_text()
    torch = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)[1]
    result = run(arguments.build / version / "load", case)
    out = arguments.out / version
    out.mkdir(parents=True, exist_ok=True)
    with lzma.open(out / f"{case['id']}.pickle.xz", "wb", preset=3) as file:
        pickle.dump(snapshot(result, minor_of(version)), file)
    summary = figures(case, result, torch)
    (out / f"{case['id']}.json").write_text(json.dumps(summary) + "\n")
    print(
        f"{version:7s} {case['id']:24s} {len(result['trace']):6d} entries"
        f" {summary['peak_allocated'] / 2**30:8.3f} allocated {summary['peak_reserved'] / 2**30:8.3f}"
        f" reserved, retries {summary['retries']} ooms {summary['ooms']}"
        + (f", STOPPED: {summary['stopped'][:120]}" if summary["stopped"] else ""),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("releases", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID")
    arguments = parser.parse_args()
    failed = 0
    for version in arguments.versions:
        for case in json.loads((HERE / "cases.json").read_text()):
            if minor_of(case.get("since", "2.0")) > minor_of(version):
                continue
            if arguments.only and case["id"] not in arguments.only:
                continue
            try:
                record(case, version, arguments)
            except (OSError, RuntimeError) as error:
                print(f"{version} {case['id']}: {error}", file=sys.stderr, flush=True)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
