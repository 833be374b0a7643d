#!/usr/bin/env python3
"""Makes the seeds in fuzz/corpus/<target>: small valid files and small hostile ones.

Other files there (found-*, hostile-*, hashes) are findings; this script leaves them alone.
"""

import gzip
import json
import lzma
import pathlib
import pickle
import random
import re
import sqlite3
import struct
import subprocess
import tempfile
import zlib

ROOT = pathlib.Path(__file__).parent / "corpus"
MIB = 1 << 20


def put(target, name, content):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


# ---- memory snapshots ------------------------------------------------------------------------------


def frame(line, name="forward", filename="train.py"):
    return {"filename": filename, "name": name, "line": line}


def snapshot():
    """As torch 2.13 writes it: every key that is known."""
    frames = [frame(57), frame(12, "__call__", "torch/nn/modules/module.py"), frame(3, "<module>")]
    a = 0x7F0000000000

    def entry(action, addr, size, time, **more):
        out = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000 + time,
               "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": frames}
        out.update(more)
        return out

    oom = entry("oom", 0, 1 << 40, 9)
    oom["device_free"] = oom.pop("addr")
    trace = [
        entry("segment_alloc", a, 20 * MIB, 1), entry("alloc", a, 3 * MIB + 5, 1),
        entry("alloc", a + 4 * MIB, MIB, 2, forward_frames=["  File \"train.py\", line 9, in f\n"]),
        entry("free_requested", a, 3 * MIB + 5, 3), entry("free_completed", a, 3 * MIB + 5, 4),
        entry("segment_map", a + 64 * MIB, 20 * MIB, 5, pool_id=(0, 1)),
        entry("alloc", a + 64 * MIB, 7 * MIB, 5, stream=94560, pool_id=(0, 1), frames=[]),
        entry("segment_unmap", a + 64 * MIB + 18 * MIB, 2 * MIB, 6), entry("snapshot", 0, 8 * MIB, 7),
        entry("workspace_snapshot", 0, 0, 8), oom,
    ]
    block = {"address": a, "size": 4 * MIB, "requested_size": 0, "state": "inactive", "frames": []}
    live = {"address": a + 4 * MIB, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": frames}
    rest = dict(block, address=a + 5 * MIB, size=15 * MIB, state="active_pending_free")
    segment = {"device": 0, "address": a, "total_size": 20 * MIB, "allocated_size": MIB, "active_size": MIB,
               "requested_size": MIB, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
               "is_expandable": False, "frames": frames, "blocks": [block, live, rest]}
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": 128 * MIB,
                "garbage_collection_threshold": 0.8, "expandable_segments": False,
                "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}}
    return {"segments": [segment, dict(segment, address=a + 64 * MIB, is_expandable=True, segment_pool_id=(0, 1),
                                       blocks=[dict(live, address=a + 64 * MIB)])],
            "device_traces": [trace, []], "allocator_settings": settings,
            "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 1},
                                     {"name": "step", "stage": "END", "device": 0, "time_us": 9}],
            "host_segments": [dict(segment, blocks=[])], "host_traces": [], "unknown": {"a": [None, 1.5, True]}}


def old_list():
    """As 1.13 wrote it: a list of segments, blocks with a history and no address."""
    history = [{"addr": 4096, "real_size": 500, "frames": [frame(1)]}]
    return [{"device": 0, "address": 4096, "total_size": 2 * MIB, "allocated_size": 512, "active_size": 512,
             "stream": 0, "segment_type": "small",
             "blocks": [{"size": 512, "state": "active_allocated", "history": history},
                        {"size": 2 * MIB - 512, "state": "inactive"}]}]


def old_dict():
    """As 2.0 wrote it: no times, an oom with device_free, frames of C++ as texts."""
    trace = [{"action": "segment_alloc", "addr": 4096, "size": 2 * MIB, "stream": 0},
             {"action": "alloc", "addr": 4096, "size": 500, "stream": 0, "frames": [frame(1)], "cpp_frames": ["f"]},
             {"action": "oom", "device_free": 77, "size": 1 << 33, "stream": 0}]
    return {"segments": old_list(), "device_traces": [trace]}


def jit_pickle():
    """As the C++ writer does it: protocol 2, LONG1 of eight bytes, one MARK … APPENDS a list."""
    def text(s):
        return b"X" + struct.pack("<I", len(s)) + s.encode() + b"r" + struct.pack("<I", text_count())

    def number(n):
        return b"\x8a\x08" + struct.pack("<q", n)

    count = iter(range(1000))

    def text_count():
        return next(count)

    entry = b"}(" + text("action") + text("alloc") + text("addr") + number(4096) + text("size") + number(512) + \
        text("stream") + number(0) + text("frames") + b"](e" + b"u"
    return b"\x80\x02}(" + text("segments") + b"](e" + text("device_traces") + b"](](" + entry + entry + b"ee" + b"u."


