"""What torch says of fake tensors, in the user's terms."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from ..base.errors import CaptureError
from ..base.notes import Notes
from ..base.places import line_of


@contextlib.contextmanager
def clear_errors(notes: Notes) -> Iterator[None]:
    """What torch says of fake tensors, in the user's terms; anything else passes through."""
    try:
        yield
    except CaptureError:
        raise
    except DataDependentOutputException as error:
        raise CaptureError(
            f"{error.func} reads the value of a tensor, but a capture has no values",
            where=line_of(error),
            hint="Keep what depends on it on the device (torch.where, a mask), "
            "or pass the number in from outside",
        ) from error
    except DynamicOutputShapeException as error:
        raise CaptureError(
            f"the result of {error.func} has a size that depends on values, "
            "but a capture has no values",
            where=line_of(error),
            hint="Use a form of fixed size: torch.where or a multiplied mask in place of x[mask]",
        ) from error
    except (UnsupportedOperatorException, NotImplementedError) as error:
        raise _no_meta(error) from error
    except Exception as error:
        plain = _said_plainly(error)
        if plain is not None:
            raise plain from error
        where = line_of(error)
        _add_note(
            error,
            "plimsoll: this was raised while the step was captured with fake tensors"
            + (f", at {where}" if where else "")
            + (f". Assumed so far: {'; '.join(notes.texts)}" if notes.texts else ""),
        )
        raise


def _add_note(error: Exception, text: str) -> None:
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(text)


#: As torch names the kinds of tensors that have no memory of their own, in the user's terms.
_WITHOUT_STORAGE = {
    "SparseTensorImpl": "a sparse tensor (as gradients of nn.Embedding(sparse=True) are)",
    "TensorWrapper": "a tensor of torch.func's transforms (vmap, grad)",
}


def _no_meta(error: Exception) -> CaptureError:
    func = getattr(error, "func", None)
    for kind, words in _WITHOUT_STORAGE.items():
        if f"storage of {kind}" in str(error):
            return CaptureError(
                f"{words} is computed with here, which a capture cannot follow",
                where=line_of(error),
                hint=_ELSEWHERE,
            )
    if func is None:
        # PyTorch goes on with all kernels that there are.
        named = re.match("Could not run '([^']+)'", str(error))
        what = named[1] if named else str(error).splitlines()[0][:200]
        return CaptureError(
            f"an operator that is called here cannot run without data ({what})",
            where=line_of(error),
            hint=_ELSEWHERE,
        )
    return CaptureError(
        f"operator {func} cannot run without data: nobody has told torch what it gives back",
        where=line_of(error),
        hint='Register a function for it with torch.library.register_fake("namespace::name")',
    )


_ELSEWHERE = "Leave that part out, or record a run on the GPU: plimsoll run"
#: What PyTorch says where it looks for the GPU itself or for sizes, in the user's terms.
_PLAINLY = {
    "Attempted to use an uninitialized parameter": "lazy modules (nn.LazyLinear), which have no "
    "sizes at first, are not followed: give the sizes (nn.Linear)",
    r"Tried to instantiate dummy base class (\w+)": "{} needs a GPU, and a capture has none",
    r"CUDA error: no CUDA-capable device|Cannot query detailed CUDA version|NVRTC requires CUDA"
    r"|device_allocator.*INTERNAL ASSERT|CUDAAllocator.*INTERNAL ASSERT"
    r"|has no attribute '_cuda_\w+'": "PyTorch asks for the GPU itself, and a capture has none",
}


def _said_plainly(error: Exception) -> CaptureError | None:
    for pattern, words in _PLAINLY.items():
        found = re.search(pattern, str(error))
        if found:
            said = words.format(*found.groups())
            return CaptureError(said, where=line_of(error), hint=_ELSEWHERE)
    return None
