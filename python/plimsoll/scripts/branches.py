"""Marks the loops of the user's files (loops.py), and the `if`s that go by a counter, so that it is
known which of them were entered, and so that one can come due:

    if step % 50 == 0:                if ASKS(3, step % 50 == 0, step, 50):
        evaluate(model)                   ENTERS(4)
                                          evaluate(model)
                                          LEAVES(4)

What the user wrote keeps its lines and columns, is computed once and in its order. A branch that
does nothing but tell how far it is has no marks.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

#: Names that Python finds in any file.
ASKS, ENTERS, LEAVES = "__plimsoll_asks__", "__plimsoll_enters__", "__plimsoll_leaves__"
#: Of loops (loops.py).
ROUNDS, STARTS, GOES = "__plimsoll_rounds__", "__plimsoll_starts__", "__plimsoll_goes__"

#: What is left of a division: it comes due every so often. Other tests compare.
PERIOD = "%"

_COMPARED = {
    ast.In: "in",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_FLIPPED = {">": "<", "<": ">", ">=": "<=", "<=": ">=", "==": "==", "!=": "!="}
#: Functions that tell people something, or end it all.
_TELLS = {
    *("print", "len", "str", "int", "float", "bool", "range", "round", "repr", "min", "max"),
    *("exit", "quit", "_exit", "item", "format", "join", "write", "flush", "debug", "info"),
    *("warning", "set_description", "set_postfix", "add_scalar", "time", "perf_counter"),
    *("items", "keys", "values", "get", "sleep", ENTERS, LEAVES, STARTS),
}
#: And those that write files.
_SAVES = {
    *("save", "save_model", "save_pretrained", "save_checkpoint", "save_state", "state_dict"),
    *("makedirs", "mkdir", "dump", "savefig", "plot", "log", "add_scalars", "add_image"),
    *("unlink", "remove", "rmtree", "exists", "Path", "close", "str", "copy", "copyfile"),
}
#: Characters of a test that are shown.
_LONGEST = 60

#: Methods after which less is kept.
_SHORTENS = {"pop", "popleft", "popitem", "clear", "remove"}

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Branch(NamedTuple):
    """What is done where a test comes out one way."""

    path: str
    #: Of its `if`.
    line: int
    column: int
    #: "`if step % 50 == 0:`"
    text: str
    #: Lines that are in it.
    first: int
    last: int
    #: The one that it lies in.
    outer: int | None
    #: It may change what the job needs: it does more than to save and to show.
    matters: bool = True

    @property
    def shown(self) -> str:
        return f"{os.path.basename(self.path)}:{self.line} {self.text}"

    @property
    def key(self) -> str:
        """The same in every process."""
        return f"{self.path}:{self.first}:{self.column}"


class Test(NamedTuple):
    """A part of a test: what is left of a division, or a comparison."""

    #: PERIOD, or how the counter is compared.
    kind: str
    #: What a period is when it is over.
    due: bool
    #: By whether it is true: the branch that it leads to, if it is alone in its test. None where
    #: that does nothing.
    leads: dict[bool, int | None]
    #: What is made shorter where it is true, if its length is compared: "self.history".
    trims: str = ""
    #: Of `224 if epoch > 9 else 128`, which has no lines of its own.
    in_expression: bool = False
    #: It compares how long something is.
    of_length: bool = False


class Loop(NamedTuple):
    """A `for` or a `while`."""

    number: int
    path: str
    #: Of its head, and of its body.
    line: int
    first: int
    last: int


class Marker:
    """Of all files of a script."""

    def __init__(self) -> None:
        self._loops: dict[tuple[str, str], list[Loop]] = {}
        #: By number.
        self.loops: list[Loop] = []
        #: Their indices are in the marks.
        self.branches: list[Branch] = []
        self.tests: list[Test] = []
        #: What is cut to its last so many, by name: `history = history[-20:]`.
        self.cut_to: dict[str, int] = {}
        #: As many as a name or attribute has: `history = history[-args.keep:]`.
        self.cut_by: dict[str, str] = {}

    def marked(self, source: bytes, path: str) -> ast.Module | None:
        """The tree of a file, or None where there is nothing to mark."""
        tree = ast.parse(source, path)
        before = len(self.tests) + len(self.loops)
        _File(self, path, source.decode(errors="replace")).block(tree.body, _Around())
        return tree if len(self.tests) + len(self.loops) > before else None

    def loops_in(self, path: str, function: str) -> list[Loop]:
        """Those of a function, or of the file, the inner ones first."""
        return self._loops.get((path, function), [])

    def add_loop(self, path: str, function: str, statement: ast.For | ast.While) -> int:
        """Its number. Loops are added before those inside them."""
        body = statement.body
        last = body[-1].end_lineno or body[-1].lineno
        loop = Loop(len(self.loops), path, statement.lineno, body[0].lineno, last)
        self.loops.append(loop)
        self._loops.setdefault((path, function), []).insert(0, loop)
        return loop.number


class _Around(NamedTuple):
    """What a statement stands in."""

    branch: int | None = None
    #: Its name; empty outside of any.
    function: str = ""
    #: Of that function, or of the file.
    in_loop: bool = False

    @property
    def in_function(self) -> bool:
        return bool(self.function)


class _File:
    def __init__(self, marker: Marker, path: str, source: str) -> None:
        self._marker = marker
        self._branches, self._tests = marker.branches, marker.tests
        self._cut_to, self._cut_by = marker.cut_to, marker.cut_by
        self._path = path
        self._source = source
        #: Of the function at hand, by name: `is_due = step % 50 == 0`.
        self._flags: dict[str, ast.Assign] = {}

    def block(self, statements: list[ast.stmt], around: _Around) -> None:
        for statement in list(statements):
            if isinstance(statement, ast.If) and (around.in_function or around.in_loop):
                self._if(statement, statements, around)
            else:
                self._note_cut(statement)
                if isinstance(statement, ast.While):
                    nowhere: dict[bool, int | None] = {True: None, False: None}
                    statement.test = self._asking(
                        statement.test, True, nowhere, _trimmed(statement)
                    )
                if isinstance(statement, (ast.For, ast.While)):
                    self._loop(statement, statements, around)
                flags = self._flags
                if isinstance(statement, _FUNCTIONS):
                    self._flags = {}
                for inner in _blocks(statement):
                    self.block(inner, _inside(statement, around))
                self._flags = flags
                self._note_flag(statement)
                self._expressions(statement, around)

    def _expressions(self, statement: ast.stmt, around: _Around) -> None:
        """`size = 224 if epoch > 9 else 128`"""
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)):
            return
        if not (around.in_function or around.in_loop):
            return
        for one in ast.walk(statement):
            if isinstance(one, ast.IfExp) and any(map(_part, _leaves(one.test))):
                leads = {
                    truth: self._add_branch(one, [value], around, text)
                    for truth, value, text in (
                        (True, one.body, self._text(one)),
                        (False, one.orelse, "the else of " + self._text(one)),
                    )
                    if _matters(value)
                }
                every = {True: leads.get(True), False: leads.get(False)}
                one.test = self._asking(one.test, True, every, in_expression=True)

    def _loop(
        self, statement: ast.For | ast.While, block: list[ast.stmt], around: _Around
    ) -> None:
        if not any(map(_acts, statement.body)):
            return
        function = around.function or "<module>"
        number = self._marker.add_loop(self._path, function, statement)
        if isinstance(statement, ast.For):
            statement.iter = _call(ROUNDS, statement.iter, number, statement.iter)
        else:
            statement.test = _call(GOES, statement.test, number, statement.test)
            block.insert(block.index(statement), _said(_call(STARTS, statement, number)))

    def _note_cut(self, statement: ast.stmt) -> None:
        kept, most = _cut(statement) or ("", None)
        if isinstance(most, ast.Constant) and isinstance(most.value, int):
            self._cut_to[kept] = most.value
        elif most is not None:
            self._cut_by[kept] = ast.unparse(most)

    def _note_flag(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                name = target.id if isinstance(target, ast.Name) else ""
                if any(map(_part, _leaves(statement.value))):
                    self._flags[name] = statement
                else:
                    self._flags.pop(name, None)

    def _flag(self, test: ast.expr) -> ast.Assign | None:
        return self._flags.get(test.id) if isinstance(test, ast.Name) else None

    def _if(self, statement: ast.If, block: list[ast.stmt], around: _Around) -> None:
        body, rest = statement.body, _rest(statement, block)
        leaves = list(_leaves(statement.test))
        goes_by_counter = any(map(_part, leaves)) or any(map(self._flag, leaves))
        yes = self._branch(statement, body, around) if goes_by_counter else None
        no = self._branch(statement, rest, around) if goes_by_counter else None
        self.block(body, around if yes is None else around._replace(branch=yes))
        self.block(statement.orelse, around if no is None else around._replace(branch=no))
        before = len(self._tests)
        leads = {True: yes, False: no}
        statement.test = self._asking(statement.test, True, leads, _trimmed(statement))
        if len(self._tests) > before:
            if yes is not None:
                _mark(yes, len(body), body, around.in_loop)
            if no is not None:
                _mark(no, len(rest), statement.orelse or block, around.in_loop)

    def _branch(
        self, statement: ast.If, does: list[ast.stmt], around: _Around
    ) -> int | None:
        if not any(map(_acts, does)):
            return None
        text = self._text(statement)
        if does is statement.orelse:
            text = "the else of " + text
        elif does is not statement.body:
            text = "what follows " + text
        return self._add_branch(statement, does, around, text)

    def _add_branch(
        self,
        statement: ast.If | ast.IfExp,
        does: Sequence[ast.stmt | ast.expr],
        around: _Around,
        text: str,
    ) -> int:
        found = Branch(
            self._path,
            statement.lineno,
            statement.col_offset,
            text,
            does[0].lineno,
            does[-1].end_lineno or does[-1].lineno,
            around.branch,
            not all(map(_is_harmless, does)),
        )
        self._branches.append(found)
        return len(self._branches) - 1

    def _text(self, statement: ast.If | ast.IfExp) -> str:
        test = ast.get_source_segment(self._source, statement.test) or ast.unparse(statement.test)
        test = " ".join(test.split())
        if len(test) > _LONGEST:
            test = test[:_LONGEST].rstrip() + " ..."
        if isinstance(statement, ast.IfExp):
            return f"`if {test}`"
        only = statement.body[0] if len(statement.body) == 1 else None
        leaves = " continue" if isinstance(only, ast.Continue) else ""
        leaves = " return" if isinstance(only, ast.Return) else leaves
        return f"`if {test}:{leaves}`"

    def _asking(
        self,
        test: ast.expr,
        truth: bool,
        leads: dict[bool, int | None],
        trims: str = "",
        in_expression: bool = False,
    ) -> ast.expr:
        """`truth`: whether all of it is true where this is. `trims`: as in Test, of all of it, or
        of the last of what `and` joins."""
        if isinstance(test, ast.BoolOp):
            *values, last = test.values
            values = [self._asking(one, truth, leads, "", in_expression) for one in values]
            test.values = [*values, self._asking(last, truth, leads, trims, in_expression)]
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._asking(test.operand, not truth, leads, "", in_expression)
        elif flag := self._flag(test):
            flag.value = self._asking(flag.value, truth, leads)
        else:
            part = _part(_unmarked(test))
            here = {True: leads[truth], False: leads[not truth]}
            matters = [part.due] if part and part.kind == PERIOD else [True, False]
            if part is None or not trims and all(here[one] is None for one in matters):
                return test
            is_length = isinstance(part.counter, ast.Call)
            self._tests.append(Test(part.kind, part.due, here, trims, in_expression, is_length))
            names = (_again(name, test) for name in (part.counter, part.bound))
            return _call(ASKS, test, len(self._tests) - 1, test, *names)
        return test


def _blocks(statement: Any) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(statement, name, []):
            yield part.body


def _inside(statement: ast.stmt, around: _Around) -> _Around:
    if isinstance(statement, _FUNCTIONS):
        return _Around(function="" if isinstance(statement, ast.ClassDef) else statement.name)
    return around._replace(in_loop=True) if isinstance(statement, _LOOPS) else around


# Tests.


class _Part(NamedTuple):
    """As in Test, with the names of the counter and of what it is compared with."""

    kind: str
    due: bool
    counter: ast.expr
    bound: ast.expr


def _leaves(test: ast.expr) -> Iterator[ast.expr]:
    """What `and`, `or` and `not` join."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _leaves(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand)
    else:
        yield test


