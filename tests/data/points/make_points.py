#!/usr/bin/env python3
"""Writes three steps of a small transformer as snapshots at several batches and lengths: make_points.py (run from anywhere).

Parameters, gradients and the optimizer's state are the same at every point; activations go with batch x length, attention
scores with batch x length x length. Blocks lie one behind the other in one large segment: what is asked for is what counts.
"""
import pathlib, pickle

HERE = pathlib.Path(__file__).resolve().parent
BASE = 0x7F0000000000
WIDTH, HEADS, WORDS, LAYERS, STEPS = 256, 4, 8000, 2, 3
WEIGHTS = [WORDS * WIDTH * 4] + [12 * WIDTH * WIDTH * 4] * LAYERS


class Run:
    def __init__(self):
        self.events, self.end = [], BASE

    def write(self, action, address, size, frames):
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1000 + len(self.events), "frames": frames})

    def make(self, size, function, line):
        address = self.end
        self.end += -(-size // 512) * 512
        self.write("alloc", address, size, [{"name": function, "filename": "/home/me/train.py", "line": line}])
        return address, size

    def free(self, block):
        for action in ("free_requested", "free_completed"):
            self.write(action, *block, [])


def run_at(batch, length):
    run, tokens = Run(), batch * length
    for weight in WEIGHTS:
        run.make(weight, "make_model", 10)
    for step in range(STEPS):
        inputs = run.make(tokens * 8, "load", 20)
        kept = [run.make(tokens * WIDTH * 4, "embed", 30)]
        for layer in range(LAYERS):
            kept.append(run.make(tokens * 3 * WIDTH * 4, "attention", 40))
            kept.append(run.make(batch * HEADS * length * length * 4, "attention", 41))
            kept.append(run.make(tokens * 4 * WIDTH * 4, "mlp", 50))
        kept.append(run.make(tokens * WORDS * 4, "loss", 60))
        grads = []
        for activation in reversed(kept):
            temporary = run.make(activation[1], "backward", 70)
            run.free(activation)
            run.free(temporary)
        for weight in WEIGHTS:
            grads.append(run.make(weight, "backward", 71))
        if step == 0:
            for weight in WEIGHTS:
                run.make(2 * weight, "optimize", 80)
        for block in grads + [inputs]:
            run.free(block)
    size = -(-(run.end - BASE) // (2 << 20)) * (2 << 20)
    first = {"action": "segment_alloc", "addr": BASE, "size": size, "stream": 0, "time_us": 999, "frames": []}
    return {"segments": [], "device_traces": [[first] + run.events], "external_annotations": []}


if __name__ == "__main__":
    for batch, length in [(2, 256), (4, 256), (2, 512), (4, 512), (2, 1024), (4, 1024)]:
        (HERE / f"{batch}x{length}.pickle").write_bytes(pickle.dumps(run_at(batch, length), protocol=4))
