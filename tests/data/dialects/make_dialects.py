#!/usr/bin/env python3
"""Writes one small run in every dialect of the snapshot format: make_dialects.py (run from anywhere).

Every file holds the same story, so that one test can ask the same of each: a segment of 20 MiB, a
block of 2,000,000 bytes that stays, one of 3 MiB that is made and freed.
"""
import copy, json, pathlib, pickle

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
BASE = 0x7F0000000000


def frame(name, line, filename="/home/me/train.py", **extra):
    return {"name": name, "filename": filename, "line": line, **extra}


STACK_A = [frame("make_model", 10), frame("<module>", 40)]
STACK_B = [frame("forward", 57), frame("<module>", 41)]


def event(action, addr, size, time, frames=None, **extra):
    e = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, **extra}
    if frames is not None:
        e["frames"] = frames
    return e


def events():
    return [
        event("segment_alloc", BASE, 20 * MIB, 1000, STACK_A),
        event("alloc", BASE, 2_000_000, 1001, STACK_A),
        event("alloc", BASE + 2_000_384, 3 * MIB, 1002, STACK_B),
        event("free_requested", BASE + 2_000_384, 3 * MIB, 1003, []),
        event("free_completed", BASE + 2_000_384, 3 * MIB, 1004, []),
    ]


def segment(device=0, base=BASE, **extra):
    return {
        "device": device, "address": base, "total_size": 20 * MIB, "allocated_size": 2_000_384, "active_size": 2_000_384,
        "requested_size": 2_000_000, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": STACK_A,
        "blocks": [
            {"address": base, "size": 2_000_384, "requested_size": 2_000_000, "state": "active_allocated", "frames": STACK_A},
            {"address": base + 2_000_384, "size": 20 * MIB - 2_000_384, "requested_size": 0, "state": "inactive", "frames": []},
        ],
        **extra,
    }


SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": 128 * MIB, "garbage_collection_threshold": 0.5,
    "expandable_segments": False, "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
}


def snapshot(**extra):
    return {"segments": [segment()], "device_traces": [events()], "allocator_settings": SETTINGS, "external_annotations": [], **extra}


def write(name, value, protocol=4):
    (HERE / f"{name}.pickle").write_bytes(pickle.dumps(value, protocol=protocol))


class TorchPickler:
    """As torch::jit::Pickler writes: protocol 2, integers always as LONG1 of eight bytes where they exceed 32 bits, each list
    one MARK … APPENDS however long, containers remembered after they are filled."""

    def __init__(self):
        self.out, self.strings, self.puts = bytearray(b"\x80\x02"), {}, 0

    def put(self):
        self.out += b"q" + bytes([self.puts]) if self.puts < 256 else b"r" + self.puts.to_bytes(4, "little")
        self.puts += 1
        return self.puts - 1

    def value(self, v):
        if isinstance(v, bool):
            self.out += b"\x88" if v else b"\x89"
        elif isinstance(v, int):
            if 0 <= v < 256:
                self.out += b"K" + bytes([v])
            elif -(1 << 31) <= v < 1 << 31:
                self.out += b"J" + v.to_bytes(4, "little", signed=True)
            else:
                self.out += b"\x8a\x08" + v.to_bytes(8, "little", signed=True)
        elif isinstance(v, float):
            import struct
            self.out += b"G" + struct.pack(">d", v)
        elif isinstance(v, str):
            if v in self.strings:
                at = self.strings[v]
                self.out += b"h" + bytes([at]) if at < 256 else b"j" + at.to_bytes(4, "little")
            else:
                data = v.encode()
                self.out += b"X" + len(data).to_bytes(4, "little") + data
                self.strings[v] = self.put()
        elif isinstance(v, tuple):
            for item in v:
                self.value(item)
            self.out += b"\x86"
        elif isinstance(v, list):
            self.out += b"]("
            for item in v:
                self.value(item)
            self.out += b"e"
            self.put()
        else:
            self.out += b"}("
            for key, item in v.items():
                self.value(key)
                self.value(item)
            self.out += b"u"
            self.put()