def _unmarked(test: ast.expr) -> ast.expr:
    """A flag may be asked for more than once."""
    while isinstance(test, ast.Call) and _name_of(test) == ASKS:
        test = test.args[1]
    return test


def _part(test: ast.expr) -> _Part | None:
    if isinstance(test, ast.BinOp):
        return _period(test, due=False)
    how = _COMPARED.get(type(test.ops[0])) if isinstance(test, ast.Compare) else None
    if how is None or not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return None
    sides = test.left, test.comparators[0]
    for side in sides:
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mod):
            return _period(side, due=how == "==") if how in ("==", "!=") else None
    left, right = map(_named, sides)
    if how == "in":
        right = right or _numbers(sides[1])
    if left is None or right is None:
        return None
    if isinstance(left, ast.Constant):
        if how == "in":
            return None
        left, right, how = right, left, _FLIPPED[how]
    return _Part(how, True, left, right)


def _numbers(value: ast.expr) -> ast.expr | None:
    """`(30, 60)`"""
    if not isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return None
    return value if all(isinstance(_named(one), ast.Constant) for one in value.elts) else None


def _period(division: ast.BinOp, due: bool) -> _Part | None:
    counter = _named(division.left) if isinstance(division.op, ast.Mod) else None
    if counter is None or isinstance(counter, ast.Constant):
        return None
    return _Part(PERIOD, due, counter, _named(division.right) or ast.Constant(None))


