"""What leads from one view to another: findings, instants, steps, the legend, lines of code; and what can be copied."""

from __future__ import annotations

import pickle
from typing import Any

from fixture import NIGHTLY, PageTest, nightly
from handmade import MIB, Run, frame
from program import DATA, size_from_text, size_text, snapshot_file

OOM = snapshot_file("unet_adam_fp32_oom")
LONG = snapshot_file("gpt2_leak")
RANKS = [DATA / "ranks" / f"ddp_big_images.rank{rank}.pickle.xz" for rank in range(4)]
ODD_RANK = 2
ERROR = DATA / "errors" / "torch_2_6_allowed.txt"
FREE = DATA / "errors" / "torch_free_suffices_wsl.txt"
PREDICTED = DATA / "steps" / "gpt2_adamw_fp32.step.json.gz"


class LinkTest(PageTest):
    def selection(self) -> str:
        """The name of what is shown alone; empty where all is."""
        return self.browser.text("#selection strong") if self.browser.shown("#selection") else ""

    def in_sight(self, selector: str) -> bool:
        return self.browser.run(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return box.bottom > 0 && box.top < window.innerHeight",
            selector,
        )


class FindingTests(LinkTest):
    @nightly
    def test_finding_without_an_event_leads_to_the_instant_of_its_rank(self) -> None:
        def forget(data: dict[str, Any]) -> None:
            for finding in data["explanation"]["findings"]:
                finding["event"] = None

        self.open_changed(self.program.page(OOM), forget)
        self.go_to(3)
        self.browser.run("document.documentElement.style.scrollBehavior = 'auto'")
        self.browser.click(".finding .jump")
        self.assertEqual(self.event(), self.program.explain(OOM)["ranks"][0]["instant"]["event"])
        self.assertTrue(self.in_sight("#curve"))

    def test_finding_with_an_event_leads_there(self) -> None:
        def name(data: dict[str, Any]) -> None:
            data["explanation"]["findings"][0]["event"] = 123

        self.open_changed(self.program.page(OOM), name)
        self.assertIn("event 123", self.browser.text(".finding .jump"))
        for target in (".finding .jump", ".finding h3"):
            self.go_to(3)
            self.browser.click(target)
            self.assertEqual(self.event(), 123)
        self.browser.wait_until("location.hash === '#rank=0&event=123'")

    @nightly
    def test_finding_comes_into_sight_of_a_chart_that_is_zoomed(self) -> None:
        def name(data: dict[str, Any]) -> None:
            data["explanation"]["findings"][0]["event"] = 20_000

        self.open_changed(self.program.page(LONG), name)
        self.go_to(10)
        for _ in range(6):
            self.browser.click("#zoom-in")
        self.browser.click(".finding .jump")
        words = self.hash_words()
        self.assertLessEqual(int(words["from"]), 20_000)
        self.assertGreaterEqual(int(words["to"]), 20_000)

    def test_finding_of_another_rank_chooses_that_rank(self) -> None:
        self.open(*RANKS, fragment="rank=0")
        self.browser.click("[data-finding='rank_imbalance'] .jump")
        chosen = "document.querySelector('#ranks tr.chosen').dataset.rank === arguments[0]"
        self.browser.wait_until(chosen, str(ODD_RANK))
        rank = self.program.explain(*RANKS)["ranks"][ODD_RANK]
        self.assertEqual(self.instant()["allocated"], rank["instant"]["allocated"])

    def test_error_text_has_nowhere_to_lead(self) -> None:
        self.open(ERROR)
        self.assertGreater(len(self.browser.texts(".finding")), 0)
        self.assertFalse(self.browser.shown(".finding .jump"))