def main():
    for protocol in (2, 3, 4, 5):
        write(f"protocol{protocol}", snapshot(), protocol)
    writer = TorchPickler()
    writer.value(snapshot())
    (HERE / "libtorch.pickle").write_bytes(bytes(writer.out) + b".")
    (HERE / "plain.json").write_text(json.dumps(snapshot()))

    # 1.13: the list of segments is the document; blocks have a history and no address.
    old = segment()
    old = {k: old[k] for k in ("device", "address", "total_size", "allocated_size", "active_size", "stream", "segment_type")}
    old["blocks"] = [
        {"size": 2_000_384, "state": "active_allocated", "history": [{"addr": BASE, "real_size": 2_000_000, "frames": STACK_A}]},
        {"size": 20 * MIB - 2_000_384, "state": "inactive"},
    ]
    write("torch1.13", [old])
    # 2.0: a dict, history, traces without times.
    traced = [{k: v for k, v in e.items() if k != "time_us"} for e in events()]
    write("torch2.0", {"segments": [old], "device_traces": [traced]})
    # 2.12: pool ids on events, written as a list by a tool in between.
    pools = [dict(e, pool_id=(0, 1)) for e in events()]
    write("pools", snapshot(device_traces=[pools], segments=[segment(segment_pool_id=[0, 1])]))
    # What a program attaches to an event: a dictionary, or a text.
    noted = events()
    noted[1]["user_metadata"] = {"phase": "rollout", "layer": 3, "cached": True}
    noted[2]["user_metadata"] = "a text"
    write("metadata_dict", snapshot(device_traces=[noted]))
    # 2.14 and newer: host memory, unknown actions, metadata, compiled code that names its origin.
    newest = [dict(e, pool_id=(0, 0), compile_context="N/A", user_metadata="step 3") for e in events()]
    newest.insert(2, dict(event("annotate", BASE, 0, 1001), user_metadata="weights", internal_metadata="mallocWithAddress"))
    newest[3]["frames"] = [frame("call", 12, "/tmp/torchinductor_me/ab/cab.py", fx_node_op="call_function", fx_node_name="mm",
                                 fx_original_trace='  File "/home/me/model.py", line 33, in forward\n    x = self.lin(x)\n')]
    write("newest", snapshot(device_traces=[newest], host_segments=[{"address": 1, "size": 4096, "allocated": 4096}],
                             host_traces=[[event("alloc", 1, 4096, 900)]], something_new={"a": [1, 2]}))
    # 2.11: frames of the forward on an event of the backward thread.
    forward = events()
    forward[2] = dict(event("alloc", BASE + 2_000_384, 3 * MIB, 1002, []),
                      forward_frames=['  File "/home/me/train.py", line 41, in <module>\n    loss = model(x)\n',
                                      '  File "/home/me/model.py", line 9, in forward\n    return self.net(x)\n'])
    write("forward_frames", snapshot(device_traces=[forward]))
    # Several devices; the first has nothing.
    write("devices", snapshot(segments=[segment(1), segment(3, BASE + (1 << 33))],
                              device_traces=[[], events(), [], [dict(e, addr=e["addr"] + (1 << 33)) for e in events()]]))
    # The second of two ran out; of the first there are more events, but not what was held for them.
    first = [event(a, BASE + (1 << 34) + i * MIB, MIB, 900 + i, STACK_B) for a in ("alloc", "free_completed") for i in range(4)]
    refused = event("oom", 0, 4 << 30, 1005, STACK_B, device_free=1 << 30)
    del refused["addr"]
    write("second_ran_out", snapshot(segments=[segment(1)], device_traces=[first, events() + [refused]]))
    # Keys that are missing.
    bare = [{k: e[k] for k in ("action", "addr", "size")} for e in events()]
    write("bare", {"device_traces": [bare]})
    write("no_traces", {"segments": [segment()], "device_traces": []})
    # An address of 2^63 and above takes nine bytes.
    high = copy.deepcopy(snapshot())
    for e in high["device_traces"][0]:
        e["addr"] += 1 << 63
    high["segments"][0]["address"] += 1 << 63
    for b in high["segments"][0]["blocks"]:
        b["address"] += 1 << 63
    write("high_addresses", high)
    # A history that began mid-run: the block that stays was made before its first event.
    write("mid_run", snapshot(device_traces=[events()[2:]]))


main()
