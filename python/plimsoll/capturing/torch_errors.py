"""What torch says of fake tensors, in the user's terms."""

from __future__ import annotations

import contextlib
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
                hint="Leave that part out, or record a run on the GPU: plimsoll run",
            )
    what = f"operator {func}" if func is not None else str(error).splitlines()[0]
    return CaptureError(
        f"{what} cannot run without data: nobody has told torch what it gives back"
        if func is not None
        else f"an operator cannot run without data: {what}",
        where=line_of(error),
        hint='Register a function for it with torch.library.register_fake("namespace::name")',
    )
