"""The page of `plimsoll predict --html`: the figures of the prediction, and the scatter around it."""

from __future__ import annotations

from fixture import PageTest
from program import DATA

STEP = DATA / "steps" / "gpt2_adamw_fp32.step.json.gz"

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

    def test_scatter_rings_the_chosen_one(self) -> None:
        points = self.browser.run(_READ_POINTS)
        self.assertGreater(len(points), 6)
        ringed = [point for point in points if point["r"] == max(p["r"] for p in points)]
        self.assertEqual([point["batch"] for point in ringed], [8])
        self.assertTrue(any("does not fit" in point["title"] for point in points))
        self.assertTrue(
            self.browser.run("return document.querySelector('#trade-offs path').getAttribute('d').length > 10")
        )
