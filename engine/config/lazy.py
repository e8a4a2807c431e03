"""LazyConfig: configs that are Python files, describing calls which `instantiate` makes later."""

import builtins
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from engine.config.errors import ConfigError, nearest_keys
from engine.config.files import read_config
from engine.config.instantiate import TARGET
from engine.config.lazy_text import call_text, target_name, to_plain
from engine.config.yaml_text import dump_yaml, load_yaml, parse_value
from engine.utils.files import PathManager, atomic_write
from engine.utils.suggest import did_you_mean

_CONTAINERS = (dict, list, DictConfig, ListConfig)
_NUMBER_FIRST = re.compile(r"[\d.$]")  # "2 epoch", "${train.max_iter}"


class LazyCall:
    """`LazyCall(nn.Linear)(in_features=4)` describes the call; `instantiate` makes it.

    The result is a config node: its arguments can be read and changed until then. The target is a
    class, a function, the dotted name of one, or another `LazyCall(...)(...)` that builds one.
    """

    def __init__(self, target: Callable[..., Any] | str | Mapping[str, Any]) -> None:
        if not (callable(target) or isinstance(target, str | Mapping)):
            raise TypeError(
                f"LazyCall takes a class, a function or the dotted name of one, got {target!r}"
            )
        if _is_read_as_schema(target):
            name = target_name(target)
            if name is None:
                raise TypeError(
                    f"LazyCall of {target!r}: define it in a module that can be imported"
                )
            target = name
        self._target = target

    def __call__(self, **kwargs: Any) -> DictConfig:
        return _as_config({TARGET: self._target, **kwargs})


