"""torch.compile without a GPU: Dynamo, AOTAutograd and Inductor run as they are, as far as the
module that Inductor writes, and that runs with nothing behind its kernels.

What they ask of the device, of Triton and of the clock is answered here. The module itself makes
and drops its buffers as it does on a GPU; whoever records operators sees them.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from collections.abc import Iterator
from typing import Any, Callable, Literal, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..base.gpus import UNKNOWN, Gpu, named
from ..base.patching import Patch, patched
from . import padded_products

_TRITON = ("triton", "triton.language")


class Launch(NamedTuple):
    """A kernel that would run now."""

    kernel: str
    tensors: list[torch.Tensor]
    #: The first of one that has several forms, which are timed now.
    times: bool
    #: What it writes into and reads: for each time that it is run, of a copy.
    changed: list[torch.Tensor]


#: A forward has a backward; in inference there is none.
GraphKind = Literal["forward", "backward", "inference"]


class Graph(NamedTuple):
    """A compiled region that becomes a CUDA graph, and runs now."""

    #: The same at each run of it.
    region: object
    kind: GraphKind
    #: Those whose place may be another at the next run: for a recording they are copied.
    moving: list[torch.Tensor]


class Module(NamedTuple):
    """What Inductor wrote."""

    path: str
    #: From a line on: the node of the graph that it is for.
    nodes: list[tuple[int, Any]]


class Listener:
    """Is told what the compiler does."""

    def launched(self, launch: Launch) -> None:
        """A kernel."""
        raise NotImplementedError

    def written(self, module: Module) -> None:
        raise NotImplementedError

    def in_the_job(self) -> contextlib.AbstractContextManager[Any]:
        """What runs inside does so on the device, as a part of the job."""
        raise NotImplementedError

    def cache_swept(self) -> contextlib.AbstractContextManager[Any]:
        """What runs inside is timed: before each time as much is written as the device's cache
        holds."""
        raise NotImplementedError

    def in_graph(self, graph: Graph) -> contextlib.AbstractContextManager[Any]:
        """What runs inside is recorded as this graph."""
        raise NotImplementedError


@contextlib.contextmanager
def compiler(gpu: str, listener: Listener) -> Iterator[None]:
    """While this is open torch.compile works on fake tensors of the phantom device."""
    with _disable_current_modes():  # what a module makes when it is imported is real
        modules = _Modules.found()
    with contextlib.ExitStack() as stack:
        for settings in _settings(modules):
            stack.enter_context(settings)
        stack.enter_context(patched(_device(modules)))
        stack.enter_context(patched(_without_triton(modules, listener)))
        stack.enter_context(patched(_written_code(modules, listener)))
        stack.enter_context(patched(_constants()))
        stack.enter_context(patched(_graphs(listener)))
        stack.enter_context(patched(_timed_choices(modules, gpu, listener)))
        yield


class _Modules(NamedTuple):
    """Of torch, that take seconds to import: for those who compile."""

    async_compile: Any
    codecache: Any
    config: Any
    functorch_config: Any
    interface: Any
    pad_mm: Any
    triton: Any
    utils: Any

    @classmethod
    def found(cls) -> _Modules:
        for name in ("compile_fx", "scheduler", "select_algorithm", "fx_passes.joint_graph"):
            importlib.import_module(f"torch._inductor.{name}")
        return cls(
            importlib.import_module("torch._inductor.async_compile"),
            importlib.import_module("torch._inductor.codecache"),
            importlib.import_module("torch._inductor.config"),
            importlib.import_module("torch._functorch.config"),
            importlib.import_module("torch._dynamo.device_interface"),
            importlib.import_module("torch._inductor.fx_passes.pad_mm"),
            importlib.import_module("torch.utils._triton"),
            importlib.import_module("torch._inductor.utils"),
        )


def _settings(modules: _Modules) -> list[Any]:
    """No caches under the name of a GPU that is not there, no processes beside this one; a frame
    that cannot be compiled runs as it stands."""
    dynamo = importlib.import_module("torch._dynamo.config")
    wanted: list[tuple[Any, dict[str, Any]]] = [
        (
            modules.config,
            {"compile_threads": 1, "fx_graph_cache": False, "fx_graph_remote_cache": False},
        ),
        (modules.functorch_config, {"enable_autograd_cache": False}),
        (dynamo, {"suppress_errors": True}),
    ]
    return [
        config.patch({key: value for key, value in changes.items() if hasattr(config, key)})
        for config, changes in wanted
    ]


# The device.


def _device(modules: _Modules) -> list[Patch]:
    """Dynamo has an interface of its own, with functions that were bound when it was imported."""

    def answer(value: Any) -> Any:
        return staticmethod(lambda *args, **kwargs: value)

    def properties(device: Any = None) -> Any:
        return torch.cuda.get_device_properties(device)

    capability = torch.cuda.get_device_capability()
    cuda = modules.interface.CudaInterface
    answers = {
        "is_available": True,
        "current_device": 0,
        "device_count": 1,
        "synchronize": None,
        "set_device": None,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "get_raw_stream": 0,
        "get_compute_capability": 10 * capability[0] + capability[1],
        "memory_allocated": 0,
        "is_bf16_supported": capability >= (8, 0),
        "is_triton_capable": capability >= (7, 0),
        "raise_if_triton_unavailable": None,
    }
    patches = [Patch(cuda, n, answer(value)) for n, value in answers.items() if hasattr(cuda, n)]
    patches.append(Patch(cuda, "get_device_properties", staticmethod(properties)))
    patches.append(Patch(cuda.Worker, "get_device_properties", staticmethod(properties)))
    patches.append(Patch(cuda.Worker, "current_device", answer(0)))
    patches.append(Patch(torch.cuda, "_DeviceGuard", _NoGuard))
    stream = types.SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0)
    patches.append(Patch(torch.cuda, "current_stream", lambda device=None: stream))
    return patches


class _NoGuard(contextlib.AbstractContextManager[None]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __exit__(self, *args: object) -> None:
        return None


# Triton.


class _Kernel:
    """Is never compiled."""

    def __init__(self, name: str, source: str, listener: Listener) -> None:
        self._name = name
        self._listener = listener
        self._is_timed = _has_several_forms(source)
        self._changed = _changed_arguments(source)

    def run(self, *args: Any, **kwargs: Any) -> None:
        times, self._is_timed = self._is_timed, False
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        given = (args[index] for index in self._changed if index < len(args))
        changed = [arg for arg in given if isinstance(arg, torch.Tensor)]
        self._listener.launched(Launch(self._name, tensors, times, changed))


class _HostKernel:
    """Of values that nobody has."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        return None


