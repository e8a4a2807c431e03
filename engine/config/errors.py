"""The error a config raises, and the known keys nearest to a wrong one."""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from engine.utils.registry import UnknownNameError
from engine.utils.suggest import hint_at


class ConfigError(ValueError, KeyError):
    """A config says something that cannot be: an unknown key, a wrong type, broken YAML."""

    __str__ = Exception.__str__  # KeyError's own would print the message in quotes


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Have a ValueError be a ConfigError that begins with the key it is about; a name that is not
    known stays what it is, and begins so too."""
    try:
        with naming_unknown(key):
            yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


@contextmanager
def naming_unknown(key: str) -> Iterator[None]:
    """Have the error about a name that is not known begin with the key. For what imports code of
    the user's: its own errors keep their tracebacks."""
    try:
        yield
    except UnknownNameError as error:
        raise UnknownNameError(f"{key}: {error}") from error


def check_arguments(function: Callable[..., Any], arguments: Iterable[str], where: str) -> None:
    """Refuse arguments that a class or function does not take, with the nearest that it does."""
    parameters = signature(function).parameters
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            known = f"its arguments are {', '.join(parameters)}" if parameters else "it takes none"
            hint = hint_at(name, parameters) or f"; {known}"
            raise ConfigError(f"{where}: {_name_of(function)} has no argument {name!r}{hint}")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def nearest_keys(key: str, known: Iterable[str]) -> str:
    """'did you mean SOLVER.BASE_LR?' for a mistyped or misplaced dotted key, or ''.

    Names the closest key in the same section and the keys of that very name in others; where there
    are none, the closest key anywhere.
    """
    known = list(known)
    section = key.rpartition(".")[0]
    beside = [candidate for candidate in known if candidate.rpartition(".")[0] == section]
    elsewhere = [candidate for candidate in known if _name(candidate) == _name(key)]
    nearest = (
        _closest_name(key, beside) + difflib.get_close_matches(key, elsewhere, n=2, cutoff=0.0)
        or difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        or _closest_name(key, known)
    )
    return f"did you mean {' or '.join(dict.fromkeys(nearest))}?" if nearest else ""


def _closest_name(key: str, known: list[str]) -> list[str]:
    by_name = {_name(candidate): candidate for candidate in known}
    matches = difflib.get_close_matches(_name(key), list(by_name), n=1, cutoff=0.7)
    return [by_name[match] for match in matches]


def _name(key: str) -> str:
    return key.rpartition(".")[2].lower()
