#!/usr/bin/python3
"""Pictures of every view of the page: screenshots.py PROGRAM OUTDIR.

Writes OUTDIR/<view>-<light|dark>-<1280|390>.png, each cropped to its section.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

from browser import Browser, skip_without_browser
from program import DATA, Program, snapshot_file

WIDTHS = (1280, 390)
HEIGHT = 900
# What is further down says no more, and takes more than 150 KB.
MOST_HEIGHT = 900
# Two runs look like one twice: a wide and a narrow picture are enough.
COMPARED = {("light", 1280), ("dark", 390)}
GPT2 = DATA / "steps" / "gpt2_adamw_fp32.step.json.gz"
# A job with the heaviest batch of its data, and what it has on the host.
LIFE = DATA / "lives" / "longest.step.json.gz"
# Over batch and length.
LENGTHS = DATA / "steps" / "lengths.step.json.gz"
SHARED = DATA / "colocated" / "trainer_keeps_cache"
SECTIONS = {
    "timeline": "#timeline",
    "instant": "#instant",
    "stacks": "#flame",
    "segments": "#segments",
    "what-if": "#what-if",
}


def picture(browser: Browser, selector: str, file: Path) -> None:
    """A section and a little around it."""
    left, top, width, height = browser.run(
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [box.left + scrollX, box.top + scrollY, box.width, box.height]",
        selector,
    )
    edge = 8 if left >= 8 else 0
    clip = {
        "x": left - edge,
        "y": max(0, top - edge),
        "width": width + 2 * edge,
        "height": min(height + 2 * edge, MOST_HEIGHT),
        "scale": 1,
    }
    # The bar stays in sight as the page scrolls, and would lie over the section.
    browser.run("document.querySelector('.bar').style.position = 'static'")
    shot = browser.devtools(
        "Page.captureScreenshot",
        {"format": "png", "clip": clip, "captureBeyondViewport": True, "optimizeForSpeed": False},
    )
    browser.run("document.querySelector('.bar').style.position = ''")
    file.write_bytes(base64.b64decode(shot["data"]))
    print(f"{file.name:34} {file.stat().st_size / 1024:6.0f} KiB")


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    skip_without_browser()
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    ranks = [DATA / "ranks" / f"ddp_big_images.rank{rank}.pickle.xz" for rank in range(4)]
    with tempfile.TemporaryDirectory(prefix="plimsoll_shots_") as folder:
        program = Program(Path(sys.argv[1]), Path(folder))
        browser = Browser(WIDTHS[0], HEIGHT)
        try:
            for scheme in ("light", "dark"):
                for width in WIDTHS:
                    browser.media(scheme=scheme)
                    browser.resize(width, HEIGHT)
                    kind = f"{scheme}-{width}"
                    browser.open(program.page(snapshot_file("unet_adam_fp32_oom")))
                    picture(browser, "body", out / f"page-{kind}.png")
                    for name, selector in SECTIONS.items():
                        picture(browser, selector, out / f"{name}-{kind}.png")
                    browser.open(program.page(*ranks))
                    picture(browser, "#ranks", out / f"ranks-{kind}.png")
                    # A run of many steps, with phases.
                    picture(browser, "#timeline", out / f"timeline-steps-{kind}.png")
                    if (scheme, width) in COMPARED:
                        browser.open(program.page(ranks[0], compare=(ranks[2],)))
                        picture(browser, "#timeline", out / f"compare-{kind}.png")
                    browser.open(program.page(SHARED))
                    picture(browser, "#processes", out / f"processes-{kind}.png")
                    browser.open(program.prediction(LIFE, batch=8))
                    picture(browser, "#timeline", out / f"life-{kind}.png")
                    picture(browser, "#stages", out / f"stages-{kind}.png")
                    browser.open(program.prediction(GPT2, batch=8))
                    picture(browser, "#trade-offs", out / f"trade-offs-{kind}.png")
                    browser.open(program.prediction(LENGTHS, 8, "--length", 512, "--limit", "2GiB"))
                    picture(browser, "#lengths", out / f"lengths-{kind}.png")
                    page, _ = program.planned(GPT2, "--gpu", "RTX4090", "--gpus", 4, "--global-batch", 64)
                    browser.open(page)
                    picture(browser, "#plan", out / f"plan-{kind}.png")
        finally:
            browser.quit()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
