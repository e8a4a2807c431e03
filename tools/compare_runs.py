#!/usr/bin/env python3
"""Whether two runs have left the same: checkpoints, metrics, results and TensorBoard's curves.

    python tools/compare_runs.py output/first output/second

All is compared bit by bit; times are left out. The exit code is 0 if nothing differs, 1 if
something does, and 2 if a folder cannot be read.
"""

import argparse
import json
import logging
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint.file import read_file
from engine.checkpoint.folder import is_listed
from engine.checkpoint.sharded import read_sharded
from engine.utils.console import reader_may_leave

DIFFERENCES = (
    "bits that differ",
    "checkpoints missing or left over",
    "half-written files left over",
    "iterations missing",
    "iterations doubled",
    "iterations left over",
    "iterations out of order",
    "metric values that differ",
    "TensorBoard points missing",
    "TensorBoard points doubled",
    "TensorBoard points left over",
)

TIME = re.compile(r"(^|[/_])(time|eta|seconds)([/_]|$)")
# A config has the name of its folder; how long the files of writers are depends on times in them.
LEFT_OUT = re.compile(rf"{TIME.pattern}|^config$|^PeriodicWriter(#\d+)?$")

Point = tuple[str, int, bytes]  # tag, step, bits of the value: a NaN is equal to itself


class Comparison:
    """What differs between the folder of a reference and another one: counted, and by name."""

    def __init__(self, reference: Path, folder: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.notes: dict[str, list[str]] = {}
        self._compare_checkpoints(reference, folder)
        for path in folder.glob("*.tmp"):
            self._add("half-written files left over", path.name)
        self._compare_metrics(reference / "metrics.json", folder / "metrics.json")
        self._compare_results(reference / "results.json", folder / "results.json")
        self._compare_points(read_points(reference), read_points(folder))

    def _add(self, what: str, note: str, count: int = 1) -> None:
        self.notes[what] = [*self.notes.get(what, []), note]
        self.counts[what] += count

    def summary(self, most: int = 4) -> str:
        """How much there is of each difference, and the first few by name."""
        lines = []
        for what, notes in self.notes.items():
            lines += [f"  {self.counts[what]} {what}:", *(f"    {note}" for note in notes[:most])]
        return "\n".join(lines)

    def _compare_checkpoints(self, reference: Path, folder: Path) -> None:
        names, others = checkpoints_in(reference), checkpoints_in(folder)
        for name in sorted(names ^ others):
            self._add("checkpoints missing or left over", name)
        for name in sorted(names & others):
            one, other = load(reference / name), load(folder / name)
            for path, bits in differences(one, other, name):
                self._add("bits that differ", f"{bits} in {path}", bits)

    def _compare_metrics(self, reference: Path, other: Path) -> None:
        rows, others = read_rows(reference), read_rows(other)
        at, others_at = [row["iteration"] for row in rows], [row["iteration"] for row in others]
        for iteration in (Counter(at) - Counter(others_at)).elements():
            self._add("iterations missing", str(iteration))
        for iteration in (Counter(others_at) - Counter(at)).elements():
            is_twice = others_at.count(iteration) > 1
            self._add(f"iterations {'doubled' if is_twice else 'left over'}", str(iteration))
        if others_at != sorted(others_at):
            self._add("iterations out of order", str(others_at))
        by_iteration = {row["iteration"]: row for row in others}
        for row in rows:
            iteration = row["iteration"]
            for path, _ in differences(row, by_iteration.get(iteration, row), ""):
                self._add("metric values that differ", f"{path[1:]} at {iteration}")

    def _compare_results(self, reference: Path, other: Path) -> None:
        one, another = (
            read_json(path, read_text(path)) if path.exists() else None
            for path in (reference, other)
        )
        for path, _ in differences(one, another, "results.json"):
            self._add("metric values that differ", path)

    def _compare_points(self, points: Counter[Point], others: Counter[Point]) -> None:
        for point in (points - others).elements():
            self._add("TensorBoard points missing", _describe(point))
        places = Counter((tag, step) for tag, step, _ in others.elements())
        for point in (others - points).elements():
            what = "doubled" if places[point[:2]] > 1 else "left over"
            self._add(f"TensorBoard points {what}", _describe(point))


def checkpoints_in(folder: Path) -> set[str]:
    """Their names: files, and folders of shards."""
    return {p.name for p in folder.iterdir() if p.suffix == ".pth" or is_listed(str(p))}


def load(checkpoint: Path) -> dict[str, Any]:
    """All that a checkpoint holds, in whole tensors."""
    if checkpoint.is_dir():
        return read_sharded(str(checkpoint))
    return read_file(str(checkpoint))


def differences(one: Any, other: Any, path: str) -> Iterator[tuple[str, int]]:
    """Where two values of checkpoints differ, and in how many bits; times are left out.

    What is missing or is not a number counts as one bit.
    """
    if type(one) is not type(other):
        yield f"{path} ({one!r:.40} and {other!r:.40})", 1
    elif isinstance(one, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if not LEFT_OUT.search(str(key)):
                yield from differences(one.get(key), other.get(key), f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            yield f"{path} ({len(one)} and {len(other)} values)", 1
        for index, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{path}/{index}")
    elif isinstance(one, torch.Tensor):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            yield f"{path} ({one.dtype} {tuple(one.shape)}, {other.dtype} {tuple(other.shape)})", 1
        elif bits := _differing_bits(_bytes(one), _bytes(other)):
            yield path, bits
    elif isinstance(one, float):
        if bits := _differing_bits(struct.pack("d", one), struct.pack("d", other)):
            yield f"{path} ({one} and {other})", bits
    elif one != other:
        yield f"{path} ({one!r:.40} and {other!r:.40})", 1


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _differing_bits(one: bytes, other: bytes) -> int:
    if one == other:
        return 0
    return bin(int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).count("1")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.json, but for one at the end that is being written."""
    if not path.exists():
        return []
    *lines, _ = read_text(path).split("\n")
    rows = [read_json(path, line) for line in lines]
    for row in rows:
        if not (isinstance(row, dict) and "iteration" in row):
            raise ValueError(f"{path}: a line has no iteration: {row!r:.60}")
    return rows


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from None


def read_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: {text!r:.60} is no JSON: {error}") from None


def read_points(folder: Path) -> Counter[Point]:
    """The scalars that TensorBoard shows for a folder, times left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of what was taken back
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return Counter(
        (tag, event.step, struct.pack("d", event.value))
        for tag in events.Tags()["scalars"]
        if not TIME.search(tag)
        for event in events.Scalars(tag)
    )


def _describe(point: Point) -> str:
    tag, step, bits = point
    return f"{tag} = {struct.unpack('d', bits)[0]} at {step}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference", type=Path, help="OUTPUT_DIR of a run")
    parser.add_argument("other", type=Path, help="that of another")
    args = parser.parse_args()
    try:
        for folder in (args.reference, args.other):
            if not folder.is_dir():
                raise ValueError(f"there is no folder {folder}")
            if not (checkpoints_in(folder) or (folder / "metrics.json").exists()):
                raise ValueError(f"{folder} holds no run: neither checkpoints nor a metrics.json")
        comparison = Comparison(args.reference, args.other)
    except (OSError, ValueError) as error:  # with the file that it is about
        print(error, file=sys.stderr)
        sys.exit(2)
    with reader_may_leave():
        print(comparison.summary() or "nothing differs")
    sys.exit(bool(comparison.notes))