class CopyTests(LinkTest):
    def setUp(self) -> None:
        super().setUp()
        self.browser.devtools(
            "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        )

    def clipboard(self) -> str:
        return self.browser.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")

    @nightly
    def test_remedy_without_code_is_copied_as_text(self) -> None:
        self.open(OOM)
        remedies = [r for f in self.program.explain(OOM)["findings"] for r in f["remedies"]]
        text = self.browser.run("return document.querySelector('.remedy .copy').dataset.copies")
        helpful = [r for r in remedies if not r["avoid"]]
        self.assertIn(text, [r["change"] for r in helpful] + ["\n".join(r["code"]) for r in helpful])
        self.browser.click(".remedy .copy")
        self.browser.wait_until("document.querySelector('.remedy .copy').textContent === 'Copied'")
        self.assertEqual(self.clipboard(), text)

    def test_code_of_a_remedy_is_shown_and_copied(self) -> None:
        lines = ["from torch.utils.checkpoint import checkpoint", "x = checkpoint(<block>, x)"]

        def give(data: dict[str, Any]) -> None:
            remedy = data["explanation"]["findings"][0]["remedies"][0]
            remedy.update(code=lines, saves=1 << 50, avoid=False)

        self.open_changed(self.program.page(OOM), give)
        self.assertEqual(self.browser.text(".remedy pre"), "\n".join(lines))
        self.browser.click(".remedy .copy")
        self.browser.wait_until("document.querySelector('.remedy .copy').textContent === 'Copied'")
        self.assertEqual(self.clipboard(), "\n".join(lines))

    @nightly
    def test_what_makes_it_worse_is_set_apart_and_not_copied(self) -> None:
        def worsen(data: dict[str, Any]) -> None:
            for finding in data["explanation"]["findings"]:
                for remedy in finding["remedies"]:
                    remedy["avoid"] = remedy["change"].endswith("max_split_size_mb:128")

        self.open_changed(self.program.page(OOM), worsen)
        self.assertIn("Often advised, but worse for this job", self.browser.texts("#remedies h2"))
        copies = self.browser.run("return [...document.querySelectorAll('#remedies .copy')].map((b) => b.dataset.copies)")
        self.assertFalse([text for text in copies if "max_split_size_mb:128" in text])

    @nightly
    def test_recording_code_is_code(self) -> None:
        self.open(ERROR)
        code = "\n".join(self.program.explain(ERROR)["record_next"])
        self.assertIn("\n", code)
        self.assertEqual(self.browser.text("#notes pre"), code)
        self.browser.click("#notes .copy")
        self.browser.wait_until("document.querySelector('#notes .copy').textContent === 'Copied'")
        self.assertEqual(self.clipboard(), code)

    @nightly
    def test_without_a_clipboard_the_text_is_copied_all_the_same(self) -> None:
        self.open(ERROR)
        self.browser.run("navigator.clipboard.writeText = () => Promise.reject(new Error('refused'))")
        self.browser.click("#notes .copy")
        self.browser.wait_until("document.querySelector('#notes .copy').textContent === 'Copied'")
        self.assertEqual(self.clipboard(), "\n".join(self.program.explain(ERROR)["record_next"]))


class LegendTests(LinkTest):
    def test_entry_is_shown_alone_and_all_again(self) -> None:
        self.open(LONG)
        whole = self.browser.run("return document.querySelector('#curve').dataset.most")
        entries = self.browser.texts("#legend li")
        self.browser.click("#legend button[data-key='activations']")
        self.assertEqual(self.selection(), "Only activations")
        self.assertEqual(len(self.browser.texts("#legend li")), 1)
        # Scaled to it: what was asked for at most, and the rounding of those blocks.
        most = int(self.browser.run("return document.querySelector('#curve').dataset.most"))
        asked = self.program.explain(LONG)["ranks"][0]["peaks"]["activations"]
        self.assertTrue(asked <= most <= 1.05 * asked, (asked, most))
        self.assertEqual(self.hash_words()["only"], "category:activations")
        self.browser.click("#legend button[data-key='activations']")
        self.assertEqual(self.selection(), "")
        self.assertEqual(self.browser.texts("#legend li"), entries)
        self.assertEqual(self.browser.run("return document.querySelector('#curve').dataset.most"), whole)
        self.assertNotIn("only", self.hash_words())

    @nightly
    def test_every_grouping_has_entries_that_can_be_shown_alone(self) -> None:
        self.open(LONG)
        for how in ("place", "module", "size", "category") if NIGHTLY else ("module", "category"):
            with self.subTest(how=how):
                self.browser.choose("#timeline .tools select", how)
                held = self.browser.text("#legend button")
                self.browser.click("#legend button")
                self.assertNotEqual(self.selection(), "")
                self.assertEqual(self.browser.texts("#legend li"), [held])
                # The stacks show the same blocks.
                amount = " ".join(held.split()[-2:])
                self.assertIn(f": {amount} from ", self.browser.text("#flame-drawn"))
                self.browser.press("a")
                self.assertEqual(self.selection(), "")

    @nightly
    def test_hover_finds_only_what_is_selected(self) -> None:
        run = Run()
        run.allocate(4 * MIB, frame("keep", line=1))
        run.allocate(2 * MIB, frame("drop", line=2))
        self.open(run.write(self.folder / "two.pickle"))
        self.browser.choose("#timeline .tools select", "place")
        self.browser.click("#legend button[data-key*='drop']")
        width, height = self.browser.size_of("#curve")
        self.browser.point("#curve", width - 16, height - 40).perform()
        self.browser.settle()
        self.assertIn("drop", self.tip())
        self.assertIn(f"{size_text(2 * MIB)} allocated", self.tip())

    @nightly
    def test_phases_are_in_the_legend(self) -> None:
        self.open(RANKS[0])
        for phase in ("forward", "backward", "optimizer"):
            self.assertEqual(self.browser.text(f"#marks-legend [data-mark='{phase}']"), phase)
            fill = self.browser.colour_of(f"#marks-legend [data-mark='{phase}'] .swatch")
            self.assertNotEqual(fill, "rgba(0, 0, 0, 0)")

    @nightly
    def test_run_without_steps_has_no_phases_in_the_legend(self) -> None:
        run = Run()
        run.allocate(4096)
        self.open(run.write(self.folder / "no_steps.pickle"))
        self.assertFalse(self.browser.shown("#marks-legend [data-mark='forward']"))

    def test_line_of_the_account_selects_its_category(self) -> None:
        self.open(LONG)
        for section in ("#answer", "#account"):
            self.browser.click(f"{section} tr[data-what='parameters']")
            self.assertEqual(self.selection(), "Only parameters")
            self.assertTrue(self.browser.shown(f"{section} tr.chosen[data-what='parameters']"))
            self.browser.click("#selection-clear")
            self.assertEqual(self.selection(), "")

    @nightly
    def test_peak_of_a_selection(self) -> None:
        self.open(LONG, fragment="event=5")
        self.browser.click("#legend button[data-key='gradients']")
        self.browser.click("#selection-peak")
        shown = dict(self.instant()["account"])
        most = int(self.browser.run("return document.querySelector('#curve').dataset.most"))
        self.assertLessEqual(shown["gradients"], most)
        self.assertAlmostEqual(shown["gradients"], most, delta=0.01 * most)


class HolderTests(LinkTest):
    def test_line_of_code_shows_its_blocks(self) -> None:
        self.open(LONG)
        amount, _, category, allocated_by = self.instant()["holders"][0]
        self.browser.click("#holders tbody tr")
        chosen = self.selection().removeprefix("Only ").removesuffix(f" ({category})")
        # Behind the line stands the module that took most of it.
        self.assertTrue(allocated_by.startswith(f"{chosen}in "), allocated_by)
        self.assertTrue(self.browser.shown("#holders tr.chosen"))
        self.assertIn(f": {amount} from ", self.browser.text("#flame-drawn"))
        self.assertIn("What is not selected is pale", self.browser.text("#segment-count"))

    def test_variables_that_keep_it_stand_behind_their_line(self) -> None:
        """Of the instant that the record was made at, and as text."""
        self.open(DATA / "dialects" / "owners.pickle")
        kept = "held by trainer.callbacks[3].outputs[*] in main (train.py:44) and 1 more"
        self.assertIn(kept, self.browser.text("#holders"))
        self.browser.open(self.program.page(DATA / "dialects" / "owners.pickle"), "event=2")
        self.assertNotIn("held by", self.browser.text("#holders"))
        hostile = "<img src=x onerror=alert(1)>"
        snapshot = pickle.loads((DATA / "dialects" / "owners.pickle").read_bytes())
        for block in snapshot["segments"][0]["blocks"]:
            block["plimsoll_owner"] = hostile
        (self.folder / "hostile.pickle").write_bytes(pickle.dumps(snapshot))
        self.open(self.folder / "hostile.pickle")
        self.assertIn("held by " + hostile, self.browser.text("#holders"))

    @nightly
    def test_line_of_code_by_keyboard(self) -> None:
        self.open(OOM)
        self.browser.run("document.querySelector('#holders tbody tr').focus()")
        self.browser.press("\ue007")  # Enter
        self.assertNotEqual(self.selection(), "")

    def test_block_in_the_chart_leads_to_its_line(self) -> None:
        run = Run()
        run.allocate(4 * MIB, frame("first", line=1))
        self.open(run.write(self.folder / "one.pickle"))
        width, height = self.browser.size_of("#curve")
        self.browser.point("#curve", width - 16, height - 40).click().perform()
        self.browser.settle()
        self.browser.click("#pinned-line")
        self.assertIn("train.py:1 in first", self.selection())

    def test_instant_leads_to_account_holders_and_phase(self) -> None:
        self.open(RANKS[0])
        explained = self.program.explain(RANKS[0], at=5_000)["ranks"][0]
        self.browser.run("location.hash = 'rank=0&event=5000'")
        self.browser.wait_until("document.querySelector('#totals').dataset.event === '5000'")
        self.assertEqual(self.instant()["allocated"], explained["instant"]["allocated"])
        self.assertEqual(self.instant()["holders"][0][3], explained["holders"][0]["where"])
        self.assertIn(explained["instant"]["phase"].replace("in the ", ""), self.browser.text("#instant h2"))


class StepTests(LinkTest):
    def steps(self) -> list[dict[str, Any]]:
        return self.program.explain(RANKS[0])["ranks"][0]["step_table"]

    def check_sight(self, step: dict[str, Any]) -> None:
        words = self.hash_words()
        self.assertAlmostEqual(int(words["from"]), step["first_event"], delta=4)
        self.assertAlmostEqual(int(words["to"]), step["last_event"], delta=4)

    def test_click_on_a_step_of_the_chart_zooms_to_it(self) -> None:
        self.open(RANKS[0])
        step = self.steps()[2]
        events = self.program.explain(RANKS[0])["ranks"][0]["events"]
        width = self.browser.size_of("#curve")[0] - 2
        x = 75 + (width - 84) * (step["first_event"] + step["last_event"]) / 2 / events
        self.browser.point("#curve", x, 9).perform()
        self.browser.settle()
        self.assertIn("step 3", self.tip())
        event = self.event()
        self.browser.point("#curve", x, 9).click().perform()
        self.browser.settle()
        self.check_sight(step)
        self.assertEqual(self.event(), event)
        # Then a phase of it, which is shorter.
        wide = int(self.hash_words()["to"]) - int(self.hash_words()["from"])
        self.browser.point("#curve", width / 2, 25).click().perform()
        self.browser.settle()
        self.assertLess(int(self.hash_words()["to"]) - int(self.hash_words()["from"]), wide)
        self.browser.press("0")
        self.assertNotIn("from", self.hash_words())

    def test_row_of_a_step_zooms_to_it_and_its_peak(self) -> None:
        self.open(RANKS[0])
        step = self.steps()[3]
        self.browser.click("#steps tr[data-step='4']")
        self.check_sight(step)
        self.assertEqual(self.instant()["allocated"], step["peak_allocated"])
        self.assertTrue(self.browser.shown("#steps tr.chosen[data-step='4']"))

    def test_address_brings_back_zoom_and_selection(self) -> None:
        self.open(RANKS[0])
        self.browser.click("#steps tr[data-step='2']")
        self.browser.click("#holders tbody tr")
        words = self.hash_words()
        caption, selection = self.browser.text("#drawn"), self.selection()
        fragment = self.browser.run("return location.hash.slice(1)")
        self.open(RANKS[0], fragment=fragment)
        self.assertEqual(self.selection(), selection)
        self.assertEqual(self.browser.text("#drawn"), caption)
        self.assertEqual(self.hash_words(), words)

    @nightly
    def test_addresses_that_make_no_sense(self) -> None:
        self.open(OOM)
        whole = self.browser.text("#drawn")
        fragments = (
            "only=__proto__:x",
            "from=9&to=3",
            "only=category:<img src=x onerror=alert(1)>",
            "only=category:nothing",
            "only=constructor:constructor",
            "only=place:",
            "only=%E0%A4%A&for=x",
            "only=place:train.py&for=nothing",
            "from=a&to=b",
            "from=5",
            "base=7",
        )
        for fragment in fragments if NIGHTLY else fragments[:3]:
            with self.subTest(fragment):
                self.open(OOM, fragment=fragment)
                self.assertEqual(self.selection(), "")
                self.assertEqual(self.browser.text("#drawn"), whole)
                self.check_quiet()

    @nightly
    def test_zoom_beyond_the_ends(self) -> None:
        self.open(OOM, fragment="from=-50&to=1e9")
        self.assertNotIn("from", self.hash_words())


class AccountTests(LinkTest):
    def test_bar_is_scaled_to_what_is_held(self) -> None:
        for files in ([OOM], [FREE]):
            with self.subTest(files[0].name):
                self.open(*files)
                account = {line["what"]: line["bytes"] for line in self.program.explain(*files)["ranks"][0]["account"]}
                free = account.pop("free")
                self.assertGreater(free, sum(account.values()))
                parts = dict(
                    self.browser.run(
                        "return [...document.querySelectorAll('#answer rect')]"
                        ".map((part) => [part.dataset.part, Number(part.getAttribute('width'))])"
                    )
                )
                self.assertNotIn("free", parts)
                self.assertAlmostEqual(sum(parts.values()), 1000, delta=1e-6)
                for what, size in account.items():
                    self.assertAlmostEqual(parts[what], 1000 * size / sum(account.values()), delta=5)
                # What is free is told as a figure, and by a line.
                self.assertEqual(int(self.browser.run("return document.querySelector('.room').dataset.free")), free)
                self.assertIn(f"{size_text(free)} free", self.browser.text(".room"))


class PhoneTests(LinkTest):
    def setUp(self) -> None:
        super().setUp()
        self.browser.resize(390, 844)

    def test_what_if_says_what_fits(self) -> None:
        self.open(OOM)
        results = self.browser.run(
            "return [...document.querySelectorAll('#what-if tbody tr')].map((row) => row.children[3])"
            ".filter((cell) => cell.getClientRects().length > 0).map((cell) => cell.textContent)"
        )
        self.assertIn("runs out", results)
        # The record ends before its first step is over, so more cannot be said.
        self.assertIn("gets past this request", results)
        self.assertNotIn("it fits", results)

    @nightly
    def test_costs_of_remedies_stay(self) -> None:
        self.open(OOM)
        costs = [r["costs"] for f in self.program.explain(OOM)["findings"] for r in f["remedies"] if r["costs"]]
        shown = self.browser.run(
            "return [...document.querySelectorAll('.remedy .hint')]"
            ".filter((e) => e.getClientRects().length > 0).map((e) => e.textContent)"
        )
        self.assertEqual(sorted(costs), sorted(text for text in shown if text in costs))

    @nightly
    def test_selection_and_code_do_not_widen_the_page(self) -> None:
        for files in ([OOM], [ERROR]):
            self.open(*files, fragment="only=category:activations")
            self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)


