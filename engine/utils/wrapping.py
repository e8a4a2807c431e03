"""Models inside the wrappers that spread them over devices or processes, or compile them."""

from collections.abc import Callable, Iterable

from torch import nn

PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
# What torch.compile and checkpoint_wrapper call the module that they are around.
INSIDE = ("_orig_mod", "_checkpoint_wrapped_module")


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel or DataParallel, whose names have no "module."."""
    return model.module if isinstance(model, PARALLEL) else model


def plain_names(model: nn.Module) -> Callable[[str], str]:
    """Makes names in a model, those of modules with a dot at the end, what they are where no part
    of it is wrapped, compiled or has its activations computed anew."""
    prefixes: list[tuple[str, str]] = []
    for path, part in model.named_modules():
        outside = f"{path}." if path else ""
        names = ("module",) if isinstance(part, PARALLEL) else INSIDE
        prefixes += [(f"{outside}{name}.", outside) for name in names if name in part._modules]

    def without_wrappers(name: str) -> str:
        for inside, outside in reversed(prefixes):  # the innermost first
            if name.startswith(inside):
                name = outside + name.removeprefix(inside)
        return name

    return without_wrappers


def wrapped_names(model: nn.Module, names: Iterable[str]) -> Callable[[str], str]:
    """The reverse of `plain_names`, for these names in the model and for modules."""
    plain = plain_names(model)
    modules = (f"{path}." if path else "" for path, _ in model.named_modules())
    own = {plain(name): name for name in (*names, *modules)}  # of a wrapper, what is inside
    return lambda name: own.get(name, name)
