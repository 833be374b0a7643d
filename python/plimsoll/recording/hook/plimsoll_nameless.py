"""Tensors to which no variable leads, for plimsoll_owners.py: they are in cycles that wait for the
collector, or C++ holds them. Their name is of what holds them, as far up as that is seen.

None of the program's code is called. Plain Python 3.7, with nothing else needed.
"""

import gc
import importlib
import types

# Beside this file: in the package, or loaded before it by plimsoll_recorder.py.
_FOLDER = __package__ + "." if __package__ else ""
_objects = importlib.import_module(_FOLDER + "plimsoll_objects")
_inside = importlib.import_module(_FOLDER + "plimsoll_inside")

# How many, how large at least, how far up.
_MOST_NAMELESS = 8
_LEAST_NAMELESS = 1 << 20
_LEVELS_UP = 4


def largest(search):
    """Size, address and tensor, the largest first."""
    kinds = {id(kind) for kind in _with_subclasses(search.tensor)}
    found = []
    for value in [one for one in gc.get_objects() if id(type(one)) in kinds]:
        search.look_at_the_clock()
        address = search.address_of(value)
        if address is not None and address not in search.names:
            size = _bytes_of(search.tensor, value)
            if size >= _LEAST_NAMELESS:
                found.append((size, address, value))
    found.sort(key=lambda one: -one[0])
    return found[:_MOST_NAMELESS]


def name_largest(search):
    found = largest(search)
    for _, address, value in found:
        if search.is_late():
            return
        way = _way_up(search, value, [found, search.kept])
        if way and address not in search.names:
            search.names[address] = (None, way, "")


def _way_up(search, value, ours):
    """"<Callback>.outputs[2]": by the type of what is at the top."""
    steps, inner = "", value
    not_ours = {id(one) for one in ours}
    for _ in range(_LEVELS_UP):
        if search.is_late():
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
        kind = search.kinds.of(type(outer))
        if type(outer) is dict:
            steps = _place_in_dict(outer, inner) + steps
        elif type(outer) is list:
            steps = "[*]" + steps
        elif kind.enter is not None and _objects.is_heap_type(type(outer)):
            steps = _as_attribute(steps) or _attribute_in(outer, kind, inner) + steps
            top = _objects.name_of(type(outer))
            return "<%s>%s, to which no variable leads" % (top, steps)
        inner = outer
    if not steps:
        return None
    top = _objects.name_of(type(inner))
    return "a %s%s, to which no variable leads" % (top, steps[steps.find("]") + 1 :])


def _place_in_dict(held, inner):
    for key, item in _objects.items(held):
        if item is inner:
            return _inside.key_step(key)
    return "[*]"


def _as_attribute(steps):
    """".outputs[2]" of "['outputs'][2]": the dictionary was that of an object."""
    end = steps.find("']")
    return "." + steps[2:end] + steps[end + 2 :] if steps.startswith("['") and end > 0 else ""


def _attribute_in(outer, kind, inner):
    try:
        held = kind.attributes.__get__(outer) if kind.attributes is not None else {}
        for name, item in _objects.items(held):
            if item is inner and type(name) is str:
                return "." + name
    except Exception:
        pass
    return ""


def _with_subclasses(kind):
    kinds = [kind]
    for one in kinds:
        kinds += [sub for sub in type.__subclasses__(one) if not any(sub is k for k in kinds)]
    return kinds


def _bytes_of(tensor, value):
    try:
        return tensor.untyped_storage(value).nbytes()
    except Exception:
        return 0
