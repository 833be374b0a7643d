"""What had to be assumed while a job was captured, in words."""

from __future__ import annotations

from typing import Callable

#: Takes one sentence.
Note = Callable[[str], None]


class Notes:
    """Each sentence once, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> None:
        if text not in self.texts:
            self.texts.append(text)
