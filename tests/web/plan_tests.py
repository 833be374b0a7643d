"""The page of `plimsoll plan --html`: every way that is drawn is one of the plan, and can be chosen."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from fixture import NIGHTLY, PageTest, nightly
from program import DATA, size_text

STEP = DATA / "steps" / "gpt2_adamw_fp32.step.json.gz"
# Of few blocks, so that a plan is made in half a second.
SMALL = DATA / "steps" / "vgg16_sgdm.step.json.gz"
FLAGS = ("--gpu", "RTX4090", "--global-batch", 32)
HARMFUL = "</script><img src=x onerror=alert(1)>"


def same_way(way: dict[str, Any]) -> str:
    return json.dumps([way["batch"], way["set"]], sort_keys=True)


def words(way: dict[str, Any]) -> str:
    return ", ".join(lever["words"] for lever in way["levers"]) or "no change"


class PlanPage(PageTest):
    flags: tuple[Any, ...] = FLAGS

    def step(self) -> Path:
        """A job whose names mean harm: every test of the page has them on it."""
        step = self.program.folder / "harmful.step.json.gz"
        if not step.exists():
            harmful = gzip.decompress(STEP.read_bytes()).replace(b"GPT2LMHeadModel", HARMFUL.encode())
            step.write_bytes(gzip.compress(harmful.replace(b"transformer.h", f"{HARMFUL}.h".encode())))
        return step

    def setUp(self) -> None:
        super().setUp()
        self.page, self.plan = self.program.planned(self.step(), *self.flags, fine=(0, 1))
        self.browser.open(self.page)

    def chosen(self) -> str:
        """The one that is marked, in the chart and in the table."""
        marked = self.browser.run(
            "return [...document.querySelectorAll('#plan .chosen')].map((e) => [e.tagName, e.dataset.plan])"
        )
        self.assertEqual(sorted(tag for tag, _ in marked), ["TR", "g"])
        self.assertEqual(len({index for _, index in marked}), 1)
        return marked[0][1]

    def check_shown(self, way: dict[str, Any]) -> None:
        """The panel has the figures of a way, and its lines as they are to be typed."""
        text = self.browser.text("#plan-chosen")
        for part in (words(way), f"{way['samples_per_second']:.1f} samples a second", size_text(way["device"]["best"])):
            self.assertIn(part, text)
        code = ["\n".join(lever["code"]) for lever in way["levers"]]
        self.assertEqual(self.browser.texts("#plan-chosen code"), [f"batch_size={way['batch']}", *code])
        copies = "return [...document.querySelectorAll('#plan-chosen .copy')].map((b) => b.dataset.copies)"
        self.assertEqual(self.browser.run(copies)[1:], code)


class Ways(PlanPage):
    def test_first_way_is_chosen_at_first(self) -> None:
        self.assertEqual(self.chosen(), "0")
        self.check_shown(self.plan["ways"][0])

    def test_every_way_is_a_point_and_a_row(self) -> None:
        fastest = self.plan["ways"][0]["samples_per_second"]
        alone = [way for way in self.plan["alone"] if way["samples_per_second"] > fastest / 2]
        drawn = [*self.plan["ways"], *alone, *self.plan["frontier"], self.plan["as_captured"]]
        count = len({same_way(way) for way in drawn})
        self.assertEqual(len(self.browser.texts("#plan .point")), count)
        self.assertEqual(len(self.browser.texts("#plan tbody tr")), count)
        labels = self.browser.texts("#plan .point-label")
        self.assertLessEqual({str(i + 1) for i in range(len(self.plan["ways"]))}, set(labels))
        self.assertIn("as captured", labels)

    @nightly
    def test_the_axis_bends_below_a_job_that_needs_far_more(self) -> None:
        page, plan = self.program.planned(SMALL, "--gpu", "5GiB", "--global-batch", 512, fine=(0, 1))
        self.assertGreater(plan["as_captured"]["device"]["best"], 10 * plan["ways"][0]["device"]["best"])
        self.browser.open(page)
        self.assertEqual(self.browser.texts("#plan .bend"), ["the axis bends here"])
        heights = self.browser.run(
            "return [...document.querySelectorAll('#plan .point')]"
            ".map((p) => Number(p.getAttribute('transform').match(/[ ,]([0-9.]+)/)[1]))"
        )
        captured = min(heights)
        # Ways that fit are drawn apart from the axis below them, as if the job as captured were not there.
        self.assertLess(sorted(heights)[1], 150)
        self.assertLess(captured, 40)

    def test_click_on_a_point_chooses_it(self) -> None:
        self.browser.click("#plan .point[data-plan='1']")
        self.assertEqual(self.chosen(), "1")
        self.check_shown(self.plan["ways"][1])
        self.assertEqual(self.hash_words()["plan"], "2")

    def test_row_and_keys_choose_too(self) -> None:
        rows = len(self.browser.texts("#plan tbody tr"))
        self.browser.click(f"#plan tr[data-plan='{rows - 1}']")
        self.assertEqual(self.chosen(), str(rows - 1))
        self.browser.run("document.querySelector(\"#plan .point[data-plan='1']\").focus()")
        self.browser.press("\n")
        self.assertEqual(self.chosen(), "1")
        self.assertEqual(self.browser.run("return document.activeElement.dataset.plan"), "1")

    def test_what_does_not_fit_is_pale(self) -> None:
        self.assertFalse(self.plan["as_captured"]["surely_fits"])
        self.assertIn("does not fit", self.browser.texts("#plan tbody tr")[-1])
        opacity = "return [...document.querySelectorAll('#plan .point')].map((g) => [g.dataset.plan, Number(g.firstChild.style.opacity)])"
        shown = dict(self.browser.run(opacity))
        last = str(len(shown) - 1)
        self.assertEqual([index for index, value in shown.items() if value < 1], [last])

    @nightly
    def test_address_leads_back(self) -> None:
        self.browser.open(self.page, "plan=2")
        self.assertEqual(self.chosen(), "1")
        for odd in ("plan=99", "plan=-1", "plan=x") if NIGHTLY else ("plan=99",):
            self.browser.open(self.page, odd)
            self.chosen()

    def test_run_is_that_of_the_first_way(self) -> None:
        self.go_to(int(self.browser.run("return document.querySelector('#slider').max")))
        self.assertEqual(self.instant()["reserved"], self.plan["ways"][0]["reserved"]["best"])

    @nightly
    def test_narrow_window(self) -> None:
        self.browser.resize(390, 844)
        self.browser.open(self.page)
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)
        self.assertEqual(self.chosen(), "0")

    def test_names_are_text(self) -> None:
        index = next(i for i, way in enumerate(self.plan["ways"]) if "checkpointing" in way["set"])
        self.browser.click(f"#plan tr[data-plan='{index}']")
        self.check_shown(self.plan["ways"][index])
        self.assertIn(HARMFUL, self.browser.text("#plan-chosen"))
        self.assertEqual(self.browser.run("return document.querySelectorAll('img').length"), 0)


class NothingFits(PlanPage):
    flags = ("--gpu", "1GiB", "--global-batch", 4)

    def step(self) -> Path:
        return SMALL

    def test_what_comes_closest_is_shown(self) -> None:
        self.assertEqual(self.plan["ways"], [])
        self.assertEqual(self.chosen(), "0")
        self.check_shown(self.plan["closest"])
        self.assertIn("does not fit", self.browser.text("#plan-chosen"))
