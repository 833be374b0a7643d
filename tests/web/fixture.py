"""What every test of the page starts from, and what must hold of every page."""

from __future__ import annotations

import json
import os
import re
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from browser import Browser
from program import Program

WIDTH, HEIGHT = 1280, 900

# By night (`make nightly`) every variant is tried, by day one or two of each: a page takes half a second to load.
NIGHTLY = bool(os.environ.get("PLIMSOLL_NIGHTLY"))
nightly = unittest.skipUnless(NIGHTLY, "left to make nightly")

# The page's own figures at the chosen instant.
_READ_INSTANT = """
return ((totals, rows) => ({
  event: Number(totals.event),
  allocated: Number(totals.allocated),
  reserved: Number(totals.reserved),
  account: rows("#account tr[data-what]")
      .map((row) => [row.dataset.what, Number(row.querySelector("[data-bytes]").dataset.bytes)]),
  holders: rows("#holders tbody tr").map((row) => [...row.children].map((cell) => cell.textContent)),
}))(document.querySelector("#totals").dataset, (selector) => [...document.querySelectorAll(selector)]);
"""


class PageTest(unittest.TestCase):
    """One browser and one program for all; see page_test.py."""

    browser: Browser
    program: Program

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="plimsoll_web_")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def tearDown(self) -> None:
        self.check_quiet()
        self.browser.resize(WIDTH, HEIGHT)
        self.browser.media()

    def open(self, *files: Path, compare: tuple[Path, ...] = (), fragment: str = "") -> None:
        self.browser.open(self.program.page(*files, compare=compare), fragment)

    def open_changed(self, page: Path, change: Callable[[dict[str, Any]], None]) -> None:
        """The page with other data, for what no record at hand has. Its data is not among what the policy hashes."""
        html = page.read_text()
        found = re.search(r'(<script type="application/json" id="data">)(.*?)(</script>)', html, re.DOTALL)
        data = json.loads(found[2])
        change(data)
        text = json.dumps(data).replace("<", "\\u003c")
        changed = self.folder / "changed.html"
        changed.write_text(html[: found.start(2)] + text + html[found.end(2) :])
        self.browser.open(changed)

    def check_quiet(self) -> None:
        """No error, nothing that the policy refused, and nothing fetched."""
        self.assertEqual(self.browser.complaints(), [])
        self.assertEqual(self.browser.requests(), [])

    def instant(self) -> dict[str, Any]:
        return self.browser.run(_READ_INSTANT)

    def event(self) -> int:
        return self.instant()["event"]

    def go_to(self, event: int) -> None:
        self.browser.drag_slider("#slider", event)

    def hash_words(self) -> dict[str, str]:
        """What the address holds, once it has been written: later than the rest."""
        self.browser.driver.execute_async_script("setTimeout(arguments[0], 300)")
        return dict(parse_qsl(self.browser.run("return location.hash.slice(1)"), keep_blank_values=True))

    def tip(self) -> str:
        return self.browser.text("#tip") if self.browser.shown("#tip") else ""
