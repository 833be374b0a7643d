"""What a capture, the application of a plan, or a question to the program can fail with."""

from __future__ import annotations


def in_a_line(error: BaseException) -> str:
    """Of somebody else's error: its type, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class CaptureError(RuntimeError):
    """The step cannot be captured: what happened, in which line, and what to do about it."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        text = f"{where}: {what}" if where else what
        super().__init__(f"{text}. {hint}" if hint else text)


def in_two_lines(error: CaptureError) -> str:
    """As the program reads it, which puts the hint behind a semicolon."""
    what = f"{error.where}: {error.what}" if error.where else error.what
    hint = error.hint or ""
    if hint[1:2].islower() or hint[1:2] == " ":
        hint = hint[0].lower() + hint[1:]
    return "\n".join(" ".join(line.split()) for line in (what, hint)) + "\n"


class PlanError(RuntimeError):
    """The plan cannot be applied: what is in the way, and what to do about it."""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what}. {hint}" if hint else what)


class ProgramError(RuntimeError):
    """The plimsoll program is not there, or has no answer: why, and what to do about it."""

    def __init__(self, what: str, *, hint: str | None = None) -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what}. {hint}" if hint else what)
