"""The page's figures against the program's, at many instants: equal, to the byte."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fixture import NIGHTLY, PageTest
from handmade import MIB, Run, frame
from program import DATA, size_from_text, size_text, snapshot_file

# Lines of the device beyond PyTorch, known only where it ran out: no other instant has them.
BEYOND_PYTORCH = {"free", "outside", "nccl", "other_processes"}
# Each takes an explanation of the whole file, so the more the better by night (`make nightly`).
INSTANTS = 12 if NIGHTLY else 6
# Where there is no slider, each takes another load of the page as well.
INSTANTS_BY_ADDRESS = INSTANTS // 2


def known_of_every_instant(report: dict[str, Any]) -> list[list[Any]]:
    return [[line["what"], line["bytes"]] for line in report["account"] if line["what"] not in BEYOND_PYTORCH]


def in_module(holder: dict[str, Any]) -> str:
    more = len(holder["parts"]) - 1
    return f"in {holder['module']}" + (f" and {more} more" if more > 0 else "") if holder["module"] else ""


class Truth(PageTest):
    def check_instant(self, report: dict[str, Any]) -> None:
        page = self.instant()
        instant = report["instant"]
        self.assertEqual(page["allocated"], instant["allocated"])
        self.assertEqual(page["reserved"], instant["reserved"])
        self.assertEqual(page["account"], known_of_every_instant(report))
        if " of step " in instant["phase"]:
            self.assertIn(instant["phase"].replace("in the ", ""), self.browser.text("#instant h2"))
        holders = [
            [size_text(h["bytes"]), f"{h['count']:,}×", h["category"].replace("_", " "), h["where"] + in_module(h)]
            for h in report["holders"]
            if not h["where"].endswith(" smaller holders")
        ]
        self.assertEqual(page["holders"][: len(holders)], holders)

    def check_file(self, file: Path, rank: int = 0) -> None:
        """Its own instant, and others: the ends, where it ran out, and some that nobody chose."""
        own = self.program.explain(file)["ranks"][rank]
        self.open(file, fragment=f"rank={rank}")
        self.check_instant(own)
        # The file decides which: the same on every run.
        chosen = random.Random(file.name)
        events = {0, min(1, own["events"] - 1), own["events"] - 1, own["instant"]["event"]}
        events.update(oom["event"] for oom in own["ooms"][-1:])
        instants = INSTANTS if self.browser.shown("#slider") else INSTANTS_BY_ADDRESS
        while len(events) < min(instants, own["events"]):
            events.add(chosen.randrange(own["events"]))
        for event in sorted(events):
            with self.subTest(file=file.name, event=event):
                if self.browser.shown("#slider"):
                    self.go_to(event)
                else:
                    self.open(file, fragment=f"rank={rank}&event={event}")
                self.assertEqual(self.event(), event)
                self.check_instant(self.program.explain(file, at=event)["ranks"][rank])

    def test_run_that_ran_out(self) -> None:
        self.check_file(snapshot_file("unet_adam_fp32_oom"))

    def test_expandable_segments(self) -> None:
        self.check_file(snapshot_file("llama_var_expand"))

    def test_ordinary_run(self) -> None:
        self.check_file(snapshot_file("gpt2_leak"))

    def test_blocks_that_another_stream_still_uses(self) -> None:
        self.check_file(snapshot_file("stream_resnet18"))

    def test_holders_of_the_same_size(self) -> None:
        self.check_file(snapshot_file("resnet50_sgdm_amp16"))

    def test_profiler_trace(self) -> None:
        self.check_file(DATA / "profiler" / "trace.json.gz")

    def test_two_processes_on_one_device(self) -> None:
        for rank in (0, 1):
            self.check_file(DATA / "nsys" / "processes.sqlite", rank)

    def test_answer_is_that_of_explain(self) -> None:
        file = snapshot_file("unet_adam_fp32_oom")
        explanation = self.program.explain(file)
        self.open(file)
        self.assertEqual(self.browser.text("#verdict"), explanation["verdict"])
        lines = self.browser.run(
            "return [...document.querySelectorAll('#answer tr[data-what]')]"
            ".map((row) => [row.dataset.what, Number(row.querySelector('[data-bytes]').dataset.bytes)])"
        )
        account = [[line["what"], line["bytes"]] for line in explanation["ranks"][0]["account"]]
        # The page adds the rest of the card where that is known.
        self.assertEqual(lines[: len(account)], account)
        titles = [finding["title"] for finding in explanation["findings"]]
        self.assertEqual(self.browser.texts("#remedies .finding h3"), titles)
        # The picture first, then what to do.
        top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
        self.assertLess(self.browser.run(top, "#timeline"), self.browser.run(top, "#remedies"))

    def test_sizes_read_as_the_program_writes_them(self) -> None:
        # Halves of the last digit: to even, as fmt and Python round them.
        sizes = [1, 512, 1024, 1152, 1408, 66560, MIB - 1, MIB + MIB // 8, 5 * MIB + 3 * MIB // 8]
        run = Run()
        for size in sizes:
            run.allocate(size, frame(f"make_{size}"))
        file = run.write(self.folder / "sizes.pickle")
        report = self.program.explain(file)["ranks"][0]
        self.open(file)
        self.check_instant(report)

    def test_legend_adds_up_by_every_grouping(self) -> None:
        file = snapshot_file("gpt2_leak")
        self.open(file)
        allocated = self.instant()["allocated"]
        for how in ("category", "place", "module", "size"):
            with self.subTest(how=how):
                self.browser.choose("#timeline .tools select", how)
                sizes = [size_from_text(" ".join(text.split()[-2:])) for text in self.browser.texts("#legend li")]
                self.assertGreater(len(sizes), 1)
                slack = sum(off for _, off in sizes) + 1
                self.assertAlmostEqual(sum(size for size, _ in sizes), allocated, delta=slack)

    def test_segments_hold_what_is_reserved(self) -> None:
        file = snapshot_file("llama_var_expand")
        self.open(file)
        for event in (0, 1_000, 40_000):
            self.go_to(event)
            reserved = self.program.explain(file, at=event)["ranks"][0]["instant"]["reserved"]
            self.assertIn(f" segments, {size_text(reserved)}.", self.browser.text("#segment-count"))

    def test_what_if_is_what_tune_says(self) -> None:
        for name in ("unet_adam_fp32_oom", *(["llama_var_default"] if NIGHTLY else [])):
            with self.subTest(name):
                tuned = self.program.tune(snapshot_file(name))
                self.open(snapshot_file(name))
                bars = self.browser.run(
                    "return [...document.querySelectorAll('#what-if [data-settings]')]"
                    ".map((bar) => [bar.dataset.settings, Number(bar.dataset.bytes)])"
                )
                recorded, *others = bars
                self.assertEqual(recorded[1], tuned["recorded"]["peak_reserved"])
                # The page tries a few of those that tune tries, and ranks them alike.
                expected = [[r["settings"], r["peak_reserved"]] for r in tuned["results"][1:] if r["fault"] is None]
                self.assertGreaterEqual(len(others), 3)
                self.assertEqual(others, [row for row in expected if row in others])
                fits = {r["settings"]: r["fits"] for r in tuned["results"]}
                shown = dict(
                    self.browser.run(
                        "return [...document.querySelectorAll('#what-if [data-settings]')].slice(1)"
                        ".map((bar) => [bar.dataset.settings, !bar.textContent.includes('runs out')])"
                    )
                )
                self.assertEqual(shown, {settings: fits[settings] for settings, _ in others})
                self.assertIn(size_text(tuned["lower_bound"]), self.browser.text("#what-if"))
