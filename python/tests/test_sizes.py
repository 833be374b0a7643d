from __future__ import annotations

import pytest

from plimsoll.base.sizes import share, shown, size, whole_number


@pytest.mark.parametrize(
    "text, count",
    [("6 GiB", 6 << 30), ("1.5MiB", 3 << 19), ("500MB", 500 * 10**6), ("12b", 12), (7, 7)],
)
def test_sizes_are_read(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["6", "", "GiB", "-1GiB", "6 GiBs", "1e9B", True, -1])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size"):
        size(text)


def test_shares_and_how_sizes_are_shown():
    assert share("5%") == 0.05 and share(" 2.5 %") == 0.025
    with pytest.raises(ValueError, match="is no share"):
        share("0.05")
    assert [shown(n) for n in (5, 2048, 6 << 30)] == ["5 B", "2.00 KiB", "6.00 GiB"]


def test_whole_numbers_are_those_that_int_reads():
    assert [whole_number(text) for text in ("0", "12", "007")] == [0, 12, 7]
    for text in ("", "²", "٣", "-1", "1.0", " 1", "1_0", "9" * 5000):
        assert whole_number(text) is None
