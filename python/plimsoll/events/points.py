"""Where a job is captured: at two batch sizes, or at some and several lengths.

A number of the job is a sum of a few terms of these (the batch, the length, their product, the
square of the length), so few points tell it. What reads the file finds the terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA, SCHEMA_OF_MORE = "plimsoll.step/1", "plimsoll.step/2"
BATCH = "batch"
#: Of sequences, or the side of images: multiples of what kernels and strides round to.
LENGTHS = (128, 192, 256)
#: What halves several times leaves a rest by which it is rounded, the same for lengths that are
#: multiples of this apart.
_APART = 64


def lengths_for(asked: int) -> tuple[int, int, int]:
    """The longest is what is asked about: there nothing is drawn through points."""
    apart = asked // 4 // _APART * _APART
    if not apart:
        apart = _APART
        while apart > 1 and 2 * apart >= asked:
            apart //= 2
    return asked - 2 * apart, asked - apart, asked


class Points(NamedTuple):
    #: The batch first.
    dimensions: tuple[str, ...]
    #: A value by dimension.
    at: tuple[tuple[int, ...], ...]

    @classmethod
    def of_batches(cls, batches: tuple[int, int]) -> Points:
        return cls((BATCH,), tuple((size,) for size in batches))

    @classmethod
    def of_lengths(
        cls, batches: tuple[int, int], lengths: tuple[int, int, int], name: str
    ) -> Points:
        few, many = batches
        short, middle, long = lengths
        grid = ((few, short), (many, short), (few, middle), (many, middle), (few, long))
        return cls((BATCH, name), grid)

    def named(self, index: int) -> dict[str, int]:
        return dict(zip(self.dimensions, self.at[index]))

    @property
    def batches(self) -> tuple[int, int]:
        sizes = sorted({point[0] for point in self.at})
        return sizes[0], sizes[-1]

    @property
    def inline(self) -> bool:
        """Numbers stand in the file where they belong: there are two values of each."""
        return len(self.dimensions) == 1

    def described(self, index: int) -> str:
        """ "batch 4, length 128" """
        return ", ".join(f"{name} {size}" for name, size in self.named(index).items())

    def head(self) -> dict[str, Any]:
        """Of the step file."""
        if self.inline:
            return {"schema": SCHEMA, "batches": list(self.batches)}
        return {
            "schema": SCHEMA_OF_MORE,
            "batches": list(self.batches),
            "dimensions": list(self.dimensions),
            "points": [list(point) for point in self.at],
        }
