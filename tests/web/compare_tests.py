"""Two runs on one page: `plimsoll report A --compare B`; and what the command says of its own work."""

from __future__ import annotations

import re
import subprocess

from fixture import PageTest, nightly
from handmade import MIB, Run, frame
from program import DATA, size_text, snapshot_file

RANKS = [DATA / "ranks" / f"ddp_big_images.rank{rank}.pickle.xz" for rank in range(4)]
THIS, BASE = RANKS[0], RANKS[2]
MOST_HOLDERS = 30

_ACCOUNT = """
return [...document.querySelectorAll("#account tr[data-what]")].map((row) => [row.dataset.what,
    ["bytes", "before", "change"].map((name) => Number(row.querySelector(`[data-${name}]`).dataset[name]))]);
"""
_HOLDERS = """
return [...document.querySelectorAll("#holders tbody tr.row")].map((row) =>
    [row.children[0].firstChild.textContent, Number(row.querySelector("[data-change]").dataset.change)]);
"""


class Compared(PageTest):
    def test_account_has_both_and_the_difference(self) -> None:
        this, base = (self.program.explain(file)["ranks"][0] for file in (THIS, BASE))
        self.open(THIS, compare=(BASE,))
        expected: dict[str, list[int]] = {}
        for i, report in enumerate((this, base)):
            for line in report["account"]:
                if line["what"] not in ("free", "outside", "nccl", "other_processes"):
                    expected.setdefault(line["what"], [0, 0])[i] = line["bytes"]
        shown = dict(self.browser.run(_ACCOUNT))
        self.assertEqual(shown, {what: [is_, was, is_ - was] for what, (is_, was) in expected.items()})

    def test_holders_change_as_diff_says(self) -> None:
        diff = self.program.diff(BASE, THIS)
        self.open(THIS, compare=(BASE,))
        self.assertEqual(self.browser.text("#difference"), diff["verdict"])
        shown = [row for row in self.browser.run(_HOLDERS) if row[1] != 0]
        expected = [[h["what"], h["growth"]] for h in diff["holders"]][: len(shown)]
        self.assertGreater(len(shown), 3)
        self.assertEqual([growth for _, growth in shown], [growth for _, growth in expected])
        self.assertEqual(sorted(shown), sorted(expected))

    @nightly
    def test_a_line_that_moved_is_the_same_line(self) -> None:
        files = []
        for name, line, size in (("before", 10, 4 * MIB), ("after", 14, 6 * MIB)):
            run = Run()
            run.allocate(size, frame("grow", line=line))
            run.allocate(MIB, frame("stay", line=line - 5 if name == "before" else 5))
            files.append(run.write(self.folder / f"{name}.pickle"))
        self.open(files[1], compare=(files[0],))
        self.assertEqual(self.browser.run(_HOLDERS), [["train.py:14 in grow", 2 * MIB], ["train.py:5 in stay", 0]])
        self.assertIn("was train.py:10 in grow", self.browser.text("#holders"))

    def test_charts_share_their_scales(self) -> None:
        ranks = [self.program.explain(file)["ranks"][0] for file in (THIS, BASE)]
        self.open(THIS, compare=(BASE,))
        scales = self.browser.run(
            "return ['#curve', '#base-curve'].map((id) => document.querySelector(id).dataset)"
            ".map((d) => [Number(d.most), Number(d.length)])"
        )
        self.assertEqual(scales[0], scales[1])
        self.assertGreaterEqual(scales[0][0], max(rank["peak_reserved"] for rank in ranks))
        self.assertEqual(scales[0][1], max(rank["events"] for rank in ranks))

    def test_each_run_has_its_own_instant(self) -> None:
        this, base = (self.program.explain(file)["ranks"][0]["instant"] for file in (THIS, BASE))
        self.open(THIS, compare=(BASE,))

        def instants() -> list[int]:
            return self.browser.run(
                "return ['#totals', '#base-totals'].map((id) => Number(document.querySelector(id).dataset.event))"
            )

        self.assertEqual(instants(), [this["event"], base["event"]])
        width, _ = self.browser.size_of("#base-curve")
        self.browser.point("#base-curve", width / 2, 200).click().perform()
        self.browser.settle()
        moved = instants()
        self.assertEqual(moved[0], this["event"])
        self.assertNotEqual(moved[1], base["event"])
        before = self.program.explain(BASE, at=moved[1])["ranks"][0]["instant"]
        allocated = self.browser.run("return document.querySelector('#base-totals').dataset.allocated")
        self.assertEqual(int(allocated), before["allocated"])
        words = self.hash_words()
        self.assertEqual([int(words["event"]), int(words["base"])], moved)
        self.open(THIS, compare=(BASE,), fragment="event=77&base=99")
        self.assertEqual(instants(), [77, 99])

    def test_selection_and_zoom_hold_for_both(self) -> None:
        self.open(THIS, compare=(BASE,))
        pixels = "return ['#curve', '#base-curve'].map((id) => document.querySelector(id).toDataURL())"
        whole = self.browser.run(pixels)
        self.browser.click("#legend button[data-key='activations']")
        selected = self.browser.run(pixels)
        self.browser.click("#steps tr[data-step='2']")
        zoomed = self.browser.run(pixels)
        for side in (0, 1):
            self.assertEqual(len({whole[side], selected[side], zoomed[side]}), 3)

    @nightly
    def test_settings_that_differ_are_named(self) -> None:
        self.open(snapshot_file("llama_var_expand"), compare=(snapshot_file("llama_var_default"),))
        row = self.browser.texts("#compare [data-row='allocator settings'] td")
        self.assertIn("expandable_segments:True", row[1])
        self.assertEqual(row[2:], ["defaults", "differs"])
        self.assertIn("allocator settings", self.browser.text("#changed-settings"))
        self.open(THIS, compare=(BASE,))
        self.assertIn("No setting", self.browser.text("#changed-settings"))

    @nightly
    def test_peaks_of_both(self) -> None:
        diff = self.program.diff(BASE, THIS)
        self.open(THIS, compare=(BASE,))
        for name in ("allocated", "reserved"):
            peak = diff[f"peak_{name}"]
            row = self.browser.texts(f"#compare [data-row='peak {name}'] td")
            self.assertEqual(row[1:3], [size_text(peak["after"]), size_text(peak["before"])])
            self.assertTrue(row[3].endswith(size_text(peak["growth"])), row)

    def test_ranks_are_compared_with_the_same_ranks(self) -> None:
        self.open(RANKS[0], RANKS[1], compare=(RANKS[1], RANKS[0]))
        for rank in (1, 0):
            self.browser.click(f"#ranks tr[data-rank='{rank}']")
            chosen = "document.querySelector('#ranks tr.chosen').dataset.rank === arguments[0]"
            self.browser.wait_until(chosen, str(rank))
            self.assertEqual({change[2] for _, change in self.browser.run(_ACCOUNT)}, {0})

    @nightly
    def test_runs_of_different_lengths(self) -> None:
        short = Run()
        short.allocate(4096)
        self.open(short.write(self.folder / "short.pickle"), compare=(THIS,))
        self.browser.point("#curve", 600, 200).perform()
        self.browser.settle()
        self.assertEqual(self.tip(), "")
        for key in "p+-0a":
            self.browser.press(key)
        self.browser.choose("#timeline .tools label:last-child select", "time")

    @nightly
    def test_narrow_screen_does_not_scroll_sideways(self) -> None:
        self.browser.resize(390, 844)
        self.open(THIS, compare=(BASE,))
        for box in ("document.documentElement", "document.querySelector('#holders')"):
            self.assertLessEqual(self.browser.run(f"return {box}.scrollWidth - {box}.clientWidth"), 0, box)

    @nightly
    def test_hostile_names_in_the_baseline(self) -> None:
        run = Run()
        run.allocate(MIB, frame("</script><script>document.title='owned'</script>", line=3))
        file = run.write(self.folder / "<b>{{DATA}}.pickle")
        self.open(THIS, compare=(file,))
        self.assertNotEqual(self.browser.run("return document.title"), "owned")
        self.assertIn("</script>", self.browser.text("#holders"))
        self.assertEqual(self.browser.run("return document.querySelectorAll('main b').length"), 0)

    def test_page_alone_has_no_comparison(self) -> None:
        self.open(THIS)
        self.assertFalse(self.browser.shown("#compare"))
        self.assertFalse(self.browser.shown("#base-curve"))


