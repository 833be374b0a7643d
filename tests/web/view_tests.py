"""Every view and its controls, used as a reader uses them."""

from __future__ import annotations

import re
from pathlib import Path

from fixture import NIGHTLY, PageTest, nightly
from handmade import MIB, Run, frame
from program import DATA, snapshot_file

OOM = snapshot_file("unet_adam_fp32_oom")
LONG = snapshot_file("gpt2_leak")
RANKS = [DATA / "ranks" / f"ddp_big_images.rank{rank}.pickle.xz" for rank in range(4)]
ODD_RANK = 2
# The chart inside its canvas (web/timeline.js), and the canvas's border.
LEFT, RIGHT, BOTTOM, BORDER = 74, 10, 24, 1


class TimelineTests(PageTest):
    def pixel_of(self, event: int, events: int) -> float:
        """The pixel that an event lies in, while the whole run is drawn."""
        width = self.browser.size_of("#curve")[0] - 2 * BORDER
        return BORDER + LEFT + int((width - LEFT - RIGHT) * (event + 0.5) / events)

    def events_in_a_column(self) -> int:
        """What the caption says: 1 where every event is drawn."""
        caption = self.browser.text("#drawn")
        if caption.startswith("Every event is drawn."):
            return 1
        return int(re.search(r"up to ([\d,]+)\.", caption)[1].replace(",", ""))

    def event_under(self, x: float, y: float = 100) -> int:
        self.browser.point("#curve", x, y).perform()
        self.browser.settle()
        return int(re.search(r"event ([\d,]+): ", self.tip())[1].replace(",", ""))

    def test_peak_by_button_and_by_key(self) -> None:
        peak = self.program.explain(LONG)["ranks"][0]["instant"]["event"]
        self.open(LONG)
        self.assertEqual(self.event(), peak)
        self.go_to(3)
        self.browser.click("#to-peak")
        self.assertEqual(self.event(), peak)
        self.go_to(3)
        self.browser.press("p")
        self.assertEqual(self.event(), peak)

    @nightly
    def test_peak_of_a_run_that_ran_out(self) -> None:
        self.open(OOM)
        self.go_to(3)
        self.browser.click("#to-peak")
        self.assertEqual(self.instant()["allocated"], self.program.explain(OOM)["ranks"][0]["peak_allocated"])

    @nightly
    def test_peak_comes_into_sight(self) -> None:
        self.open(LONG, fragment="event=10")
        while self.events_in_a_column() > 1:
            self.browser.click("#zoom-in")
        self.browser.click("#to-peak")
        # Under the marker in the middle of the chart lies the peak.
        self.assertAlmostEqual(self.event_under(self.browser.size_of("#curve")[0] / 2), self.event(), delta=2)

    def test_out_of_memory_by_button_and_by_key(self) -> None:
        report = self.program.explain(OOM)["ranks"][0]
        stopped = [oom["event"] for oom in report["ooms"] if oom["fatal"] or oom["caught"]]
        self.open(OOM)
        self.assertEqual(self.event(), report["instant"]["event"])
        for go in (lambda: self.browser.click("#to-oom"), lambda: self.browser.press("o")):
            self.go_to(3)
            go()
            self.assertEqual(self.event(), stopped[0])

    @nightly
    def test_no_button_without_out_of_memory(self) -> None:
        self.open(LONG)
        self.assertFalse(self.browser.shown("#to-oom"))

    def test_zoom_down_to_every_event_and_back(self) -> None:
        self.open(LONG)
        whole = self.browser.text("#drawn")
        before = self.events_in_a_column()
        self.assertGreater(before, 20)
        clicks = 0
        while self.events_in_a_column() > 1:
            self.browser.click("#zoom-in")
            self.assertLess(self.events_in_a_column(), before)
            before = self.events_in_a_column()
            clicks += 1
            self.assertLess(clicks, 12)
        self.browser.click("#zoom-out")
        self.browser.click("#zoom-out")
        self.browser.click("#zoom-out")
        self.assertGreater(self.events_in_a_column(), 1)
        self.browser.click("#zoom-all")
        self.assertEqual(self.browser.text("#drawn"), whole)

    @nightly
    def test_zoom_keeps_the_instant_in_sight(self) -> None:
        self.open(LONG, fragment="event=20000")
        x = self.pixel_of(20_000, 25_412)
        for _ in range(9):
            self.browser.click("#zoom-in")
        self.assertAlmostEqual(self.event_under(x), 20_000, delta=3)

    def test_wheel_zooms_only_after_a_click(self) -> None:
        self.open(LONG)
        whole = self.events_in_a_column()
        canvas = self.browser.find("#curve")

        def roll() -> None:
            from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

            origin = ScrollOrigin.from_element(canvas)
            self.browser.actions().scroll_from_origin(origin, 0, -240).perform()
            self.browser.settle()

        self.browser.point("#curve", 400, 150).perform()
        roll()
        self.assertEqual(self.events_in_a_column(), whole)
        self.browser.point("#curve", 400, 150).click().perform()
        roll()
        self.assertLess(self.events_in_a_column(), whole)

    @nightly
    def test_drag_moves_the_chart_and_not_the_instant(self) -> None:
        self.open(LONG)
        for _ in range(4):
            self.browser.click("#zoom-in")
        chosen = self.event()
        before = self.event_under(600)
        drag = self.browser.point("#curve", 600, 150).click_and_hold().move_by_offset(100, 0)
        drag.move_by_offset(50, 0).release().perform()
        self.browser.settle()
        self.assertEqual(self.event_under(750), before)
        self.assertLess(self.event_under(600), before)
        self.assertEqual(self.event(), chosen)

    def test_hover_names_who_holds_it(self) -> None:
        report = self.program.explain(LONG)["ranks"][0]
        peak = report["instant"]["event"]
        self.open(LONG)
        x = self.pixel_of(peak, report["events"])
        low = self.browser.size_of("#curve")[1] - BOTTOM - 12
        self.assertEqual(self.event_under(x, low), peak)
        self.assertIn(self.tip().split("\n")[0], [holder["where"] for holder in report["holders"]])

    @nightly
    def test_hover_reaches_the_first_and_the_last_event(self) -> None:
        # Only ever more: the last event is the peak, and must be seen.
        run = Run(segment=4096 * MIB)
        for _ in range(4_999):
            run.allocate(MIB // 2)
        self.open(run.write(self.folder / "rising.pickle"))
        self.assertEqual(self.event(), 4_999)
        width = self.browser.size_of("#curve")[0]
        self.assertLess(self.event_under(BORDER + LEFT), 6)
        self.assertEqual(self.event_under(width - BORDER - RIGHT - 1), 4_999)

    def test_click_pins_a_stack(self) -> None:
        report = self.program.explain(LONG)["ranks"][0]
        peak = report["instant"]["event"]
        self.open(LONG, fragment="event=10")
        self.assertFalse(self.browser.shown("#pinned"))
        low = self.browser.size_of("#curve")[1] - BOTTOM - 12
        self.browser.point("#curve", self.pixel_of(peak, report["events"]), low).click().perform()
        self.browser.settle()
        self.assertEqual(self.event(), peak)
        self.assertTrue(self.browser.shown("#pinned"))
        self.assertTrue(any("train.py" in frame for frame in self.browser.texts("#pinned li")))
        self.browser.press("\ue00c")  # Escape
        self.assertFalse(self.browser.shown("#pinned"))

    def test_against_time(self) -> None:
        self.open(LONG)
        last = self.program.explain(LONG)["ranks"][0]["events"] - 1
        self.browser.choose("#timeline .tools label:last-of-type select", "time")
        width = self.browser.size_of("#curve")[0]
        self.assertGreater(self.event_under(width - BORDER - RIGHT - 1), 0.9 * last)
        self.browser.click("#to-peak")
        self.assertEqual(self.event(), self.program.explain(LONG)["ranks"][0]["instant"]["event"])

    @nightly
    def test_controls_say_what_is_drawn_after_a_change_of_theme(self) -> None:
        self.open(LONG)
        self.browser.choose("#timeline .tools select", "size")
        legend = self.browser.texts("#legend li")
        self.browser.click("#zoom-in")
        drawn = self.browser.text("#drawn")
        self.browser.click("#theme")
        self.assertEqual(self.browser.run("return document.querySelector('#timeline .tools select').value"), "size")
        self.assertEqual(self.browser.texts("#legend li"), legend)
        self.assertEqual(self.browser.text("#drawn"), drawn)


class KeyboardTests(PageTest):
    def test_arrows_move_by_one_event(self) -> None:
        self.open(LONG, fragment="event=500")
        while self.browser.run("return document.activeElement.id") != "curve":
            self.browser.press("\ue004")  # Tab
            self.assertNotEqual(self.browser.run("return document.activeElement.tagName"), "BODY")
        self.assertNotEqual(self.browser.colour_of("#curve", "outlineStyle"), "none")
        for key, event in (("\ue014", 501), ("\ue014", 502), ("\ue012", 501)):
            self.browser.press(key)
            self.assertEqual(self.event(), event)
        self.browser.actions().key_down("\ue008").send_keys("\ue014").key_up("\ue008").perform()
        self.assertEqual(self.event(), 601)

    @nightly
    def test_a_key_held_down(self) -> None:
        # Browsers refuse an address that changes hundreds of times in seconds.
        self.open(OOM, fragment="event=0")
        self.browser.click("#curve")
        self.go_to(0)
        # As the browser repeats it, but without a command of the driver for each.
        self.browser.run(
            "for (let i = 0; i < 220; i += 1)"
            "  document.activeElement.dispatchEvent("
            "      new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true, cancelable: true, repeat: true}));"
        )
        self.browser.settle()
        self.assertEqual(self.event(), 220)
        self.browser.wait_until("location.hash === '#rank=0&event=220'")

    @nightly
    def test_arrows_stop_at_the_ends(self) -> None:
        self.open(OOM, fragment="event=504")
        self.browser.run("document.querySelector('#curve').focus()")
        self.browser.press("\ue014")
        self.assertEqual(self.event(), 504)

    def test_letters_in_the_search_are_letters(self) -> None:
        self.open(OOM, fragment="event=3")
        self.browser.press("/")
        self.assertEqual(self.browser.run("return document.activeElement.id"), "search")
        self.browser.press("pod")
        self.assertEqual(self.event(), 3)
        self.assertEqual(self.browser.run("return document.querySelector('#search').value"), "pod")

    @nightly
    def test_letters_while_the_slider_has_the_focus(self) -> None:
        self.open(LONG, fragment="event=3")
        self.browser.run("document.querySelector('#slider').focus()")
        self.browser.press("p")
        self.assertEqual(self.event(), self.program.explain(LONG)["ranks"][0]["instant"]["event"])


class StackTests(PageTest):
    def found(self, words: str) -> int:
        self.browser.type_into("#search", words)
        return int(self.browser.run("return document.querySelector('#found').dataset.bytes"))

    def test_search_finds_all_some_and_none(self) -> None:
        self.open(OOM)
        self.assertEqual(self.found("train.py"), self.instant()["allocated"])
        self.assertEqual(self.found("TRAIN.py"), self.instant()["allocated"])
        self.assertEqual(self.found("no such function"), 0)

    @nightly
    def test_search_adds_up_bytes_of_each_stack_once(self) -> None:
        run = Run()
        outer = frame("run_epoch", line=9)
        run.allocate(3 * MIB, frame("attend"), outer)
        run.allocate(5 * MIB, frame("attend", line=7), frame("attend", line=3), outer)
        run.allocate(2 * MIB, frame("norm"), outer)
        # Too narrow to be drawn, but there.
        run.allocate(512, frame("tiny_seed"), outer)
        self.open(run.write(self.folder / "stacks.pickle"))
        self.assertEqual(self.found("attend"), 8 * MIB)
        self.assertEqual(self.found("norm"), 2 * MIB)
        self.assertEqual(self.found("run_epoch"), 10 * MIB + 512)
        self.assertEqual(self.found("tiny_seed"), 512)

    @nightly
    def test_search_follows_the_instant(self) -> None:
        self.open(OOM)
        self.found("train.py")
        self.go_to(100)
        self.assertEqual(
            int(self.browser.run("return document.querySelector('#found').dataset.bytes")), self.instant()["allocated"]
        )

    def write_deep(self, frames: int) -> Path:
        run = Run()
        run.allocate(MIB, *(frame(f"level_{depth}", line=depth) for depth in range(frames)))
        return run.write(self.folder / f"deep{frames}.pickle")

    @nightly
    def test_very_deep_stack(self) -> None:
        self.open(self.write_deep(1_000))
        self.assertEqual(self.found("level_999"), MIB)
        self.assertEqual(self.found("level_0 "), MIB)

    @nightly
    def test_innermost_frame_of_a_deep_stack_can_be_reached(self) -> None:
        # A trainer, a wrapper or two and a model are soon a hundred frames deep.
        self.open(self.write_deep(150))
        seen = ""
        for _ in range(10):
            _, height = self.browser.size_of("#flames")
            for row in (1, 2):
                self.browser.point("#flames", 60, height - row * 18).perform()
                self.browser.settle()
                seen += self.tip()
            if "level_0 " in seen:
                return
            self.browser.point("#flames", 60, height - 18).click().perform()
            self.browser.settle()
        self.fail("nothing leads to the innermost frame")

    def test_click_looks_into_a_box(self) -> None:
        self.open(OOM)
        whole = self.browser.text("#flame-drawn")
        _, height = self.browser.size_of("#flames")
        self.browser.point("#flames", 60, 2.5 * 18).perform()
        self.browser.settle()
        self.assertIn("%", self.tip())
        self.browser.point("#flames", 60, height - 30).click().perform()
        self.browser.settle()
        self.browser.click("#flame-all")
        self.assertEqual(self.browser.text("#flame-drawn"), whole)

    @nightly
    def test_keys_go_in_and_out(self) -> None:
        self.open(OOM)
        self.browser.run("document.querySelector('#flames').focus()")
        pixels = "return document.querySelector('#flames').toDataURL()"
        self.browser.settle()
        whole = self.browser.run(pixels)
        self.browser.press("\ue015" * 6)  # down
        self.assertNotEqual(self.browser.run(pixels), whole)
        self.browser.press("\ue013" * 6)  # up
        self.assertEqual(self.browser.run(pixels), whole)


class SegmentTests(PageTest):
    def test_slider_moves_the_instant_of_all_views(self) -> None:
        self.open(OOM)
        title = self.browser.text("#instant h2")
        self.go_to(77)
        self.assertEqual(self.event(), 77)
        self.assertNotEqual(self.browser.text("#instant h2"), title)
        # Later than the rest: browsers refuse an address that changes all the time.
        self.browser.wait_until("location.hash === '#rank=0&event=77'")
        self.browser.find("#slider").send_keys("\ue014")
        self.assertEqual(self.event(), 78)

    @nightly
    def test_slider_follows_the_instant(self) -> None:
        self.open(LONG)
        self.go_to(5)
        self.browser.click("#to-peak")
        self.assertEqual(int(self.browser.run("return document.querySelector('#slider').value")), self.event())

    def test_hover_tells_the_block(self) -> None:
        self.open(OOM)
        self.browser.point("#map", 300, 40).perform()
        self.browser.settle()
        self.assertIn("segment 0x", self.tip())


class AddressTests(PageTest):
    def test_address_brings_back_the_instant(self) -> None:
        self.open(RANKS[0], RANKS[1], fragment="rank=1&event=123")
        self.assertEqual(self.event(), 123)
        self.browser.wait_until("location.hash === '#rank=1&event=123'")
        self.assertEqual(self.browser.text("#ranks tr.chosen td:nth-child(2)"), RANKS[1].name)

    @nightly
    def test_address_that_is_changed_by_hand(self) -> None:
        self.open(OOM)
        self.browser.run("location.hash = 'rank=0&event=12'")
        self.browser.wait_until("document.querySelector('#totals').dataset.event === '12'")

    @nightly
    def test_addresses_that_make_no_sense(self) -> None:
        own = self.program.explain(OOM)["ranks"][0]["instant"]["event"]
        fragments = ("rank=x&event=y", "rank=99", "rank=-5", "segments", "&&==", "rank=NaN", "rank=0.5")
        for fragment in fragments if NIGHTLY else fragments[:2]:
            with self.subTest(fragment):
                self.open(OOM, fragment=fragment)
                self.assertEqual(self.event(), own)
                self.check_quiet()
        self.open(OOM, fragment="event=1e300")
        self.assertEqual(self.event(), 504)
        self.open(OOM, fragment="event=17.4")
        self.assertEqual(self.event(), 17)


class RankTests(PageTest):
    def test_odd_one_is_marked(self) -> None:
        explanation = self.program.explain(*RANKS)
        odd = {f["rank"] for f in explanation["findings"] if f["id"] == "rank_imbalance"}
        self.assertEqual(odd, {ODD_RANK})
        self.open(*RANKS)
        rows = self.browser.texts("#ranks tbody tr")
        self.assertEqual(len(rows), 4)
        self.assertEqual([i for i, text in enumerate(rows) if "outlier" in text], [ODD_RANK])

    def test_row_chooses_the_rank(self) -> None:
        ranks = self.program.explain(*RANKS)["ranks"]
        self.open(*RANKS)
        for rank in (3, 2, 0):
            self.browser.click(f"#ranks tr[data-rank='{rank}']")
            self.browser.wait_until(
                "document.querySelector('#ranks tr.chosen').dataset.rank === arguments[0]", str(rank)
            )
            self.assertEqual(self.instant()["allocated"], ranks[rank]["instant"]["allocated"])
            self.assertEqual(self.event(), ranks[rank]["instant"]["event"])

    @nightly
    def test_row_by_keyboard_keeps_the_focus(self) -> None:
        self.open(*RANKS)
        self.browser.run("document.querySelector('#ranks tr[data-rank=\"3\"]').focus()")
        self.browser.press("\ue007")  # Enter
        self.browser.wait_until("document.querySelector('#ranks tr.chosen').dataset.rank === '3'")
        self.assertEqual(self.browser.run("return document.activeElement.dataset.rank"), "3")

    @nightly
    def test_two_rows_in_quick_succession(self) -> None:
        ranks = self.program.explain(*RANKS)["ranks"]
        self.open(*RANKS, fragment="rank=0")
        # Rank 0 is unpacked already and comes at once; rank 2, which was chosen before, comes late.
        self.browser.run(
            "const row = (rank) => document.querySelector(`#ranks tr[data-rank='${rank}']`);"
            "row(2).click(); row(0).click();"
        )
        # A stream of the same kind as the page's, which began later, has ended: so has the page's.
        self.browser.driver.execute_async_script(
            "const bytes = new Uint8Array(30_000_000);"
            "new Response(new Blob([bytes]).stream().pipeThrough(new CompressionStream('deflate')))"
            ".arrayBuffer().then(() => arguments[0]());"
        )
        self.browser.settle()
        self.assertEqual(self.browser.text("#ranks tr.chosen td:nth-child(2)"), RANKS[0].name)
        self.assertEqual(self.instant()["allocated"], ranks[0]["instant"]["allocated"])

    @nightly
    def test_rank_without_a_timeline(self) -> None:
        # A profiler's memory timeline tells a peak and no events.
        bare = DATA / "profiler" / "timeline.json.gz"
        self.open(RANKS[0], bare)
        self.browser.click("#ranks tr[data-rank='0']")
        self.browser.settle()
        with_timeline = [self.browser.shown(section) for section in ("#timeline", "#instant", "#flame", "#segments")]
        self.browser.click("#ranks tr[data-rank='1']")
        self.browser.wait_until("document.querySelector('#ranks tr.chosen').dataset.rank === '1'")
        without = [self.browser.shown(section) for section in ("#timeline", "#instant", "#flame", "#segments")]
        self.assertEqual(sorted([with_timeline, without]), [[False] * 4, [True] * 4])
        links = self.browser.texts("#sections a")
        self.assertEqual("Timeline" in links, without[0])


class LookTests(PageTest):
    def test_theme_button_changes_the_paper(self) -> None:
        self.open(OOM)
        light = self.browser.colour_of("body")
        self.browser.click("#theme")
        dark = self.browser.colour_of("body")
        self.assertNotEqual(light, dark)
        self.assertEqual(light, "rgb(255, 255, 255)")
        self.browser.press("d")
        self.assertEqual(self.browser.colour_of("body"), light)

    @nightly
    def test_system_asks_for_dark(self) -> None:
        self.browser.media(scheme="dark")
        self.open(OOM)
        self.assertEqual(self.browser.run("return document.documentElement.dataset.theme"), "dark")

    def test_narrow_screen_does_not_scroll_sideways(self) -> None:
        self.browser.resize(390, 844)
        for files in ([OOM], [LONG], RANKS) if NIGHTLY else (RANKS,):
            with self.subTest(files[0].name):
                self.open(*files)
                self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)

    @nightly
    def test_paper_has_no_controls(self) -> None:
        self.open(*RANKS)
        controls = ("#timeline .tools", "#flame .tools", "#theme", "#sections")
        for control in controls:
            self.assertTrue(self.browser.shown(control), control)
        self.browser.media("print")
        for control in controls:
            self.assertFalse(self.browser.shown(control), control)
        self.assertTrue(self.browser.shown("#verdict"))
        self.assertEqual(self.browser.colour_of("body"), "rgb(255, 255, 255)")

    @nightly
    def test_charts_are_printed_on_white(self) -> None:
        self.browser.media(scheme="dark")
        self.open(OOM)
        self.browser.settle()
        look = (
            "window.dispatchEvent(new Event(arguments[0]));"
            "return [document.documentElement.dataset.theme, document.querySelector('#flames').toDataURL()]"
        )
        dark = self.browser.run("return document.querySelector('#flames').toDataURL()")
        theme, printed = self.browser.run(look, "beforeprint")
        self.assertEqual(theme, "light")
        self.assertNotEqual(printed, dark)
        self.assertEqual(self.browser.run(look, "afterprint"), ["dark", dark])

    @nightly
    def test_every_section_is_linked(self) -> None:
        self.open(*RANKS)
        shown = self.browser.run("return document.querySelectorAll('main > section:not([hidden], #notes)').length")
        self.assertEqual(len(self.browser.texts("#sections a")), shown, self.browser.texts("#sections a"))