def pickles():
    whole = snapshot()
    for protocol in (2, 3, 4, 5):
        put("snapshot_pickle", f"whole-p{protocol}", pickle.dumps(whole, protocol))
    put("snapshot_pickle", "whole-p0", pickle.dumps(old_dict(), 0))
    put("snapshot_pickle", "list-1.13", pickle.dumps(old_list(), 4))
    put("snapshot_pickle", "history-2.0", pickle.dumps(old_dict(), 4))
    put("snapshot_pickle", "empty", pickle.dumps({"segments": [], "device_traces": [[]]}, 4))
    put("snapshot_pickle", "jit-writer", jit_pickle())
    data = pickle.dumps(old_dict(), 4)
    for n in (1, 2, 11, 40, len(data) // 2, len(data) - 1):
        put("snapshot_pickle", f"cut-{n}", data[:n])
    hostile_pickles()


def hostile_pickles():
    def bad(name, content):
        put("snapshot_pickle", "hostile-" + name, content)

    bad("global", b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00trueR.".replace(b"trueR", b"truetR"))
    bad("stack-global", b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.")
    bad("inst", b"(S'true'\nios\nsystem\n.")
    bad("newobj", b"\x80\x02cos\nsystem\n)\x81}b.")
    bad("persid", b"Psome-id\n.")
    bad("ext", b"\x80\x02\x82\x01.")
    bad("deep-lists", b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".")
    bad("deep-marks", b"\x80\x02" + b"(" * 5000 + b".")
    bad("deep-dicts", b"\x80\x04" + b"}\x8c\x01a" * 3000 + b"N" + b"s" * 3000 + b".")
    bad("self-list", b"\x80\x02]q\x00h\x00a.")
    bad("self-segments", b"\x80\x04}\x94\x8c\x08segments]\x94h\x01ash\x00.")
    bad("self-frames", b"\x80\x04}\x94\x8c\x08segments\x94]\x94}\x94\x8c\x06frames\x94h\x02sas.")
    bad("doubling", b"\x80\x02]q\x00" + b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1])
                                                for i in range(60)) + b".")
    bad("huge-memo", b"\x80\x02]r\xff\xff\xff\xff.")
    bad("huge-memo-get", b"\x80\x02j\xff\xff\xff\xff.")
    bad("huge-unicode8", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.")
    bad("huge-unicode", b"\x80\x02X\xff\xff\xff\xffabc.")
    bad("huge-bytes8", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc.")
    bad("huge-frame", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff].")
    bad("huge-long", b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".")
    bad("huge-long4", b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\x01" * 8 + b".")
    bad("stack-underflow", b"\x80\x02a.")
    bad("setitems-odd", b"\x80\x02}(Nu.")
    bad("pop", b"\x80\x0200.")
    bad("stop-first", b"\x80\x02.")
    bad("no-stop", b"\x80\x02]")
    bad("two-stops", b"\x80\x02]..")
    bad("unknown-opcode", b"\x80\x02\xff.")
    bad("unhashable-key", b"\x80\x02}]Ns.")
    wrong = {"segments": {"a": 1}, "device_traces": [[{"action": 7, "addr": "x", "size": [1]}], 5, {"b": None}]}
    bad("wrong-types", pickle.dumps(wrong, 4))
    huge = {"segments": [{"address": 2**64 - 1, "total_size": 2**63 - 1, "blocks": [{"size": 2**63 - 1}] * 3,
                          "device": 2**31}],
            "device_traces": [[{"action": "alloc", "addr": 2**64 - 1, "size": 2**63 - 1, "stream": 2**63}] * 3]}
    bad("huge-numbers", pickle.dumps(huge, 4))
    negative = {"segments": [{"address": -1, "total_size": -5, "device": -3, "blocks": [{"size": -7}]}],
                "device_traces": [[{"action": "alloc", "addr": -1, "size": -1, "time_us": -1}]]}
    bad("negative", pickle.dumps(negative, 4))


def json_snapshots():
    put("snapshot_json", "whole", json.dumps(snapshot()))
    put("snapshot_json", "indented", json.dumps(old_dict(), indent=1))
    put("snapshot_json", "list-1.13", json.dumps(old_list()))
    put("snapshot_json", "empty", '{"segments": [], "device_traces": []}')
    text = json.dumps(old_dict())
    for n in (1, 15, 100, len(text) // 2, len(text) - 1):
        put("snapshot_json", f"cut-{n}", text[:n])
    put("snapshot_json", "hostile-deep", '{"segments": ' + "[" * 5000)
    put("snapshot_json", "hostile-types",
        '{"segments": {"a": 1}, "device_traces": [[{"action": 7, "addr": "x", "size": [1]}], 5, {"b": null}]}')
    put("snapshot_json", "hostile-numbers",
        '{"segments": [{"address": 18446744073709551615, "total_size": 1e308, "blocks": [{"size": -1}]}],'
        ' "device_traces": [[{"action": "alloc", "addr": 1e400, "size": NaN}]]}')
    put("snapshot_json", "hostile-utf8", b'{"segments": [{"segment_type": "\xff\xfe"}]}')
    past_the_end = {"addr": 2**64 - 4096, "size": 1 << 20, "stream": 0}
    put("snapshot_json", "hostile-wrap", json.dumps({"segments": [], "device_traces": [
        [{"action": action, **past_the_end} for action in ("segment_alloc", "alloc", "segment_free")]]}))


# ---- texts -----------------------------------------------------------------------------------------

MESSAGES = {
    "1.0": "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.92 GiB total capacity; "
           "9.87 GiB already allocated; 18.50 MiB free; 120.33 MiB cached)",
    "1.8": "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB (GPU 1; 15.90 GiB total capacity; 7.50 GiB "
           "already allocated; 8.00 GiB free; 7.95 GiB allowed; 7.60 GiB reserved in total by PyTorch)",
    "2.1": "[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total "
           "capacty of 79.15 GiB of which 200.31 MiB is free. Process 21422 has 23.57 GiB memory in use. Of the "
           "allocated memory 22.00 GiB is allocated by PyTorch, and 400.00 MiB is reserved by PyTorch but unallocated.",
    "2.9": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
           "139.80 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process has 138.29 GiB memory in "
           "use. 130.00 GiB allowed; Of the allocated memory 120.00 GiB is allocated by PyTorch, with 1.20 GiB "
           "allocated in private pools (e.g., CUDA Graphs), and 10.00 GiB is reserved by PyTorch but unallocated. If "
           "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "async": "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 10.00 GiB\n"
             "Requested               : 2.00 GiB\nDevice limit            : 11.00 GiB\nFree (according to CUDA): 1.00 MiB\n"
             "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n",
    "hip": "HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.98 GiB of which 0 bytes is free.",
    "mps": "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 384.00 KB, max allowed: 9.07 GB). "
           "Tried to allocate 1.50 GB on private pool.",
    "xpu": "XPU out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 15.00 GiB of which 1.00 GiB is free.",
    "raw": "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "absurd": "CUDA out of memory. Tried to allocate more than 1EB memory.",
    "rejected": "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                "per_process_memory_fraction limit. Requested size: 1.00 GiB",
    "libraries": "CUBLAS_STATUS_ALLOC_FAILED\ncuDNN error: CUDNN_STATUS_NOT_SUPPORTED.\n"
                 "NCCL WARN Failed to CUDA calloc 6291456 bytes\n",
    "host": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes.\n"
            "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0\n",
    "tf": "ResourceExhaustedError:  OOM when allocating tensor with shape[32,1024,64,64] and type float on "
          "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    "jax": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.\n"
           "BufferAssignment OOM Debugging.\nPeak buffers:\n\tBuffer 1:\n\t\tSize: 1.50GiB\n\t\tOperator: "
           "op_name=\"jit(f)/dot_general\" source_file=\"train.py\" source_line=12\n",
}

SUMMARY = """|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 1            |        cudaMalloc retries: 2         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   1024 MiB |  15980 MiB |   2048 GiB |   2047 GiB |
|       from large pool |   1000 MiB |  15900 MiB |   2040 GiB |   2039 GiB |
|       from small pool |     24 MiB |     80 MiB |   8192 MiB |   8168 MiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  16000 MiB |  16000 MiB |  16000 MiB |      0 B   |
|---------------------------------------------------------------------------|
| Allocations           |     500    |    1200    |   77 K     |   76 K     |
|===========================================================================|
"""


def texts():
    for name, message in MESSAGES.items():
        put("error_text", name, message)
    traceback = 'Traceback (most recent call last):\n  File "train.py", line 57, in forward\n    x = self.conv(x)\n'
    put("error_text", "log", traceback + "\n".join(MESSAGES.values()))
    put("error_text", "coloured", "\x1b[31m2026-01-01 00:00:00,123 ERROR [rank1]: " + MESSAGES["2.9"] + "\x1b[0m\n")
    put("error_text", "wrapped", "\n".join(MESSAGES["2.9"][i:i + 40] for i in range(0, len(MESSAGES["2.9"]), 40)))
    for n in (25, 60, 150, 300):
        put("error_text", f"cut-{n}", MESSAGES["2.9"][:n])
    put("error_text", "hostile-sizes", "CUDA out of memory. Tried to allocate 99999999999999999999999999.99 GiB. GPU "
        "99999999999 has a total capacity of -1.00 GiB of which nan GiB is free. Process 99999999999999999999 has 1e99 "
        "GiB memory in use.")
    put("error_text", "hostile-repeat", "CUDA out of memory. Tried to allocate " * 200)
    put("error_text", "hostile-bytes", b"\x00\xff\xfeCUDA out of memory\x00. Tried \xc3")
    put("memory_summary", "whole", SUMMARY)
    put("memory_summary", "in-a-log", "step 5\n" + SUMMARY + "\n" + MESSAGES["2.9"] + "\n" + SUMMARY)
    put("memory_summary", "hostile-sizes", SUMMARY.replace("15980", "99999999999999999999").replace("1024", "-1"))
    for n in (80, 400, 700):
        put("memory_summary", f"cut-{n}", SUMMARY[:n])


# ---- profiler --------------------------------------------------------------------------------------


def memory(ts, size, address=4096, kind=1, device=0, name="[memory]", **more):
    args = {"Total Reserved": 2 * MIB, "Total Allocated": 512, "Bytes": size, "Device Id": device, "Device Type": kind,
            "Addr": address}
    args.update(more)
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": name, "pid": 1, "tid": 1, "ts": ts, "args": args}


def span(cat, name, ts, dur):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {"x": [[]]}}


def traces():
    events = [span("python_function", "train.py(57): forward", 1.5, 100), span("cpu_op", "aten::empty", 3, 5),
              span("python_function", "<built-in method f of object at 0x7f>", 2, 50), memory(4.25, 512), memory(40, -512),
              span("user_annotation", "ProfilerStep#3", 0, 200), memory(50, 512, kind=0, device=-1), memory(2, 1024, 8192),
              memory(60, 1 << 40, name="[OutOfMemory]"), memory(70, 5, device=1), {"ph": "M", "name": "process_name"}]
    trace = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "totalGlobalMem": 1}],
             "baseTimeNanoseconds": 1790857026000000000, "traceEvents": events, "traceName": "x"}
    put("chrome_trace", "whole", json.dumps(trace))
    put("chrome_trace", "array", json.dumps(events))
    put("chrome_trace", "no-memory", json.dumps({"traceEvents": events[:3]}))
    text = json.dumps(trace)
    for n in (1, 120, 700, len(text) - 2):
        put("chrome_trace", f"cut-{n}", text[:n])
    nested = [span("cpu_op", f"f{i}", i, 1000 - 2 * i) for i in range(40)] + [memory(i, 1) for i in range(40)]
    put("chrome_trace", "nested", json.dumps({"traceEvents": nested}))
    put("chrome_trace", "hostile-numbers", json.dumps({"baseTimeNanoseconds": -2**63, "traceEvents": [
        memory(1e300, 5), memory(1, -2**63), memory(1, 2**63 - 1, 2**64 - 1), memory(2, 1, device=2**31),
        memory("1", "512", "77"), memory(None, None), memory(-8e15, 1, kind=-1), memory(8.9e15, 1),
        span("cpu_op", "a", 8.9e15, 8.9e15)]}))
    put("chrome_trace", "hostile-deep", '{"traceEvents": [{"args": ' + "[" * 5000)
    put("chrome_trace", "hostile-shapes", '{"traceEvents": {"traceEvents": [[{"name": "[memory]"}]]}, "traceEvents": '
        '[{"args": [{"Bytes": 1}], "name": {"name": "[memory]"}}, 7], "traceEvents": []}')
    rows = [[0] + [i * 512] * 8 for i in range(5)]
    put("memory_timeline", "rows", json.dumps([[1794713319040236 + i for i in range(5)], rows]))
    raw = [[-1, 1, 512, 0], [1794713319040236000, 2, 64, 7], [1794713319040236500, 3, -64, 7],
           [1794713319040236500, 3, 64, 4], [1794713319040238000, 4, -64, 4]]
    put("memory_timeline", "raw", json.dumps(raw))
    put("memory_timeline", "html", "<html>\n<head><title>GPU Memory Timeline HTML</title></head>\n<body>\n"
        "<img src='data:image/png;base64,iVBORw0KGgo'>\n</body></html>")
    put("memory_timeline", "cut", json.dumps(raw)[:60])
    put("memory_timeline", "hostile", '[[1, 2, 9223372036854775807, 0], [2, 2, 9223372036854775807, 0], [1e300, "a", null,'
        ' {}], [[[[]]]], {"a": [1, 2, 3, 4]}, [-9223372036854775808, 1, -9223372036854775808, 7]]')
    put("memory_timeline", "hostile-rows", "[[1, -1, null], [[0,1,2,3,4,5,6,7,8], [[]], [0], 7, {}], [], []]")
    put("memory_timeline", "hostile-deep", "[" * 5000)


