"""What a capture can fail with."""

from __future__ import annotations


class CaptureError(RuntimeError):
    """The step cannot be captured: what happened, in which line, and what to do about it."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}. {hint}" if hint else text)
