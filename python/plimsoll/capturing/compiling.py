"""torch.compile in a capture: what the written code does, told as calls.

Nothing of it is imported or changed before something is compiled: the compiler takes seconds to
load.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from ..base.gpus import UNKNOWN, named
from ..base.notes import Note
from ..base.patching import Patch, patched, patched_item
from ..base.pieces import Name
from ..base.places import Places, current_line
from ..base.written import WrittenCode
from ..events.event import GRAPH, GRAPH_END, KERNEL, TIMING
from ..events.recorder import Recorder
from ..world.compiler import Graph, Launch, Listener, Module, compiler

_FLEX = "torch.nn.attention.flex_attention"
#: Modes of torch.compile that are decided by timing, and those that are taken for them.
_TIMED_MODES = {"max-autotune": "reduce-overhead", "max-autotune-no-cudagraphs": None}


class Compiling(Listener):
    """From the first use of the compiler on, until it is closed."""

    def __init__(
        self, gpu: str, note: Note, wanted: bool = True, folder: str | None = None
    ) -> None:
        """`wanted`: else what is to be compiled runs as it stands. `folder`: where to put what is
        written, of somebody who removes it."""
        self._wanted = wanted
        self._folder = folder
        self._gpu = gpu
        self._note = note
        self._stack = contextlib.ExitStack()
        #: Whether anything is to be compiled.
        self.asked = False
        self._hears_regions = False
        self._recorder: Recorder | None = None
        self._fake: Any = None
        self._places: Places | None = None
        #: Regions that become CUDA graphs, numbered as they come.
        self._graphs: dict[object, int] = {}

    @contextlib.contextmanager
    def of(self, recorder: Recorder, places: Places) -> Iterator[None]:
        """Tells this recorder. What was compiled for other runs of the job is forgotten: for other
        sizes the compiler would write what suits both."""
        if self.asked and self._wanted:
            torch._dynamo.reset()
        self._recorder, self._places = recorder, places
        self._graphs = {}
        self._fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        try:
            yield
        finally:
            self._recorder = self._places = self._fake = None

    def __enter__(self) -> Compiling:
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def patches(self) -> list[Patch]:
        return self._compilers() if self._wanted else self._left_out()

    def _compilers(self) -> list[Patch]:
        compile = torch.compile

        def compiled(what: Any = None, *args: Any, **kwargs: Any) -> Any:
            if what is None:
                return lambda function: compiled(function, *args, **kwargs)
            if getattr(what, "__module__", None) == _FLEX:  # which compiles itself
                return what
            self.start()
            self._hear(False)  # hooks on all modules are warned of
            try:
                with _disable_current_modes():
                    return compile(what, *args, **self._plain(kwargs))
            finally:
                self._hear(True)

        def compile_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            call = compiled(module._call_impl, *args, **kwargs)

            def named_call(*args: Any, **kwargs: Any) -> Any:
                if self._places is None:
                    return call(*args, **kwargs)
                with self._places.inside(module):
                    return call(*args, **kwargs)

            module._compiled_call_impl = named_call  # type: ignore[assignment]

        patches = [Patch(torch, "compile", compiled), Patch(nn.Module, "compile", compile_module)]
        # What was compiled before the capture began switches its compiler on when it is called.
        return patches + (self._regions() if "torch._dynamo.eval_frame" in sys.modules else [])

    def _plain(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        mode = kwargs.get("mode")
        if mode not in _TIMED_MODES:
            return kwargs
        taken = _TIMED_MODES[mode]
        self._note(
            f'{current_line()}: mode="{mode}": what is chosen by timing on the GPU is taken as in '
            f"{'the default mode' if taken is None else repr(taken)}"
        )
        return {**kwargs, "mode": taken}

    def start(self) -> None:
        if self.asked:
            return
        self.asked = True
        enter = self._stack.enter_context
        folder = self._folder or enter(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        enter(patched_item(os.environ, "TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "inductor")))
        enter(compiler(self._gpu, self))
        # What it loads is many objects, and need not be looked through after every step.
        gc.collect()
        gc.freeze()
        if not self._hears_regions:
            enter(patched(self._regions()))
        enter(patched(self._unseen()))
        enter(_failures(self._note))

    def _regions(self) -> list[Patch]:
        """Tells where what is compiled begins and ends."""
        frames = importlib.import_module("torch._dynamo.eval_frame")
        name = _switch_of(frames)
        switch = getattr(frames, name)
        #: Call what is compiled.
        calls = _functions_in(frames._TorchDynamoContext.__call__.__code__)

        def switched(callback: Any) -> Any:
            if callable(callback):
                self.start()
                if self._places is not None:
                    self._places.region(True)
            elif self._places is not None and self._places.in_region:
                # It is switched off, too, by what compiled code calls, and by the compiler.
                self._places.region(_is_inside(calls, sys._getframe(1).f_back))
            return switch(callback)

        self._hears_regions = True
        return [Patch(frames, name, switched)]

    def _unseen(self) -> list[Patch]:
        """Recording is nothing for the compiler to look at."""
        name = "__torch_dispatch__"
        kinds = (Recorder, *Recorder.__subclasses__())
        return [Patch(kind, name, torch._dynamo.disable(vars(kind)[name])) for kind in kinds]

    def _left_out(self) -> list[Patch]:
        def say(line: str | None) -> None:
            self.asked = True
            self._note(f"{line}: torch.compile is left out: the figures are those of eager mode")

        def compiled(what: Any = None, *args: Any, **kwargs: Any) -> Any:
            if what is None:
                return compiled
            line = current_line()
            if getattr(what, "__module__", None) == _FLEX:
                return what
            if not isinstance(what, FunctionType):
                say(line)
                return what

            # Libraries compile functions that a job may never call.
            @functools.wraps(what)
            def when_called(*args: Any, **kwargs: Any) -> Any:
                say(line)
                return what(*args, **kwargs)

            return when_called

        def compile_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            say(current_line())

        patches = [Patch(torch, "compile", compiled), Patch(nn.Module, "compile", compile_module)]
        # What was compiled before the capture began switches its compiler on when it is called.
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if dynamo is not None:
            switch: Callable[[Any], Any] = getattr(dynamo, _switch_of(dynamo))

            def off(callback: Any) -> Any:
                if callable(callback):
                    say(current_line())
                return switch(None if callable(callback) else callback)

            patches.append(Patch(dynamo, _switch_of(dynamo), off))
        return patches

    def _hear(self, on: bool) -> None:
        if self._places is not None:
            self._places.hear(on)

    # What the compiler tells.

    def launched(self, launch: Launch) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        if launch.times:
            self._time(launch.changed)
        recorder.call(KERNEL, list(launch.tensors), {"kernel": Name(launch.kernel)}, [])

    def _time(self, changed: list[torch.Tensor]) -> None:
        """Inductor runs each form of a kernel on copies of what it changes."""
        copies = [torch.empty_like(tensor) for tensor in changed]
        del copies
        with self.cache_swept():
            copies = [torch.empty_like(tensor) for tensor in changed]
            del copies

    @contextlib.contextmanager
    def cache_swept(self) -> Iterator[None]:
        recorder = self._recorder
        if recorder is None:
            yield
            return
        size = (named(self._gpu) or UNKNOWN).cache
        with recorder.quiet():
            cache = torch.empty(size, dtype=torch.uint8, device="cuda")
        recorder.call(TIMING, [], {}, [cache])
        yield
        del cache

    @contextlib.contextmanager
    def in_graph(self, graph: Graph) -> Iterator[None]:
        recorder = self._recorder
        if recorder is not None:
            number = self._graphs.setdefault(graph.region, len(self._graphs) + 1)
            facts = {"graph": number, graph.kind: True}
            recorder.call(GRAPH, list(graph.moving), facts, [])
        del graph  # and with it what the region itself lets go of
        yield
        if recorder is not None:
            recorder.call(GRAPH_END, [], {}, [])

    @contextlib.contextmanager
    def in_the_job(self) -> Iterator[None]:
        if self._recorder is None or self._fake is None:
            with no_dispatch():
                yield
            return
        with self._fake, self._recorder:
            yield

    def written(self, module: Module) -> None:
        if self._places is not None:
            self._places.written.add(WrittenCode(module.path, module.nodes))


def _switch_of(frames: Any) -> str:
    """What switches the compiler on and off."""
    return next(n for n in ("_maybe_set_eval_frame", "set_eval_frame") if hasattr(frames, n))


def _functions_in(code: CodeType) -> set[CodeType]:
    """What is defined in a function, however deep."""
    inner = {const for const in code.co_consts if isinstance(const, CodeType)}
    return inner.union(*(_functions_in(function) for function in inner))


def _is_inside(calls: set[CodeType], frame: FrameType | None) -> bool:
    """Whether one of these functions is on the stack, at this frame or above."""
    while frame is not None and frame.f_code not in calls:
        frame = frame.f_back
    return frame is not None


def uncompiled(module: nn.Module) -> nn.Module:
    """What torch.compile was given."""
    inner = getattr(module, "_orig_mod", None)
    return uncompiled(inner) if isinstance(inner, nn.Module) else module


def compiled(model: nn.Module) -> nn.Module:
    made: Any = torch.compile(model)
    assert isinstance(made, nn.Module)
    return made


_ERROR = re.compile(r"[\w.]*(Error|Exception|Unsupported|Failed)\b")


@contextlib.contextmanager
def _failures(note: Note) -> Iterator[None]:
    """What cannot be compiled runs as it stands; the compiler says so in its log."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines = record.getMessage().splitlines()
            if lines and lines[0].startswith("WON'T CONVERT"):
                reasons = (f": {line.split('. ')[0]}" for line in lines if _ERROR.match(line))
                reason = next(reasons, "")
                words = lines[0].split()[2:]
                note(
                    f"{words[0] if words else 'a function'} could not be compiled without a GPU, "
                    f"and is told as it runs in eager mode{reason}"
                )

    logger = logging.getLogger("torch._dynamo")
    handler = Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
