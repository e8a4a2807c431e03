"""Config files and the files they build on."""

import os
import posixpath
from collections.abc import Iterator
from typing import Any

from engine.config.errors import ConfigError
from engine.config.yaml_text import load_yaml
from engine.utils.files import PathManager
from engine.utils.suggest import did_you_mean

BASE_KEY = "_BASE_"
CONFIG_ENDINGS = (".py", ".yaml", ".yml")


def read_layers(
    filename: str | os.PathLike[str], chain: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of a YAML file and of all it builds on, in the order to merge them."""
    path = os.path.expanduser(os.fspath(filename))
    if _identity(path) in map(_identity, chain):
        raise ConfigError(f"{BASE_KEY} goes in a circle: {' -> '.join([*chain, path])}")
    if path.endswith(".py"):
        raise ConfigError(
            f"{path} is Python, for tools/lazyconfig_train_net.py; expected YAML here"
        )
    tree = load_yaml(read_config(path, chain[-1] if chain else None), path)
    bases = tree.pop(BASE_KEY, [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: {BASE_KEY} is {bases!r}; expected a file or a list of files")
    for base in bases:
        yield from read_layers(_beside(path, base), (*chain, path))
    yield path, tree


def read_config(path: str, named_by: str | None = None) -> bytes:
    """The bytes of a config file, local or of any kind that has a handler with `PathManager`."""
    try:
        with PathManager.open(path, "rb") as file:
            return file.read()
    except IsADirectoryError:
        names = sorted(name for name in os.listdir(path) if name.endswith(CONFIG_ENDINGS))
        holds = f"name a file in it: {', '.join(names)}" if names else "with no config in it"
        raise FileNotFoundError(f"config file {path} is a folder; {holds}") from None
    except (FileNotFoundError, NotADirectoryError):
        where = _where(path, named_by)
        raise FileNotFoundError(
            f"config file {path} does not exist{'; ' if where else ''}{where}"
        ) from None


def _where(path: str, named_by: str | None) -> str:
    scheme, remote, _ = path.partition("://")
    if remote:
        return f"is a handler for {scheme}:// registered with engine.utils.files.PathManager?"
    folder = os.path.dirname(path) or "."
    names = os.listdir(folder) if os.path.isdir(folder) else []
    facts = (
        f"named by {named_by}" if named_by else "",
        "" if os.path.isabs(path) else f"looked for from {os.getcwd()}",
        did_you_mean(os.path.basename(path), names),
    )
    return "; ".join(filter(None, facts))


def _beside(path: str, base: str) -> str:
    base = os.path.expanduser(base)
    if "://" in base or os.path.isabs(base):
        return base
    scheme, remote, rest = path.partition("://")
    if remote:
        joined = posixpath.join(posixpath.dirname(rest), base)
        return f"{scheme}://{posixpath.normpath(joined)}"
    return os.path.join(os.path.dirname(path), base)


def _identity(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)
