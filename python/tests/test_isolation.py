"""Scripts that write, remove, rename and connect: nothing of it leaves the capture."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fresh_process import fresh  # noqa: E402

from plimsoll.base.errors import CaptureError  # noqa: E402
from plimsoll.base.patching import patched  # noqa: E402
from plimsoll.isolation.changes import Changes  # noqa: E402
from plimsoll.isolation.filling import ended_before_full  # noqa: E402
from plimsoll.isolation.guard import Guard  # noqa: E402
from plimsoll.isolation.means import choose  # noqa: E402
from plimsoll.isolation.mounts import Mount, visible  # noqa: E402
from plimsoll.isolation.network import Refusals, guarded, is_here  # noqa: E402
from plimsoll.scripts.command import run_each  # noqa: E402
from plimsoll.scripts.run import Run, RunResult  # noqa: E402

LOOP = """
import torch
from torch import nn
model = nn.Linear(32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.randn(4, 32).cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def possible(way: str) -> bool:
    """Whether this machine's kernel makes such namespaces."""
    before = os.environ.get("PLIMSOLL_ISOLATION")
    os.environ["PLIMSOLL_ISOLATION"] = way
    try:
        return choose(allow_network=False).files == way
    finally:
        os.environ.pop("PLIMSOLL_ISOLATION")
        if before is not None:
            os.environ["PLIMSOLL_ISOLATION"] = before


@pytest.fixture(params=["root", "user"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if not possible(request.param):
        pytest.skip(f"no namespace of {request.param} can be made here")
    monkeypatch.setenv("PLIMSOLL_ISOLATION", request.param)
    return str(request.param)


def _runs(folder: str, way: str, words: list[str], allow_network: bool) -> list[RunResult]:
    os.environ["PLIMSOLL_ISOLATION"] = way
    os.chdir(folder)
    run = Run(words, None, "H200", allow_network=allow_network)
    return run_each([run, run])


def followed(
    folder: Path, way: str, text: str, *words: str, allow_network: bool = False
) -> list[RunResult]:
    """Two runs, beside each other."""
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text).replace("LOOP", LOOP))
    told: list[RunResult] = fresh(
        _runs, str(folder), way, ["train.py", *words], allow_network
    ).value
    return told


def state(folder: Path) -> dict[str, object]:
    """Everything below, with its content and mode."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        told: object = os.readlink(path) if path.is_symlink() else None
        if path.is_file() and not path.is_symlink():
            told = path.read_text(), path.stat().st_mode, path.stat().st_mtime_ns
        found[str(path.relative_to(folder))] = told
    return found


DOES_HARM = r"""
import os, pathlib, shutil, tempfile
with open("precious.txt", "w") as file:
    file.write("gone")
assert open("precious.txt").read() == "gone"
shutil.rmtree("results")
os.makedirs("results/new/run")
assert os.listdir("results") == ["new"]
pathlib.Path("results/new/run/log.txt").write_text("first")
with open("results/new/run/log.txt", "a") as file:
    file.write(", second")
assert pathlib.Path("results/new/run/log.txt").read_text() == "first, second"
os.rename("old.txt", "new.txt")
assert not os.path.exists("old.txt") and open("new.txt").read() == "old"
os.replace("new.txt", "newer.txt")
os.remove("other.txt")
assert sorted(name for name in os.listdir(".") if name.endswith(".txt")) == [
    "first.txt", "mode.txt", "newer.txt", "precious.txt", "short.txt"]
os.chmod("mode.txt", 0o600)
assert os.stat("mode.txt").st_mode & 0o777 == 0o600
os.truncate("short.txt", 1)
assert open("short.txt").read() == "s"
os.symlink("first.txt", "link")
assert open("link").read() == "first"
os.link("first.txt", "hard")
assert open("hard").read() == "first"
with open("first.txt", "r+") as file:
    assert file.read() == "first"
    file.write("!")
assert open("first.txt").read() == "first!"
shutil.copy("first.txt", "copied.txt")
shutil.move("copied.txt", "moved.txt")
assert [path.name for path in sorted(pathlib.Path(".").glob("mov*"))] == ["moved.txt"]
os.utime("first.txt", (1, 1))
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "x"), "x") as file:
    file.write("x")
