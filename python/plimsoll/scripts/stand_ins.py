"""What a training script finds around it while it is watched, besides what every captured job does
(surroundings.py): loaders of another batch size, files that are not written, one rank of a job."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import os
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.multiprocessing
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..base.errors import CaptureError
from ..base.notes import Note
from ..base.patching import Patch, patched
from ..base.places import current_line
from ..world import model
from .files import SavedFiles, as_bytes, files_of_scripts, largest_on_device
from .follower import Follower
from .run import Stretch


@dataclass
class ScriptSettings:
    """What the script asks of its loaders and of torch.distributed, and does not get."""

    #: Of its loaders.
    batch_sizes: list[int] = field(default_factory=list)
    #: By which its ranks would exchange tensors on GPUs: "nccl", "gloo".
    backend: str | None = None
    #: What DistributedDataParallel is told, as `--set parallel=ddp:8:views` has it: ":views".
    data_parallel: str = ""
    #: What fully_shard is given, call by call.
    sharded: list[list[nn.Module]] = field(default_factory=list)

    def settings(self, roots: list[nn.Module]) -> dict[str, Any]:
        """Those of the step file. `roots`: the models."""
        settings: dict[str, Any] = {}
        if self.backend is not None:
            settings["backend"] = self.backend
        if self.data_parallel:
            settings["data_parallel"] = self.data_parallel
        names = {id(module): name for name, module in roots[0].named_modules()} if roots else {}
        given = [[names.get(id(module)) for module in modules] for modules in self.sharded]
        if given and len(roots) == 1 and not any(None in modules for modules in given):
            settings["sharded"] = given
        return settings


@contextlib.contextmanager
def world(
    batch: int | None,
    stretch: Stretch | None,
    note: Note,
    script: ScriptSettings,
    fetched: Counter[int],
    follower: Follower,
    files: SavedFiles,
) -> Iterator[None]:
    """`batch`: what loaders take in place of their own size. `stretch`: of the run at the larger
    batch. `fetched` counts batches by the data set that they come from."""
    patches = [
        _counted(fetched, follower),
        *_loaders(batch, stretch, note, script.batch_sizes),
        *_saved(note, follower, files),
        *files_of_scripts(follower, files),
        *_pinning(follower),
        *_streams(),
        *_ranks(note, script),
        *_optimizers(follower),
    ]
    with patched(patches):
        yield


# Loaders.


class _Stretching:
    """In place of a loader's `collate_fn`."""

    def __init__(self, collate: Any, stretch: Stretch) -> None:
        self.collate = collate
        self._stretch = stretch

    def __call__(self, samples: Any) -> Any:
        few, many = self._stretch
        count = len(samples)
        # Some collators take samples apart.
        more = [_copied(samples[i % count]) for i in range(count * many // few - count)]
        return self.collate([*samples, *more])

    def batches(self, drawn: int) -> int:
        """Of the samples that so many batches draw, not copied."""
        few, many = self._stretch
        return -(-drawn * few // many)


def _copied(sample: Any) -> Any:
    return sample if isinstance(sample, torch.Tensor) else copy.copy(sample)


#: Of a loader: what fetches batches beside the script.
_BESIDE = ("num_workers", "pin_memory", "prefetch_factor")


def _loaders(
    batch: int | None, stretch: Stretch | None, note: Note, sizes: list[int]
) -> list[Patch]:
    #: By data set: what took the place of its loader's own size.
    chosen: dict[int, int] = {}
    made = DataLoader.__init__
    names = list(inspect.signature(made).parameters)[1:]

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = dict(zip(names, args)) | kwargs
        # A worker is another process, where tensors are real; pinning asks for a device.
        told = {name: given.pop(name, None) for name in _BESIDE}
        for name in ("multiprocessing_context", "timeout", "pin_memory_device", "in_order"):
            given.pop(name, None)
        keeps = given.pop("persistent_workers", None)
        make(self, given)
        self.__dict__["keeps_workers"] = bool(keeps)
        # What is made of it says what it would have, and a loader that is made from it gets it.
        self.__dict__.update({name: value for name, value in told.items() if value is not None})

    def make(self: Any, given: dict[str, Any]) -> None:
        own = given.get("batch_size", 1)
        if own is None or given.get("batch_sampler") is not None:
            return made(self, **given)
        sizes.append(own)
        size = own
        if batch is not None:
            data = id(given.get("dataset"))
            # One that is made from another, as accelerate does, has its size already.
            if chosen.get(data) != own:
                size = _like_the_first(own, sizes[0], batch, stretch)
            chosen[data] = size
        if batch is not None:
            note(
                f"{current_line()}: other batch sizes were put in place of the loader's {own}, "
                "since the command has no {batch}"
            )
        drawn = stretch.drawn(size) if stretch is not None else None
        if stretch is not None and drawn is not None:
            collate = given.get("collate_fn") or default_collate
            # A loader that is made from another one, as accelerate does, has it already.
            if not isinstance(collate, _Stretching):
                given["collate_fn"] = _Stretching(collate, stretch)
        made(self, **given | {"batch_size": drawn or size})
        self.__dict__["batch_size"] = size

    return [Patch(DataLoader, "__init__", init)]


def _like_the_first(own: int, first: int, batch: int, stretch: Stretch | None) -> int:
    """In place of `own`, where `batch` stands for the size of the first loader, which trains: as
    many times that as in the script, or what it is where that is no whole number."""
    smaller = stretch.few if stretch is not None else batch
    return own if own * smaller % first else own * batch // first


def _counted(fetched: Counter[int], follower: Follower) -> Patch:
    give = _BaseDataLoaderIter.__next__

    def give_next(self: Any) -> Any:
        batch = follower.next_batch(self, lambda: give(self))
        fetched[id(self._dataset)] += 1
        return batch

    return Patch(_BaseDataLoaderIter, "__next__", give_next)


def _pinning(follower: Follower) -> list[Patch]:
    def pin(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return follower.pins(self)

    def is_pinned(self: torch.Tensor, *args: Any, **kwargs: Any) -> bool:
        return follower.is_pinned(self)

    return [Patch(torch.Tensor, "pin_memory", pin), Patch(torch.Tensor, "is_pinned", is_pinned)]


# Files.


def _saved(note: Note, follower: Follower, files: SavedFiles) -> list[Patch]:
    load_real = torch.load

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        # A file of tensors without values would take the place of a real one.
        note(f"{current_line()}: nothing is saved")
        follower.saves((as_bytes if isinstance(f, io.BytesIO) else largest_on_device)(obj))
        files.save(obj, f)

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not files.has(f):
            return load_real(f, map_location, *args, **kwargs)
        with follower.loading(files.largest_through_host(f, map_location)):
            return files.load(f, map_location)

    return [Patch(torch, "save", save), Patch(torch, "load", load)]


# Streams and events, of which there are none.


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _no_work

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()


def _no_work(*args: Any, **kwargs: Any) -> None:
    return None


def _set_state(state: torch.Tensor) -> None:
    """Of the host's generator. What is read from a checkpoint may have no values."""
    if not isinstance(state, FakeTensor):
        torch.default_generator.set_state(state)


def _streams() -> list[Patch]:
    cuda = torch.cuda
    patches = [
        Patch(cuda, name, _Stream) for name in ("Stream", "Event", "stream", "StreamContext")
    ]
    patches += [
        Patch(cuda, name, _Stream)
        for name in ("current_stream", "default_stream", "ExternalStream")
    ]
    idle = ("set_stream", "reset_max_memory_allocated", "reset_accumulated_memory_stats")
    patches += [Patch(cuda, name, _no_work) for name in (*idle, "set_rng_state_all")]
    patches.append(Patch(cuda, "set_per_process_memory_fraction", _no_work))
    patches.append(Patch(cuda, "get_rng_state_all", lambda: []))
    # The same functions by another way.
    settings = ("set_rng_state", "set_rng_state_all")
    patches += [Patch(cuda.random, name, _no_work) for name in settings]
    patches += [Patch(cuda.random, "get_rng_state", cuda.get_rng_state)]
    patches += [Patch(cuda.random, "get_rng_state_all", lambda: [])]
    patches += [Patch(owner, "set_rng_state", _set_state) for owner in (torch, torch.random)]
    marks = ("range_push", "range_pop", "mark")
    patches += [Patch(cuda.nvtx, name, _no_work) for name in marks]
    patches += [Patch(cuda.memory, "_record_memory_history", _no_work)]
    patches += [Patch(cuda.memory, "_dump_snapshot", _no_work)]
    return patches


# Optimizers: a parameter that is moved stays the same object, except among fake tensors.


def _optimizers(follower: Follower) -> list[Patch]:
    known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
    add = Optimizer.add_param_group

    def add_param_group(self: Optimizer, group: dict[str, Any]) -> None:
        follower.makes_optimizer()
        known.add(self)
        add(self, group)

    def follow(became: dict[int, torch.Tensor]) -> None:
        for optimizer in known:
            for group in optimizer.param_groups:
                group["params"] = [became.get(id(p), p) for p in group["params"]]
            for parameter in list(optimizer.state):
                if id(parameter) in became:
                    moved = became[id(parameter)]
                    optimizer.state[moved] = optimizer.state.pop(parameter)

    return [
        Patch(Optimizer, "add_param_group", add_param_group),
        Patch(model, "on_applied", follow),
    ]


# Ranks: the script is one of one.


class OneRank(nn.Module):
    """In place of DistributedDataParallel. What is inside is called as it is."""

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        yield


def _ranks(note: Note, script: ScriptSettings) -> list[Patch]:
    parallel = nn.parallel
    ddp = _wrapper("DistributedDataParallel", note, script)
    found = [Patch(parallel, "DistributedDataParallel", ddp)]
    found.append(Patch(parallel, "DataParallel", _wrapper("DataParallel", note, script)))
    found.append(Patch(nn, "DataParallel", _wrapper("DataParallel", note, script)))
    found.append(Patch(parallel.distributed, "DistributedDataParallel", ddp))
    if torch.distributed.is_available():
        found += _groups(note, script)
    return found


def _ddp_options(bucket_cap_mb: Any = None, gradient_as_bucket_view: Any = False, **_: Any) -> str:
    views = ":views" if gradient_as_bucket_view else ""
    return views + (f":bucket{int(bucket_cap_mb)}" if bucket_cap_mb else "")


def _wrapper(kind: str, note: Note, script: ScriptSettings) -> Any:
    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if kind.startswith("Distributed"):
            script.data_parallel = _ddp_options(**kwargs)
        note(
            f"{current_line()}: the model inside {kind} is captured, as it runs on one GPU"
            + ("; predict --ddp N adds what DDP takes" if kind.startswith("Distributed") else "")
        )
        OneRank.__init__(self, module)

    return type(kind, (OneRank,), {"__init__": init})


def _backend_of_gpus(given: Any) -> str:
    """Of "gloo" or "cpu:gloo,cuda:nccl"; torch's own choice where nothing is given."""
    for part in str(given or "").lower().split(","):
        device, _, name = part.rpartition(":")
        if name and device in ("", "cuda"):
            return name
    return "nccl"


def _groups(note: Note, script: ScriptSettings) -> list[Patch]:
    import torch.distributed as dist

    begin = dist.init_process_group

    def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        script.backend = _backend_of_gpus(backend)
        ranks = int(os.environ.get("WORLD_SIZE") or 1)
        note(f"{current_line()}: this is rank 0 of {ranks}, which exchanges nothing")
        begin(backend="fake", rank=0, world_size=ranks, store=FakeStore())

    def all_gather_object(objects: list[Any], own: Any, *args: Any, **kwargs: Any) -> None:
        objects[:] = [own] * len(objects)

    def gather_object(own: Any, objects: list[Any] | None = None, *args: Any, **_: Any) -> None:
        if objects is not None:
            all_gather_object(objects, own)

    def scatter_object_list(out: list[Any], given: list[Any] | None, *args: Any, **_: Any) -> None:
        out[:1] = (given or [None])[:1]

    # Objects go through tensors of bytes, of which there are none here.
    functions = (init, all_gather_object, gather_object, scatter_object_list, _no_broadcast)
    names = ("init_process_group", "all_gather_object", "gather_object", "scatter_object_list")
    patches = [
        Patch(owner, name, function)
        for name, function in zip((*names, "broadcast_object_list"), functions)
        for owner in (dist, dist.distributed_c10d)
    ]
    patches.append(Patch(torch.multiprocessing, "spawn", _no_processes))
    return patches + _sharding(note, script)


def _no_processes(function: Any, *args: Any, **kwargs: Any) -> None:
    raise CaptureError(
        "processes that a script starts itself (torch.multiprocessing.spawn) are not followed",
        where=current_line(),
        hint=f"Call {getattr(function, '__name__', 'the function')}(0, ...) instead, as rank 0",
    )


def _no_broadcast(objects: list[Any], *args: Any, **kwargs: Any) -> None:
    """What is sent is there: this is the rank that sends."""


def _sharding(note: Note, script: ScriptSettings) -> list[Patch]:
    with contextlib.suppress(ImportError):
        import torch.distributed.fsdp as fsdp

        def whole(module: Any, *args: Any, **kwargs: Any) -> Any:
            script.sharded.append([module] if isinstance(module, nn.Module) else list(module))
            keep = ":keep" if kwargs.get("reshard_after_forward") is False else ""
            left = [name for name in ("mp_policy", "offload_policy") if name in kwargs]
            note(
                f"{current_line()}: fully_shard is left out: the whole model is captured on one "
                f"GPU (predict --fsdp N{keep} shards it)"
                + (f", without its {' and '.join(left)}" if left else "")
            )
            return module

        if hasattr(fsdp, "fully_shard"):
            return [Patch(fsdp, "fully_shard", whole), _whole_tensors(script)]
    return []


def _whole_tensors(script: ScriptSettings) -> Patch:
    """Of a sharded model's parameters."""

    def full_tensor(self: torch.Tensor) -> Any:
        if not script.sharded:
            raise AttributeError("only tensors of a sharded model have a full_tensor")
        return lambda *args, **kwargs: gathered(self)

    return Patch(torch.Tensor, "full_tensor", property(full_tensor))


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """In memory of its own, as an all-gather has it. A number is on every rank."""
    return tensor.detach().clone() if tensor.dim() else tensor
