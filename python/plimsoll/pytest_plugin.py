"""A pytest plugin: a limit on the GPU memory of a test, with or without a GPU. docs/python.md.

@pytest.mark.gpu_memory("6 GiB")
def test_training_fits(gpu_memory):
    gpu_memory.job(model, optimizer, make_batch, loss, batch=8)
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from .answers.questions import explain
from .base.errors import ProgramError
from .base.sizes import share, size
from .measuring.memory_gate import Baseline, Checked, Figure, checked, table, write_report
from .recording.record import record

MARK = "gpu_memory"
_NO_CARD = "no GPU is here, and neither --gpu-memory-gpu nor the mark names one"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("plimsoll", "GPU memory of tests")
    group.addoption(
        "--gpu-memory-gpu", metavar="GPU", help="predict for this card (L4) instead of measuring"
    )
    group.addoption(
        "--gpu-memory-report", metavar="FILE", help="write what tests took: JSON, and a .md beside"
    )
    group.addoption(
        "--gpu-memory-baseline", metavar="FILE", help="a report to hold this run against"
    )
    group.addoption(
        "--gpu-memory-fail-above",
        metavar="SHARE",
        default="5%",
        help="fail what grew by more than this above the baseline (5%%)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f'{MARK}(limit, gpu=None): what the test may take of a GPU, "6 GiB"; the card to predict '
        "for where there is none",
    )
    try:
        gate = _Gate(config)
    except (ProgramError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(gate, "plimsoll-gate")


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Takes the job of the test: `gpu_memory.job(model, optimizer, make_batch, loss, batch=8)`."""
    card = _card(request.node)
    if card is None and not _has_gpu():
        pytest.skip(_NO_CARD)
    return GpuMemory(card)


class GpuMemory:
    """The jobs of one test: predicted for the card that is named, else run on the one here."""

    def __init__(self, card: str | None) -> None:
        self._card = card
        self.figures: list[Figure] = []

    def job(
        self,
        model: Any,
        optimizer: Any,
        make_batch: Any,
        loss: Any = None,
        *,
        batch: int,
        **options: Any,
    ) -> Figure:
        """The arguments are those of `plimsoll.capture`, and the batch size that is trained."""
        parts = (model, optimizer, make_batch, loss)
        made = _predicted if self._card is not None else _measured
        figure = made(self._card or "", parts, batch, options)
        self.figures.append(figure)
        return figure


def _predicted(card: str, parts: Any, batch: int, options: dict[str, Any]) -> Figure:
    import plimsoll

    captured = plimsoll.capture(*parts, gpu=card, **options)
    found = plimsoll.predict(captured, batch=batch, gpu=card)
    return Figure(found.reserved.best, found.gpu, "predicted")


def _measured(card: str, parts: Any, batch: int, options: dict[str, Any]) -> Figure:
    from .measuring.gpu_run import job_of, measure

    model, *job = parts
    channels_last = bool(options.get("channels_last"))
    found = measure(model, job_of(*job, **options), batch, channels_last=channels_last)
    return Figure(found.reserved, found.gpu, "measured")


class _Gate:
    """Holds each marked test against its limit and the baseline, and keeps what was found."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._baseline = Baseline(config.getoption("gpu_memory_baseline"))
        self._fail_above = share(config.getoption("gpu_memory_fail_above"))
        self._tests: list[Checked] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        mark = item.get_closest_marker(MARK)
        if mark is None:
            return
        _limit(mark)  # a mistake in it is told before anything runs
        if _card(item) is not None:
            if MARK not in getattr(item, "fixturenames", ()):
                pytest.skip("only a job that is given to the fixture gpu_memory can be predicted")
        elif not _has_gpu():
            pytest.skip(_NO_CARD)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker(MARK)
        if mark is None:
            return (yield)
        watch = _Watch(item) if _card(item) is None else None
        try:
            result = yield
            found = self._checked(item, mark, watch)
            # Carried by the test's report, also from a worker of xdist.
            item.user_properties.append((MARK, asdict(found)))
            if found.failure is not None:
                why = "" if watch is None else watch.why()
                pytest.fail(f"{found.failure}{why}", pytrace=False)
            return result
        finally:
            if watch is not None:
                watch.recording.stop()

    def _checked(self, item: pytest.Item, mark: pytest.Mark, watch: _Watch | None) -> Checked:
        given = getattr(item, "funcargs", {}).get(MARK)
        figures = list(given.figures) if given is not None else []
        if watch is not None:
            figures.append(watch.figure())
        if not figures:
            pytest.fail("the test is marked gpu_memory and gave no job to the fixture")
        figure = max(figures, key=lambda one: one.reserved)
        was = self._baseline.of(item.nodeid, figure)
        return checked(item.nodeid, figure, _limit(mark), was, self._fail_above)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found = [value for name, value in report.user_properties if name == MARK]
            self._tests += [Checked(**one) for one in found if isinstance(one, dict)]

    def pytest_sessionfinish(self) -> None:
        path = self._config.getoption("gpu_memory_report")
        if path and not hasattr(self._config, "workerinput"):
            write_report(path, self._tests)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._tests:
            return
        terminalreporter.section("GPU memory")
        terminalreporter.write_line(table(self._tests).rstrip())


class _Watch:
    """Records what the test's own body takes on the GPUs that are here."""

    def __init__(self, item: pytest.Item) -> None:
        import torch

        from .measuring.gpu_run import give_back

        self._cuda = torch.cuda
        give_back()
        self._held = [self._cuda.memory_reserved(one) for one in self._devices()]
        for one in self._devices():
            self._cuda.reset_peak_memory_stats(one)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid)[-100:]
        folder = Path(tempfile.gettempdir()) / "plimsoll-gpu-memory"
        self.recording = record(folder / f"{name}.pickle")

    def _devices(self) -> range:
        return range(self._cuda.device_count())

    def figure(self) -> Figure:
        taken = [self._cuda.max_memory_reserved(one) for one in self._devices()]
        most, device = max((taken[one] - self._held[one], one) for one in self._devices())
        return Figure(most, self._cuda.get_device_name(device), "measured")

    def why(self) -> str:
        """The verdict of the record, which stays; or why there is none."""
        path = self.recording.write("too much")
        if path is None:
            return ""
        try:
            return f"\n{explain(path).verdict}\nplimsoll explain {path}"
        except ProgramError as error:
            return f"\n{path} was not explained: {error}"


def _limit(mark: pytest.Mark) -> int | None:
    given = mark.args[0] if mark.args else mark.kwargs.get("limit")
    try:
        return None if given is None else size(given)
    except ValueError as error:
        raise pytest.UsageError(f"gpu_memory: {error}") from error


def _card(item: pytest.Item) -> str | None:
    """The card to predict for; None: measure on the one that is here."""
    named: str | None = item.config.getoption("gpu_memory_gpu")
    mark = item.get_closest_marker(MARK)
    if named is None and mark is not None and not _has_gpu():
        named = mark.kwargs.get("gpu")
    return named


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
