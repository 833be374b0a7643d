"""The page of `plimsoll predict --html`: the figures of the prediction, the scatter around it, what fits over lengths."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from fixture import PageTest, nightly
from program import DATA

STEP = DATA / "steps" / "gpt2_adamw_fp32.step.json.gz"
# Over batch and length; over batch and the side of images.
LENGTHS = DATA / "steps" / "lengths.step.json.gz"
SIDES = DATA / "steps" / "sides.step.json.gz"

_READ_POINTS = """
return [...document.querySelectorAll("#trade-offs circle")].map((circle) =>
    ({batch: Number(circle.dataset.batch), title: circle.querySelector("title").textContent, r: Number(circle.getAttribute("r"))}));
"""


class Prediction(PageTest):
    def setUp(self) -> None:
        super().setUp()
        self.browser.open(self.program.prediction(STEP, batch=8))
        self.answer = self.program.predict(STEP, batch=8)

    def test_run_peaks_as_predicted(self) -> None:
        self.browser.click("#to-peak")
        self.assertEqual(self.instant()["allocated"], self.answer["allocated"])
        self.browser.run(
            "document.querySelector('#slider').value = document.querySelector('#slider').max;"
            "document.querySelector('#slider').dispatchEvent(new Event('input'))"
        )
        self.assertEqual(self.instant()["reserved"], self.answer["reserved"])

    def test_account_is_that_of_the_prediction(self) -> None:
        shown = dict(
            self.browser.run(
                "return [...document.querySelectorAll('#answer tr[data-what]')]"
                ".map((row) => [row.dataset.what, Number(row.querySelector('[data-bytes]').dataset.bytes)])"
            )
        )
        expected = {line["what"]: line["bytes"] for line in self.answer["account"]}
        rest = self.answer["memory"] - sum(expected.values())
        self.assertEqual(shown, {**expected, "free": rest})

    def test_one_length_has_no_picture_of_lengths(self) -> None:
        self.assertFalse(self.browser.shown("#lengths"))

    def test_scatter_rings_the_chosen_one(self) -> None:
        points = self.browser.run(_READ_POINTS)
        self.assertGreater(len(points), 6)
        ringed = [point for point in points if point["r"] == max(p["r"] for p in points)]
        self.assertEqual([point["batch"] for point in ringed], [8])
        self.assertTrue(any("does not fit" in point["title"] for point in points))
        self.assertTrue(
            self.browser.run("return document.querySelector('#trade-offs path').getAttribute('d').length > 10")
        )


_READ_LENGTHS = """
const dots = (kind) => [...document.querySelectorAll(`#lengths circle.${kind}`)];
const place = (circle) => [Number(circle.getAttribute("cx")), Number(circle.getAttribute("cy"))];
return {
  sure: dots("sure").map((c) => [Number(c.dataset.length), Number(c.dataset.batch)]),
  may: dots("may").map((c) => [Number(c.dataset.length), Number(c.dataset.batch)]),
  places: dots("sure").map(place),
  fastest: dots("fastest").map((c) => Number(c.dataset.length)),
  asked: dots("asked").map(place),
  rows: [...document.querySelectorAll("#lengths tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent)),
};
"""


class Lengths(PageTest):
    def open_lengths(self, step: Path, batch: int, *flags: Any) -> dict[str, Any]:
        """What the page shows of it; what the program says is in `self.frontier`."""
        self.browser.open(self.program.prediction(step, batch, *flags))
        self.frontier = self.program.predict(step, batch, *flags, "--max-tokens")["frontier"]
        return self.browser.run(_READ_LENGTHS)

    def test_picture_and_table_are_those_of_the_text(self) -> None:
        shown = self.open_lengths(LENGTHS, 4, "--length", 512, "--limit", "1GiB")
        points = self.frontier["points"]
        fitting = [p for p in points if p["safe_max_batch"] > 0]
        self.assertGreater(len(fitting), 4)
        self.assertEqual(shown["sure"], [[p["length"], p["safe_max_batch"]] for p in fitting])
        self.assertEqual(
            shown["may"], [[p["length"], p["max_batch"]] for p in points if p["max_batch"] > p["safe_max_batch"]]
        )
        self.assertEqual([row[0] for row in shown["rows"]], [str(p["length"]) for p in points])
        self.assertLess(len(fitting), len(points))
        self.assertEqual(
            [[row[1], row[5]] for row in shown["rows"]],
            [[str(p["safe_max_batch"]), f"{p['per_second']:,}"] if p in fitting else ["none", ""] for p in points],
        )
        (best,) = [p for p in points if p["fastest"]]
        self.assertEqual(shown["fastest"], [best["length"]])
        self.assertEqual(
            self.browser.texts("#lengths .point-label"),
            [
                f"fastest: batch {best['safe_max_batch']} at length {best['length']}, "
                f"{best['per_second']:,} tokens a second",
                "this page: batch 4 at length 512",
            ],
        )
        # Lengths are each twice the one before: on a logarithmic axis they are equally far apart.
        across = [x for x, _ in shown["places"]]
        for left, right in itertools.pairwise(across):
            self.assertAlmostEqual(right - left, across[1] - across[0], places=3)
        # Below the dot of its own length, since a batch of 4 fits.
        ((x, y),) = shown["asked"]
        self.assertEqual([y > dot for at, dot in shown["places"] if abs(at - x) < 0.01], [True])
        self.assertEqual(self.browser.text("#lengths h2"), "Batch and length")

    @nightly
    def test_sides_are_counted_in_pixels(self) -> None:
        self.open_lengths(SIDES, 4, "--limit", "4GiB")
        self.assertEqual(self.browser.text("#lengths h2"), "Batch and side")
        self.assertIn("pixels a second", self.browser.texts("#lengths .point-label")[0])
        self.assertIn("pixels: batch × side²", self.browser.text("#lengths thead"))
        self.assertTrue(
            all(p["in_step"] == p["safe_max_batch"] * p["length"] ** 2 for p in self.frontier["points"])
        )

    @nightly
    def test_beyond_what_fits_and_narrow(self) -> None:
        self.browser.media(scheme="dark")
        self.browser.resize(390, 900)
        page = self.program.prediction(LENGTHS, 64, "--length", 8192, "--limit", "4GiB", fine=(1,))
        self.browser.open(page)
        self.assertIn("does not fit", self.browser.run("return document.querySelector('#lengths .asked').textContent"))
        self.assertEqual(self.browser.texts("#lengths .point-label"), ["fastest", "this page"])
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)
