"""What Python itself says of types, containers, frames and modules, for plimsoll_owners.py. Types
are asked by C functions alone, never the objects, so that none of the program's code is called.
Plain Python 3.7, with nothing else needed.
"""

import itertools
import os
import sys
import types

# Of one container.
_MOST_ITEMS = 100000
_HEAP_TYPE = 1 << 9
_TRACKED = 1 << 14
_OPTIMIZED = 1  # of a code object: locals are no dictionary
_HERE = os.path.dirname(os.path.abspath(__file__))

# Types. A metaclass may answer for its classes: these do not ask it.

mro_of = type.__dict__["__mro__"].__get__
vars_of = type.__dict__["__dict__"].__get__
name_of = type.__dict__["__name__"].__get__
_flags_of = type.__dict__["__flags__"].__get__


def is_tracked(kind):
    """By the collector: its objects may hold others."""
    return bool(_flags_of(kind) & _TRACKED)


def is_heap_type(kind):
    """It is made while the program runs, as by a class statement."""
    return bool(_flags_of(kind) & _HEAP_TYPE)


def attributes_of(mro):
    """The descriptor of __dict__ and those of slots, where they are Python's own: a property of
    the program's is not asked."""
    attributes, slots, named = None, [], set()
    for base in mro:
        for name, member in list(vars_of(base).items()):
            if name == "__dict__" and attributes is None and "__dict__" not in named:
                attributes = member if type(member) is types.GetSetDescriptorType else None
                named.add(name)
            slot = type(member) is types.MemberDescriptorType and is_heap_type(base)
            if slot and name not in named and not name.startswith("__"):
                slots.append((name, member))
                named.add(name)
    return attributes, tuple(slots)


def reader(kind, name):
    """Of an attribute that C code has, without what a subclass makes of it."""
    for base in mro_of(kind):
        member = vars_of(base).get(name)
        if member is not None:
            return member.__get__
    return lambda value: None


# Containers.


def base_of(value, bases):
    mro = mro_of(type(value))
    return next(base for base in bases if base in mro)


def first(base, value):
    """Items as the builtin type has them, in one go: other threads may change it."""
    return list(itertools.islice(base.__iter__(value), _MOST_ITEMS))


def items(held):
    return list(itertools.islice(dict.items(held), _MOST_ITEMS))


# Frames and modules.


def running_frames():
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


def locals_of(frame):
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


def user_modules():
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
