"""An answer in a notebook: one piece of HTML without scripts, every name escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..base.sizes import shown
from .figures import Finding, Holder, PlannedWay, Range, Remedy

_COLOURS = {
    "parameters": "#4e79a7",
    "gradients": "#59a14f",
    "optimizer_state": "#9c755f",
    "activations": "#f28e2b",
    "inputs": "#76b7b2",
    "temporaries": "#edc948",
    "workspaces": "#b07aa1",
    "kept": "#e15759",
}
_OTHER = "#bab0ac"
# What the process does not hold itself would dwarf the rest of the bar.
_NOT_HELD = ("free", "other_processes", "unnamed", "unknown")
_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top;overflow-wrap:break-word"
# A unit stays on the line of its number.
_UNITS = re.compile(r"(\d) (?=(?:[KMGT]?i?B|ms|%)\b|%)")
_HOLDERS = 10


def explanation(
    verdict: str,
    account: Mapping[str, int],
    findings: Sequence[Finding],
    holders: Sequence[Holder],
    problems: Sequence[str],
) -> str:
    return _page(
        verdict,
        _account(account),
        "".join(_finding(finding) for finding in findings),
        _holders(holders),
        _list("Not used", problems),
    )


def prediction(
    text: str,
    ranges: Mapping[str, Range],
    account: Mapping[str, int],
    holders: Sequence[Holder],
    assumptions: Sequence[str],
) -> str:
    rows = [
        (name, shown(found.best), f"{shown(found.low)} to {shown(found.high)}")
        for name, found in ranges.items()
    ]
    return _page(
        _first_paragraph(text),
        _table(("", "likely", "range"), rows),
        _account(account),
        _holders(holders),
        _list("Assumed", assumptions),
    )


def plan(text: str, ways: Sequence[PlannedWay]) -> str:
    rows = [
        (
            f"{way.samples_per_second:.1f}",
            f"{way.step_seconds * 1e3:.0f} ms",
            shown(way.device),
            way.numerics,
            ", ".join(way.changes) or "no change",
        )
        for way in ways
    ]
    head = ("samples/s", "step", "memory", "results", "what to change")
    return _page(
        _first_paragraph(text),
        _table(head, rows) if rows else "",
        _code(ways[0].code) if ways else "",
    )


def _page(verdict: str, *parts: str) -> str:
    body = "".join(parts)
    return f'<div style="max-width:60em;line-height:1.4"><p>{_text(verdict)}</p>{body}</div>'


def _text(value: Any) -> str:
    return html.escape(_UNITS.sub("\\1\N{NO-BREAK SPACE}", str(value)), quote=True)


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _words(name: str) -> str:
    return name.replace("_", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def row(cells: Sequence[Any], tag: str) -> str:
        made = "".join(f'<{tag} style="{_CELL}">{_text(cell)}</{tag}>' for cell in cells)
        return f"<tr>{made}</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _account(account: Mapping[str, int]) -> str:
    held = {what: size for what, size in account.items() if size > 0 and what not in _NOT_HELD}
    total = sum(held.values())
    if not total:
        return ""
    bar = "".join(_patch(what, size, f"{100 * size / total:.2f}%") for what, size in held.items())
    rows = "".join(
        f'<tr><td style="{_CELL}">{_patch(what, size, "10px")} {_text(_words(what))}</td>'
        f'<td style="{_CELL}">{_text(shown(size))}</td>'
        f'<td style="{_CELL}">{100 * size / total:.1f}&nbsp;%</td></tr>'
        for what, size in held.items()
    )
    return (
        f'<div style="white-space:nowrap;font-size:0;margin:4px 0">{bar}</div><table>{rows}</table>'
    )


def _patch(what: str, size: int, width: str) -> str:
    """Of the category's colour."""
    return (
        f'<span title="{_text(_words(what))}: {_text(shown(size))}" style="display:inline-block;'
        f'height:10px;width:{width};background:{_COLOURS.get(what, _OTHER)}"></span>'
    )


def _finding(finding: Finding) -> str:
    remedies = "".join(
        f"<li>{_text(remedy.change)}{_saving(remedy)}{_code(remedy.code)}</li>"
        for remedy in finding.remedies
    )
    evidence = "".join(f"<li>{_text(line)}</li>" for line in finding.evidence)
    return (
        f"<details><summary><em>{_text(finding.severity)}</em> {_text(finding.title)}</summary>"
        f"<ul>{evidence}</ul>{f'<ol>{remedies}</ol>' if remedies else ''}</details>"
    )


def _saving(remedy: Remedy) -> str:
    if remedy.saves is None:
        return ""
    bound = "at most " if remedy.at_most else ""
    costs = f"; {remedy.costs}" if remedy.costs else ""
    return _text(f" (saves {bound}{shown(remedy.saves)}, {remedy.basis}){costs}")


def _code(lines: Sequence[str]) -> str:
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>" if lines else ""


def _holders(holders: Sequence[Holder]) -> str:
    if not holders:
        return ""
    rows = [
        (shown(one.bytes), f"{one.count}×", _words(one.category), one.where, one.module)
        for one in holders[:_HOLDERS]
    ]
    table = _table(("memory", "", "what", "line", "module"), rows)
    return f"<details><summary>Who holds it</summary>{table}</details>"


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<details><summary>{_text(title)}</summary><ul>{items}</ul></details>"
