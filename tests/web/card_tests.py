"""Processes that share a card: beneath each other on one clock, the sum on top, hand-overs marked."""

from __future__ import annotations

import shutil
from typing import Any

from fixture import PageTest, nightly
from program import DATA, size_text

KEEPS = DATA / "colocated" / "trainer_keeps_cache"
OK = DATA / "colocated" / "ok"
RANKS = [DATA / "ranks" / f"ddp_big_images.rank{rank}.pickle.xz" for rank in range(2)]


class Card(PageTest):
    def test_page_has_the_answer_of_explain(self) -> None:
        self.open(KEEPS)
        answer = self.program.explain(KEEPS)
        self.assertEqual(self.browser.text("#verdict"), answer["verdict"])
        (card,) = answer["cards"]
        text = self.browser.text("#processes")
        for part in (card["peak_reserved"], card["capacity"], card["room"]):
            self.assertIn(size_text(part), text)
        self.assertIn(card["known_by"], text)

    def test_sum_is_that_of_the_card(self) -> None:
        for folder in (KEEPS, OK):
            self.open(folder)
            (card,) = self.program.explain(folder)["cards"]
            most = self.browser.run("return Number(document.querySelector('.strips').dataset.most)")
            self.assertEqual(most, card["peak_reserved"])

    def test_processes_stand_beneath_each_other_on_one_clock(self) -> None:
        self.open(KEEPS)
        boxes = self.browser.run(
            "return [...document.querySelectorAll('#processes canvas')]"
            ".map((c) => c.getBoundingClientRect()).map((b) => [b.left, b.width, b.top])"
        )
        self.assertEqual(len(boxes), 3)
        self.assertEqual(len({(left, width) for left, width, _ in boxes}), 1)
        self.assertEqual([top for *_, top in boxes], sorted(top for *_, top in boxes))
        self.assertEqual(self.browser.texts("#processes .run-name"), ["Together", "engine", "trainer"])

    def test_hand_overs_say_what_was_not_given_back(self) -> None:
        self.open(KEEPS)
        (card,) = self.program.explain(KEEPS)["cards"]
        expected = [
            [share["reserved"], share["allocated"], share["not_given_back"]]
            for hand_over in card["hand_overs"]
            for share in hand_over["held"]
            if share["process"] != hand_over["to"]
        ]
        shown = self.browser.run(
            "return [...document.querySelectorAll('#hand-overs-0 tbody tr')]"
            ".map((row) => [...row.querySelectorAll('[data-bytes]')].map((cell) => Number(cell.dataset.bytes)))"
        )
        self.assertEqual(shown, expected)

    def test_a_hand_over_leads_to_the_one_that_waits(self) -> None:
        self.open(KEEPS)
        (card,) = self.program.explain(KEEPS)["cards"]
        kept = next(
            share
            for hand_over in card["hand_overs"]
            for share in hand_over["held"]
            if share["process"] == hand_over["from"] and share["not_given_back"] > 0
        )
        self.browser.click("#hand-overs-0 tr:not([data-kept='0']) td")
        self.browser.wait_until("document.querySelector('#timeline h2').textContent.endsWith('trainer')")
        self.browser.settle()
        instant = self.instant()
        self.assertEqual(instant["reserved"], kept["reserved"])
        self.assertEqual(instant["allocated"], kept["allocated"])
        self.assertEqual(dict(instant["account"])["cached"], kept["not_given_back"])

    def test_a_click_looks_at_that_process(self) -> None:
        self.open(KEEPS)
        self.browser.point("#processes canvas.last", 700, 60).click().perform()
        self.browser.wait_until("document.querySelector('#timeline h2').textContent.endsWith('trainer')")
        self.browser.point("#processes canvas.sum", 700, 100).perform()
        self.browser.settle()
        self.assertIn("together", self.tip())
        self.assertIn("engine", self.tip())

    @nightly
    def test_pauses_short_and_as_they_were(self) -> None:
        self.open(KEEPS)
        picture = "return document.querySelector('#processes canvas.sum').toDataURL()"
        short = self.browser.run(picture)
        self.browser.click("#processes .shorten")
        whole = self.browser.run(picture)
        self.assertNotEqual(short, whole)
        self.browser.click("#processes .shorten")
        self.assertEqual(self.browser.run(picture), short)

    def test_processes_by_name_and_not_as_ranks(self) -> None:
        self.open(KEEPS)
        self.assertIn("engine and trainer on one card", self.browser.text("#subject"))
        self.assertEqual(self.browser.texts("#ranks tbody td:first-child"), ["engine (cuda:0)", "trainer (cuda:0)"])

    @nightly
    def test_without_a_record_the_tables_stand(self) -> None:
        def leave_out(data: dict[str, Any]) -> None:
            data["runs"][1]["history"] = None

        self.open_changed(self.program.page(KEEPS), leave_out)
        self.assertFalse(self.browser.shown("#processes canvas"))
        self.assertTrue(self.browser.shown("#hand-overs-0"))
        self.assertIn("cannot be drawn", self.browser.text("#processes"))

    @nightly
    def test_ranks_share_no_card(self) -> None:
        self.open(*RANKS)
        self.assertFalse(self.browser.shown("#processes"))

    @nightly
    def test_hosts_are_told_apart_also_where_names_are_replaced(self) -> None:
        files = []
        for host, name in (("node1", "engine"), ("node2", "trainer")):
            file = self.folder / host / f"{name}.pickle.xz"
            file.parent.mkdir()
            shutil.copy(OK / file.name, file)
            files.append(file)
        for redact in (False, True):
            self.browser.open(self.program.page(*files, redact=redact))
            self.assertFalse(self.browser.shown("#processes"))
        self.browser.open(self.program.page(OK, redact=True))
        self.assertEqual(self.browser.texts("#processes .run-name"), ["Together", "file 1", "file 2"])

    @nightly
    def test_curves_by_keyboard(self) -> None:
        self.open(KEEPS)
        picture = "return document.querySelector('#processes canvas.sum').toDataURL()"
        whole = self.browser.run(picture)
        self.browser.run("document.querySelector('#processes canvas.sum').focus()")
        self.browser.press("+")
        near = self.browser.run(picture)
        self.assertNotEqual(near, whole)
        self.browser.press("\ue012")  # left
        self.assertNotEqual(self.browser.run(picture), near)
        self.browser.press("0")
        self.assertEqual(self.browser.run(picture), whole)

    @nightly
    def test_dark_and_narrow(self) -> None:
        self.browser.media(scheme="dark")
        self.browser.resize(390, 900)
        self.open(KEEPS)
        self.assertTrue(self.browser.shown("#processes canvas.sum"))
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)