def _named(value: Any) -> ast.expr | None:
    """What can be read once more and nothing comes of it: a number, a name, an attribute, an entry,
    how long a list is. Of `step + 1` the name."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Sub)):
        names = [side for side in (value.left, value.right) if not isinstance(side, ast.Constant)]
        return _named(names[0]) if len(names) == 1 else None
    if isinstance(value, ast.Constant):
        return value if type(value.value) is int else None
    named = value
    if isinstance(value, ast.Call) and _name_of(value) == "len" and len(value.args) == 1:
        named = value.args[0]
    while isinstance(named, ast.Attribute) or _is_entry(named):
        named = named.value
    return value if isinstance(named, ast.Name) else None


def _is_entry(value: ast.expr) -> bool:
    """`state["step"]`: of a dictionary, since a text is no index of a tensor."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Constant):
        return False
    return isinstance(value.slice.value, str)


# What is kept of a list.


def _trimmed(statement: ast.If | ast.While) -> str:
    """What is made shorter where it has become too long: `if len(history) > 20: history.pop(0)`."""
    test = statement.test
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        # It is asked for the last where the others are true alone.
        test = test.values[-1] if all(map(_is_plain, test.values[:-1])) else test
    part = _part(test)
    if part is None or part.kind not in (">", ">=", "==") or not isinstance(part.counter, ast.Call):
        return ""
    kept = ast.unparse(part.counter.args[0])
    ends = (one for each in statement.body for one in ast.walk(each))
    return kept if any(_ends_some(one, kept) for one in ends) else ""


