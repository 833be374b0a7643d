#!/usr/bin/env python3
"""Cuts a PyTorch memory snapshot down to its last events: trim.py IN OUT.xz EVENTS

What is there before them stays in `segments`, as with a full history buffer. Equal frames and stacks
become one object each, which pickle then writes once. Only the standard library is needed.
"""
import lzma
import pickle
import sys


class Shared:
    """One object for equal values, so that pickle refers back to it."""

    def __init__(self):
        self.known = {}

    def text(self, value):
        return self.known.setdefault(value, value)

    def stack(self, frames):
        key = tuple((f["name"], f["filename"], f["line"]) for f in frames)
        if key not in self.known:
            self.known[key] = [self.frame(*parts) for parts in key]
        return self.known[key]

    def frame(self, name, filename, line):
        key = (name, filename, line)
        if key not in self.known:
            self.known[key] = {"name": self.text(name), "filename": self.text(filename), "line": line}
        return self.known[key]

    def row(self, entry):
        row = {self.text(k): self.text(v) if isinstance(v, str) else v for k, v in entry.items()}
        if "frames" in row:
            row["frames"] = self.stack(row["frames"])
        if "blocks" in row:
            row["blocks"] = [self.row(block) for block in row["blocks"]]
        return row


def main(source, target, events):
    with open(source, "rb") as file:
        snapshot = pickle.load(file)
    shared = Shared()
    snapshot["segments"] = [shared.row(s) for s in snapshot["segments"]]
    snapshot["device_traces"] = [
        [shared.row(e) for e in trace[-events:]] for trace in snapshot["device_traces"]
    ]
    with lzma.open(target, "wb", preset=9 | lzma.PRESET_EXTREME) as file:
        pickle.dump(snapshot, file, protocol=4)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
