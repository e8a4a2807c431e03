"""Entries of lists in a config, each of which describes an object: {NAME: …, and arguments}."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from engine.config.errors import ConfigError, check_arguments, naming
from engine.utils.registry import Registry, find, locate

TEXT = (str, "str", str | None, "str | None")  # how arguments that take text are annotated
IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def build_entry(key: str, settings: Any, registry: Registry, offered: Mapping[str, Any]) -> Any:
    """The object that an entry of the list `key` describes, such as {NAME: EMAHook, START: 500}.

    A function among its arguments is named by its import path: {…, DRAW: package.module:draw}.
    What is offered fills arguments of that name that the entry does not have, and that have no
    default.
    """
    if not isinstance(settings, dict) or not isinstance(settings.get("NAME"), str):
        raise ConfigError(f"an entry of {key} is {{NAME: …, and arguments}}, got {settings!r}")
    arguments = {str(name).lower(): value for name, value in settings.items()}
    maker = find(registry, arguments.pop("name"))
    check_arguments(maker, arguments, key)
    where = f"{key}: {settings['NAME']}"
    signature = inspect.signature(maker)
    for name, parameter in signature.parameters.items():
        if name in offered and parameter.default is parameter.empty:
            arguments.setdefault(name, offered[name])
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; its arguments are {signature}") from error
    for name in arguments.keys() & signature.parameters:
        value, takes_text = arguments[name], signature.parameters[name].annotation in TEXT
        if isinstance(value, str) and not takes_text and IMPORT_PATH.fullmatch(value):
            arguments[name] = locate(value)
    with naming(where):
        return maker(**arguments)
