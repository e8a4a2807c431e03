"""Results of evaluations: numbers nested as {"data set": {"task": {"metric": number}}}.

Where rows of metrics are shown, those with a "-" in their names are left out: they are details, as
"accuracy-cat" is one of "accuracy".
"""

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from tabulate import tabulate

from engine.config import CfgNode, ConfigError
from engine.events import has_event_storage
from engine.events.scalar import as_scalar
from engine.utils.files import atomic_write
from engine.utils.suggest import did_you_mean

logger = logging.getLogger(__name__)


def flatten_results_dict(results: Mapping[str, Any]) -> dict[str, float]:
    """All numbers by their full names: {"task/metric": number}; refuses what is not a number."""
    flat: dict[str, float] = {}
    for path, metrics in _rows(results):
        for metric, value in metrics.items():
            name = "/".join((*path, metric))
            if name in flat:
                raise ValueError(f"two results have the name {name!r}: rename one of them")
            flat[name] = value
    return flat


def as_json(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results as JSON can hold them: plain numbers, and null for NaN and infinity."""
    return {
        str(name): as_json(value) if isinstance(value, Mapping) else _as_json(str(name), value)
        for name, value in results.items()
    }


def write_results(results: Mapping[str, Any], path: str) -> None:
    """Write them to a JSON file. In a run that trains they are in its log and metrics too."""
    text = json.dumps(as_json(results), indent=2, allow_nan=False)
    write_or_warn(path, lambda file: file.write(text.encode()))


def read_results(path: str) -> dict[str, Any]:
    """What `write_results` has written, or nothing, where there is no such file."""
    if not os.path.isfile(path):
        return {}

    def with_nan(node: dict[str, Any]) -> dict[str, Any]:
        return {name: math.nan if value is None else value for name, value in node.items()}

    with open(path, encoding="utf-8") as file:
        return json.load(file, object_hook=with_nan)


def write_or_warn(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """Have a file written whole; where a run trains, a disk that is full is a warning only."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with atomic_write(path) as file:
            write(file)
    except OSError as error:
        if not has_event_storage():
            raise
        logger.warning("%s cannot be written: %s", path, error.strerror or error)


def results_table(results: Mapping[str, Any]) -> str:
    """One table: a row for each data set or group, a column for each metric."""
    rows = list(_shown_rows(results))
    if not rows:
        return "no results"
    tasks = {path[-1:] for path, _ in rows}
    task = tasks.pop() if len(tasks) == 1 else ()  # the same everywhere: said once, in the corner
    columns = list(dict.fromkeys(metric for _, metrics in rows for metric in metrics))
    cells = [
        ["/".join(path[: len(path) - len(task)]) or "all", *map(metrics.get, columns)]
        for path, metrics in rows
    ]
    headers = ["".join(task), *columns]
    return tabulate(cells, headers, "pipe", floatfmt=".4f", missingval="", disable_numparse=[0])


def print_csv_format(results: Mapping[str, Any]) -> None:
    """Log results in lines that can be copied into a spreadsheet; grep for "copypaste"."""
    for path, metrics in _shown_rows(results):
        if not path:
            for metric, value in metrics.items():
                logger.info("copypaste: %s=%.4f", metric, value)
            continue
        logger.info("copypaste: Task: %s", "/".join(path))
        logger.info("copypaste: %s", ",".join(metrics))
        logger.info("copypaste: %s", ",".join(f"{value:.4f}" for value in metrics.values()))


def verify_results(cfg: CfgNode, results: Mapping[str, Any]) -> bool:
    """Exit with code 1 unless TEST.EXPECTED_RESULTS came out; True if they did, or none are set.

    Each of them is [task, metric, value, tolerance], with the data set in front where `results`
    has several.
    """
    expected = [_parse(row) for row in cfg.TEST.EXPECTED_RESULTS]
    if not expected:
        return True
    actual = flatten_results_dict(results)
    cells = []
    for name, value, tolerance in expected:
        came = actual.get(name)
        right = came is not None and abs(came - value) <= tolerance  # False for NaN
        missing = f"missing; {did_you_mean(name, actual)}".rstrip("; ")
        cells.append((name, value, tolerance, missing if came is None else came, right))
    table = tabulate(
        [(*cell, "yes" if right else "NO") for *cell, right in cells],
        headers=("result", "expected", "tolerance", "came", "as expected"),
        tablefmt="pipe",
    )
    if not all(right for *_, right in cells):
        logger.error("Results are not as expected:\n%s\nAll results: %s", table, actual)
        sys.exit(1)
    logger.info("Results are as expected:\n%s", table)
    return True


def check_expected_results(cfg: CfgNode) -> None:
    """Refuse TEST.EXPECTED_RESULTS that `verify_results` could not read after the training."""
    for row in cfg.TEST.EXPECTED_RESULTS:
        _parse(row)


def _rows(
    results: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, float]]]:
    """The metrics that stand beside each other, with the keys that lead to them."""
    metrics = {
        str(name): float(as_scalar("/".join((*path, str(name))), value))
        for name, value in results.items()
        if not isinstance(value, Mapping)
    }
    if metrics:
        yield path, metrics
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _rows(value, (*path, str(name)))


def _shown_rows(
    results: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...], dict[str, float]]]:
    for path, metrics in _rows(results):
        shown = {metric: value for metric, value in metrics.items() if "-" not in metric}
        if shown:
            yield path, shown


def _as_json(name: str, value: Any) -> float | None:
    number = value if type(value) is int else float(as_scalar(name, value))
    return number if math.isfinite(number) else None


def _parse(row: Sequence[Any]) -> tuple[str, float, float]:
    try:
        *path, value, tolerance = row
        return "/".join(path), float(value), float(tolerance)
    except (TypeError, ValueError):
        raise ConfigError(
            "TEST.EXPECTED_RESULTS takes rows of [task, metric, value, tolerance], with the data "
            f"set in front where there are several; got {row!r}"
        ) from None
