#!/usr/bin/env python3
"""Writes logs as programs would, and checks that every figure, step, rank and phase is read: check_logs.py PROGRAM [SEED] [NAME]."""
import concurrent.futures
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from excerpts import EXCERPTS, Excerpt, missing_or_too_much  # noqa: E402
from exports import export_logs  # noqa: E402
from truth import differences, explain  # noqa: E402
from variants import all_logs  # noqa: E402


def check(program, log):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / log.file
        path.write_bytes(log.text.encode())
        answer, error = explain(program, str(path))
    if answer is None:
        return [] if not log.figures else [error]
    return missing_or_too_much(log, answer) if isinstance(log, Excerpt) else differences(log, answer)


def main():
    program = sys.argv[1]
    seed = sys.argv[2] if len(sys.argv) > 2 else "1"
    logs = [log for log in [*all_logs(seed), *export_logs(seed), *EXCERPTS] if len(sys.argv) < 4 or log.name.startswith(sys.argv[3])]
    wrong = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for log, problems in zip(logs, pool.map(lambda log: check(program, log), logs)):
            if not problems:
                continue
            wrong += 1
            print(f"{log.name}: {len(problems)} of {len(log.figures)}")
            for problem in problems[:4]:
                print(f"   {problem}")
    figures = sum(len(log.figures) for log in logs)
    print(f"{len(logs)} logs, {figures} figures, {wrong} logs wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
