"""Which kernel scaled_dot_product_attention takes: the same rules as in
src/job/rules/attention_choice.cc.

`tests/data/operators/attention_choice.jsonl` has cases that the tests of both sides answer, so that
the two cannot disagree.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One call, as PyTorch's documentation names its sizes."""

    dtype: str  # "float32", "bfloat16", "float16"
    heads: int
    kv_heads: int
    seq: int
    kv_seq: int
    head: int
    value_head: int
    mask: bool = False
    mask_needs_grad: bool = False
    causal: bool = False
    dropout: bool = False
    rows_dense: bool = True
    #: Fewer heads of keys and values without `enable_gqa`.
    broadcast: bool = False

    @property
    def half(self) -> bool:
        return self.dtype in ("float16", "bfloat16")


ALL = frozenset(("cudnn", "flash", "efficient", "math"))


def kernel_of(
    case: Case,
    capability: tuple[int, int],
    release: tuple[int, int],
    enabled: frozenset[str] = ALL,
) -> str:
    """`cudnn`, `flash`, `efficient` or `math`; one that is not enabled is passed over."""
    if not case.rows_dense or not _fused_takes_heads(case, release):
        return "math"
    first = _prefers_cudnn(capability, release) and _cudnn_takes(case)
    if first and "cudnn" in enabled:
        return "cudnn"
    if "flash" in enabled and _flash_takes(case, capability):
        return "flash"
    if "efficient" in enabled and _efficient_takes(case, capability):
        return "efficient"
    return "math"


def _fused_takes_heads(c: Case, release: tuple[int, int]) -> bool:
    return not c.broadcast or (c.kv_heads == 1 and release >= (2, 14))


def _prefers_cudnn(capability: tuple[int, int], release: tuple[int, int]) -> bool:
    if release == (2, 9):
        return capability in ((9, 0), (10, 0))
    return release >= (2, 11) and capability[0] in (9, 10)


def _cudnn_takes(c: Case) -> bool:
    heads = all(size <= 256 and size % 8 == 0 for size in (c.head, c.value_head))
    one_row = c.kv_seq == 1 or (c.dropout and c.seq == 1)
    return c.half and not c.mask_needs_grad and heads and not one_row


def _flash_takes(c: Case, capability: tuple[int, int]) -> bool:
    if not c.half or c.mask or c.head > 256 or c.head != c.value_head or capability < (8, 0):
        return False
    if c.causal and c.seq != c.kv_seq:
        return False
    major, minor = capability
    small_shared_memory = (major == 8 and minor >= 6) or major == 12
    return not small_shared_memory or c.head <= 192 or (c.head > 224 and not c.dropout)


def _efficient_takes(c: Case, capability: tuple[int, int]) -> bool:
    if c.heads != c.kv_heads or not (c.half or c.dtype == "float32"):
        return False
    if c.dtype == "bfloat16" and capability < (8, 0):
        return False
    alignment = 8 if c.half and capability >= (7, 0) else 4 if capability >= (8, 0) else 1
    return c.head % alignment == 0 and c.value_head % alignment == 0
