from torch.nn.modules.module import Module  # noqa: F401


class ModuleList(Module):
    pass


class ModuleDict(Module):
    pass
