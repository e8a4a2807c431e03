"""Catalogs: data sets, and what is known about them, by name."""

from collections import UserDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import ChainDataset, ConcatDataset, IterableDataset

from engine.data.dataset import DatasetFromList
from engine.utils.registry import UnknownNameError
from engine.utils.suggest import did_you_mean, hint_at


class CatalogError(ValueError, AssertionError):
    """A name has a data set, or an attribute a value. (detectron2 has an AssertionError there.)"""


class _DatasetCatalog(UserDict[str, Callable[[], Any]]):
    """Functions that return a data set (a list of samples, or a torch data set), by name.

    Nothing is read before `get`.
    """

    def register(self, name: str, func: Callable[[], Any]) -> None:
        if not callable(func):
            raise TypeError(
                f"data set {name!r} must be registered with a function that returns it, "
                f"got {type(func).__name__}"
            )
        if name in self.data:
            raise CatalogError(
                f"data set {name!r} is registered already; "
                f"to replace it, call DatasetCatalog.remove({name!r}) first"
            )
        self.data[name] = func

    # UserDict's get has a default; a data set that nobody registered has none.
    def get(self, name: str) -> Any:  # type: ignore[override]
        """Call the function registered under `name` and return its data set."""
        if name not in self.data:
            raise UnknownNameError(
                f"no data set is registered as {name!r}{hint_at(name, self.data)} "
                f"(registered: {', '.join(self.list()) or 'none'})"
            )
        return self.data[name]()

    def list(self) -> Sequence[str]:
        return sorted(self.data)

    def remove(self, name: str) -> None:
        self.pop(name)


class Metadata:
    """What is known about one data set, as attributes: `metadata.classes`.

    An attribute is set once: giving it another value later is an error.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):  # asked for by copy and pickle, before there is a name
            raise AttributeError(key)
        known = [known for known in self.__dict__ if known != "name"]
        hint = did_you_mean(key, known) or did_you_mean(self.name, DatasetCatalog.list())
        raise AttributeError(
            f"metadata of data set {self.name!r} has no {key!r}{hint and f'; {hint}'} "
            f"(it has: {', '.join(known) or 'nothing'})"
        )

    def __setattr__(self, key: str, value: Any) -> None:
        if key in self.__dict__ and self.__dict__[key] != value:
            raise CatalogError(
                f"metadata {key!r} of data set {self.name!r} is {self.__dict__[key]!r} and "
                f"cannot become {value!r}; to start over, call "
                f"MetadataCatalog.remove({self.name!r})"
            )
        self.__dict__[key] = value

    def set(self, **values: Any) -> "Metadata":
        for key, value in values.items():
            setattr(self, key, value)
        return self

    def get(self, key: str, default: Any = None) -> Any:
        return self.__dict__.get(key, default)

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __repr__(self) -> str:
        return f"Metadata({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"


class _MetadataCatalog(UserDict[str, Metadata]):
    """The metadata of each data set, by name."""

    # UserDict's get has a default; here the default is always a new, empty Metadata.
    def get(self, name: str) -> Metadata:  # type: ignore[override]
        """The one metadata object of `name`, made empty if it is asked for the first time."""
        return self.data.setdefault(name, Metadata(name))

    def list(self) -> Sequence[str]:
        return sorted(self.data)

    def remove(self, name: str) -> None:
        self.pop(name)


DatasetCatalog = _DatasetCatalog()
MetadataCatalog = _MetadataCatalog()


def get_dataset(names: str | Sequence[str]) -> Any:
    """The registered data set of that name, or several one after the other as one."""
    if isinstance(names, str):
        return _named(DatasetCatalog.get(names), names)
    if not names:
        raise ValueError("no data set is named: give at least one")
    parts = [get_dataset(name) for name in names]
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, IterableDataset) for part in parts):
        return ChainDataset(parts)
    return ConcatDataset(
        [DatasetFromList(part) if isinstance(part, list) else part for part in parts]
    )


class _NamedList(list):
    catalog_name: str


def _named(dataset: Any, name: str) -> Any:
    """The data set with its name on it, for messages about its samples."""
    if type(dataset) is list:
        dataset = _NamedList(dataset)
    with suppress(AttributeError):  # of a class that takes none
        dataset.catalog_name = name
    return dataset
