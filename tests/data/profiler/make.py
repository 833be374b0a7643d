#!/usr/bin/env python3
"""Makes the files here from what an H200 with torch 2.11 recorded.

    make.py prof_trace.json prof_timeline.json prof_timeline.raw.json.gz prof_timeline.html

The program: a ResNet-like net, two training steps under torch.profiler.profile(profile_memory=True,
with_stack=True, record_shapes=True), then one allocation of 200 GiB, which fails.

trace.json.gz         without kernels, flows, runtime calls and the arguments of operators
trace_ops.json.gz     as from with_stack=False and an old release: absolute times, no Python functions
timeline.json.gz      untouched
timeline.raw.json.gz  untouched
timeline.html         the picture cut after 200 characters
"""

import gzip
import json
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).parent
KEEP = {"cpu_op", "python_function", "user_annotation", "cpu_instant_event"}


def pack(name, text):
    with open(HERE / name, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as out:
        out.write(text.encode())


def trim(event):
    out = {k: v for k, v in event.items() if k not in ("s",)}
    if event["cat"] != "cpu_instant_event":
        out.pop("args", None)
    return out


def main(trace, timeline, raw, html):
    data = json.load(open(trace))
    base = data["baseTimeNanoseconds"] / 1000
    events = [trim(e) for e in data["traceEvents"] if e.get("cat") in KEEP]
    data["traceEvents"] = events
    pack("trace.json.gz", json.dumps(data))
    ops = [dict(e, ts=int(e["ts"] + base)) for e in events if e["cat"] != "python_function"]
    for e in ops:
        if "dur" in e:
            e["dur"] = int(e["dur"])
    pack("trace_ops.json.gz", json.dumps(ops))
    pack("timeline.json.gz", open(timeline).read())
    shutil.copy(raw, HERE / "timeline.raw.json.gz")
    page = open(html).read()
    at = page.index("base64,") + 200
    (HERE / "timeline.html").write_text(page[:at] + "'>\n</body>\n</html>\n")


main(*sys.argv[1:])
