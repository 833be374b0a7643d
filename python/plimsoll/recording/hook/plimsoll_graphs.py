"""What autograd keeps for backward passes, for plimsoll_owners.py: saved tensors have no Python
object, and go while a backward pass runs.

None of the program's code is called. Plain Python 3.7, with nothing else needed.
"""

import importlib
import os
import sys
import types

# Beside this file: in the package, or loaded before it by plimsoll_recorder.py.
_FOLDER = __package__ + "." if __package__ else ""
_objects = importlib.import_module(_FOLDER + "plimsoll_objects")

_C_ATTRIBUTES = (types.GetSetDescriptorType, types.MemberDescriptorType)
# The functions of torch.autograd that wait for it.
_ENGINES = ("_engine_run_backward", "backward", "grad")


class Graphs:
    """Those that made the tensors that were met."""

    def __init__(self, torch):
        self._torch = torch
        self._roots = []  # the last node of each, and the way to the tensor that it made
        self._in_backward = _in_a_backward(torch)
        self._others_at_work = _backwards_under_way() > (1 if self._in_backward else 0)
        # Autograd has a thread for each device, and those need no Python to go on.
        self.gradients_rest = not self._others_at_work and not (
            self._in_backward and _devices_in_use(torch) > 1
        )

    def add(self, root, way):
        self._roots.append((root, way))

    def follow(self, search):
        """A backward pass lets go of what its nodes saved, in threads that need no Python: nodes of
        one that is under way are not asked."""
        if self._others_at_work:
            return
        is_running = _asks_the_engine(self._torch) if self._in_backward else lambda node: False
        saved_by = {}  # the attributes of a type of node, by its id
        nodes = set()
        for root, way in self._roots:
            way = (way, "", "graph")
            waiting = [root]
            while waiting:
                node = waiting.pop()
                if id(node) in nodes:
                    continue
                search.look_at_the_clock()
                nodes.add(id(node))
                search.kept.append(node)  # its Python object is made anew each time otherwise
                if is_running(node):
                    continue
                waiting += _into_node(search, node, way, saved_by)
            search.go()


def _into_node(search, node, way, saved_by):
    """The nodes after it."""
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
            _note_saved(search, one, way)
    if _objects.is_heap_type(kind):
        search.add(node, way)  # a Function of the program's: what it put on its context
    try:
        return [after for after, _ in next_of(node) if after is not None] if next_of else []
    except Exception:
        return []


def _note_saved(search, saved, way):
    """As it was saved: nothing is unpacked, which may be the program's to do."""
    try:
        tensor = saved.data
    except Exception:
        return
    if tensor is not None and search.kinds.of(type(tensor)).is_tensor:
        search.note(tensor, way)


def _node_attributes(kind):
    """How a node of autograd's is asked for the next ones, and for what it saved."""
    next_of, saved = None, []
    for base in _objects.mro_of(kind):
        for name, member in list(_objects.vars_of(base).items()):
            if type(member) not in _C_ATTRIBUTES:
                continue
            if name == "next_functions" and next_of is None:
                next_of = member.__get__
            elif name.startswith("_raw_saved_"):
                saved.append(member.__get__)
    return next_of, saved


def _asks_the_engine(torch):
    """Whether the backward pass of this thread will run a node, or has run it."""
    asked = getattr(torch._C, "_will_engine_execute_node", None)

    def is_running(node):
        try:
            return asked is None or asked(node)
        except Exception:
            return True

    return is_running


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