shutil.rmtree(folder)
import importlib, inspect, sys
os.mkdir("written")
with open("written/written_module.py", "w") as file:
    file.write("def answer():\n    return 42\n")
sys.path.insert(0, os.path.abspath("written"))
importlib.invalidate_caches()
import written_module
assert written_module.answer() == 42
assert "return 42" in inspect.getsource(written_module)
sys.path.pop(0)
del sys.modules["written_module"]
LOOP
open("after.txt", "w").write("after")
"""


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    for name in ("precious", "old", "other", "mode", "short", "first"):
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "results" / "run1").mkdir(parents=True)
    (tmp_path / "results" / "run1" / "log.txt").write_text("a log")
    return tmp_path


@pytest.mark.parametrize("by", ["root", "user", "guard"])
def test_nothing_that_a_script_changes_is_changed(precious: Path, by: str) -> None:
    if by != "guard" and not possible(by):
        pytest.skip(f"no namespace of {by} can be made here")
    (precious / "train.py").write_text(textwrap.dedent(DOES_HARM).replace("LOOP", LOOP))
    before = state(precious)
    runs = followed(precious, by, DOES_HARM)
    before["train.py"] = after = state(precious).pop("train.py")
    assert after is not None
    assert state(precious) == before
    assert [run.model for run in runs] == ["Linear", "Linear"]


def _harmless(folder: Path, guard: Guard) -> None:
    """Runs the script here, without its training."""
    before, here = state(folder), os.getcwd()
    os.chdir(folder)
    try:
        with patched(guard.patches()):
            exec(compile(textwrap.dedent(DOES_HARM).replace("LOOP", ""), "train.py", "exec"), {})
    finally:
        os.chdir(here)
    assert state(folder) == before


@pytest.mark.parametrize("by", [errno.EOVERFLOW, errno.EROFS])
def test_what_the_kernels_layer_cannot_do_is_done_in_python(
    precious: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    by: int,
) -> None:
    """A file of a user that the namespace does not know, and a file system without a layer."""

    def refuses(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            reads = name == "open" and not args[0] & (os.O_WRONLY | os.O_RDWR)
            if os.path.abspath(os.fspath(path)).startswith(str(precious)) and not reads:
                raise OSError(by, os.strerror(by), path)
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("open", "mkdir", "unlink", "remove", "rmdir", "rename", "chmod", "utime"):
        refuses(name)
    changes = Changes(str(tmp_path_factory.mktemp("changes")))
    _harmless(precious, Guard(changes, after_kernel=True))
    assert not changes.is_empty


def test_a_file_that_is_large_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plimsoll.isolation.changes.MOST_COPIED", 3)
    large, folder = tmp_path / "large.bin", tmp_path / "changes"
    large.write_bytes(b"1234")
    folder.mkdir()
    with patched(Guard(Changes(str(folder))).patches()):
        with pytest.raises(OSError, match="copies no file of more than"):
            open(large, "r+b")
        assert open(large, "rb").read() == b"1234"
        with open(large, "wb") as file:  # what is truncated needs no copy
            file.write(b"new")
        assert large.read_bytes() == b"new"
        database = sqlite3.connect(tmp_path / "runs.db")
        database.execute("create table runs (name text)")
        database.close()
    assert large.read_bytes() == b"1234"
    assert not (tmp_path / "runs.db").exists()


def test_other_programs_and_libraries_are_held_back_too(precious: Path, way: str) -> None:
    text = """
    import sqlite3, subprocess
    subprocess.run(["rm", "-r", "results", "precious.txt"], check=True)
    base = sqlite3.connect("runs.db")
    base.execute("create table runs (name text)")
    base.commit()
    LOOP
    """
    followed(precious, way, text)
    assert (precious / "precious.txt").read_text() == "precious"
    assert (precious / "results" / "run1" / "log.txt").exists()
    assert not (precious / "runs.db").exists()


CONNECTS = """
import socket, sys
try:
    socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error:
    assert error.errno == 101 and "--allow-network" in str(error), error
