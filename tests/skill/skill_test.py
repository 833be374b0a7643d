#!/usr/bin/env python3
"""What agents/plimsoll/SKILL.md says is so: skill_test.py PROGRAM

Every command in it has flags that the program has, and every field that it names is in a document of real files.
"""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SKILL = ROOT / "agents" / "plimsoll" / "SKILL.md"
DATA = ROOT / "tests" / "data"
PROGRAM = ""
LIVES, STEPS, SNAPSHOTS = DATA / "lives", DATA / "steps", DATA / "snapshots"
# Real files, so that each field is somewhere.
DOCUMENTS = {
    "explain": [
        [DATA / "errors" / "torch_2_10_stray_contexts.txt"],
        [SNAPSHOTS / "resnet50_kept_graph.pickle.xz"],
    ],
    "predict": [
        [LIVES / "eval_grad.step.json.gz", "--gpu", "8GiB", "--batch", "16"],
        [LIVES / "leak.step.json.gz", "--gpu", "8GiB", "--batch", "16"],
        [LIVES / "not_reached.step.json.gz", "--gpu", "L4", "--batch", "8"],
        [STEPS / "run" / "train.step.json.gz", "--gpu", "RTX 4090", "--max-batch"],
        [STEPS / "early" / "*.step.json.gz", "--gpu", "RTX 4090", "--batch", "8"],
    ],
    "plan": [[STEPS / "mlp_adamw_fp32.step.json.gz", "--gpu", "L4", "--global-batch", "64"]],
    "diff": [[SNAPSHOTS / "gpt2_leak.pickle.xz", SNAPSHOTS / "gpt2_kept_outputs.pickle.xz"]],
}


def program(*words):
    return subprocess.run([PROGRAM, *map(str, words)], cwd=ROOT, capture_output=True, text=True)


def documents(command):
    for words in DOCUMENTS[command]:
        first = words[0]
        for file in sorted(first.parent.glob(first.name)):
            made = program(command, file, *words[1:], "--json")
            assert made.returncode in (0, 1, 3), made.stderr
            yield json.loads(made.stdout)


def has(document, path):
    at = document
    for name in re.findall(r"[a-z_]+|\[0\]", path):
        if name == "[0]":
            if not isinstance(at, list) or not at:
                return False
            at = at[0]
        elif not isinstance(at, dict) or name not in at:
            return False
        else:
            at = at[name]
    return True


class SkillTest(unittest.TestCase):
    text = SKILL.read_text(encoding="utf-8")

    def commands(self):
        for piece in re.findall(r"`(plimsoll [^`]+)`|^(plimsoll .+)$", self.text, re.M):
            yield "".join(piece).split(" -- ")[0]

    def test_front_matter(self):
        head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", self.text)
        self.assertEqual(head[1], SKILL.parent.name)
        self.assertLessEqual(len(head[2]), 1024)
        self.assertLessEqual(len(self.text.splitlines()), 200)

    def test_commands_and_flags(self):
        seen = 0
        for line in self.commands():
            words = line.split()
            helped = program("help", words[1])
            self.assertEqual(helped.returncode, 0, line)
            for flag in re.findall(r"(?<=\s)--[a-z-]+", line):
                seen += 1
                self.assertRegex(helped.stdout, rf"{flag}(?![a-z-])", line)
        self.assertGreater(seen, 10)

    def test_other_flags(self):
        helped = "".join(program("help", name).stdout for name in ("predict", "plan", "explain"))
        for flag in set(re.findall(r"`(--[a-z-]+)", self.text)):
            self.assertRegex(helped, rf"{flag}(?![a-z-])")

    def test_fields(self):
        named = {}
        for part in re.split(r"\n(?=\| field of )", self.text)[1:]:
            command = re.match(r"\| field of ([a-z]+)", part)[1]
            table = part.split("\n\n")[0]
            for row in table.splitlines()[2:]:
                cells = row.strip("|").split(" | ")
                paths = re.findall(r"`([^`]+)`", cells[0]) + re.findall(r"`([a-z_]+\[0\][^`]*)`", cells[1])
                paths += re.findall(r"`([a-z]+\.[a-z_]+\[0\][^`]*)`", cells[1])
                named.setdefault(command, set()).update(paths)
        for command, rest in re.findall(r"[;,] field of ([a-z]+): (.*)", self.text):
            named.setdefault(command, set()).update(re.findall(r"`([^`]+)`", rest))
        self.assertEqual(set(named), set(DOCUMENTS))
        for command, paths in named.items():
            found = list(documents(command))
            for path in paths:
                self.assertTrue(any(has(one, path) for one in found), f"{command}: {path}")

    def test_findings(self):
        known = (ROOT / "docs" / "json.md").read_text()
        for name in re.findall(r"explain: ((?:`[a-z_]+`(?:, )?)+)", self.text):
            for one in re.findall(r"`([a-z_]+)`", name):
                self.assertIn(f"`{one}`", known)

    def test_levers(self):
        step = STEPS / "gpt2_adamw_fp32.step.json.gz"
        for lever in set(re.findall(r"--set ([a-z_]+=[^ `]+)", self.text)):
            made = program("predict", step, "--gpu", "L4", "--batch", "8", "--set", lever, "--json")
            self.assertIn(made.returncode, (0, 1), made.stderr)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
