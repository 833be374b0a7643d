"""Which variable of the program keeps each tensor of the device, when memory has run out.

`find` goes from what has a name (globals, the locals of every frame) to what those hold, as
attributes, items and closures, and notes at each tensor of the device the way that led there:
"trainer.callbacks[3].outputs". What lives longest comes first, so that the name is of what keeps a
tensor and not of the function that looks at it. Then the graphs of autograd, whose saved tensors
have no Python object; at last tensors to which no name leads.

How one goes into each kind of object is in plimsoll_inside.py, what graphs keep in
plimsoll_graphs.py, the names of the rest in plimsoll_nameless.py.

None of the program's code is called: types are asked by C functions alone, never the objects
(plimsoll_objects.py). It ends after a second with what it has found, keeps nothing alive and
allocates nothing on a device. Plain Python 3.7, with nothing else needed.
"""

import collections
import gc
import importlib
import os
import sys
import time
import types

# Beside this file: in the package, or loaded before it by plimsoll_recorder.py.
_FOLDER = __package__ + "." if __package__ else ""
_objects = importlib.import_module(_FOLDER + "plimsoll_objects")
_inside = importlib.import_module(_FOLDER + "plimsoll_inside")
_graphs = importlib.import_module(_FOLDER + "plimsoll_graphs")
_nameless = importlib.import_module(_FOLDER + "plimsoll_nameless")

SECONDS = 1.0
_MOST_NAMES = 20000
_LONGEST_NAME = 300
_MOST_STEPS = 60
# The clock is looked at after so many objects.
_BETWEEN_LOOKS = 256
# How much of the time may have passed when each part ends.
_GLOBALS, _FRAMES, _MODULES, _GRAPHS, _LIBRARIES = 0.35, 0.5, 0.6, 0.75, 0.85


def find(torch, seconds=SECONDS, on_device=None):
    """The name of each storage on the device by its address. `on_device`: which tensors those are,
    unless CUDA's or Intel's."""
    enabled = gc.isenabled()
    gc.disable()  # it would run finalizers, which are the program's
    search = _Search(torch, seconds, on_device)
    try:
        with _undisturbed(torch):
            return search.run()
    finally:
        search.__dict__.clear()  # it holds what it met, and is a cycle of its own
        if enabled:
            gc.enable()


def _undisturbed(torch):
    """Tensor subclasses and modes of the program are not asked."""
    made = getattr(torch._C, "DisableTorchFunction", None)
    return made() if made is not None else _Nothing()


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class _Late(Exception):
    pass