def databases():
    source = ROOT.parent.parent / "tests" / "data" / "nsys"
    for path in sorted(source.glob("*.sqlite")):
        put("nsys", path.stem, path.read_bytes())
    usage = (source / "usage.sqlite").read_bytes()
    put("nsys", "cut", usage[:3000])
    put("nsys", "header-only", usage[:100])
    put("nsys", "hostile-loop", usage[:1024] + usage[:1024] * 10)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.sqlite"
        db = sqlite3.connect(path)
        db.execute("PRAGMA page_size=512")
        db.executescript(
            "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER PRIMARY KEY, address, bytes,"
            " memoryOperationType AS (abs(start) % 2) VIRTUAL) ;"
            "CREATE INDEX i ON CUDA_GPU_MEMORY_USAGE_EVENTS (bytes);"
            "CREATE TRIGGER t AFTER INSERT ON CUDA_GPU_MEMORY_USAGE_EVENTS BEGIN SELECT 1; END;"
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS (start, address, bytes) VALUES (1, 2, 3), (2, 2, 3)")
        db.commit()
        db.close()
        put("nsys", "generated-column", path.read_bytes())


def packed():
    content = json.dumps(old_dict()).encode()
    put("unpack", "gzip", gzip.compress(content, mtime=0))
    put("unpack", "gzip-two-members", gzip.compress(content[:50], mtime=0) + gzip.compress(content[50:], mtime=0))
    put("unpack", "gzip-cut", gzip.compress(content, mtime=0)[:60])
    put("unpack", "gzip-bomb", gzip.compress(bytes(1 << 20), mtime=0))
    put("unpack", "gzip-junk-behind", gzip.compress(b"a", mtime=0) + b"junk")
    put("unpack", "xz", lzma.compress(content))
    put("unpack", "xz-cut", lzma.compress(content)[:60])
    put("unpack", "xz-bomb", lzma.compress(bytes(1 << 20)))
    zstd = subprocess.run(["zstd", "-c", "-q"], input=content, stdout=subprocess.PIPE, check=True).stdout
    put("unpack", "zstd", zstd)
    put("unpack", "zstd-cut", zstd[:60])
    put("unpack", "zstd-two-frames", zstd + zstd)
    put("unpack", "plain", b"plain")


def settings():
    """A release, a line break, a PYTORCH_CUDA_ALLOC_CONF string."""
    everything_at_once = (
        "expandable_segments:True,max_split_size_mb:128,large_segment_size_mb:64,max_non_split_rounding_mb:96,"
        "garbage_collection_threshold:0.8,roundup_power2_divisions:4,per_process_memory_fraction:0.25,"
        "throw_on_cudamalloc_oom:True,graph_capture_record_stream_reuse:True,expandable_segments_reserve:40G,"
        "expandable_segments_reserve_by_class:[x:0.5,y:4G]")
    pinned = ("pinned_use_cuda_host_register:True,pinned_num_register_threads:8,pinned_use_background_threads:True,"
              "pinned_reserve_segment_size_mb:64,pinned_free_catch_all:True,pinned_max_round_threshold_mb:64,"
              "pinned_max_cached_size_mb:64,release_lock_on_cudamalloc:False")
    divisions = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    for name, release, conf in (
            ("all", "2.15.0+cu130", everything_at_once),
            ("pinned", "2.13", pinned),
            ("list", "2.11", divisions),
            ("list-old", "2.9", divisions),
            ("list-open", "2.2 to 2.9", "roundup_power2_divisions:[64:8,"),
            ("backend", "2.4", "backend: cudaMallocAsync,max_split_size_mb:128"),
            ("backends", "2.12", "backend:native,backend:cudaMallocAsync"),
            ("negative", "2.14 or newer", "max_split_size_mb:-1,large_segment_size_mb:99999999999999999"),
            ("separators", "2.10", "max_split_size_mb,128:expandable_segments]True"),
            ("refused", "2.6", "max_split_size_mb:20,expandable_segments:true"),
            ("unknown", "2.11", "max_split_size:128"),
            ("share", "2.11", "garbage_collection_threshold:nan"),
            ("reserve", "2.15", "expandable_segments_reserve:1e20G,expandable_segments_reserve:x"),
            ("divisions", "2.15", "roundup_power2_divisions:9223372036854775808")):
        put("allocator_settings", name, f"{release}\n{conf}")
    put("allocator_settings", "empty", "")


def allocator():
    """Requests of every kind, under every kind of settings: two bytes of settings, then three an event."""
    rng = random.Random(4)
    for bits in (1, 2, 3, 0x05, 0x0d, 0x19, 0x3b, 0x7f):
        head = bytes([bits, 2, 5, rng.randrange(256)])
        put("allocator", f"mixed-{bits:02x}", head + rng.randbytes(1200))
        # Requests that are mostly served and then freed.
        events = b"".join(bytes([rng.choice((0, 0, 4, 2, 3, 8, 10, 11)), rng.randrange(256), rng.randrange(24)])
                          for _ in range(400))
        put("allocator", f"orderly-{bits:02x}", head + events)


def packings():
    """Tables of buffers."""
    for name, text in (
            ('extremes.csv', '\ufeffid,begin,upper,size,alignment\n0,-9223372036854775808,9223372036854775807,1152921504606846000,1\n1,0,1,3,7\n'),
            ('fourteen.csv', 'id,lower,upper,size\n0,3,6,2\n1,6,10,3\n2,1,3,1\n3,6,9,1\n4,3,8,9\n5,5,8,3\n6,1,6,4\n7,0,5,5\n8,3,5,5\n9,4,10,6\n10,1,7,7\n11,8,9,3\n12,3,7,5\n13,1,10,5\n'),
            ('no_lifetime.csv', 'id,lower,upper,size\na,5,5,1\n'),
            ('no_size.csv', 'id,lower,upper\n'),
            ('other_names.csv', 'size,end,start,id,alignment,hint,gaps\r\n4,2,0,"a,b",8,-1,\r\n512,9,1,c,,0,3-5@1:2\r\n'),
            ('plain.csv', 'id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n'),
    ):
        put("packing_csv", name, text)


def steps():
    """One of every event and of every kind of argument, rules that look at their arguments, and lies."""
    strings = ["weight", "train.py:7 in step", "layer"]

    def name(text):
        if text not in strings:
            strings.append(text)
        return strings.index(text)

    def call(op, args, results, new, thread=0, **keywords):
        return ["call", name(op), 1, 2, thread, args, keywords, [{"t": r} for r in results], new]

    pair = [2, 3]
    layouts = [["float32", [10, 10], [10, 1]], ["float32", [pair, 10], [10, 1]], ["bool", [], []],
               ["bfloat16", [pair, 4, 64, 64], [16384, 4096, 64, 1]], ["float32", [pair, pair], [pair, 1]],
               ["float32", [pair, 8, 14, 14], [1568, 196, 14, 1]], ["float32", [8, 8, 3, 3], [72, 9, 3, 1]],
               ["float32", [8], [1]]]
    image, heads = [157 * 80, 235 * 80], [65536, 98304]

    def one(first, before):
        s = list(range(first, first + 8))
        events = [["step"], ["phase", "inputs"], call("aten.randn.default", [[{"n": pair}, 10]], [[s[0], 1, 0]],
                                                      [[s[0], [80, 120], 0]], device={"text": 2})]
        if before:
            events.append(["free", before])
        return events + [
            ["label", "input", [s[0]]], ["phase", "forward"],
            call("aten.addmm.default", [{"t": [1, 0, 6]}, {"t": [s[0], 1, 0]}], [[s[1], 1, 4]], [[s[1], [80, 120], 0]]),
            call("aten.mm.default", [{"t": [s[1], 1, 4]}], [[s[2], 4, 0]], [[s[2], [16, 36], 0]]),
            call("plimsoll.attention", [{"t": [s[1], 3, 4]}] * 3 + [None, 0.1, True],
                 [[s[3], 3, 4], [s[4], 7, 0]], [[s[3], heads, 0], [s[4], 32, 1]], is_causal=True),
            call("aten.convolution.default", [{"t": [s[0], 5, 4]}, {"t": [2, 6, 2]}, None, [1, 1], [1, 1], [1, 1], False,
                                              [0, 0], 1], [[s[5], 5, 4]], [[s[5], image, 0]]),
            ["phase", "backward"],
            call("aten.add.Tensor", [{"t": [s[0], 1, 0]}, {"t": [s[1], 1, 0]}], [[s[6], 1, 0]], [[s[6], [80, 120], 0]], 1),
            call("mylib.fancy.default", [1e3, -1, [[]], {}], [[s[7], 7, 1]], [[s[7], 32, 0]], 1),
            ["label", "gradient", [s[7]]], *[["free", x] for x in s[1:]], ["phase", "optimizer"],
            call("aten._foreach_add_.Scalar", [[{"t": [1, 0, 2]}], 1], [], [])]

    events = [["parameter", 1, 0, 0, True], ["buffer", 2, 6, -1], *one(3, 0), *one(11, 3), *one(19, 11)]
    whole = {"schema": "plimsoll.step/1", "torch": "2.13.0", "gpu": "H200", "model": "Net", "batches": pair,
             "strings": strings, "layouts": layouts, "variants": [{"precision": "as_written", "events": events}],
             "notes": ["assumed"]}
    text = json.dumps(whole, separators=(",", ":"))
    put("step_file", "whole", text)
    over = {**whole, "schema": "plimsoll.step/2", "dimensions": ["batch", "length"],
            "points": [[2, 8], [3, 8], [2, 16], [3, 16], [2, 24]],
            "numbers": [[2, 3, 2, 3, 2], [8, 8, 16, 16, 24], [512, 768, 2048, 3072, 4608]],
            "layouts": [["float32", [[0], [1], [1]], [64, 8, 1]]],
            "variants": [{"precision": "as_written", "events": [["step"], ["step"], ["step"], ["call", 0, -1, -1, 0,
                [{"n": [0]}], {}, [{"t": [1, 0, 0]}], [[1, [2], 0]]], ["free", 1]]}]}
    put("step_file", "lengths", json.dumps(over))
    data = {"batches": 2, "complete": True, "shapes": [[2, [[2, 8]]]], "lengths": [[3, 2], [8, 2]],
            "heaviest": [{"batch": 1, "samples": [3], "shapes": [[2, 8]]}]}
    stands = {**over, "own_batch": 2, "sequence": [0, 2, [2, 40]], "data": data}
    put("step_file", "sequence", json.dumps(stands))
    put("step_file", "as_it_stands", json.dumps({**whole, "as_it_stands": stands}))
    put("step_file", "packed", gzip.compress(text.encode(), mtime=0))
    line = "float32 nchw 8,14,14 8,3,3 1,1 1,1 1,1 1\t0\t1:100 4:400\t1:0 4:0\t"
    asked = {"gpu": "H200", "cudnn": "9.19.0", "batches": [[1, 2, 4]], "convolutions": [line]}
    put("step_file", "asked", json.dumps({**whole, "asked": asked}))
    put("step_file", "hostile-asked", json.dumps({**whole, "asked": {**asked, "batches": [[1]], "convolutions": [
        line.replace("1:100 4:400", "1:1125899906842624 1073741824:1125899906842624"), line + "\t9"]}}))
    lists = {"given_to": ["layer", "h.0"], "changed_by": ["layer"]}
    put("step_file", "lists", json.dumps({**whole, "lists": lists}))
    release = {"edits": [["variable", 0, 1], ["gradients", 2, -1]], "frees": [[6, 4], [len(events), 19]]}
    whole["variants"][0]["releases"] = [release, {**release, "edits": [["graph", 0, -1]]}]
    put("step_file", "releases", json.dumps(whole, separators=(",", ":")))
    for length in (1, 40, 400, len(text) - 1):
        put("step_file", f"cut-{length}", text[:length])
    put("step_file", "schema-number", '{"schema":1,"note":"plimsoll.step/1"}')
    put("step_file", "hostile-deep", text.replace("[[]]", "[" * 2000 + "]" * 2000))
    put("step_file", "hostile-float", text.replace("1000.0", "1e999"))
    put("step_file", "hostile-numbers", text.replace("-1,[[]]", "[-9223372036854775808,18446744073709551615],[[]]"))
    put("step_file", "hostile-sizes", text.replace("[80,120]", "[1,4503599627370496]"))
    put("step_file", "hostile-layout", text.replace("[[2,3],10]", "[[0,4294967296],4294967296]"))
    put("step_file", "hostile-falling", text.replace("[[2,3],10]", "[[900,1],10]"))
    put("step_file", "hostile-storage", text.replace('["free",18]', '["free",3000]'))
    put("step_file", "no-results", re.sub(r'\[\{"t":\[\d+,1,0\]\}\],\[\[', "[],[[", text))

    # Without checksums: the target adds them.
    header = '{"schema":"plimsoll.calibration/2","gpu":"H200","batches":[[1,2,4,8,32]]}\n'
    key = " nchw 64,56,56 64,3,3 1,1 1,1 1,1 1\t0\t"
    good = header + f"float32{key}1:100 8:800 32:3200\t1:7\t1:9\nbfloat16{key}2:1 4:5\t\t\n"
    put("calibration", "whole", good)
    put("calibration", "cut", good[:150])
    put("calibration", "header", header)
    put("calibration", "other", header.replace("/2", "/3"))
    put("calibration", "broken-lines", header + f"float32{key}x:y 1 ::\t\n\t\t\nfloat32\n")
    put("calibration", "unsorted", header + f"float32{key}8:1 2:9 2:3 1:7\t4:4 4:9\t1:-5 2:-9")


def train_states():
    """Whole files, and indices with the byte before them that says how many zeros come first."""
    def index(tensors, **values):
        listed = [{"name": name, "type": kind, "sizes": sizes, "crc": zlib.crc32(content)}
                  for name, kind, sizes, content in tensors]
        return json.dumps({"tensors": listed, "values": values}).encode()

    def whole(tensors, **values):
        out = b"plimsoll train state 2\n"
        for _, _, _, content in tensors:
            out += bytes(-len(out) % 64) + content
        text = index(tensors, **values)
        return out + text + struct.pack("<QII", len(text), zlib.crc32(text), 0) + b"the end\n"

    tensors = [("parameter weight", "f32", [2, 3], bytes(range(24))), ("buffer", "bool", [], b"\1"),
               ("empty", "i64", [0, 5], b"")]
    good = whole(tensors, steps=3, rate=0.125, on=True, text="none")
    put("train_state", "whole", good)
    put("train_state", "cut", good[:-30])
    put("train_state", "no-tensors", whole([], steps=1))
    put("train_state", "former", b"plimsoll train state 1\n" + good[23:])
    put("train_state", "zip", b"PK\3\4archive/code/__torch__.py")
    # 41 zeros fill up to the first tensor; 8 * 8 - 41 = 23 belong to it.
    zeros = [("x", "i8", [23], bytes(23))]
    put("train_state", "framed", b"\x08" + index(zeros, steps=3))
    put("train_state", "framed-empty", b"\0" + index([], steps=-1, text="\x1b[2J"))
    put("train_state", "framed-huge", b"\x08" + index([("x", "f32", [1 << 40, 1 << 40], b"")]))
    put("train_state", "framed-deep", b"\0" + b"[" * 5000)


def safetensors():
    def whole(header, data=b""):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data

    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    put("safetensors", "one", whole({"__metadata__": {"format": "pt"}, "x": entry}, b"12345678"))
    put("safetensors", "empty", whole({}))
    put("safetensors", "gap", whole({"x": {**entry, "data_offsets": [4, 12]}}, b"123456789012"))
    put("safetensors", "deep", whole(b"[" * 5000))
    put("safetensors", "huge", b"\xff" * 8 + b"{}")


def host_records():
    def lines(*objects):
        return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in objects)

    def sample(time, *held, **more):
        return {"time": time, "available": 500, "swap_free": 0, "shm": 3, "group": 400,
                "oom_kills": {"group": 0, "machine": 0}, "held": list(held), "others": 0, **more}

    head = {"schema": "plimsoll.host/1", "host": "n1", "began": 100.5, "utc_offset": 3600, "memory": 1000, "swap": 0,
            "shm": 4, "group": {"path": "/job", "limit": 800}, "oom_kills": {"group": 0, "machine": 0}}
    main = {"process": 7, "started": 1, "parent": 1, "role": "main", "number": None, "rank": None, "command": "python"}
    worker = {"process": 8, "started": 2, "parent": 7, "role": "loader_worker", "number": 0, "rank": 0, "command": ""}
    grown = [sample(100 + t, [7, 9, 0, 5, 2], [8, t << 30, 1 << 30, None, 1 << 28]) for t in range(1, 5)]
    killed = {"gone": 8, "time": 104.5, "signal": 9, "code": None}
    end = {"end": 105, "code": 1, "signal": None, "kernel_log": [8], "oom_kills": {"group": 1, "machine": 1}}
    put("host_record", "killed", lines(head, main, worker, *grown, killed, end))
    put("host_record", "bus", lines(head, main, worker, *grown, {**killed, "signal": 7}, {**end, "kernel_log": []}))
    put("host_record", "shell", lines(head, main, worker, *grown, {"gone": 7, "time": 105, "code": 137}))
    put("host_record", "cut", lines(head, main, worker, *grown)[:-20])
    put("host_record", "no-end", lines(head, main, worker, *grown))
    put("host_record", "again", lines(head, main, sample(1, [7, 1, 0]), {**main, "started": 5}, sample(2, [7, 2, 0])))
    put("host_record", "itself", lines(head, {**main, "parent": 7}, {**worker, "parent": 8}, sample(1, [8, 1, 0]), killed))
    put("host_record", "huge", lines(head, sample(1, *[[pid, 1 << 50, 0] for pid in range(1, 100)])))
    put("host_record", "odd", lines(head, {}, [], 7, {"held": 1, "time": -1}, {"process": -1}, {"gone": 0}, {"end": {}}))


