"""Which variable of the program keeps each tensor of the device, when memory has run out.

`find` goes from what has a name (globals, the locals of every frame) to what those hold, as
attributes, items and closures, and notes at each tensor of the device the way that led there:
"trainer.callbacks[3].outputs". What lives longest comes first, so that the name is of what keeps a
tensor and not of the function that looks at it. Then the graphs of autograd, whose saved tensors
have no Python object; at last tensors to which no name leads.

None of the program's code is called: types are asked by C functions alone, never the objects. It
ends after a second with what it has found, keeps nothing alive and allocates nothing on a device.
Plain Python 3.7, with nothing else needed.
"""

import collections
import functools
import gc
import itertools
import os
import sys
import time
import types

SECONDS = 1.0
_MOST_NAMES = 20000
_LONGEST_KEY = 60
_LONGEST_NAME = 300
_MOST_STEPS = 60
# Of one container.
_MOST_ITEMS = 100000
# The clock is looked at after so many objects.
_BETWEEN_LOOKS = 256
# Of tensors without a name: how many, how large at least, how far up.
_MOST_NAMELESS = 8
_LEAST_NAMELESS = 1 << 20
_LEVELS_UP = 4
# How much of the time may have passed when each part ends.
_GLOBALS, _FRAMES, _MODULES, _GRAPHS, _LIBRARIES = 0.35, 0.5, 0.6, 0.75, 0.85

_HEAP_TYPE = 1 << 9
_TRACKED = 1 << 14
_OPTIMIZED = 1  # of a code object: locals are no dictionary
_C_ATTRIBUTES = (types.GetSetDescriptorType, types.MemberDescriptorType)
# The functions of torch.autograd that wait for it.
_ENGINES = ("_engine_run_backward", "backward", "grad")
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")
_HERE = os.path.dirname(os.path.abspath(__file__))