else:
    raise AssertionError("it is connected")
try:
    socket.getaddrinfo("example.invalid", 443)
except socket.gaierror as error:
    assert "--allow-network" in str(error), error
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as client:
        client.sendall(b"here")
        assert server.accept()[0].recv(4) == b"here"
ours, theirs = socket.socketpair()
store = __import__("torch").distributed.TCPStore("127.0.0.1", 0, 1, True)
store.set("key", "value")
assert store.get("key") == b"value"
LOOP
"""


@pytest.mark.parametrize("by", ["root", "user", "guard"])
def test_connections_beyond_this_machine_are_refused(tmp_path: Path, by: str) -> None:
    if by != "guard" and not possible(by):
        pytest.skip(f"no namespace of {by} can be made here")
    followed(tmp_path, by, CONNECTS)


def test_a_script_that_ends_because_of_it_is_told_the_flag(tmp_path: Path) -> None:
    text = """
    import socket
    socket.create_connection(("192.0.2.1", 80), timeout=5)
    """
    with pytest.raises(CaptureError) as raised:
        followed(tmp_path, "guard", text)
    assert "Network is unreachable" in raised.value.what
    assert raised.value.hint is not None
    assert "192.0.2.1:80" in raised.value.hint and "--allow-network" in raised.value.hint


def test_connections_can_be_allowed(tmp_path: Path) -> None:
    text = """
    import socket
    assert socket.socket.connect.__qualname__ == "socket.connect", socket.socket.connect
    LOOP
    """
    followed(tmp_path, "guard", text, allow_network=True)


def test_what_is_this_machine() -> None:
    for host in ("127.0.0.1", "127.3.2.1", "localhost", "", "0.0.0.0"):
        assert is_here(socket.AF_INET, host), host
    assert is_here(socket.AF_INET6, "::1")
    assert is_here(socket.AF_INET6, "::ffff:127.0.0.1")
    for host in ("192.0.2.1", "example.invalid"):
        assert not is_here(socket.AF_INET, host), host


def test_datagrams_and_numbers_of_errors_are_guarded() -> None:
    refusals = Refusals()
    with patched(guarded(refusals)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            assert sending.connect_ex(("192.0.2.1", 9)) == 101
            for call in (
                lambda: sending.sendto(b"", ("192.0.2.1", 9)),
                lambda: sending.sendmsg([b""], [], 0, ("192.0.2.1", 9)),
            ):
                with pytest.raises(OSError, match="--allow-network"):
                    call()
            assert sending.sendto(b"x", ("127.0.0.1", 9)) == 1
    assert refusals.hint is not None and "192.0.2.1:9" in refusals.hint


def test_a_disk_is_not_filled(tmp_path: Path) -> None:
    left = iter([100, 60, 49])
    ended = threading.Event()
    with ended_before_full(str(tmp_path), ended.set, lambda folder: next(left)) as filling:
        assert ended.wait(60)
    assert filling.taken == 51


def test_mounts_that_others_hide_are_left_out() -> None:
    mounts = [
        Mount(1, 0, "/", "ext4", False),
        Mount(2, 1, "/a/b", "ext4", False),
        Mount(3, 1, "/dev", "devtmpfs", False),
        Mount(4, 1, "/a", "ext4", False),  # hides /a/b
        Mount(5, 3, "/dev/shm", "tmpfs", False),
        Mount(6, 5, "/dev/shm", "tmpfs", False),  # on top of it
        Mount(7, 4, "/a/c", "nfs", True),
    ]
    assert sorted(mount.number for mount in visible(mounts)) == [1, 3, 4, 6, 7]
