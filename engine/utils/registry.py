"""Find components by the name that a config gives them."""

import inspect
import pkgutil
from importlib import import_module
from typing import Any

from fvcore.common.registry import Registry as _Registry

from engine.utils.suggest import hint_at


class UnknownNameError(KeyError, ImportError):
    """A config names something that is not there."""

    __str__ = Exception.__str__  # KeyError's own would print the message in quotes


class Registry(_Registry):
    """Components of one kind by name.

    MODELS = Registry("MODEL")

    @MODELS.register()
    class MLP(nn.Module): ...

    MODELS.get("MLP")
    """

    def register(self, obj: Any = None) -> Any:
        """Add a class or function under its `__name__`; as a decorator, or called with it."""
        if obj is None:
            return self.register
        self._do_register(obj.__name__, obj)
        return obj

    def get(self, name: str) -> Any:
        """The object of that name."""
        if name in self:
            return self._obj_map[name]
        known = sorted(self._obj_map)
        raise UnknownNameError(
            f"no {name!r} in the {self._name} registry, which has "
            f"{', '.join(known) or 'nothing: is the module that registers it imported?'}"
            f"{hint_at(name, known)}"
        )

    def _do_register(self, name: str, obj: Any) -> None:
        if name in self:
            raise ValueError(
                f"{name!r} is in the {self._name} registry already: {_place(self._obj_map[name])}; "
                f"cannot add {_place(obj)} under the same name"
            )
        super()._do_register(name, obj)


def find(registry: Registry, name: str) -> Any:
    """The object that a config names: a registered name, or an import path as `locate` takes."""
    is_path = name not in registry and ("." in name or ":" in name)
    return locate_function(name) if is_path else registry.get(name)


def locate_function(name: str) -> Any:
    """As `locate`, of a class, a function or anything else that can be called."""
    found = locate(name)
    if not callable(found):
        raise UnknownNameError(f"{name!r} is no class or function, but {found!r:.80}")
    return found


def locate(name: str) -> Any:
    """The object at "package.module.Class" or "package.module:Class", imported if need be.

    Where a module and an attribute share a name, the dot means the module, the colon the attribute.
    """
    modules, colon, attributes = name.partition(":")
    path = modules.split(".") + (attributes.split(".") if colon else [])
    if not all(part.isidentifier() for part in path):
        raise UnknownNameError(
            f"cannot locate {name!r}: expected 'package.module.Class' or 'package.module:Class'"
        )
    found, depth = _import_deepest(name, modules.split("."))
    for position in range(depth, len(path)):
        part = path[position]
        if not hasattr(found, part):
            submodules = (m.name for m in pkgutil.iter_modules(getattr(found, "__path__", [])))
            raise UnknownNameError(
                f"cannot locate {name!r}: found {'.'.join(path[:position])}, "
                f"which has no {part!r}{hint_at(part, [*dir(found), *submodules])}"
            )
        found = getattr(found, part)
    return found


def _import_deepest(name: str, path: list[str]) -> tuple[Any, int]:
    """The module at the longest importable beginning of `path`, and how many parts that is."""
    module = None
    for depth in range(1, len(path) + 1):
        dotted = ".".join(path[:depth])
        try:
            module = import_module(dotted)
        except ImportError as error:
            no_such_module = isinstance(error, ModuleNotFoundError) and error.name == dotted
            if module is not None and no_such_module:
                return module, depth - 1
            message = f"cannot locate {name!r}: importing {dotted}: {error}"
            raise UnknownNameError(message) from error
    return module, len(path)


def _place(obj: Any) -> str:
    """Where a person finds the source of `obj`."""
    dotted = f"{obj.__module__}.{obj.__qualname__}"
    try:
        return f"{dotted} ({inspect.getsourcefile(obj)}:{inspect.getsourcelines(obj)[1]})"
    except (OSError, TypeError):
        return dotted
