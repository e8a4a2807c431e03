"""Entries of lists in a config, each of which describes an object: {NAME: …, and arguments}."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from engine.config.annotations import fit_annotation
from engine.config.errors import ConfigError, check_arguments, naming, naming_unknown
from engine.utils.registry import Registry, find, locate

TEXT = (str, "str", str | None, "str | None")  # how arguments that take text are annotated
IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def build_entry(
    key: str,
    settings: Any,
    registry: Registry,
    offered: Mapping[str, Any],
    kind: type = object,
) -> Any:
    """The `kind` that an entry of the list `key` describes, such as {NAME: EMAHook, START: 500}.

    A function among its arguments is named by its import path: {…, DRAW: package.module:draw}.
    What is offered fills arguments of that name that the entry does not have, and that have no
    default. Values that do not fit the annotations of their arguments are refused.
    """
    if not isinstance(settings, dict) or not isinstance(settings.get("NAME"), str):
        raise ConfigError(f"an entry of {key} is {{NAME: …, and arguments}}, got {settings!r}")
    arguments = {str(name).lower(): value for name, value in settings.items()}
    with naming_unknown(key):
        maker = find(registry, arguments.pop("name"))
    where = f"{key}: {settings['NAME']}"
    check_arguments(maker, arguments, key)
    signature = _signature(maker)
    for name, parameter in signature.parameters.items():
        if name in offered and parameter.default is parameter.empty:
            arguments.setdefault(name, offered[name])
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; its arguments are {signature}") from error
    with naming_unknown(where):
        fitted, wrong = _fit(arguments, signature)
    with naming(where):
        made = _make(maker, fitted, wrong)
    if not isinstance(made, kind):
        raise ConfigError(f"{where} is no {kind.__name__}, but {made!r:.80}")
    return made


def _signature(maker: Any) -> inspect.Signature:
    try:
        return inspect.signature(maker, eval_str=True)
    except Exception:  # an annotation that only type checkers can read
        return inspect.signature(maker)


def _fit(arguments: dict[str, Any], signature: inspect.Signature) -> tuple[dict[str, Any], str]:
    """The arguments as their annotations have them, and what is wrong with the first of them."""
    known = signature.parameters
    others = next((one for one in known.values() if one.kind is one.VAR_KEYWORD), None)
    fitted, wrong = dict(arguments), ""
    for name, value in arguments.items():
        parameter = known.get(name, others)
        if parameter is None or value is parameter.default:
            continue
        is_text = parameter.annotation in TEXT
        if isinstance(value, str) and not is_text and IMPORT_PATH.fullmatch(value):
            value = locate(value)
        try:
            fitted[name] = fit_annotation(value, parameter.annotation)
        except TypeError as error:
            wrong = wrong or f"{name.upper()}: {error}, got {value!r:.80}"
    return fitted, wrong


def _make(maker: Any, arguments: dict[str, Any], wrong: str) -> Any:
    """What the maker makes, unless an argument is `wrong`. It is called all the same: where it
    refuses the value itself, it may know an example."""
    is_ours = maker.__module__.partition(".")[0] == "engine"
    try:
        made = maker(**arguments)
    except (TypeError, AttributeError) as error:
        if wrong or (is_ours and isinstance(error, TypeError)):
            raise ValueError(wrong or str(error)) from error
        raise  # a mistake in a class of the user's own: its traceback says where
    if wrong:
        raise ValueError(wrong)
    return made
