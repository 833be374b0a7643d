"""The processes that run a script: none is left behind, and nobody waits in the dark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program_here import needs_program

pytest.importorskip("torch")

from fresh_process import fresh, started  # noqa: E402

from plimsoll.answers.program import find  # noqa: E402
from plimsoll.scripts import keeper, process, progress  # noqa: E402
from plimsoll.scripts.command import main  # noqa: E402

#: Against hanging alone.
LONG = 600

# Starts a process that leaves its group, and then never trains.
ENDLESS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
left = subprocess.Popen(["sleep", "100000"], start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()} {left.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
while True:
    time.sleep(1)
"""


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LONG
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def words_of_endless(tmp_path: Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(ENDLESS)
    return ["--", sys.executable, str(script), str(tmp_path / "at{batch}")]


def processes_of(tmp_path: Path, is_alive: Callable[[], bool]) -> list[int]:
    """Those of the script, at both batch sizes, once they run."""
    told = [tmp_path / "at4", tmp_path / "at8"]
    wait_until(lambda: all(one.exists() for one in told) or not is_alive(), "nothing has begun")
    processes = [int(word) for one in told for word in one.read_text().split()]
    assert all(is_running(process) for process in processes)
    return processes


#: The script's files say which processes it has.
NOT_HELD_BACK = {"PLIMSOLL_ISOLATION": "off"}


def exit_with_code_of_main(words: list[str]) -> None:
    os.environ.update(NOT_HELD_BACK)
    sys.exit(main(words))


@pytest.mark.parametrize(
    "by",
    [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)],
)
def test_nothing_outlives_the_one_who_waits(tmp_path: Path, by: signal.Signals) -> None:
    words = ["-o", str(tmp_path / "job.step.json.gz"), *words_of_endless(tmp_path)]
    waiting = started(exit_with_code_of_main, words)
    processes = processes_of(tmp_path, waiting.is_alive)
    assert waiting.pid is not None
    os.kill(waiting.pid, by)
    waiting.join(LONG)
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert waiting.exitcode == codes[by]
    wait_until(lambda: not any(map(is_running, processes)), "a process is left behind")


@needs_program
# A torch of its own is loaded by each.
@pytest.mark.parametrize(
    "by", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)]
)
def test_nothing_outlives_the_program(tmp_path: Path, by: signal.Signals) -> None:
    flags = ["--run", "--gpu", "H200", "--batch", "8"]
    command = [find(), "predict", *flags, *words_of_endless(tmp_path)]
    nowhere, around = subprocess.DEVNULL, {**os.environ, **NOT_HELD_BACK}
    program = subprocess.Popen(command, stderr=nowhere, stdout=nowhere, env=around)
    processes = processes_of(tmp_path, lambda: program.poll() is None)
    program.send_signal(by)
    assert program.wait(LONG) != 0
    wait_until(lambda: not any(map(is_running, processes)), "a process is left behind")


def test_what_a_script_leaves_ends_with_it(tmp_path: Path) -> None:
    told = tmp_path / "left"

    def leaves() -> None:
        left = subprocess.Popen(["sleep", "100000"], start_new_session=True)
        told.write_text(str(left.pid))
        os._exit(7)

    def is_killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    codes = keeper.run_beside([leaves, is_killed], contextlib.nullcontext)
    assert [keeper.how_it_ended(code) for code in codes] == ["ended with 7", "was ended by SIGKILL"]
    assert not is_running(int(told.read_text()))


def test_a_script_that_takes_long_is_spoken_of(capfd: pytest.CaptureFixture[str]) -> None:
    runs = [progress.Progress(), progress.Progress()]
    said = ""
    with progress.said(runs, 3, first=0.01):
        while not said:
            said = capfd.readouterr().err
    assert "it has put nothing on the GPU yet" in said
    said = ""
    runs[0].tell(1, 2_000_000)
    runs[1].tell(2, 1_000_000)
    with progress.said(runs, 3, first=0.01):
        while not said:
            said = capfd.readouterr().err
    assert "1 of 3 training steps, 2,000,000 operators. Ctrl-C ends it" in said
    said = ""
    with progress.said(runs, 60, first=0.01):
        while not said:
            said = capfd.readouterr().err
    assert "1 of at most 60 training steps" in said
    said = ""
    for run in runs:
        run.tell(3, 3_000_000, beyond=True)
    with progress.said(runs, 3, first=0.01):
        while not said:
            said = capfd.readouterr().err
    assert "after its training steps is followed, 3,000,000 operators. Ctrl-C ends it" in said
    assert "3 of 3" not in said


