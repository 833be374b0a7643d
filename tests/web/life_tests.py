"""Stages as lanes: of a predicted life, of what a program marked, of a run that marked nothing; the host beside it."""

from __future__ import annotations

from typing import Any

from fixture import PageTest, nightly
from handmade import MIB, Run
from program import DATA, size_text, snapshot_file

LIFE = DATA / "lives" / "kept_logits.step.json.gz"
WITH_HOST = DATA / "lives" / "longest.step.json.gz"
MARKED = DATA / "colocated" / "ok" / "engine.pickle.xz"
UNMARKED = snapshot_file("gpt2_leak")

_READ_LANE = """
return [...document.querySelectorAll("#charts .lane[data-depth='0'] .stretch")].map((stretch) => ({
  name: stretch.getAttribute("aria-label").split(":")[0],
  label: stretch.getAttribute("aria-label"),
  stage: stretch.dataset.stage,
  first: Number(stretch.dataset.first), last: Number(stretch.dataset.last),
  left: stretch.getBoundingClientRect().left, width: stretch.getBoundingClientRect().width}));
"""
_READ_TABLE = """
return [...document.querySelectorAll("#stages tbody tr")].map((row) => [row.dataset.stage,
  [...row.querySelectorAll("td[data-bytes]")].map((cell) => cell.dataset.bytes)
      .map((bytes) => bytes === "null" ? null : Number(bytes))]);
"""


