"""Runs: what a page shows of each, read from the files in its folder."""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.manifest import Manifest
from engine.config.yaml_text import load_yaml
from engine.report.curves import Curve, make_curve
from engine.report.metrics import read_metrics
from engine.utils.flatten import flatten
from engine.utils.lengths import parse_length

MOST_POINTS = 400_000  # on a page, about: 8 MB
MOST_BUCKETS = 250  # of a curve: more than a chart has room for


@dataclass(frozen=True)
class Run:
    """One run: its name on the page, the facts in its heading, config and metrics."""

    name: str
    facts: dict[str, str]
    config: str  # as in config.yaml; "" if there is none
    settings: dict[str, Any]  # the same on one level
    curves: dict[str, Curve]


def read_runs(folders: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """The runs in some OUTPUT_DIRs; a run may still be going on.

    They are called by their folders, and told apart by paths where two of these have one name.
    """
    paths = [Path(os.path.abspath(folder)) for folder in folders]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise ValueError(f"{path} is given twice: name each run once")
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        parent = os.path.commonpath([path.parent for path in paths])
        names = [os.path.relpath(path, parent) for path in paths]
    share = MOST_POINTS // len(paths)
    return [read_run(path, name, share) for path, name in zip(paths, names, strict=True)]


def read_run(folder: Path, name: str, most_points: int = MOST_POINTS) -> Run:
    """The run in a folder, with about so many points of its curves at most."""
    path = folder / "metrics.json"
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder: give the OUTPUT_DIR of a run")
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: give the OUTPUT_DIR of a run that has written metrics"
        )
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
    metrics = read_metrics(path)
    last = max((int(iterations[-1]) for iterations, _ in metrics.values()), default=-1)
    buckets = min(max(most_points // (4 * len(metrics) or 1), 10), MOST_BUCKETS)
    config = _read(folder / "config.yaml")
    settings = flatten(load_yaml(config, str(folder / "config.yaml"))) if config else {}
    facts = {
        "folder": str(folder),
        "started": _last_start(folder),
        "last metrics": written,
        "iteration": _progress(folder, last, settings),
        **_environment(_read(folder / "environment.txt")),
        "commit": _commit(folder),
    }
    return Run(
        name=name,
        facts={fact: text for fact, text in facts.items() if text},
        config=config,
        settings=settings,
        curves={name: make_curve(name, *metrics.pop(name), buckets) for name in sorted(metrics)},
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _last_start(folder: Path) -> str:
    lines = _read(folder / "command.txt").splitlines()
    starts = [line[:19] for line in lines if "--eval-only" not in line]
    return starts[-1] if starts else ""


def _progress(folder: Path, last: int, settings: dict[str, Any]) -> str:
    """How far a run has come, and whether that is its end, where the files tell."""
    if last < 0:
        return "no metrics yet"
    max_iter = settings.get("SOLVER.MAX_ITER", settings.get("train.max_iter"))
    length, epochs = parse_length(max_iter) or (0, 0.0)
    done = f"{last} of {length}" if length else str(last)
    if epochs:
        done = f"{last} (run of {max_iter})"
    checkpoint = _read(folder / "last_checkpoint").strip()
    if checkpoint.removesuffix(".pth").endswith("_final"):
        saved = Manifest(str(folder)).records().get(checkpoint, {}).get("iteration", last)
        if last <= saved + 1:  # else it is trained further; results have the iteration after
            return f"{done}, finished"
    is_on_its_way = checkpoint or last + 1 < length
    return f"{done}, not finished" if is_on_its_way else done


def _environment(text: str) -> dict[str, str]:
    """Versions and devices from an environment.txt, in short."""
    rows = dict(re.findall(r"^(\S+(?: \S+)*) {2,}(\S.*)$", text, re.MULTILINE))
    devices = [about for name, about in rows.items() if re.fullmatch(r"(cuda|xpu):\d+", name)]
    if not devices:
        devices = ["MPS" if rows.get("MPS") == "available" else "CPU"]
    if "torch" not in rows:
        return {}
    device = devices[0] if len(devices) == 1 else f"{len(devices)} × {devices[0]}"
    return {"torch": rows["torch"].split()[0], "device": device}


def _commit(folder: Path) -> str:
    """The commit that was checked out when the run was last started."""
    try:
        state = json.loads(_read(max(folder.glob("code_*/git.json"))))
        return state["commit"][:10] + (" with changes" if state["status"] else "")
    except (KeyError, TypeError, ValueError):  # there was no git
        return ""