def metrics():
    """What `plimsoll watch --prometheus` of another machine serves, whole and not."""
    gpu = 'gpu="0",uuid="GPU-b",name="NVIDIA \\"H200\\""'
    process = 'gpu="0",uuid="GPU-b",pid="7",rank="3",program="python3 \\\\ train.py"'
    figures = [f"plimsoll_gpu_memory_{what}_bytes{{{gpu}}} {150e9 - 1:.0f}" for what in ("total", "used", "free")]
    figures += [f"plimsoll_gpu_busy_ratio{{{gpu}}} 0.55"]
    figures += [f"plimsoll_process_memory_{what}_bytes{{{process}}} 9.5e+10"
                for what in ("used", "reserved", "allocated", "peak_allocated")]
    figures += [f"plimsoll_process_optimizer_steps_total{{{process}}} 12", f"plimsoll_process_report_age_seconds{{{process}}} 0.2"]
    whole = "# HELP plimsoll_gpu_memory_total_bytes Memory of the GPU.\n" + "\n".join(figures) + "\n"
    put("metrics_text", "whole", whole)
    put("metrics_text", "cut", whole[:-60])
    put("metrics_text", "windows", whole.replace("\n", "\r\n"))
    put("metrics_text", "numbers", "".join(f'plimsoll_gpu_memory_total_bytes{{gpu="{i}"}} {v}\n'
                                           for i, v in enumerate(("1e999", "-1", "nan", "inf", "0x7", "", "1 2 3", "9" * 400))))
    put("metrics_text", "labels", 'plimsoll_gpu_memory_used_bytes{gpu="0",gpu="1",="",a="\\',)
    put("metrics_text", "others", 'node_load1 0.3\nplimsoll_other{gpu="0"} 1\n')