class Lanes(PageTest):
    def lane(self) -> list[dict[str, Any]]:
        return self.browser.run(_READ_LANE)

    def test_stages_of_a_life_one_after_the_other(self) -> None:
        self.browser.open(self.program.prediction(LIFE, batch=64))
        lane = self.lane()
        names = [stretch["name"] for stretch in lane]
        self.assertEqual(names[:3], ["building the model", "training", "evaluation"])
        self.assertEqual(names[-1], "loading a checkpoint")
        # They follow one another without a gap, from the first event to the last.
        self.assertEqual(lane[0]["first"], 0)
        for before, after in zip(lane, lane[1:], strict=False):
            self.assertEqual(before["last"] + 1, after["first"])
            self.assertAlmostEqual(before["left"] + before["width"], after["left"], delta=1.5)

    def test_peaks_are_those_of_the_prediction(self) -> None:
        self.browser.open(self.program.prediction(LIFE, batch=64))
        rows = {row["stage"]: row for row in self.program.predict(LIFE, batch=64)["stages"]}
        for stage in ("model", "step", "evaluation", "load"):
            texts = [stretch["label"] for stretch in self.lane() if stretch["stage"] == stage]
            wanted = f"at most {size_text(rows[stage]['allocated'])} allocated"
            self.assertTrue(any(wanted in text for text in texts), (wanted, texts))

    def test_table_has_the_figures_of_the_answer(self) -> None:
        for step, batch in ((LIFE, 64), (WITH_HOST, 8)):
            self.browser.open(self.program.prediction(step, batch=batch))
            rows = self.program.predict(step, batch=batch)["stages"]
            names = ("allocated", "reserved", "device", "host")
            has_host = any("host" in row for row in rows)
            expected = [[row.get(name) for name in names[: 4 if has_host else 3]] for row in rows]
            self.assertEqual([figures for _, figures in self.browser.run(_READ_TABLE)], expected)

    def test_a_stage_leads_to_its_peak(self) -> None:
        self.browser.open(self.program.prediction(LIFE, batch=64))
        rows = {row["stage"]: row for row in self.program.predict(LIFE, batch=64)["stages"]}
        self.browser.click("#stages tr[data-stage='evaluation']")
        self.assertEqual(self.instant()["allocated"], rows["evaluation"]["allocated"])
        self.browser.click("#charts .stretch[data-stage='load']")
        self.assertEqual(self.instant()["allocated"], rows["load"]["allocated"])
        self.assertIn("loading a checkpoint", self.browser.text("#stretch"))
        self.browser.click("#stretch-zoom")
        stretch = next(stretch for stretch in self.lane() if stretch["stage"] == "load")
        self.assertGreater(stretch["width"], 900)

    @nightly
    def test_lane_by_keyboard(self) -> None:
        self.browser.open(self.program.prediction(LIFE, batch=64))
        stops = "return document.querySelectorAll('#charts .stretch[tabindex=\"0\"]').length"
        self.assertEqual(self.browser.run(stops), 1)
        self.browser.run("document.querySelector('#charts .stretch[tabindex=\"0\"]').focus()")
        self.browser.press("\ue014\ue014")  # right, right
        self.assertEqual(self.browser.run("return document.activeElement.dataset.stage"), "evaluation")
        self.browser.press("\ue007")
        self.assertIn("evaluation: at most", self.browser.text("#stretch"))
        self.assertEqual(self.browser.run("return document.activeElement.dataset.stage"), "evaluation")
        self.assertEqual(self.browser.run(stops), 1)

    @nightly
    def test_lane_says_at_the_pointer_what_it_is(self) -> None:
        self.browser.open(self.program.prediction(WITH_HOST, batch=8))
        self.browser.point("#charts .lane[data-depth='0']", 600, 10).perform()
        self.assertIn("training: at most", self.tip())
        self.assertIn("on the host", self.tip())

    @nightly
    def test_host_by_stage_and_no_curve(self) -> None:
        self.browser.open(self.program.prediction(WITH_HOST, batch=8))
        rows = self.program.predict(WITH_HOST, batch=8)["stages"]
        bars = self.browser.run(
            "return [...document.querySelectorAll('.host-bar')].map((bar) => Number(bar.dataset.host))"
        )
        self.assertEqual(bars, [row["host"] for row in rows])
        label = self.browser.run("return document.querySelector('.lane.host').getAttribute('aria-label')")
        for row in rows:
            self.assertIn(size_text(row["host"]), label)
        # Of a job whose host is not known there is none.
        self.browser.open(self.program.prediction(LIFE, batch=64))
        self.assertFalse(self.browser.shown(".lane.host"))

    def test_marks_of_a_recorded_run(self) -> None:
        self.open(MARKED)
        marks = {mark["name"]: mark for mark in self.program.explain(MARKED)["ranks"][0]["marks"]}
        self.assertEqual({stretch["name"] for stretch in self.lane()}, set(marks))
        table = dict(self.browser.run(_READ_TABLE))
        self.assertEqual(table, {name: [mark["peak_allocated"], mark["peak_reserved"]] for name, mark in marks.items()})
        for name, mark in marks.items():
            self.browser.click(f"#stages tr[data-stage='{name}']")
            self.assertEqual(self.instant()["allocated"], mark["peak_allocated"])

    @nightly
    def test_steps_where_nothing_was_marked(self) -> None:
        self.open(UNMARKED)
        steps = self.program.explain(UNMARKED)["ranks"][0]["step_table"]
        training = next(stretch for stretch in self.lane() if stretch["stage"] == "step")
        self.assertEqual(training["first"], steps[0]["first_event"])
        self.assertEqual(training["last"], steps[-1]["last_event"])
        self.assertEqual(training["name"], f"steps 1 to {len(steps)}")
        self.assertFalse(self.browser.shown("#stages"))

    @nightly
    def test_marks_inside_marks_have_a_lane_of_their_own(self) -> None:
        run = Run()
        hostile = "<img src=x onerror=alert(1)>"
        run.mark("epoch", start=True)
        run.allocate(MIB)
        run.mark(hostile, start=True)
        block = run.allocate(4 * MIB)
        run.mark(hostile, start=False)
        run.free(block, 4 * MIB)
        run.mark("epoch", start=False)
        run.allocate(MIB)
        self.open(run.write(self.folder / "nested.pickle"))
        self.assertEqual(self.browser.texts("#charts .lane[data-depth='0'] .stretch"), ["epoch"])
        self.assertEqual(self.browser.texts("#charts .lane[data-depth='1'] .stretch"), [hostile])
        self.assertEqual(self.browser.run("return document.querySelectorAll('img').length"), 0)
        self.browser.click(".lane[data-depth='1'] .stretch")
        self.assertEqual(self.instant()["allocated"], 5 * MIB)

    @nightly
    def test_of_many_marks_those_that_can_be_seen(self) -> None:
        run = Run(segment=1024 * MIB)
        for i in range(3000):
            run.mark(f"work {i}", start=True)
            run.allocate(512)
            run.mark(f"work {i}", start=False)
        self.open(run.write(self.folder / "many.pickle"))
        drawn = len(self.lane())
        self.assertGreater(drawn, 300)
        self.assertLess(drawn, 1280)
        for _ in range(6):
            self.browser.click("#zoom-in")
        # But for those that the border cuts.
        self.assertGreater(min(stretch["width"] for stretch in self.lane()[1:-1]), 2)

    @nightly
    def test_lane_moves_with_the_curve(self) -> None:
        self.open(UNMARKED)
        before = next(stretch for stretch in self.lane() if stretch["stage"] == "step")
        self.browser.click("#zoom-in")
        after = next(stretch for stretch in self.lane() if stretch["stage"] == "step")
        self.assertNotEqual((before["left"], before["width"]), (after["left"], after["width"]))
        self.browser.click("#zoom-all")
        again = next(stretch for stretch in self.lane() if stretch["stage"] == "step")
        self.assertAlmostEqual(before["width"], again["width"], delta=1)