class TradeOffTests(LinkTest):
    def test_scatter_has_titles_a_legend_and_labels(self) -> None:
        self.browser.open(self.program.prediction(PREDICTED, batch=8))
        titles = sorted(self.browser.texts("#trade-offs .axis-title"))
        self.assertEqual(titles, ["GPU memory, at most", "time per sample"])
        legend = " ".join(self.browser.texts("#trade-offs-legend li"))
        for word in ("does not fit", "frontier", "memory of the card", "expandable_segments:True"):
            self.assertIn(word, legend)
        self.assertIn("batch 8", self.browser.texts("#trade-offs .point-label"))

    @nightly
    def test_labels_do_not_overlap(self) -> None:
        for width in (1280, 390):
            self.browser.resize(width, 844)
            self.browser.open(self.program.prediction(PREDICTED, batch=8))
            boxes = self.browser.run(
                "return [...document.querySelectorAll('#trade-offs .point-label')]"
                ".map((e) => e.getBoundingClientRect())"
                ".map((b) => [b.left, b.top, b.right, b.bottom])"
            )
            self.assertGreater(len(boxes), 2)
            for i, a in enumerate(boxes):
                for b in boxes[:i]:
                    apart = a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] - 3 or b[1] >= a[3] - 3
                    self.assertTrue(apart, (width, a, b))


class LegendSums(LinkTest):
    @nightly
    def test_selected_entries_add_up_to_all(self) -> None:
        self.open(OOM)
        allocated = self.instant()["allocated"]
        keys = self.browser.run("return [...document.querySelectorAll('#legend button')].map((b) => b.dataset.key)")
        total, slack = 0.0, 1.0
        for key in keys:
            self.browser.click(f"#legend button[data-key='{key}']")
            size, off = size_from_text(" ".join(self.browser.text("#legend li").split()[-2:]))
            total, slack = total + size, slack + off
            self.browser.press("a")
        self.assertAlmostEqual(total, allocated, delta=slack)
