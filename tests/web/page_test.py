#!/usr/bin/python3
"""The page of `plimsoll report` in a real browser: page_test.py PROGRAM [TEST...].

Needs chromium, chromium-driver and python3-selenium of Debian; leaves with 77 without them. TEST is
a name as unittest takes it: truth_tests.Truth.test_ordinary_run.
"""

from __future__ import annotations

import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from browser import Browser, skip_without_browser
from fixture import HEIGHT, WIDTH, PageTest
from program import Program

MODULES = [
    "truth_tests",
    "view_tests",
    "link_tests",
    "compare_tests",
    "prediction_tests",
    "life_tests",
    "card_tests",
    "plan_tests",
    "robustness_tests",
]


SHOWN = 12


class Timed(unittest.TextTestResult):
    """Says in the end which tests took longest."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._begun = 0.0
        self._seconds: list[tuple[float, str]] = []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._begun = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._seconds.append((time.monotonic() - self._begun, test.id()))

    def printErrors(self) -> None:
        super().printErrors()
        for seconds, name in sorted(self._seconds, reverse=True)[:SHOWN]:
            self.stream.writeln(f"{seconds:7.1f} s  {name}")


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    skip_without_browser()
    tests = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:] or MODULES)
    with tempfile.TemporaryDirectory(prefix="plimsoll_pages_") as folder:
        PageTest.program = Program(Path(sys.argv[1]), Path(folder))
        # Starting a browser takes longer than most tests.
        PageTest.browser = Browser(WIDTH, HEIGHT)
        try:
            result = unittest.TextTestRunner(verbosity=2, resultclass=Timed).run(tests)
        finally:
            PageTest.browser.quit()
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    raise SystemExit(main())
