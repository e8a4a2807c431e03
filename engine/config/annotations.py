"""What type an argument must have: the one that its annotation names."""

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from engine.config.value_types import NAMES


def fit_annotation(value: Any, annotation: Any) -> Any:
    """`value` as the annotation of an argument has it, or a TypeError that says what was expected.

    1e3 is 1000 where only whole numbers belong. Annotations other than numbers, text, lists,
    mappings, functions and choices of these accept anything: a hook may make a `Path` of text.
    """
    if _fits(value, annotation):
        return value
    if isinstance(value, float) and value.is_integer() and _fits(int(value), annotation):
        return int(value)
    raise TypeError(f"expected {_describe(annotation)}")


def _fits(value: Any, annotation: Any) -> bool:
    return any(_is_a(kind, value) for kind in _kinds(annotation))


def _kinds(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _is_a(kind: Any, value: Any) -> bool:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (int, float):
        numbers = int if origin is int else int | float
        return isinstance(value, numbers) and not isinstance(value, bool)
    if origin in (str, bool, NoneType):
        return isinstance(value, origin)
    if origin is Literal:
        return value in inner
    if origin is Callable:
        return callable(value)
    if origin in (list, Sequence):
        is_list = isinstance(value, list | tuple)
        return is_list and all(_fits(item, each) for item in value for each in inner)
    if origin in (dict, Mapping):
        return isinstance(value, dict)
    return True


def _describe(annotation: Any) -> str:
    return " or ".join(map(_describe_one, _kinds(annotation)))


def _describe_one(kind: Any) -> str:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Callable:
        return "a function (package.module:function)"
    if origin in (list, Sequence):
        return "a list" + "".join(f", each item {_describe(each)}" for each in inner)
    if origin in (dict, Mapping):
        return "a mapping"
    return "null" if kind is NoneType else NAMES.get(kind, getattr(kind, "__name__", str(kind)))
