#!/usr/bin/env python3
"""Writes one small run in every dialect of the snapshot format: make_dialects.py (run from anywhere).

Every file holds the same story, so that one test can ask the same of each: a segment of 20 MiB, a
block of 2,000,000 bytes that stays, one of 3 MiB that is made and freed.
"""
import copy, json, pathlib, pickle, sqlite3

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


def write_sqlite(path, value):
    """The tables that pull request 178670 of PyTorch proposes; frames as JSON."""
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE device_traces (id INTEGER PRIMARY KEY, device INTEGER, action TEXT, addr INTEGER, size INTEGER,"
               " stream INTEGER, time_us INTEGER, frames TEXT)")
    db.execute("CREATE TABLE segments (id INTEGER PRIMARY KEY, device INTEGER, address INTEGER, total_size INTEGER,"
               " stream INTEGER, segment_type TEXT)")
    db.execute("CREATE TABLE blocks (id INTEGER PRIMARY KEY, segment_id INTEGER, addr INTEGER, size INTEGER,"
               " requested_size INTEGER, state TEXT, frames TEXT)")
    for device, trace in enumerate(value["device_traces"]):
        for e in trace:
            db.execute("INSERT INTO device_traces (device, action, addr, size, stream, time_us, frames) VALUES (?,?,?,?,?,?,?)",
                       (device, e["action"], e["addr"], e["size"], e["stream"], e["time_us"], json.dumps(e["frames"])))
    for i, s in enumerate(value["segments"]):
        db.execute("INSERT INTO segments VALUES (?,?,?,?,?,?)",
                   (i + 1, s["device"], s["address"], s["total_size"], s["stream"], s["segment_type"]))
        for b in s["blocks"]:
            db.execute("INSERT INTO blocks (segment_id, addr, size, requested_size, state, frames) VALUES (?,?,?,?,?,?)",
                       (i + 1, b["address"], b["size"], b["requested_size"], b["state"], json.dumps(b["frames"])))
    db.commit()
    db.close()


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
    # Blocks whose keepers `plimsoll run` named; the one that is free and the one whose name is no text have none.
    sizes = [3 * MIB, 4 * MIB, 5 * MIB, 2 * MIB]
    places = [BASE + sum(sizes[:i]) for i in range(len(sizes))]
    owners = ["trainer.callbacks[3].outputs[0] in main (train.py:44)", "trainer.callbacks[3].outputs[1] in main (train.py:44)",
              "the graph of losses[0]", 7]
    blocks = [{"address": a, "size": s, "requested_size": s, "state": "active_allocated", "frames": [], "plimsoll_owner": o}
              for a, s, o in zip(places, sizes, owners)]
    blocks.append({"address": BASE + 14 * MIB, "size": 6 * MIB, "requested_size": 0, "state": "inactive", "frames": [],
                   "plimsoll_owner": "nobody"})
    made = [event("alloc", a, s, 1001 + i, STACK_B) for i, (a, s) in enumerate(zip(places, sizes))]
    ran_out = event("oom", 0, 4 << 30, 1009, STACK_B, device_free=1 << 30)
    del ran_out["addr"]
    write("owners", snapshot(segments=[segment(blocks=blocks)], device_traces=[events()[:1] + made + [ran_out]]))
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
    # The ring was full: the first two events were overwritten.
    write("overflowed", snapshot(device_traces=[events()[2:]],
                                 allocator_settings=dict(SETTINGS, trace_alloc_overflowed=True, trace_alloc_max_entries=3)))
    # More kinds of metadata: other values, keys that a snapshot has too, JSON in a text as 2.15 writes it.
    noted = events()
    noted[0]["user_metadata"] = {"stage": "rollout", "temperature": 0.5, "lora": None}
    noted[1]["user_metadata"] = {"name": "encoder", "layer": 3}
    noted[2]["user_metadata"] = '{"phase": "rollout", "layer": 3}'
    noted[3]["user_metadata"] = "{not JSON}"
    write("metadata_more", snapshot(device_traces=[noted]))
    # What the program said of a block after it was made, twice; of one that was made before the record.
    said = events()
    said[2:2] = [dict(event("annotate", BASE, 0, 1001), user_metadata="weights"),
                 dict(event("annotate", BASE, 0, 1001), user_metadata="encoder.0")]
    write("annotated", snapshot(device_traces=[said]))
    write("annotated_earlier", snapshot(device_traces=[[e for e in said if e["action"] != "segment_alloc"
                                                        and e.get("addr") != BASE or e["action"] == "annotate"]]))
    # Kinds of events that were not recorded (skip_actions).
    reused = events() + [event("alloc", BASE + 2_000_384, MIB, 1005, STACK_B), event("free_requested", BASE + 2_000_384, MIB, 1006, []),
                         event("free_completed", BASE + 2_000_384, MIB, 1007, [])]
    for name, skipped in (("completed", ("free_completed",)), ("requested", ("free_requested",)), ("allocs", ("alloc",)),
                          ("frees", ("free_requested", "free_completed"))):
        write(f"skip_{name}", snapshot(device_traces=[[e for e in reused if e["action"] not in skipped]]))
    # A segment that came and went without its events.
    other = BASE + (1 << 32)
    unseen = events() + [event("alloc", other, 4 * MIB, 1005, STACK_B), event("free_requested", other, 4 * MIB, 1006, []),
                         event("free_completed", other, 4 * MIB, 1007, [])]
    write("skip_segments", snapshot(device_traces=[[e for e in unseen if e["action"] != "segment_alloc"]]))
    # What memory_snapshot(include_traces=False) and MemPool.snapshot() return: a list, in any release since 2.1.
    write("state_list", [segment()])
    # Pinned memory of the host, with its history (2.14); a request of 3 MiB takes 4.
    host = [event("segment_alloc", 0x10000000, 4 * MIB, 900, STACK_A), event("alloc", 0x10000000, 3 * MIB, 901, STACK_A),
            event("segment_alloc", 0x20000000, MIB, 902, STACK_B), event("alloc", 0x20000000, MIB, 903, STACK_B),
            event("free_requested", 0x20000000, MIB, 904, []), event("free_completed", 0x20000000, MIB, 905, [])]
    pieces = [{"address": 0x10000000, "size": 4 * MIB, "allocated": True, "active": True},
              {"address": 0x20000000, "size": MIB, "allocated": False, "active": False}]
    write("pinned", snapshot(host_segments=pieces, host_traces=[host]))
    write("pinned_alone", {"segments": [], "device_traces": [[]], "host_segments": pieces, "host_traces": host})
    # Nodes of compiled graphs, with and without the line that they came from.
    nodes = events()
    nodes[1]["frames"] = [frame("forward", 8, "fx_generated_0.py", fx_node_op="call_function", fx_node_name="mm", fx_node_target="aten.mm.default",
                                fx_original_trace='  File "/home/me/model.py", line 33, in forward\n    x = self.lin(x)\n')] + STACK_B[1:]
    nodes[2]["frames"] = [frame("forward", 9, "fx_generated_0.py", fx_node_op="call_function", fx_node_name="input_2",
                                fx_node_target="<function relu at 0xffff75baede0>")] + STACK_B[1:]
    write("fx_nodes", snapshot(device_traces=[nodes]))
    # Made while torch.compile was at work, the same region twice.
    compiled = [dict(e, compile_context="N/A") for e in events()]
    compiled[1]["compile_context"] = "Torch-Compiled Region: 0/0"
    compiled[2]["compile_context"] = "Torch-Compiled Region: 0/1"
    write("compile_context", snapshot(device_traces=[compiled]))
    # Categories that the record gives, by name and by number.
    given = events()
    given[1]["category"] = "parameter"
    given[2]["category"] = 1
    named = segment()
    named["blocks"][0]["category"] = "parameter"
    write("categories", snapshot(segments=[named], device_traces=[given], categories=["parameter", "activation"]))
    write_sqlite(HERE / "tables.sqlite", snapshot())
    write_sqlite(HERE / "tables_devices.sqlite", snapshot(segments=[segment(0), segment(1, BASE + (1 << 33))], device_traces=[
        events(), [dict(e, addr=e["addr"] + (1 << 33)) for e in events()]]))
    # Intel's (torch.xpu.memory._dump_snapshot): neither settings nor marks, no pools on segments.
    bare_segment = {k: v for k, v in segment().items() if k not in ("segment_pool_id", "is_expandable", "requested_size")}
    write("xpu", {"segments": [bare_segment], "device_traces": [events()]})
    # Apple's MLX in the same form: no streams, each buffer a segment of its own.
    buffers = [(BASE, 2_000_000, 2_000_384), (BASE + (1 << 30), 3 * MIB, 3 * MIB)]
    metal = []
    for i, (address, asked, size) in enumerate(buffers):
        metal += [{"action": "segment_alloc", "addr": address, "size": size, "time_us": 1000 + 2 * i, "frames": STACK_B},
                  {"action": "alloc", "addr": address, "size": asked, "time_us": 1001 + 2 * i, "frames": STACK_B}]
    metal += [{"action": action, "addr": buffers[1][0], "size": buffers[1][1], "time_us": 1010} for action in ("free_requested", "free_completed")]
    write("mlx", {"segments": [{"address": a, "total_size": s, "segment_type": "large", "blocks": [
        {"address": a, "size": s, "requested_size": r, "state": "active_allocated" if i == 0 else "inactive"}]}
        for i, (a, r, s) in enumerate(buffers)], "device_traces": [metal]})
    # Three CUDA graphs, each captured into a pool of its own: 160 MiB in the middle of it, 32 MiB that stay.
    graphs, pools = [event("segment_alloc", BASE, 20 * MIB, 1000, STACK_A, pool_id=(0, 0)),
                     event("alloc", BASE, 2_000_000, 1001, STACK_A, pool_id=(0, 0))], [segment()]
    for i in range(3):
        at, pool, line = BASE + ((i + 1) << 32), (0, i + 1), [frame("capture", 80 + i), frame("<module>", 41)]
        for action, address, size in (("segment_alloc", at, 192 * MIB), ("alloc", at, 32 * MIB), ("alloc", at + 32 * MIB, 160 * MIB),
                                      ("free_requested", at + 32 * MIB, 160 * MIB), ("free_completed", at + 32 * MIB, 160 * MIB)):
            graphs.append(event(action, address, size, 1002 + len(graphs), line, pool_id=pool))
        pools.append(segment(0, at, total_size=192 * MIB, segment_pool_id=pool, frames=line, blocks=[
            {"address": at, "size": 32 * MIB, "requested_size": 32 * MIB, "state": "active_allocated", "frames": line},
            {"address": at + 32 * MIB, "size": 160 * MIB, "requested_size": 0, "state": "inactive", "frames": []}]))
    write("graph_pools", snapshot(segments=pools, device_traces=[graphs]))
    # The same as 2.11 and older write it: only the segments tell their pool.
    write("graph_pools_2.11", snapshot(segments=pools, device_traces=[[{k: v for k, v in e.items() if k != "pool_id"} for e in graphs]]))
    # The allocator waited for another stream, got 16 MiB back, and gave up without another look at them.
    waited = [event("segment_alloc", BASE, 20 * MIB, 1000, STACK_A), event("alloc", BASE, 2_000_000, 1001, STACK_A),
              event("alloc", BASE + 2_000_384, 16 * MIB, 1002, STACK_B), event("free_requested", BASE + 2_000_384, 16 * MIB, 1003, []),
              event("alloc", BASE + 2_000_384 + 16 * MIB, MIB, 1004, STACK_B), event("free_completed", BASE + 2_000_384, 16 * MIB, 1005, [])]
    refused = event("oom", 0, 16 * MIB, 1006, STACK_B, device_free=0)
    del refused["addr"]
    held = segment()
    held["blocks"] = [held["blocks"][0],
                      {"address": BASE + 2_000_384, "size": 16 * MIB, "requested_size": 0, "state": "inactive", "frames": []},
                      {"address": BASE + 2_000_384 + 16 * MIB, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": STACK_B},
                      {"address": BASE + 2_000_384 + 17 * MIB, "size": 3 * MIB - 2_000_384, "requested_size": 0, "state": "inactive", "frames": []}]
    write("pending_free", snapshot(segments=[held], device_traces=[waited + [refused]]))
    # 1.8 GiB of pinned memory for 1 GiB and a little: each request takes the next power of two.
    large = [event(action, 0x10000000 + (i << 32), size, 900 + 2 * i, STACK_A) for i in range(3)
             for action, size in (("segment_alloc", 512 * MIB), ("alloc", 280 * MIB))]
    write("pinned_rounding", snapshot(host_traces=[large], host_segments=[
        {"address": 0x10000000 + (i << 32), "size": 512 * MIB, "allocated": 512 * MIB} for i in range(3)]))
    # A history that began mid-run: the block that stays was made before its first event.
    write("mid_run", snapshot(device_traces=[events()[2:]]))


main()
