"""From one object into what it holds, for plimsoll_owners.py: attributes, items, closures, locals
of generators, each with the step that it adds to the name: ".outputs", "[3]".

None of the program's code is called. Plain Python 3.7, with nothing else needed.
"""

import collections
import functools
import gc
import importlib
import sys
import types

# Beside this file: in the package, or loaded before it by plimsoll_recorder.py.
_FOLDER = __package__ + "." if __package__ else ""
_objects = importlib.import_module(_FOLDER + "plimsoll_objects")

_LONGEST_KEY = 60
_MODULE_DICTS = ("_parameters", "_buffers", "_modules")


class Kind:
    """What can be asked of the objects of a type without asking them."""

    __slots__ = ("enter", "attributes", "slots", "is_tensor", "is_module", "kept")

    def __init__(self, enter, attributes=None, slots=()):
        self.enter = enter  # the function that goes into one; None: there is nothing inside
        self.attributes = attributes  # the descriptor of __dict__
        self.slots = slots
        self.is_tensor = False
        self.is_module = False
        self.kept = None  # the type itself, so that its id stays its own


class Kinds:
    """Of the types that were met, each studied once."""

    def __init__(self, torch):
        self._tensor = torch.Tensor
        self._module = getattr(getattr(torch, "nn", None), "Module", None)
        self._known = {}  # by the id of the type

    def of(self, kind):
        known = self._known.get(id(kind))
        if known is None:
            known = self._known[id(kind)] = self._study(kind)
            known.kept = kind
        return known

    def _study(self, kind):
        if not _objects.is_tracked(kind):
            return Kind(None)
        mro = _objects.mro_of(kind)
        if any(base is self._tensor for base in mro):
            made = Kind(_into_tensor, *_objects.attributes_of(mro))
            made.is_tensor = True
            return made
        for base, enter in _WAYS_IN:
            if any(one is base for one in mro):
                return Kind(enter, *_objects.attributes_of(mro)) if enter else Kind(None)
        attributes, slots = _objects.attributes_of(mro)
        heap_type = _objects.is_heap_type(kind)
        if heap_type and (attributes is not None or slots):
            made = Kind(_into_object, attributes, slots)
            made.is_module = any(base is self._module for base in mro)
            return made
        if heap_type or kind.__module__ not in ("builtins", "itertools", "collections"):
            return Kind(None)
        return Kind(_into_anything)


def key_step(key):
    if type(key) is int:
        return "[%d]" % key
    if type(key) is str:
        return "[%r]" % key[:_LONGEST_KEY]
    return "[*]"


# From one object, by its type.


def _into_object(search, value, kind, way):
    if kind.attributes is not None:
        try:
            held = kind.attributes.__get__(value)
        except Exception:
            held = None
        if type(held) is dict:
            for name, item in _objects.items(held):
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
        for key, value in _objects.items(item):
            if type(key) is str:
                step = "[%s]" % key if key.isdigit() else "." + key
                search.add(value, (way, step, "model"))
        return
    search.add(item, (way, "." + name, None))


def _into_dict(search, value, kind, way):
    for key, item in _objects.items(value):
        search.look_at_the_clock()
        search.add(item, (way, key_step(key), None))
        search.add(key, (way, ".<keys>", None))
    _into_object(search, value, kind, way)


def _into_sequence(search, value, kind, way):
    base = _objects.base_of(value, (list, tuple, collections.deque))
    for number, item in enumerate(_objects.first(base, value)):
        search.look_at_the_clock()
        search.add(item, (way, "[%d]" % number, None))
    _into_object(search, value, kind, way)


def _into_set(search, value, kind, way):
    for item in _objects.first(_objects.base_of(value, (set, frozenset)), value):
        search.look_at_the_clock()
        search.add(item, (way, ".<items>", None))
    _into_object(search, value, kind, way)


def _into_class(search, value, kind, way):
    members = _objects.vars_of(value)
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
    for name, item in _objects.items(value.__dict__):
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
    search.into_graph(value, way)


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