REFUSED = [
    ("train.py", "is read as well"),
    ("notes.txt", "plimsoll has not written it"),
    ("nowhere/job.step.json", "cannot be written: No such file or directory"),
    ("folder", "is no regular file"),
    ("x" * 300, "cannot be written: File name too long"),
]


@pytest.mark.parametrize(("name", "what"), REFUSED)
def test_a_file_that_must_not_be_written_is_refused_first(
    tmp_path: Path, name: str, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    words = ["-o", str(tmp_path / name), "--", "python", str(tmp_path / "train.py")]
    assert main(words) == 2
    said = capfd.readouterr().err
    assert what in said and "it ran" not in said
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "notes.txt").read_text() == "mine"


# As a cleaner of temporary files does, from outside.
EMPTIES = """
import glob, os, shutil, subprocess, sys
for folder in glob.glob(sys.argv[1] + "/plimsoll-*"):
    shutil.rmtree(folder)
"""


def _in_folder_for_temporary_files(folder: str, words: list[str]) -> int:
    os.environ.update(NOT_HELD_BACK, TMPDIR=folder)
    tempfile.tempdir = None
    return main(words)


def test_temporary_files_may_be_removed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EMPTIES)
    folder = tmp_path / "temporary"
    folder.mkdir()
    words = ["-o", str(tmp_path / "job.step.json"), "--", "python", str(tmp_path / "train.py")]
    told = fresh(_in_folder_for_temporary_files, str(folder), [*words, str(folder), "{batch}"])
    assert told.value == 2
    last = told.said.splitlines()[-1]
    assert last.startswith("plimsoll: ") and "TMPDIR" in last, told.said
    assert "Traceback" not in told.said


def test_a_folder_for_temporary_files_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    words = ["-o", str(tmp_path / "job.step.json"), "--", "python", str(tmp_path / "train.py")]
    told = fresh(_with_no_temporary_files, words)
    assert told.value == 2
    assert told.said.count("\n") == 1 and "TMPDIR" in told.said, told.said


def _with_no_temporary_files(words: list[str]) -> int:
    def refuse(*args: object, **kwargs: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    tempfile.mkdtemp = refuse  # type: ignore[assignment]
    return main(words)


def test_a_capture_is_refused_before_it_runs(tmp_path: Path) -> None:
    import plimsoll

    def never(*arguments: object) -> None:
        raise AssertionError("it ran")

    script = tmp_path / "train.py"
    script.write_text("import plimsoll")
    with pytest.raises(plimsoll.CaptureError, match="plimsoll has not written it"):
        plimsoll.capture(never, None, never, never, path=script)
    assert script.read_text() == "import plimsoll"


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    from plimsoll.base.output import check_output, write_whole

    target, link = tmp_path / "job.json", tmp_path / "link.json"
    target.write_text("{}")
    target.chmod(0o640)
    link.symlink_to(target)
    check_output(link)
    write_whole(link, b'{"new": 1}')
    assert target.read_text() == '{"new": 1}' and link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [target, link]


def test_pipes_that_nobody_reads_and_devices_are_no_output(tmp_path: Path) -> None:
    import plimsoll
    from plimsoll.base.output import check_output

    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/full", tmp_path):
        with pytest.raises(plimsoll.CaptureError, match="is no regular file") as error:
            check_output(path)
        assert "\n" not in str(error.value)
    reader, writer = os.pipe()
    for path in ("/dev/null", "/dev/stdout", f"/dev/fd/{writer}"):
        check_output(path)
    os.close(reader)
    os.close(writer)


NEVER_TRAINS = """
import torch
x = torch.ones(2, device="cuda")
while True:
    try:
        x = x + 1
    except Exception:
        pass
"""


def main_with_few_calls(words: list[str]) -> int:
    process.MOST_CALLS = 500
    return main(words)


def test_a_script_that_never_trains_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NEVER_TRAINS)
    done = fresh(main_with_few_calls, ["-o", str(tmp_path / "x"), "--", "python", str(script)])
    assert done.value == 2
    assert "ran 500 operators on the GPU before 3 training steps were seen" in done.said