class CommandTests(PageTest):
    def report(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.program.path), "report", *(str(word) for word in words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)

    def test_says_where_it_wrote(self) -> None:
        done = self.report(THIS)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, r"^wrote report\.html, [\d.]+ KiB: open it in a browser\n$")
        done = self.report(THIS, "--format", "csv", "-o", "run.csv")
        self.assertRegex(done.stderr, r"^wrote run\.csv, [\d.]+ [KM]iB\n$")

    def test_is_quiet_when_asked_to_be_or_on_standard_output(self) -> None:
        self.assertEqual(self.report(THIS, "-q").stderr, "")
        done = self.report(THIS, "-o", "-")
        self.assertEqual(done.stderr, "")
        self.assertTrue(done.stdout.startswith("<!DOCTYPE html>"))

    def test_redacts_both_runs(self) -> None:
        run = Run()
        run.allocate(MIB, frame("work", file="/home/me/secret_project.py"))
        file = run.write(self.folder / "secret_run.pickle")
        done = self.report(THIS, "--compare", file, "--redact", "-o", "shown.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotRegex((self.folder / "shown.html").read_text(), "secret|ddp_big_images")
        self.browser.open(self.folder / "shown.html")
        self.assertFalse(re.search("secret|train_ddp", self.browser.text("#instant")))

    def test_baseline_that_cannot_be_read(self) -> None:
        done = self.report(THIS, "--compare", "missing.pickle")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertFalse((self.folder / "report.html").exists())
