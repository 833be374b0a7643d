"""What capture has to know of a GPU: which attention kernels it has."""

from __future__ import annotations

# Compute capability by a part of the name, the longer names first where one contains another.
_CAPABILITY: tuple[tuple[str, tuple[int, int]], ...] = (
    ("GB200", (10, 0)), ("GB300", (10, 3)), ("B200", (10, 0)), ("B300", (10, 3)), ("B100", (10, 0)),
    ("GH200", (9, 0)), ("H200", (9, 0)), ("H100", (9, 0)), ("H800", (9, 0)), ("H20", (9, 0)),
    ("L40", (8, 9)), ("L4", (8, 9)), ("RTX 6000 ADA", (8, 9)),
    ("A100", (8, 0)), ("A800", (8, 0)), ("A30", (8, 0)),
    ("A10", (8, 6)), ("A16", (8, 6)), ("A40", (8, 6)), ("A2", (8, 6)), ("A4000", (8, 6)),
    ("A5000", (8, 6)), ("A6000", (8, 6)),
    ("5090", (12, 0)), ("5080", (12, 0)), ("5070", (12, 0)), ("5060", (12, 0)),
    ("PRO 6000", (12, 0)),
    ("4090", (8, 9)), ("4080", (8, 9)), ("4070", (8, 9)), ("4060", (8, 9)),
    ("3090", (8, 6)), ("3080", (8, 6)), ("3070", (8, 6)), ("3060", (8, 6)), ("3050", (8, 6)),
    ("2080", (7, 5)), ("2070", (7, 5)), ("2060", (7, 5)), ("T4", (7, 5)), ("TITAN RTX", (7, 5)),
    ("V100", (7, 0)), ("TITAN V", (7, 0)), ("P100", (6, 0)), ("P40", (6, 1)), ("1080", (6, 1)),
)  # fmt: skip


def capability(gpu: str) -> tuple[int, int] | None:
    """(9, 0) of "H200" or "NVIDIA H200 NVL"; None for a card that is not known."""
    name = gpu.upper()
    for part, found in _CAPABILITY:
        if part in name:
            return found
    return None
