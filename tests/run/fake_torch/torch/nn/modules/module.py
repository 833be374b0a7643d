"""Modules that call the global hooks, as torch's do."""

before, after = [], []


def register_module_forward_pre_hook(hook):
    before.append(hook)


def register_module_forward_hook(hook):
    after.append(hook)


class Module:
    def __init__(self, forward=None, **children):
        self.forward = forward
        self.children = children

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(prefix + "." + name if prefix else name)

    def __call__(self, *args):
        for hook in before:
            hook(self, args)
        output = self.forward(*args)
        for hook in after:
            hook(self, args, output)
        return output
