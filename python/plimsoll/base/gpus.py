"""What capture has to know of a GPU: which attention kernels it has, and what a script that asks
for its properties is told."""

from __future__ import annotations

from typing import NamedTuple

from .gpu_table import GPUS


class Gpu(NamedTuple):
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    #: Of products, in TFLOP/s, and of the memory, in GB/s.
    fp32: float = 66.9
    tf32: float = 494.7
    half: float = 989.4
    bandwidth: float = 4800

    @property
    def cache(self) -> int:
        """The second level's bytes, as the largest card of a generation has them."""
        return _CACHES.get(self.capability, _CACHES[(9, 0)])


#: 60 MiB were seen on an H200; the others are of data sheets.
_CACHES = {
    (6, 0): 4 << 20, (6, 1): 3 << 20, (7, 0): 6 << 20, (7, 5): 6 << 20, (8, 0): 40 << 20,
    (8, 6): 6 << 20, (8, 9): 72 << 20, (9, 0): 60 << 20, (10, 0): 126 << 20, (10, 3): 126 << 20,
    (12, 0): 96 << 20,
}  # fmt: skip


# Parts of the names of cards that the catalogue does not have: their capability is all that is
# known.
_OTHERS: dict[str, tuple[int, int]] = {
    "GB300": (10, 3), "B100": (10, 0), "H800": (9, 0), "H20": (9, 0), "A800": (8, 0),
    "A16": (8, 6), "A2": (8, 6), "RTX 5060": (12, 0), "RTX 3050": (8, 6), "TITAN V": (7, 0),
    "P40": (6, 1), "GTX 1080": (6, 1),
}  # fmt: skip


def _plain(name: str) -> str:
    return "".join(c for c in name.upper() if c.isalnum())


def _by_length(table: dict[str, Gpu]) -> list[tuple[str, Gpu]]:
    plain = {_plain(name): found for name, found in table.items()}
    return sorted(plain.items(), key=lambda row: -len(row[0]))


#: What a card that is not known is taken for: an H200's kernels, and memory as many cards have.
UNKNOWN = Gpu((9, 0), 132, 80 << 30)
_ENTERED = {name: Gpu(*row) for name, row in GPUS.items()}
_CATALOGUE = _by_length(_ENTERED)
_ALL = _by_length(
    {**{name: UNKNOWN._replace(capability=c) for name, c in _OTHERS.items()}, **_ENTERED}
)


def named(gpu: str) -> Gpu | None:
    """Of "H200", "h100" or "NVIDIA H200 NVL"; None for a card that is not known."""
    asked = _plain(gpu)
    for name, found in _ALL:  # the longer names first: "A100" is no "A10"
        if name in asked:
            return found
    # The beginning of a name: "H100" of "H100 SXM", "4090" of "RTX 4090".
    for name, found in _CATALOGUE if len(asked) > 1 else ():
        if name.startswith((asked, "RTX" + asked)):
            return found
    return None


def capability(gpu: str) -> tuple[int, int] | None:
    """(9, 0) of "H200"."""
    found = named(gpu)
    return found.capability if found else None