#: Up to here the two forms of a pointwise kernel of one dimension are the same.
_SMALLEST_BLOCK = 128


def _has_several_forms(source: str) -> bool:
    """Which Triton's configurations Inductor makes of a kernel, as far as there is one or there are
    more: reductions that it knows the shape of, and square tiles, have one."""
    kind = re.search(r"@triton_heuristics\.(\w+)\(", source)
    if kind is None:
        return False
    if kind[1] == "pointwise":
        sizes = re.search(r"size_hints=[\[{]([^\]}]*)[\]}]", source)
        numbers = re.findall(r"\b\d+\b", sizes[1]) if sizes else []
        if len(numbers) == 1:
            return int(numbers[0]) > _SMALLEST_BLOCK
        return "tile_hint=TileHint.SQUARE" not in source
    if kind[1] in ("reduction", "persistent_reduction"):
        return "reduction_hint=ReductionHint.DEFAULT" in source
    return False


def _changed_arguments(source: str) -> list[int]:
    signature = re.search(r"'signature': \{([^}]*)\}", source)
    changed = re.search(r"'mutated_arg_names': \[([^\]]*)\]", source)
    if signature is None or changed is None:
        return []
    names = re.findall(r"'(\w+)':", signature[1])
    return [names.index(name) for name in re.findall(r"'(\w+)'", changed[1]) if name in names]