class LazyConfig:
    """Load, override and save configs that are Python files.

    Such a file may import its neighbours relatively (`from .common import train`) without being in
    a package; every load runs the files anew.
    """

    @staticmethod
    def load(filename: str | os.PathLike[str], keys: str | Sequence[str] | None = None) -> Any:
        """The lists and dicts a `.py` file defines, or what a `.yaml` file holds, as one config.

        With `keys`, only the value of that name, or a tuple of the values of those names.
        """
        path = os.path.expanduser(os.fspath(filename))
        if path.endswith(".py"):
            values = {k: v for k, v in _run(path, ()).items() if not k.startswith("_")}
            tree = {k: v for k, v in values.items() if isinstance(v, _CONTAINERS)}
        elif path.endswith((".yaml", ".yml")):
            values = tree = load_yaml(read_config(path), path)
        else:
            if os.path.isdir(path):
                read_config(path)  # names the files in it
            raise ConfigError(f"{path}: expected a .py, .yaml or .yml file")
        if keys is None:
            return _as_config(tree)
        for key in [keys] if isinstance(keys, str) else keys:
            if key not in values:
                hint = did_you_mean(key, values) or f"it defines {', '.join(values)}"
                raise ConfigError(f"{path}: defines no {key}; {hint}")
        if isinstance(keys, str):
            return _as_config(values[keys])
        return tuple(_as_config(values[key]) for key in keys)

    @staticmethod
    def load_rel(filename: str, keys: str | Sequence[str] | None = None) -> Any:
        """`load` of a file beside the one that makes this call."""
        caller = inspect.stack(context=0)[1].filename
        return LazyConfig.load(os.path.join(os.path.dirname(caller), filename), keys)

    @staticmethod
    def save(cfg: DictConfig, filename: str | os.PathLike[str]) -> None:
        """Write a config as YAML that `load` reads back, its targets by their dotted names."""
        path = os.fspath(filename)
        text = dump_yaml(to_plain(cfg))
        with (PathManager.open if "://" in path else atomic_write)(path, "w") as file:
            file.write(text)

    @staticmethod
    def apply_overrides(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Change `cfg` in place by `a.b=value` items; `+a.b=value` adds a key that is new.

        A number stays one (or "2 epoch"), and a section stays a section, unless there is a plus.
        """
        for override in overrides:
            key, equals, text = override.partition("=")
            if not equals:
                raise ConfigError(f"command line: expected key=value, got {override!r}")
            is_new = key.startswith("+")
            key = key.removeprefix("+")
            try:
                value = parse_value(text)
                _check_sections(cfg, key)
                if not is_new:
                    _check_kind(OmegaConf.select(cfg, key), value)
                with flag_override(cfg, "struct", not is_new):
                    OmegaConf.update(cfg, key, value, force_add=is_new)
            except (OmegaConfBaseException, TypeError, ValueError) as error:
                raise ConfigError(_refusal(cfg, override, error)) from None
        return cfg

    @staticmethod
    def to_py(cfg: DictConfig, prefix: str = "cfg.") -> str:
        """The config as Python-like text to read: calls as calls, the rest as assignments."""
        return "\n".join(_assignments(to_plain(cfg, strict=False), prefix)) + "\n"


def _is_read_as_schema(target: Any) -> bool:
    """Whether omegaconf would take a class for the schema of a node instead of for a value."""
    is_dict = isinstance(target, type) and issubclass(target, dict)
    return is_dict or is_dataclass(target) or hasattr(target, "__attrs_attrs__")


def _as_config(value: Any) -> Any:
    if isinstance(value, dict):
        return DictConfig(value, flags={"allow_objects": True})
    if isinstance(value, list):
        return ListConfig(value, flags={"allow_objects": True})
    return value


def _run(path: str, chain: tuple[str, ...]) -> dict[str, Any]:
    """Run a config file and return its names.

    The file gets an import function of its own: nothing outside of it is patched, so there is
    nothing to restore and other threads see nothing of it.
    """
    if os.path.realpath(path) in map(os.path.realpath, chain):
        raise ImportError(f"configs import each other in a circle: {' -> '.join([*chain, path])}")
    chain = (*chain, path)

    def import_(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level == 0:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        folder = os.path.join(os.path.dirname(path), *[os.pardir] * (level - 1))
        if name:
            return _import_file(os.path.join(folder, *name.split(".")) + ".py", chain)
        module = ModuleType(folder)
        for each in fromlist or ():  # from . import each
            setattr(module, each, _import_file(os.path.join(folder, each) + ".py", chain))
        return module

    names = {
        "__name__": os.path.splitext(os.path.basename(path))[0],
        "__file__": path,
        "__builtins__": {**vars(builtins), "__import__": import_},
    }
    source = read_config(path, chain[-2] if len(chain) > 1 else None)
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}: {text}") from None
    exec(code, names)
    return names


def _import_file(path: str, chain: tuple[str, ...]) -> ModuleType:
    module = ModuleType(path)
    try:
        names = _run(path, chain)
    except FileNotFoundError as error:
        raise ImportError(str(error)) from None
    for name, value in names.items():
        if not name.startswith("__"):
            setattr(module, name, _as_config(value))
    return module


def _refusal(cfg: DictConfig, override: str, error: Exception) -> str:
    key = override.partition("=")[0].removeprefix("+")
    if not isinstance(error, ConfigKeyError | ConfigAttributeError):
        reason = str(error).partition("\n")[0]
        return f"command line: cannot set {key}: {reason}"
    known = _dotted_keys(OmegaConf.to_container(cfg))
    hint = nearest_keys(key, known) or f"+{override} adds a new key"
    return f"command line: cannot set {key}: there is no such key; {hint}"


def _check_sections(cfg: DictConfig, key: str) -> None:
    """Refuse a key below a value, which omegaconf would replace by an empty section."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        above = ".".join(parts[:length])
        value = OmegaConf.select(cfg, above, default=DictConfig({}))
        if not OmegaConf.is_config(value):
            raise TypeError(f"{above} is {value!r}, not a section")


def _check_kind(old: Any, new: Any) -> None:
    """Refuse a word for a number, and a value for a section: slips that would show much later."""
    if isinstance(old, int | float) and isinstance(new, str) and not _NUMBER_FIRST.match(new):
        raise TypeError(f"it is {old!r}, not a word like {new!r} (+KEY=VALUE sets it all the same)")
    if isinstance(old, DictConfig) and not isinstance(new, Mapping | None):
        raise TypeError(f"it is a section with {', '.join(map(str, old))}, and {new!r} is none")


def _dotted_keys(tree: Any, prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _dotted_keys(value, f"{prefix}{key}.")


def _assignments(tree: dict[str, Any], prefix: str) -> Iterator[str]:
    if TARGET in tree:
        yield f"{prefix.rstrip('.')} = {call_text(tree)}"
        return
    for key, value in tree.items():
        if isinstance(value, dict) and value and TARGET not in value:
            yield from _assignments(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key} = {call_text(value)}"
