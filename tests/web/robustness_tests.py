"""Names that mean harm, files with nothing in them, a thousand ranks, and the page's policy."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fixture import NIGHTLY, PageTest, nightly
from handmade import MIB, Run, frame, write
from program import DATA, size_text, snapshot_file

# Later ones hold more, and are drawn larger.
HARMFUL_NAMES = [
    "\"quoted\" 'twice' `thrice` ${1+1}",
    "two\nlines\r\nand\ttabs",
    "\u202eright to left override",
    "\u2028line separator\u2029",
    "nul\x00inside",
    "&lt;entity&gt; &amp;",
    "javascript:alert(1)",
    "__proto__",
    "constructor",
    "no_space_" * 400,
    "😀 emoji",
    "<!-- <script>",
    "{{DATA}}",
    "{{SCRIPT}}",
    "]]>",
    "<img src=x onerror=alert(1)>",
    '</script><script>document.title="owned"</script>',
]


# The first name's block; each later one is larger by as much again, so that all can be told apart.
UNIT = MIB // 4


class NamesTests(PageTest):
    def write_run(self, names: list[str], file: str = "names.pickle") -> Path:
        run = Run()
        for i, name in enumerate(names):
            # Each as a function, and as a file.
            run.allocate((i + 1) * UNIT, frame(name, line=i), frame("main", file=f"/home/me/{name}.py", line=i))
        return run.write(self.folder / file)

    def test_markup_in_names_is_text(self) -> None:
        self.open(self.write_run(HARMFUL_NAMES))
        title = self.browser.run("return document.title")
        self.assertIn("names.pickle", title)
        self.assertEqual(self.browser.run("return document.querySelectorAll('img, iframe, object, embed').length"), 0)
        count = len(HARMFUL_NAMES)
        self.assertEqual(self.instant()["allocated"], UNIT * count * (count + 1) // 2)
        places = "\n".join(row[3] for row in self.instant()["holders"])
        for part in ("<img src=x onerror=alert(1)>", 'document.title="owned"', "{{DATA}}", "&lt;entity&gt;"):
            self.assertIn(part, places)

    def test_markup_in_a_pinned_stack_and_in_every_view(self) -> None:
        self.open(self.write_run(HARMFUL_NAMES))
        width, height = self.browser.size_of("#curve")
        names = ["]]>", "{{SCRIPT}}", "<img src=x onerror=alert(1)>", '</script><script>document.title="owned"</script>']
        frames = ""
        for way in range(20):
            self.browser.point("#curve", width - 16, height - 26 - 12 * way).click().perform()
            frames += "\n".join(self.browser.texts("#pinned:not([hidden]) li"))
            if all(name in frames for name in names):
                break
        for name in names:
            self.assertIn(name, frames)
        for how in ("place", "module", "size", "category"):
            self.browser.choose("#timeline .tools select", how)
        for word in ("<img", "</script>", "{{DATA}}", "__proto__"):
            self.browser.type_into("#search", word)
            self.assertGreater(int(self.browser.run("return document.querySelector('#found').dataset.bytes")), 0, word)
        self.assertEqual(self.browser.run("return document.querySelectorAll('img').length"), 0)

    @nightly
    def test_names_that_the_script_itself_uses(self) -> None:
        # A name must not find a colour, or a property, by accident.
        self.open(
            self.write_run(["__proto__", "constructor", "toString", "hasOwnProperty", "accent", "paper", "x)", ""])
        )
        for how in ("place", "module", "size", "category"):
            self.browser.choose("#timeline .tools select", how)
        self.assertEqual(self.instant()["allocated"], UNIT * 36)

    def test_long_names_do_not_widen_a_narrow_screen(self) -> None:
        self.browser.resize(390, 844)
        self.open(self.write_run(HARMFUL_NAMES))
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)
        for how in ("place", "module"):
            self.browser.choose("#timeline .tools select", how)
            self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 390)

    def test_half_of_a_surrogate(self) -> None:
        run = Run()
        run.events[0]["frames"] = [frame("\ud800 half")]
        run.allocate(4096, frame("half \udc00"))
        self.open(run.write(self.folder / "half.pickle"))
        self.assertEqual(self.instant()["allocated"], 4096)

    @nightly
    def test_markup_in_the_name_of_the_file(self) -> None:
        self.open(self.write_run(["main"], '<b onclick="x">&amp;{{DATA}}.pickle'))
        self.assertEqual(self.browser.text("#subject"), '<b onclick="x">&amp;{{DATA}}.pickle')
        self.assertEqual(self.browser.run("return document.querySelectorAll('b').length"), 0)

    @nightly
    def test_path_that_is_no_utf8(self) -> None:
        run = Run()
        run.allocate(4096)
        file = run.write(os.path.join(os.fsencode(self.folder), b"latin-\xe9\xff.pickle"))
        self.open(file)
        self.assertEqual(self.instant()["allocated"], 4096)
        self.assertIn("latin-", self.browser.text("#subject"))

    @nightly
    def test_two_paths_that_differ_in_what_is_no_utf8(self) -> None:
        files = []
        for i, name in enumerate((b"rank0-\xfe.pickle", b"rank0-\xff.pickle")):
            run = Run()
            run.allocate((i + 1) * 4096)
            files.append(run.write(os.path.join(os.fsencode(self.folder), name)))
        self.open(*files)
        for i in (1, 0):
            self.browser.click(f"#ranks tr[data-rank='{i}']")
            self.browser.wait_until("document.querySelector('#ranks tr.chosen').dataset.rank === arguments[0]", str(i))
            self.assertEqual(self.instant()["allocated"], (i + 1) * 4096)


class EdgeTests(PageTest):
    def test_no_events(self) -> None:
        self.open(write(self.folder / "none.pickle", []))
        self.assertNotEqual(self.browser.text("#verdict"), "")
        self.assertFalse(self.browser.shown("#timeline"))

    @nightly
    def test_segments_and_no_events(self) -> None:
        file = DATA / "dialects" / "no_traces.pickle"
        report = self.program.explain(file)["ranks"][0]
        self.open(file)
        self.assertFalse(self.browser.shown("#timeline"))
        self.assertEqual(self.instant()["allocated"], report["instant"]["allocated"])
        self.assertEqual(self.instant()["reserved"], report["instant"]["reserved"])

    def test_one_event(self) -> None:
        run = Run()
        self.open(run.write(self.folder / "one.pickle"))
        self.assertEqual(self.event(), 0)
        self.assertEqual(self.instant()["reserved"], 64 * MIB)
        self.assertTrue(self.browser.text("#drawn").startswith("Every event is drawn."))
        self.browser.click("#zoom-in")
        self.browser.click("#to-peak")
        self.browser.press("\ue014")
        self.browser.point("#curve", 300, 100).click().perform()

    @nightly
    def test_one_allocation_and_nothing_else(self) -> None:
        run = Run()
        run.allocate(4096)
        self.open(write(self.folder / "one.pickle", run.events[1:]))
        self.assertEqual(self.instant()["allocated"], 4096)

    @nightly
    def test_everything_freed(self) -> None:
        run = Run()
        run.free(run.allocate(4096), 4096)
        self.open(run.write(self.folder / "freed.pickle"), fragment="event=3")
        self.assertEqual(self.instant()["allocated"], 0)
        self.assertEqual(self.instant()["reserved"], 64 * MIB)

    @nightly
    def test_sizes_beyond_32_bits(self) -> None:
        run = Run(segment=1 << 45)
        run.allocate(1 << 44)
        run.allocate((1 << 33) + 1)
        self.open(run.write(self.folder / "huge.pickle"))
        rounded = (1 << 44) + (1 << 33) + 512
        self.assertIn(self.instant()["allocated"], (rounded, rounded - 511))
        self.assertEqual(self.instant()["reserved"], 1 << 45)

    def test_a_thousand_ranks(self) -> None:
        # More than the list shows at once are enough by day.
        ranks = 1_000 if NIGHTLY else 200
        files = []
        for rank in range(ranks):
            run = Run()
            run.allocate((rank + 1) * 512)
            files.append(run.write(self.folder / f"rank{rank}.pickle"))
        self.open(*files)
        self.assertEqual(len(self.browser.texts("#ranks tbody tr")), ranks)
        last = f"#ranks tr[data-rank='{ranks - 1}']"
        self.browser.click(last)
        self.browser.wait_until("document.querySelector('#ranks tr.chosen').dataset.rank === arguments[0]", str(ranks - 1))
        self.assertEqual(self.instant()["allocated"], ranks * 512)
        # The row is still where the reader clicked on it.
        inside = self.browser.run(
            "const row = document.querySelector(arguments[0]).getBoundingClientRect();"
            "const box = document.querySelector('#ranks .scroll').getBoundingClientRect();"
            "return row.top >= box.top - 1 && row.bottom <= box.bottom + 1",
            last,
        )
        self.assertTrue(inside, "the list has scrolled away from the chosen row")

    def test_error_text_without_a_timeline(self) -> None:
        file = DATA / "errors" / "torch_2_6_allowed.txt"
        explanation = self.program.explain(file)
        self.open(file)
        self.assertEqual(self.browser.text("#verdict"), explanation["verdict"])
        for section in ("#timeline", "#instant", "#flame", "#segments", "#what-if", "#ranks"):
            self.assertFalse(self.browser.shown(section), section)
        for key in "po/d+0":
            self.browser.press(key)
        shown = self.browser.text("#answer")
        for line in explanation["ranks"][0]["account"]:
            self.assertIn(size_text(line["bytes"]), shown)

    @nightly
    def test_error_texts_of_many_kinds(self) -> None:
        names = ("jax_buffers", "torch_2_11_two_ranks_mixed", "cublas", "gaudi", "host_slurm", "torch_exabyte")
        for name in names if NIGHTLY else names[:2]:
            with self.subTest(name):
                file = DATA / "errors" / f"{name}.txt"
                self.open(file)
                self.assertEqual(self.browser.text("#verdict"), self.program.explain(file)["verdict"])
                self.check_quiet()


class PolicyTests(PageTest):
    def policy(self) -> str:
        return self.browser.run("return document.querySelector('meta[http-equiv=\"Content-Security-Policy\"]').content")

    def test_policy_is_strict(self) -> None:
        self.open(snapshot_file("mlp_adam_defaults"))
        policy = self.policy()
        self.assertTrue(policy.startswith("default-src 'none';"), policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotIn("http", policy)
        self.assertNotIn("*", policy)
        for source in ("script-src", "style-src"):
            self.assertRegex(policy, rf"{source}( 'sha256-[A-Za-z0-9+/]+={{0,2}}')+(;|$)")

    def test_policy_comes_before_whatever_it_guards(self) -> None:
        page = self.program.page(snapshot_file("mlp_adam_defaults")).read_text()
        self.assertLess(page.index("Content-Security-Policy"), re.search("<(script|style|title)", page).start())

    def test_nothing_in_the_page_points_outside(self) -> None:
        self.open(snapshot_file("mlp_adam_defaults"))
        outside = self.browser.run(
            "return [...document.querySelectorAll('[src], link, a[href]')].map((e) => e.src ?? e.getAttribute('href'))"
            ".filter((address) => !address.startsWith('#'))"
        )
        self.assertEqual(outside, [])

    def expect_refusal(self, script: str) -> None:
        self.browser.run(script)
        self.browser.settle()
        complaints = self.browser.complaints()
        self.assertTrue(any("Content Security Policy" in line for line in complaints), complaints)

    def test_scripts_that_are_not_its_own_do_not_run(self) -> None:
        self.open(snapshot_file("mlp_adam_defaults"))
        self.expect_refusal(
            "const s = document.createElement('script'); s.textContent = 'window.owned = true'; document.body.append(s)"
        )
        self.expect_refusal(
            "const b = document.createElement('div');"
            'b.innerHTML = \'<button id="bait" onclick="window.owned = true">x</button>\';'
            "document.body.append(b); document.querySelector('#bait').click()"
        )
        self.assertIsNone(self.browser.run("return window.owned ?? null"))

    def test_nothing_can_be_sent_out(self) -> None:
        self.open(snapshot_file("mlp_adam_defaults"))
        self.expect_refusal("fetch('https://example.invalid/').catch(() => {})")
        self.expect_refusal("const i = new Image(); i.src = 'https://example.invalid/x.png'; document.body.append(i)")
        # A refused request is listed all the same.
        self.browser.run("performance.clearResourceTimings()")