def _ends_some(node: ast.AST, kept: str) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _SHORTENS and ast.unparse(node.func.value) == kept
    targets = node.targets if isinstance(node, (ast.Delete, ast.Assign)) else []
    of_items = (one.value if isinstance(one, ast.Subscript) else one for one in targets)
    return any(ast.unparse(one) == kept for one in of_items)


def _cut(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """What is cut to its last so many, whatever its length: `history = history[-20:]`, `del
    history[:-20]`, and where each step takes the place of an older one: `history[step % 20] =
    loss`, `history.pop(step - 20, None)`."""
    if isinstance(statement, ast.Expr):
        call = statement.value
        if isinstance(call, ast.Call) and _name_of(call) == "pop" and len(call.args) == 2:
            return _kept_of(getattr(call.func, "value", None), call.args[0], ast.Sub)
        return None
    if not isinstance(statement, (ast.Assign, ast.Delete)):
        return None
    target = statement.targets[0]
    if isinstance(statement, ast.Assign) and isinstance(target, ast.Subscript):
        return _kept_of(target.value, target.slice, ast.Mod)
    found = statement.value if isinstance(statement, ast.Assign) else target
    if not isinstance(found, ast.Subscript) or not isinstance(found.slice, ast.Slice):
        return None
    kept = ast.unparse(found.value)
    if isinstance(statement, ast.Assign) and kept not in map(ast.unparse, statement.targets):
        return None
    end = found.slice.lower if isinstance(statement, ast.Assign) else found.slice.upper
    if not isinstance(end, ast.UnaryOp) or not isinstance(end.op, ast.USub):
        return None
    return (kept, end.operand) if _is_plain(end.operand) else None


def _kept_of(
    kept: ast.expr | None, index: ast.expr, by: type[ast.operator]
) -> tuple[str, ast.expr] | None:
    """`index`: of a step, and by how much that is less or divided."""
    if kept is None or not isinstance(index, ast.BinOp) or not isinstance(index.op, by):
        return None
    is_of_step = _named(index.left) is not None and not isinstance(index.left, ast.Constant)
    return (ast.unparse(kept), index.right) if is_of_step and _is_plain(index.right) else None


def _is_plain(value: ast.expr) -> bool:
    """A number, a name or an attribute."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) or type(getattr(value, "value", None)) is int


# What a branch does.


def _rest(statement: ast.If, block: list[ast.stmt]) -> list[ast.stmt]:
    """What is done where the test is false. Behind `if step % 50: continue` all that follows."""
    leaves = isinstance(statement.body[-1], (ast.Continue, ast.Return))
    if statement.orelse or not leaves:
        return statement.orelse
    return block[block.index(statement) + 1 :]


def _matters(value: ast.expr) -> bool:
    """Of a value that is set: a rate does not, a size or a flag may."""
    return not isinstance(value, ast.Constant) or isinstance(value.value, (int, str))


def _is_harmless(node: ast.AST) -> bool:
    """It saves, or shows something."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    sets = any(isinstance(one, (ast.Assign, ast.AnnAssign)) for one in ast.walk(node))
    known = _TELLS | _SAVES
    return bool(calls) and not sets and all(_name_of(one) in known for one in calls)


def _acts(statement: ast.stmt) -> bool:
    """Whether it does more than to tell people how far it is, to end, or to set a rate."""
    if isinstance(statement, ast.Raise):
        return False
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        return _matters(statement.value) and not isinstance(statement, ast.AugAssign)
    blocks = list(_blocks(statement))
    if not blocks or isinstance(statement, _FUNCTIONS):
        return _calls(statement)
    heads = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
    return any(map(_calls, heads)) or any(_acts(one) for block in blocks for one in block)


def _calls(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) and _name_of(one) not in _TELLS for one in ast.walk(node))


