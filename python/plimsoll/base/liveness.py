"""What a function still does with its variables: which are read again, and which a statement names.

Read from the bytecode, which knows every way on, and from the source, which knows where a line can
be put in.
"""

from __future__ import annotations

import ast
import bisect
import dis
import functools
import linecache
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Of a function that is running: those that have a value."""
    values = frame.f_locals
    items = list(values.items())
    if sys.version_info < (3, 13):
        values.clear()  # it is a copy, which the frame keeps, and with it what is in it
    return items


@functools.cache
def _live_after(code: CodeType) -> dict[int, frozenset[str]]:
    """By the offset of an instruction: the names that may be read after it as they are now."""
    instructions = list(dis.get_instructions(code))
    index_of = {instruction.offset: i for i, instruction in enumerate(instructions)}
    following = [
        [index_of[offset] for offset in _following(code, instructions, i) if offset in index_of]
        for i in range(len(instructions))
    ]
    effects = [_effect(instruction) for instruction in instructions]
    before: list[frozenset[str]] = [frozenset()] * len(instructions)
    after = list(before)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(instructions))):
            after[i] = frozenset().union(*(before[j] for j in following[i]))
            reads, binds = effects[i]
            live = (after[i] - binds) | reads
            if live != before[i]:
                before[i] = live
                changed = True
    return {instruction.offset: after[i] for i, instruction in enumerate(instructions)}


_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_ALWAYS = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP")


def _following(code: CodeType, instructions: list[Any], i: int) -> Iterator[int]:
    instruction = instructions[i]
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        yield instruction.argval
    if instruction.opname not in _ENDS + _ALWAYS and i + 1 < len(instructions):
        yield instructions[i + 1].offset
    for begin, end, handler in _handlers(code):
        if begin <= instruction.offset < end:
            yield handler


@functools.cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    """Where exceptions go; before Python 3.11 an instruction said so itself."""
    parse = getattr(dis, "_parse_exception_table", None)
    return [(entry.start, entry.end, entry.target) for entry in parse(code)] if parse else []


def _effect(instruction: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The names that an instruction reads, then the ones that it binds anew or deletes. Python
    joins two of them into one from 3.13 on."""
    name = instruction.opname
    if "_FAST" not in name:
        return frozenset(), frozenset()
    value = instruction.argval
    names = value if isinstance(value, tuple) else (value,)
    kinds = [part for part in name.split("_") if part in ("LOAD", "STORE", "DELETE")]
    kinds = kinds if len(kinds) == len(names) else kinds[:1] * len(names)
    loads = frozenset(n for n, kind in zip(names, kinds) if kind == "LOAD")
    others = frozenset(n for n, kind in zip(names, kinds) if kind != "LOAD")
    if name.startswith("STORE_FAST_LOAD"):  # what is stored first is what is loaded
        loads -= others
    return loads, others


def done_with(code: CodeType, offset: int) -> frozenset[str]:
    """The variables that nothing reads any more after the instruction at `offset`. What an inner
    function shares is not told."""
    # A frame may point into the room that an instruction has for its caches.
    offsets = list(_live_after(code))
    live = _live_after(code)[offsets[max(0, bisect.bisect_right(offsets, offset) - 1)]]
    return frozenset(code.co_varnames) - live - frozenset(code.co_cellvars)


class Statement(NamedTuple):
    line: int
    names: frozenset[str]


@functools.cache
def statement_at(code: CodeType, line: int) -> Statement | None:
    """The innermost statement of this line, if the source is there: a line can be put before it."""
    found = None
    for statement in _statements(code.co_filename):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        if found is None or statement.lineno >= found.lineno:
            found = statement
    if found is None or isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return None
    names = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
    return Statement(found.lineno, frozenset(names))


@functools.cache
def _statements(file: str) -> list[ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


@functools.cache
def truth_to_go_on(code: CodeType, line: int) -> bool | None:
    """What the condition of an `if` has to be for the code not to give up with an error; None where
    it does not give up, or where the condition has several parts of which one is negated."""
    for statement in _statements(code.co_filename):
        if not isinstance(statement, ast.If) or not _gives_up(statement.body[-1]):
            continue
        test = statement.test
        if not test.lineno <= line <= (test.end_lineno or test.lineno):
            continue
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        inner = test.operand if isinstance(test, ast.UnaryOp) else test
        return None if any(isinstance(n, ast.Not) for n in ast.walk(inner)) else negated
    return None


def _gives_up(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return isinstance(statement.test, ast.Constant) and not statement.test.value
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name = ast.unparse(statement.value.func)
        first = statement.value.args[:1]
        return name.endswith("_assert") and [ast.unparse(arg) for arg in first] == ["False"]
    return isinstance(statement, ast.Raise)
