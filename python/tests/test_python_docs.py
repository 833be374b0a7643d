"""The examples of docs/python.md run, one after the other, and the values beside them are true."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from program_here import needs_program

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "python.md"


def examples():
    """(line, code) of each Python block, but for those after `<!-- not run: why -->`."""
    text = GUIDE.read_text(encoding="utf-8")
    found = re.finditer(r"(<!-- not run: [^\n]* -->\n)?```python\n(.*?)```", text, re.DOTALL)
    for block in found:
        if block.group(1) is None:
            yield text[: block.start(2)].count("\n") + 1, block.group(2)


def claims(code):
    """(expression, what the comment says it is) where that is a literal, `...` for what follows."""
    for line in code.splitlines():
        expression, found, comment = line.partition("#")
        try:
            ast.literal_eval(comment.strip())
            ast.parse(expression.strip(), mode="eval")
        except (SyntaxError, ValueError):
            continue
        if found:
            yield expression.strip(), ast.literal_eval(comment.strip())


def agrees(value, said):
    if isinstance(said, str) and said.endswith("..."):
        return value.startswith(said[:-3])
    return value == said


@needs_program
def test_the_examples_run_and_their_values_are_true(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "stdout", open("/dev/null", "w"))
    names = {"torch": torch, "loader": range(3), "train_step": lambda batch: None}
    checked = 0
    for line, code in examples():
        exec(compile("\n" * (line - 1) + code, str(GUIDE), "exec"), names)
        for expression, said in claims(code):
            assert agrees(eval(expression, names), said), f"{GUIDE.name}: {expression} is {said}"
            checked += 1
    assert checked >= 6