def _without_triton(modules: _Modules, listener: Listener) -> list[Patch]:
    """Inductor is told that it is there, and nobody else: they would import it."""

    def kernel(self: Any, name: str, source: Any = "", *args: Any, **kwargs: Any) -> _Kernel:
        return _Kernel(name, source if isinstance(source, str) else "", listener)

    def for_host(self: Any, *args: Any, **kwargs: Any) -> _HostKernel:
        return _HostKernel()

    there = modules.triton.has_triton
    patches = [
        Patch(module, "has_triton", lambda *args, **kwargs: True)
        for name, module in list(sys.modules.items())
        if name.startswith("torch._inductor") and getattr(module, "has_triton", None) is there
    ]
    patches.append(Patch(modules.triton, "triton_hash_with_backend", lambda: "none"))
    asynchronous = modules.async_compile.AsyncCompile
    patches += [
        Patch(asynchronous, name, made)
        for name, made in (
            ("triton", kernel),
            ("multi_kernel", kernel),
            ("cpp_pybinding", for_host),
            ("cpp", for_host),
        )
        if hasattr(asynchronous, name)
    ]
    return patches


# What the written module takes from torch.


def _written_code(modules: _Modules, listener: Listener) -> list[Patch]:
    guards = torch._C._dynamo.guards
    cache = modules.codecache.PyCodeCache
    load = vars(cache)["load_by_key_path"].__func__
    buffer = modules.utils.IndentedBuffer
    with_lines = buffer.getvaluewithlinemap
    nodes: list[tuple[int, Any]] = []

    def value_with_lines(self: Any) -> Any:
        found = with_lines(self)
        lines = found.line_map if hasattr(found, "line_map") else found[1]
        nodes[:] = lines or nodes  # kernels are told apart from the module, and have none
        return found

    def loaded(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        listener.written(Module(path, list(nodes)))
        with _empty_triton():
            return load(cls, key, path, *args, **kwargs)

    def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> Any:
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    def unchecked(*args: Any, **kwargs: Any) -> None:
        return None

    return [
        Patch(buffer, "getvaluewithlinemap", value_with_lines),
        Patch(cache, "load_by_key_path", classmethod(loaded)),
        Patch(guards, "_empty_strided_cuda", empty_strided),
        Patch(guards, "_reinterpret_tensor", reinterpreted),
        Patch(guards, "assert_size_stride", unchecked),
        Patch(guards, "assert_alignment", unchecked),
    ]


@contextlib.contextmanager
def _empty_triton() -> Iterator[None]:
    """A written module imports it. Only then: whoever else found it would take it for the real
    one."""
    if all(name in sys.modules for name in _TRITON):
        yield
        return
    triton, language = (types.ModuleType(name) for name in _TRITON)
    triton.language = language  # type: ignore[attr-defined]
    sys.modules.update(zip(_TRITON, (triton, language)))
    try:
        yield
    finally:
        for name in _TRITON:
            sys.modules.pop(name, None)


# CUDA graphs.


def _graphs(listener: Listener) -> list[Patch]:
    """Inductor says itself what can become a graph, and which inputs stay where they are. Nothing
    is recorded: each run is told."""
    compile_fx = importlib.import_module("torch._inductor.compile_fx")

    def graph_of(model: Any, static_input_idxs: Any = (), **kwargs: Any) -> Any:
        static = set(static_input_idxs)
        # What changes an input that moves is run without a graph.
        if not static.issuperset(kwargs.get("mutated_input_idxs", ())):
            return model
        kind: GraphKind = "inference" if kwargs.get("is_inference") else "forward"
        if kwargs.get("is_backward"):
            kind = "backward"

        def run(inputs: Any) -> Any:
            moving = [
                given
                for index, given in enumerate(inputs)
                if isinstance(given, torch.Tensor) and index not in static
            ]
            inside = listener.in_graph(Graph(model, kind, moving))
            del moving  # the region lets go of its inputs
            with inside:
                return model(inputs)

        return run

    patches = [Patch(compile_fx, "cudagraphify", graph_of)]
    # Newer releases ask whether the caching allocator is on; one without CUDA cannot tell.
    utils = importlib.import_module("torch._inductor.cudagraph_utils")
    question = "check_caching_allocator_for_cudagraphs"
    if hasattr(utils, question):
        patches.append(Patch(utils, question, lambda: None))
    return patches


# Constants are folded with real tensors of one element.


class _OnHost(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {key: _host(value) for key, value in (kwargs or {}).items()}
        return func(*map(_host, args), **given)


def _host(value: Any) -> Any:
    on_gpu = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if on_gpu else value


def _constants() -> list[Patch]:
    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with _OnHost():
                return function(*args, **kwargs)

        return run

    folder = importlib.import_module("torch._inductor.constant_folding").ConstantFolder
    joint = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    uniform = joint.UniformValueConstantFolder
    return [
        Patch(folder, "run", inside(folder.run)),
        Patch(uniform, "__init__", inside(uniform.__init__)),
    ]


# What Inductor decides by timing it.


def _timed_choices(modules: _Modules, gpu: str, listener: Listener) -> list[Patch]:
    """Products with a size that is no multiple of 16 bytes: padded, or as they are. What is timed
    is made while the job is being compiled, and what that took stays cached."""
    pad = modules.pad_mm
    names = ("_should_pad", "get_do_bench", "no_dispatch", "should_exclude_padding_time")
    if not all(hasattr(pad, name) for name in names):
        return _untimed_choices(modules)
    card = named(gpu) or UNKNOWN
    choose, is_free = pad._should_pad, pad.should_exclude_padding_time
    times = padded_products.Timed(1.0, 1.0)

    def chooses(match: Any, mat1: Any, mat2: Any, *args: Any, **kwargs: Any) -> bool:
        nonlocal times
        times = padded_products.Timed(1.0, 1.0)
        if _on_tensor_cores(mat1.dtype):
            first = padded_products.operand(mat1, is_free(match, "mat1"))
            second = padded_products.operand(mat2, is_free(match, "mat2"))
            many = int(mat1.shape[0]) if mat1.dim() == 3 else 1
            times = padded_products.timed(first, second, many, mat1.dtype, card)
        return bool(choose(match, mat1, mat2, *args, **kwargs))

    def bench() -> Callable[[Callable[[], Any]], float]:
        def timed(run: Callable[[], Any]) -> float:
            run()
            with listener.cache_swept():
                run()
            return times.padded if run.__name__ == "pad_bench_fn" else times.as_it_is

        return timed

    rates = [
        Patch(modules.utils, "get_device_tflops", lambda dtype: _teraflops(card, dtype)),
        Patch(modules.utils, "get_gpu_dram_gbps", lambda: card.bandwidth),
    ]
    return [
        *rates,
        Patch(pad, "_should_pad", chooses),
        Patch(pad, "get_do_bench", bench),
        Patch(pad, "no_dispatch", listener.in_the_job),
    ]


def _untimed_choices(modules: _Modules) -> list[Patch]:
    """Of releases that time it otherwise."""

    def pads(match: Any, mat1: Any, *args: Any, **kwargs: Any) -> bool:
        return _on_tensor_cores(mat1.dtype)

    names = ("_should_pad", "_should_pad_bench", "should_pad_bench")
    return [Patch(modules.pad_mm, n, pads) for n in names if hasattr(modules.pad_mm, n)]


def _on_tensor_cores(dtype: torch.dtype) -> bool:
    half = dtype in (torch.float16, torch.bfloat16)
    return half or (dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32)


def _teraflops(card: Gpu, dtype: torch.dtype) -> float:
    if dtype in (torch.float16, torch.bfloat16):
        return card.half
    return card.tf32 if _on_tensor_cores(dtype) else card.fp32
