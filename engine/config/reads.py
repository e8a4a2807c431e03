"""Which settings were read: start-up lists those a user gave and nothing looked at."""

from collections.abc import Iterator
from typing import Any

from engine.config.node import DEFAULTS, READS, CfgNode
from engine.config.value_types import MARKS


class ReadKeys(set[str]):
    """The keys read from one node and from its copies."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReadKeys":
        return self


def track_reads(cfg: CfgNode) -> None:
    """From now on, remember which keys are read from `cfg` and from its clones.

    Once it is on, another call changes nothing.
    """
    if not is_tracked(cfg):
        cfg.__dict__[READS] = ReadKeys()
    for value in cfg.values():
        if isinstance(value, CfgNode):
            track_reads(value)


def is_tracked(cfg: CfgNode) -> bool:
    """Whether it is remembered which keys are read."""
    return cfg.__dict__[READS] is not None


def unread_keys(cfg: CfgNode) -> list[str]:
    """Keys that a file or the command line changed from the default and that nothing has read.

    A section of which no single key was read was taken as a whole (`**cfg.PARALLEL.DDP`), and a
    free-form one always is.
    """
    if not is_tracked(cfg):
        raise ValueError("reads of this config are not tracked: call track_reads(cfg) first")
    return list(_unread(cfg, ""))


def _unread(node: CfgNode, prefix: str) -> Iterator[str]:
    reads = node.__dict__[READS]
    for key, value in node.items():
        if isinstance(value, CfgNode):
            as_a_whole = value.is_new_allowed() or not value.__dict__[READS]
            if not (as_a_whole and key in reads):
                yield from _unread(value, f"{prefix}{key}.")
        elif key not in reads and _changed(node, key):
            yield f"{prefix}{key}"


def _changed(node: CfgNode, key: str) -> bool:
    defaults = node.__dict__[DEFAULTS]
    if key not in defaults:
        return False
    default = defaults[key]
    default = default.spec if isinstance(default, MARKS) else default
    return dict.get(node, key) != default