# A metaclass may answer for its classes: these do not ask it.
_flags_of = type.__dict__["__flags__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_vars_of = type.__dict__["__dict__"].__get__
_name_of = type.__dict__["__name__"].__get__


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


class _Type:
    """What can be asked of the objects of a type without asking them."""

    __slots__ = ("enter", "attributes", "slots", "is_tensor", "is_module", "kept")

    def __init__(self, enter, attributes=None, slots=()):
        self.enter = enter  # the function that goes into one; None: there is nothing inside
        self.attributes = attributes  # the descriptor of __dict__
        self.slots = slots
        self.is_tensor = False
        self.is_module = False
        self.kept = None  # the type itself, so that its id stays its own


class _Late(Exception):
    pass


class _Search:
    def __init__(self, torch, seconds, on_device):
        self.torch = torch
        self.begun = time.monotonic()
        self.seconds = seconds
        self.until = 0.0
        self.looks = 0
        self.types = {}  # by the id of the type
        self.tensor = torch.Tensor
        self.module = getattr(getattr(torch, "nn", None), "Module", None)
        self.on_device = on_device or _either(
            _reader(self.tensor, "is_cuda"), _reader(self.tensor, "is_xpu")
        )
        self.is_leaf = _reader(self.tensor, "is_leaf")
        self.grad_of = _reader(self.tensor, "grad")
        self.graph_of = _reader(self.tensor, "grad_fn")
        self.queue = collections.deque()
        self.seen = set()  # ids, of objects in `kept`
        self.kept = []  # alive as long as this, so that no other object gets their id
        self.names = {}  # the way to a storage, by its address
        self.of_models = set()  # those that have the name that they have in a model
        self.graphs = []
        self.some_left = True
        self.in_backward = _in_a_backward(torch)
        self.others_at_work = _backwards_under_way() > (1 if self.in_backward else 0)
        # Autograd has a thread for each device, and those need no Python to go on.
        self.gradients_rest = not self.others_at_work and not (
            self.in_backward and _devices_in_use(torch) > 1
        )
        self.own = _user_modules()

    def run(self):
        main = sys.modules.get("__main__")
        parts = (
            (_GLOBALS, self.from_globals, (main, "")),
            (_FRAMES, self.from_frames, ()),
            (_MODULES, self.from_modules, (True,)),
            (_GRAPHS, self.from_graphs, ()),
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
        if self.looks % _BETWEEN_LOOKS == 0 and time.monotonic() > self.until:
            raise _Late()

    # Where names begin.

    def from_globals(self, module, prefix):
        if type(module) is not types.ModuleType:
            return
        for name, value in list(module.__dict__.items()):
            if type(name) is str and not name.startswith("__"):
                self.add(value, (None, prefix + name, ""))
        self.go()

    def from_frames(self):
        for frame in _running_frames():
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
        for name, value in _locals_of(frame):
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
        kind = self.type_of(type(value))
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

    def type_of(self, kind):
        known = self.types.get(id(kind))
        if known is None:
            known = self.types[id(kind)] = self.study(kind)
            known.kept = kind
        return known

    def study(self, kind):
        flags = _flags_of(kind)
        if not flags & _TRACKED:
            return _Type(None)
        mro = _mro_of(kind)
        if any(base is self.tensor for base in mro):
            made = _Type(_into_tensor, *_attributes_of(mro))
            made.is_tensor = True
            return made
        for base, enter in _WAYS_IN:
            if any(one is base for one in mro):
                return _Type(enter, *_attributes_of(mro)) if enter else _Type(None)
        attributes, slots = _attributes_of(mro)
        if flags & _HEAP_TYPE and (attributes is not None or slots):
            made = _Type(_into_object, attributes, slots)
            made.is_module = any(base is self.module for base in mro)
            return made
        if flags & _HEAP_TYPE or kind.__module__ not in ("builtins", "itertools", "collections"):
            return _Type(None)
        return _Type(_into_anything)

    # Tensors.

    def into_gradient(self, value, way):
        if not self.gradients_rest:
            return
        try:
            gradient = self.grad_of(value) if self.is_leaf(value) else None
        except Exception:
            return
        if gradient is not None:
            self.add(gradient, (way, ".grad", way[2]))

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

    # What autograd keeps for the backward pass.

    def from_graphs(self):
        """A backward pass lets go of what its nodes saved, in threads that need no Python: nodes of
        one that is under way are not asked."""
        if self.others_at_work:
            return
        is_running = _asks_the_engine(self.torch) if self.in_backward else lambda node: False
        saved_by = {}  # the attributes of a type of node, by its id
        nodes = set()
        for root, way in self.graphs:
            way = (way, "", "graph")
            waiting = [root]
            while waiting:
                node = waiting.pop()
                if id(node) in nodes:
                    continue
                self.look_at_the_clock()
                nodes.add(id(node))
                self.kept.append(node)  # its Python object is made anew each time otherwise
                if is_running(node):
                    continue
                waiting += self.from_node(node, way, saved_by)
            self.go()

    def from_node(self, node, way, saved_by):
        kind = type(node)
        known = saved_by.get(id(kind))
        if known is None:
            known = saved_by[id(kind)] = _node_attributes(kind)
        next_of, attributes = known
        for attribute in attributes:
            try:
                saved = attribute(node)
            except Exception:
                continue  # it was freed
            for one in saved if type(saved) is tuple else (saved,):
                self.note_saved(one, way)
        if _flags_of(kind) & _HEAP_TYPE:
            self.add(node, way)  # a Function of the program's: what it put on its context
        try:
            return [after for after, _ in next_of(node) if after is not None] if next_of else []
        except Exception:
            return []

    def note_saved(self, saved, way):
        """As it was saved: nothing is unpacked, which may be the program's to do."""
        try:
            tensor = saved.data
        except Exception:
            return
        if tensor is not None and self.type_of(type(tensor)).is_tensor:
            self.note(tensor, way)

    # Tensors to which none of these led: cycles that wait for the collector, or C++.

    def from_libraries(self):
        """Where something is left to be named: these hold the most objects, and seldom a tensor."""
        self.some_left = bool(self.nameless())
        if self.some_left:
            self.from_modules(False)

    def nameless(self):
        """Size, address and tensor, the largest first."""
        kinds = {id(kind) for kind in _with_subclasses(self.tensor)}
        found = []
        for value in [one for one in gc.get_objects() if id(type(one)) in kinds]:
            self.look_at_the_clock()
            address = self.address_of(value)
            if address is not None and address not in self.names:
                size = _bytes_of(self.tensor, value)
                if size >= _LEAST_NAMELESS:
                    found.append((size, address, value))
        found.sort(key=lambda one: -one[0])
        return found[:_MOST_NAMELESS]

    def from_the_nameless(self):
        found = self.nameless() if self.some_left else []
        for _, address, value in found:
            if time.monotonic() > self.until:
                return
            way = self.way_up(value, [found, self.kept])
            if way and address not in self.names:
                self.names[address] = (None, way, "")

    def way_up(self, value, ours):
        """"<Callback>.outputs[2]": by the type of what is at the top."""
        steps, inner = "", value
        not_ours = {id(one) for one in ours}
        for _ in range(_LEVELS_UP):
            if time.monotonic() > self.until:
                break
            holders = [
                one
                for one in gc.get_referrers(inner)
                if id(one) not in not_ours and type(one) not in (types.FrameType, tuple, set)
            ]
            if not holders:
                break
            outer = holders[0]
            holders = None  # it would be found to hold the next one
            kind = self.type_of(type(outer))
            if type(outer) is dict:
                steps = _place_in_dict(outer, inner) + steps
            elif type(outer) is list:
                steps = "[*]" + steps
            elif kind.enter is not None and _flags_of(type(outer)) & _HEAP_TYPE:
                steps = _as_attribute(steps) or _attribute_in(outer, kind, inner) + steps
                return "<%s>%s, to which no variable leads" % (_name_of(type(outer)), steps)
            inner = outer
        if not steps:
            return None
        top = _name_of(type(inner))
        return "a %s%s, to which no variable leads" % (top, steps[steps.find("]") + 1 :])


# From one object into what it holds, by its type.


def _into_object(search, value, kind, way):
    if kind.attributes is not None:
        try:
            held = kind.attributes.__get__(value)
        except Exception:
            held = None
        if type(held) is dict:
            for name, item in _items(held):
                _into_attribute(search, name, item, kind, way)
    for name, slot in kind.slots:
        try:
            item = slot.__get__(value)
        except AttributeError:
            continue  # not set
        search.add(item, (way, "." + name, None))


def _into_attribute(search, name, item, kind, way):
    if type(name) is not str:
        return
    if kind.is_module and name in _MODULE_DICTS and issubclass(type(item), dict):
        # As model.blocks[0].weight spells them.
        for key, value in _items(item):
            if type(key) is str:
                step = "[%s]" % key if key.isdigit() else "." + key
                search.add(value, (way, step, "model"))
        return
    search.add(item, (way, "." + name, None))


def _into_dict(search, value, kind, way):
    for key, item in _items(value):
        search.look_at_the_clock()
        search.add(item, (way, _key(key), None))
        search.add(key, (way, ".<keys>", None))
    _into_object(search, value, kind, way)


def _into_sequence(search, value, kind, way):
    base = _base_of(value, (list, tuple, collections.deque))
    for number, item in enumerate(_first(base, value)):
        search.look_at_the_clock()
        search.add(item, (way, "[%d]" % number, None))
    _into_object(search, value, kind, way)


def _into_set(search, value, kind, way):
    for item in _first(_base_of(value, (set, frozenset)), value):
        search.look_at_the_clock()
        search.add(item, (way, ".<items>", None))
    _into_object(search, value, kind, way)


def _into_class(search, value, kind, way):
    members = _vars_of(value)
    module = members.get("__module__")
    if type(module) is not str or id(sys.modules.get(module)) not in search.own:
        return
    for name, item in list(members.items()):
        if type(name) is str:
            search.add(item, (way, "." + name, None))


def _into_function(search, value, kind, way):
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        _into_cell(search, cell, kind, (way, ".<%s>" % name, None))
    for item in value.__defaults__ or ():
        search.add(item, (way, ".<default>", None))
    for name, item in _items(value.__dict__):
        if type(name) is str:
            search.add(item, (way, "." + name, None))


def _into_cell(search, value, kind, way):
    try:
        search.add(value.cell_contents, way)
    except ValueError:
        pass  # it is empty


def _into_method(search, value, kind, way):
    search.add(value.__self__, (way, ".__self__", None))
    search.add(value.__func__, way)


def _into_partial(search, value, kind, way):
    for name in ("func", "args", "keywords"):
        search.add(getattr(functools.partial, name).__get__(value), (way, "." + name, None))


def _into_generator(search, value, kind, way):
    if value.gi_frame is not None:
        search.add_locals(value.gi_frame, way)


def _into_coroutine(search, value, kind, way):
    if value.cr_frame is not None:
        search.add_locals(value.cr_frame, way)


def _into_frame(search, value, kind, way):
    search.add_locals(value, way)


def _into_traceback(search, value, kind, way):
    while value is not None:
        search.look_at_the_clock()
        search.add(value.tb_frame, way)
        value = value.tb_next


def _into_exception(search, value, kind, way):
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        item = BaseException.__dict__[name].__get__(value)
        search.add(item, (way, "." + name, None))
    _into_object(search, value, kind, way)


def _into_anything(search, value, kind, way):
    """Iterators and the like, which have no names for what they hold."""
    for item in gc.get_referents(value):
        if type(item) is not type:
            search.add(item, (way, ".<%s>" % type(value).__name__, None))


def _into_tensor(search, value, kind, way):
    _into_object(search, value, kind, way)
    search.into_gradient(value, way)
    try:
        graph = search.graph_of(value)
    except Exception:
        return  # a tensor that is none, of a compiler or a transform
    if graph is not None:
        search.graphs.append((graph, way))


_WAYS_IN = (
    (types.ModuleType, None),
    (type, _into_class),
    (dict, _into_dict),
    (list, _into_sequence),
    (tuple, _into_sequence),
    (collections.deque, _into_sequence),
    (set, _into_set),
    (frozenset, _into_set),
    (types.FunctionType, _into_function),
    (types.MethodType, _into_method),
    (type((lambda one: lambda: one)(0).__closure__[0]), _into_cell),
    (functools.partial, _into_partial),
    (types.GeneratorType, _into_generator),
    (types.CoroutineType, _into_coroutine),
    (types.FrameType, _into_frame),
    (types.TracebackType, _into_traceback),
    (BaseException, _into_exception),
    (types.BuiltinFunctionType, None),
    (types.MappingProxyType, None),
    (types.GetSetDescriptorType, None),
    (types.MemberDescriptorType, None),
    (property, None),
    (staticmethod, None),
    (classmethod, None),
)


# Names.


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


def _key(key):
    if type(key) is int:
        return "[%d]" % key
    if type(key) is str:
        return "[%r]" % key[:_LONGEST_KEY]
    return "[*]"


def _place_in_dict(held, inner):
    for key, item in _items(held):
        if item is inner:
            return _key(key)
    return "[*]"


def _as_attribute(steps):
    """".outputs[2]" of "['outputs'][2]": the dictionary was that of an object."""
    end = steps.find("']")
    return "." + steps[2:end] + steps[end + 2 :] if steps.startswith("['") and end > 0 else ""


def _attribute_in(outer, kind, inner):
    try:
        held = kind.attributes.__get__(outer) if kind.attributes is not None else {}
        for name, item in _items(held):
            if item is inner and type(name) is str:
                return "." + name
    except Exception:
        pass
    return ""


# What is asked of Python.


def _attributes_of(mro):
    """The descriptor of __dict__ and those of slots, where they are Python's own: a property of
    the program's is not asked."""
    attributes, slots, named = None, [], set()
    for base in mro:
        for name, member in list(_vars_of(base).items()):
            if name == "__dict__" and attributes is None and "__dict__" not in named:
                attributes = member if type(member) is types.GetSetDescriptorType else None
                named.add(name)
            slot = type(member) is types.MemberDescriptorType and _flags_of(base) & _HEAP_TYPE
            if slot and name not in named and not name.startswith("__"):
                slots.append((name, member))
                named.add(name)
    return attributes, tuple(slots)


def _node_attributes(kind):
    """How a node of autograd's is asked for the next ones, and for what it saved."""
    next_of, saved = None, []
    for base in _mro_of(kind):
        for name, member in list(_vars_of(base).items()):
            if type(member) not in _C_ATTRIBUTES:
                continue
            if name == "next_functions" and next_of is None:
                next_of = member.__get__
            elif name.startswith("_raw_saved_"):
                saved.append(member.__get__)
    return next_of, saved


def _in_a_backward(torch):
    """Whether this thread is one of autograd's that is at work."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def _backwards_under_way():
    """How many threads wait for a backward pass, by the function in which they do."""
    waiting = 0
    for frame in sys._current_frames().values():
        while frame is not None:
            code = frame.f_code
            if code.co_name in _ENGINES and os.sep + "torch" + os.sep in code.co_filename:
                waiting += 1
                break
            frame = frame.f_back
    return waiting


def _devices_in_use(torch):
    try:
        count = torch.cuda.device_count()
        return sum(1 for device in range(count) if torch.cuda.memory_allocated(device))
    except Exception:
        return 1


def _asks_the_engine(torch):
    """Whether the backward pass of this thread will run a node, or has run it."""
    asked = getattr(torch._C, "_will_engine_execute_node", None)

    def is_running(node):
        try:
            return asked is None or asked(node)
        except Exception:
            return True

    return is_running


def _reader(kind, name):
    """Of an attribute that C code has, without what a subclass makes of it."""
    for base in _mro_of(kind):
        member = _vars_of(base).get(name)
        if member is not None:
            return member.__get__
    return lambda value: None


def _with_subclasses(kind):
    kinds = [kind]
    for one in kinds:
        kinds += [sub for sub in type.__subclasses__(one) if not any(sub is k for k in kinds)]
    return kinds


def _either(first, second):
    return lambda value: first(value) or second(value)


def _bytes_of(tensor, value):
    try:
        return tensor.untyped_storage(value).nbytes()
    except Exception:
        return 0


def _base_of(value, bases):
    mro = _mro_of(type(value))
    return next(base for base in bases if base in mro)


def _first(base, value):
    """Items as the builtin type has them, in one go: other threads may change it."""
    return list(itertools.islice(base.__iter__(value), _MOST_ITEMS))


def _items(held):
    return list(itertools.islice(dict.items(held), _MOST_ITEMS))


def _running_frames():
    """Of every thread, the main one first; the outermost first, without ours."""
    import threading

    main = threading.main_thread().ident
    threads = sorted(sys._current_frames().items(), key=lambda one: one[0] != main)
    for _, frame in threads:
        stack = []
        while frame is not None:
            if os.path.dirname(frame.f_code.co_filename) != _HERE:
                stack.append(frame)
            frame = frame.f_back
        for one in reversed(stack):
            yield one


def _locals_of(frame):
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        # A module or the body of a class: that is its dictionary.
        held = frame.f_locals if frame.f_locals is not frame.f_globals else {}
        return [(name, value) for name, value in held.items() if type(name) is str]
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if sys.version_info >= (3, 12):
        return _locals_one_by_one(frame, code)
    held = frame.f_locals
    found = list(held.items())
    # Python keeps that dictionary with the frame, and so what is in it, until the function ends;
    # unless the program has it as well (by locals()), it is emptied.
    if sys.getrefcount(held) <= 3:
        held.clear()
    return found


def _locals_one_by_one(frame, code):
    import ctypes

    get = ctypes.pythonapi.PyFrame_GetVar
    get.restype = ctypes.py_object
    get.argtypes = [ctypes.py_object, ctypes.py_object]
    found = []
    for name in itertools.chain(code.co_varnames, code.co_cellvars, code.co_freevars):
        try:
            found.append((name, get(frame, name)))
        except NameError:
            pass  # it has no value yet, or none any more
    return found


def _user_modules():
    """Ids of modules that are neither Python's nor installed."""
    installed = [
        path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")
    ]
    installed += [os.path.dirname(os.__file__), _HERE]
    foreign = tuple(
        as_found + os.sep for path in installed for as_found in (path, os.path.realpath(path))
    )
    own = set()
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType:
            continue
        path = module.__dict__.get("__file__")
        if name == "__main__":
            own.add(id(module))
        elif type(path) is str and not path.startswith(foreign):
            own.add(id(module))
    return own