class _Search:
    def __init__(self, torch, seconds, on_device):
        self.torch = torch
        self.begun = time.monotonic()
        self.seconds = seconds
        self.until = 0.0
        self.looks = 0
        self.kinds = _inside.Kinds(torch)
        self.tensor = torch.Tensor
        self.on_device = on_device or _either(
            _objects.reader(self.tensor, "is_cuda"), _objects.reader(self.tensor, "is_xpu")
        )
        self.is_leaf = _objects.reader(self.tensor, "is_leaf")
        self.grad_of = _objects.reader(self.tensor, "grad")
        self.graph_of = _objects.reader(self.tensor, "grad_fn")
        self.queue = collections.deque()
        self.seen = set()  # ids, of objects in `kept`
        self.kept = []  # alive as long as this, so that no other object gets their id
        self.names = {}  # the way to a storage, by its address
        self.of_models = set()  # those that have the name that they have in a model
        self.graphs = _graphs.Graphs(torch)
        self.some_left = True
        self.own = _objects.user_modules()

    def run(self):
        main = sys.modules.get("__main__")
        parts = (
            (_GLOBALS, self.from_globals, (main, "")),
            (_FRAMES, self.from_frames, ()),
            (_MODULES, self.from_modules, (True,)),
            (_GRAPHS, self.graphs.follow, (self,)),
            (_LIBRARIES, self.from_libraries, ()),
            (1.0, self.from_the_nameless, ()),
        )
        for share, part, arguments in parts:
            self.until = self.begun + share * self.seconds
            try:
                part(*arguments)
            except _Late:
                pass
            self.queue.clear()
        return {address: _spelled(way) for address, way in self.names.items()}

    def look_at_the_clock(self):
        self.looks += 1
        if self.looks % _BETWEEN_LOOKS == 0 and self.is_late():
            raise _Late()

    def is_late(self):
        """For the part at hand."""
        return time.monotonic() > self.until

    # Where names begin.

    def from_globals(self, module, prefix):
        if type(module) is not types.ModuleType:
            return
        for name, value in list(module.__dict__.items()):
            if type(name) is str and not name.startswith("__"):
                self.add(value, (None, prefix + name, ""))
        self.go()

    def from_frames(self):
        for frame in _objects.running_frames():
            self.add_locals(frame, None)
            self.go()

    def add_locals(self, frame, way):
        """`way`: what keeps a frame that does not run; None for one that does."""
        code = frame.f_code
        place = " in %s (%s:%d)" % (
            code.co_name,
            os.path.basename(code.co_filename),
            frame.f_lineno or code.co_firstlineno,
        )
        for name, value in _objects.locals_of(frame):
            if not name.isidentifier():
                continue  # ".0" of a comprehension
            if way is None:
                self.add(value, (None, name, place))
            else:
                self.add(value, (way, ".<%s%s>" % (name, place), None))

    def from_modules(self, own):
        for name, module in list(sys.modules.items()):
            if name != "__main__" and (id(module) in self.own) == own:
                self.from_globals(module, name + ".")
        if own:
            for name in ("last_value", "last_exc", "last_traceback"):
                self.add(sys.__dict__.get(name), (None, "sys." + name, ""))
            self.go()

    # From one object to the next.

    def add(self, value, way):
        kind = self.kinds.of(type(value))
        if kind.enter is not None and (kind.is_tensor or id(value) not in self.seen):
            self.queue.append((value, kind, way))

    def go(self):
        while self.queue:
            self.look_at_the_clock()
            value, kind, way = self.queue.popleft()
            named_anew = kind.is_tensor and self.note(value, way)
            if id(value) in self.seen:
                if named_anew:
                    self.into_gradient(value, way)
                continue
            self.seen.add(id(value))
            self.kept.append(value)
            kind.enter(self, value, kind, way)

    # Tensors.

    def into_gradient(self, value, way):
        if not self.graphs.gradients_rest:
            return
        try:
            gradient = self.grad_of(value) if self.is_leaf(value) else None
        except Exception:
            return
        if gradient is not None:
            self.add(gradient, (way, ".grad", way[2]))

    def into_graph(self, value, way):
        try:
            graph = self.graph_of(value)
        except Exception:
            return  # a tensor that is none, of a compiler or a transform
        if graph is not None:
            self.graphs.add(graph, way)

    def note(self, value, way):
        """A tensor is met as often as something leads to it: its name in a model is the best.
        Whether it has got a name."""
        address = self.address_of(value)
        if address is None or (address not in self.names and len(self.names) >= _MOST_NAMES):
            return False
        in_model = way[2] == "model"
        if address in self.names and (not in_model or address in self.of_models):
            return False
        self.names[address] = way
        if in_model:
            self.of_models.add(address)
        return True

    def address_of(self, value):
        try:
            if not self.on_device(value):
                return None
            lazy = getattr(self.torch._C, "_is_cow_tensor", None)
            if lazy is not None and lazy(value):
                return None  # asking for its address would copy it
            storage_of = getattr(self.tensor, "untyped_storage", None)
            storage = storage_of(value) if storage_of else self.tensor.storage(value)
            return storage.data_ptr() or None
        except Exception:
            return None  # it has no storage of its own

    # Where something is left to be named.

    def from_libraries(self):
        """They hold the most objects, and seldom a tensor."""
        self.some_left = bool(_nameless.largest(self))
        if self.some_left:
            self.from_modules(False)

    def from_the_nameless(self):
        if self.some_left:
            _nameless.name_largest(self)


def _either(first, second):
    return lambda value: first(value) or second(value)


def _spelled(way):
    steps, suffix, graph = [], "", False
    while way is not None:
        outer, step, what = way
        steps.append(step)
        if len(steps) > _MOST_STEPS:
            steps.append("…")
            break
        graph = graph or what == "graph"
        if outer is None:
            suffix = what
        way = outer
    name = "".join(reversed(steps))
    if len(name) > _LONGEST_NAME:
        name = name[: _LONGEST_NAME // 2] + "…" + name[-_LONGEST_NAME // 2 :]
    return ("the graph of " if graph else "") + name + suffix
