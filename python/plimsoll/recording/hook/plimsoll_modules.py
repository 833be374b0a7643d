"""Names modules for `plimsoll run --modules`: each request to the allocator is noted with that
whose forward makes it, by the name that it has in the model. Needs PyTorch 2.10 or newer."""

import sys
import weakref


def begin(torch, tell, log):
    names = _Names(torch, tell, log)
    module = sys.modules["torch.nn.modules.module"]
    module.register_module_forward_pre_hook(names.before)
    module.register_module_forward_hook(names.after)


class _Names:
    # What compiling, sharding and checkpointing put between the names that the user gave.
    _WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

    def __init__(self, torch, tell, log):
        self.tell = tell
        self.log = log
        self.compiling = torch.compiler.is_compiling
        self.containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
        self.known = {}  # by id: the module, the note inside it, the note after it

    def before(self, module, _):
        if self.compiling():
            return
        try:
            known = self.known.get(id(module))
            if known is None or known[0]() is not module:
                self.learn(module)
                known = self.known[id(module)]
            self.tell(known[1])
        except Exception as error:
            self.log("--modules: %s" % error)

    def after(self, module, _, __):
        if self.compiling():
            return
        known = self.known.get(id(module))
        if known is not None:
            self.tell(known[2])

    def own_name(self, path):
        parts = [part for part in path.split(".") if part not in self._WRAPPERS]
        return ".".join(parts[1:] if parts[:1] == ["module"] else parts)  # DDP's, in front

    def own_class(self, module):
        for wrapper in self._WRAPPERS + ("module",):
            module = getattr(module, wrapper, module)
        return type(module).__name__

    def learn(self, root):
        """A module that was not seen below another one is the top of a model."""
        notes = {}
        # A module comes after those that hold it; a list of modules runs nothing by itself.
        for path, module in root.named_modules():
            outer = notes.get(path.rpartition(".")[0], "") if path else ""
            own = "plimsoll.module:" + (self.own_name(path) or self.own_class(module))
            notes[path] = outer if isinstance(module, self.containers) else own
            self.known[id(module)] = (weakref.ref(module), own, outer)