def levers():
    """Settings of `predict --set` in front of a step file: a multilayer perceptron, a language model, a convolutional net."""
    data = ROOT.parent.parent / "tests" / "data" / "steps"
    files = {"mlp": data / "mlp_adamw_fp32.step.json.gz", "lm": data / "early" / "output_freed.step.json.gz",
             "images": data / "early" / "batch_freed.step.json.gz"}
    settings = ["checkpointing=all", "checkpointing=0[addmm],2[addmm@0] optimizer=sgd:fused:in_backward",
                "checkpointing=0[host:2] tf32=on", "loss=chunked:2 accumulation=3", "offload=activations accumulation=2",
                "parallel=ddp:4:views:bucket100:gloo", "parallel=zero1:4 optimizer=adafactor",
                "parallel=zero2:4 checkpointing=sqrt", "parallel=fsdp:4:keep checkpointing=all accumulation=2",
                "parallel=pipeline:2:4", "parallel=mesh:fsdp=2,tensor=2", "parallel=mesh:tensor=2",
                "parallel=mesh:context=2,fsdp=2", "parallel=mesh:expert=2", "optimizer=adamw:host", "optimizer=adam8bit",
                "allocator=expandable_segments:True evaluation=no_grad+host+batch/2"]
    for name, file in files.items():
        for i, line in enumerate(settings):
            # Whole for a few, since nothing that is packed can be changed a little.
            content = gzip.decompress(file.read_bytes()) if i % 6 == 0 else file.read_bytes()
            put("levers", f"{name}-{i}", line.encode() + b"\n" + content)
        job = json.loads(gzip.decompress(file.read_bytes()))
        job["layouts"] = [[of, sizes, [1 << 50 for _ in strides]] for of, sizes, strides in job["layouts"]]
        for i, line in enumerate(("parallel=mesh:tensor=2:sequence:loss", "parallel=mesh:context=2", "parallel=zero2:1048576")):
            put("levers", f"{name}-hostile-strides-{i}", line.encode() + b"\n" + gzip.compress(json.dumps(job).encode(), mtime=0))