def _name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


# Marks.


def _mark(branch: int, count: int, block: list[ast.stmt], in_loop: bool) -> None:
    """The last `count` statements of the block are the branch."""
    begin = len(block) - count
    _mark_ends(block[begin:], block, branch, True, in_loop)
    first, last = block[begin], block[-1]
    block.insert(begin, _said(_call(ENTERS, first, branch)))
    block.append(_said(_call(LEAVES, last, branch)))


def _mark_ends(
    statements: list[ast.stmt], block: list[ast.stmt], branch: int, in_its: bool, in_loop: bool
) -> None:
    """Where a branch ends before its last line and the script goes on in its loop: by `continue`,
    or by `return` from a function that is called there. `in_its`: a `continue` is that of the loop
    around the branch. `in_loop`: there is one in its function, which a `return` leaves."""
    for statement in statements:
        if isinstance(statement, ast.Continue) and in_its:
            block.insert(block.index(statement), _said(_call(LEAVES, statement, branch)))
        elif isinstance(statement, ast.Return) and not in_loop:
            nothing = ast.copy_location(ast.Constant(None), statement)
            statement.value = _call(LEAVES, statement, branch, statement.value or nothing)
        elif not isinstance(statement, _FUNCTIONS):
            for inner in _blocks(statement):
                its = in_its and not isinstance(statement, _LOOPS)
                _mark_ends(list(inner), inner, branch, its, in_loop)


def _call(name: str, at: ast.AST, number: int, *values: ast.expr) -> ast.Call:
    """Where `at` stands."""
    arguments = [ast.copy_location(ast.Constant(number), at), *values]
    function = ast.copy_location(ast.Name(name, ast.Load()), at)
    return ast.copy_location(ast.Call(function, arguments, []), at)


def _again(value: ast.expr, at: ast.AST) -> ast.expr:
    """To be read once more: a tree has each of its nodes once."""
    copy = ast.parse(ast.unparse(value), mode="eval").body
    for node in ast.walk(copy):
        ast.copy_location(node, at)
    return copy


def _said(call: ast.Call) -> ast.Expr:
    return ast.copy_location(ast.Expr(call), call)
