"""What operators make of fake tensors, remembered by shapes, beside what torch says itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from plimsoll.events.remembered import Remembered  # noqa: E402

aten = torch.ops.aten


def described(tensor):
    storage = tensor.untyped_storage()
    return (
        tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype,
        tensor.device.type, storage.nbytes(), tensor.requires_grad,
    )  # fmt: skip


@pytest.mark.parametrize(
    "func, args",
    [
        (aten.mm.default, lambda x: (x, x.t())),
        (aten.mul.Tensor, lambda x: (x, 2)),
        (aten.mul.Tensor, lambda x: (x, 2.0)),
        (aten.t.default, lambda x: (x,)),
        (aten.slice.Tensor, lambda x: (x, 1, 2, 5)),
        (aten._unsafe_view.default, lambda x: (x, [8, 4])),
        (aten.native_layer_norm.default, lambda x: (x, [8], None, None, 1e-5)),
        (aten.cat.default, lambda x: ([x, x],)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_results_are_those_of_torch(func, args, dtype):
    if dtype is torch.int64 and func is aten.native_layer_norm.default:
        pytest.skip("torch has none of integers")
    remembered = Remembered()
    with FakeTensorMode():
        given = [torch.empty(4, 8, dtype=dtype, device="cpu") for _ in range(2)]
        results = [remembered.run(func, args(x), {}) for x in given]
        wanted = func(*args(given[1]))
    all_results = [r if isinstance(r, tuple) else (r,) for r in (*results, wanted)]
    for one, other, right in zip(*all_results):
        assert described(one) == described(other) == described(right)
        assert one is not other
        # A view lies in the memory of the argument that it was given, whichever was seen first.
        own = given[1].untyped_storage()._cdata
        lies_in_it = right.untyped_storage()._cdata == own
        assert (other.untyped_storage()._cdata == own) == lies_in_it


def test_what_is_written_into_is_not_made_again():
    remembered = Remembered()
    with FakeTensorMode():
        x = torch.empty(4)
        assert remembered.run(aten.add_.Tensor, (x, 1), {}) is x
        assert remembered.run(aten.add_.Tensor, (x, 1), {}) is x


def test_one_and_true_are_two_arguments():
    remembered = Remembered()
    with FakeTensorMode():
        x = torch.empty(4, dtype=torch.bool)
        types = [remembered.run(aten.mul.Tensor, (x, n), {}).dtype for n in (True, 1, 1.0)]
    assert types == [torch.bool, torch.int64, torch.float32]