def wholes():
    """Changes to a small snapshot: any bytes are some."""
    put("whole", "unchanged", b"\0")
    put("whole", "unchanged-json", b"\1")
    for i in range(6):
        put("whole", f"changes-{i}", bytes([i]) + b"".join(bytes([n * (i + 3) * 37 % 251]) for n in range(30 * (i + 1))))


def everything():
    """One of each for the whole way."""
    put("explain", "snapshot", pickle.dumps(snapshot(), 4))
    owners = (ROOT.parent.parent / "tests" / "data" / "dialects" / "owners.pickle").read_bytes()
    put("snapshot_pickle", "owners", owners)
    put("explain", "snapshot-owners", owners)
    put("explain", "snapshot-1.13", pickle.dumps(old_list(), 2))
    put("explain", "snapshot-json-xz", lzma.compress(json.dumps(snapshot()).encode()))
    put("explain", "snapshot-json", json.dumps(old_dict()))
    for target, name in (("error_text", "log"), ("memory_summary", "in-a-log"), ("chrome_trace", "whole"),
                         ("memory_timeline", "rows"), ("memory_timeline", "raw"), ("nsys", "usage")):
        put("explain", f"{target}-{name}", (ROOT / target / name).read_bytes())


pickles()
json_snapshots()
texts()
traces()
databases()
packed()
settings()
allocator()
packings()
steps()
levers()
train_states()
safetensors()
host_records()
metrics()
wholes()
everything()
