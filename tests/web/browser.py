"""Debian's Chromium, driven by Selenium: opens pages, reads them, points at them.

Nothing here sleeps: the page says when it is ready, and draws in animation frames, which can be
waited for.
"""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from typing import Any

DRIVER = "/usr/bin/chromedriver"
# Against hanging alone: a page of a million events takes seconds, and on a busy machine a minute.
PATIENCE_SECONDS = 600


def skip_without_browser() -> None:
    """Leaves with 77, which CTest takes for a test that was skipped, where something is missing."""
    missing = []
    try:
        import selenium  # noqa: F401
    except ImportError:
        missing.append("python3-selenium")
    if not Path(DRIVER).exists():
        missing.append("chromium-driver")
    if not shutil.which("chromium"):
        missing.append("chromium")
    if missing:
        print(f"SKIPPED: {', '.join(missing)} of Debian is not installed for {sys.executable}")
        raise SystemExit(77)


class Browser:
    """One window. Coordinates and sizes are CSS pixels."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._opened = 0
        # What stands as it was opened: nobody has touched it since.
        self._untouched: tuple[Path, str] | None = None
        self._emulated: dict[str, dict[str, Any]] = {}
        self._driver = webdriver.Chrome(service=Service(DRIVER), options=options)
        self._driver.set_script_timeout(PATIENCE_SECONDS)
        self._driver.set_page_load_timeout(PATIENCE_SECONDS)
        self.resize(width, height)

    def quit(self) -> None:
        self._driver.quit()

    @property
    def driver(self) -> Any:
        """For whatever this class has no name for; the page counts as touched."""
        self._untouched = None
        return self._driver

    def open(self, page: Path, fragment: str = "") -> None:
        """Opens a page and waits until it has drawn everything. One that stands as it was opened is not loaded again."""
        if self._untouched == (page, fragment):
            return
        # An address that differs in its fragment alone would not be loaded again; a number makes it another one, and
        # is cheaper than a blank page between the two.
        self._opened += 1
        self.complaints()
        self._driver.get(f"{page.resolve().as_uri()}?{self._opened}" + (f"#{fragment}" if fragment else ""))
        self.wait_until("document.documentElement.dataset.ready === 'true'")
        self.settle()
        self._untouched = (page, fragment)

    def run(self, script: str, *arguments: Any) -> Any:
        reads = script.lstrip().startswith("return ")
        return (self._driver if reads else self.driver).execute_script(script, *arguments)

    def wait_until(self, condition: str, *arguments: Any) -> None:
        """Until an expression of the page's script is true. Not by eval, which the page forbids.

        The page looks by itself: a command of the driver for every look takes more than what is waited for.
        """
        failure = self._driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "const look = () => {"
            f"  try {{ ({condition}) ? done(null) : setTimeout(look, 10); }} catch (error) {{ done(String(error)); }}"
            "};"
            "look();",
            *arguments,
        )
        if failure is not None:
            raise AssertionError(f"{condition}: {failure}")

    def settle(self) -> None:
        """Until what was asked for has been drawn: the frame that draws it, and the one after."""
        self._driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )

    def complaints(self) -> list[str]:
        """What the browser has written into its log since it was last asked: errors, refusals."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Everything that the page fetched beside itself."""
        return self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")

    def resize(self, width: int, height: int) -> None:
        self._emulate(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def media(self, kind: str = "", scheme: str = "light") -> None:
        """`kind` is "print", or "" for the screen; `scheme` is what the system asks for."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._emulate("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def _emulate(self, command: str, arguments: dict[str, Any]) -> None:
        """It holds for later pages too; said again, it has the page laid out and drawn anew for nothing."""
        if self._emulated.get(command) != arguments:
            self.devtools(command, arguments)
            self._emulated[command] = arguments

    def devtools(self, command: str, arguments: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    # The page as it reads.

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def shown(self, selector: str) -> bool:
        return self.run(
            "return (document.querySelector(arguments[0])?.getClientRects().length ?? 0) > 0",
            selector,
        )

    def colour_of(self, selector: str, name: str = "backgroundColor") -> str:
        return self.run("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name)

    # Hands. All go through the browser's own input, as a reader's would.

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def click(self, selector: str) -> None:
        element = self.find(selector)
        # Smooth scrolling would move the target away from under the pointer; the bar at the top
        # would cover it.
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()
        self.settle()

    def press(self, keys: str) -> None:
        """Sends keys to whatever has the focus."""
        self.actions().send_keys(keys).perform()
        self.settle()

    def type_into(self, selector: str, text: str) -> None:
        field = self.find(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", field)
        field.clear()
        field.send_keys(text)
        self.settle()

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(selector)).select_by_value(value)
        self.settle()

    def drag_slider(self, selector: str, value: int) -> None:
        """Pixels are too coarse to choose one event of many, so the value is set and announced."""
        self.run(
            "const s = document.querySelector(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('input', {bubbles: true}));",
            selector,
            value,
        )
        self.settle()

    def actions(self) -> Any:
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver, duration=0)

    def point(self, selector: str, x: float, y: float) -> Any:
        """Actions that begin with the pointer at (x, y) of an element, which is scrolled into sight."""
        box = self.run(
            "const [selector, y] = arguments; const element = document.querySelector(selector);"
            "const top = element.getBoundingClientRect().top + y - window.innerHeight / 2;"
            "window.scrollBy({top: Math.round(top), behavior: 'instant'});"
            "const box = element.getBoundingClientRect(); return [box.left, box.top]",
            selector,
            y,
        )
        actions = self.actions()
        # The driver knows whole pixels only.
        actions.w3c_actions.pointer_action.move_to_location(math.floor(box[0] + x), math.floor(box[1] + y))
        return actions

    def size_of(self, selector: str) -> tuple[float, float]:
        box = self.run("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        return box["width"], box["height"]
