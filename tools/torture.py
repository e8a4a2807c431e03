#!/usr/bin/env python3
"""Kill a training run again and again, and compare what it leaves with an undisturbed run.

    python tools/torture.py --kills 50 --config-file configs/digits/cnn.yaml
    python tools/torture.py --kills 50 --config-file … --fresh DATALOADER.NUM_WORKERS 2

The job of `tools/train_net.py` runs once undisturbed. Then it runs in other folders, where its
whole process group is killed (SIGKILL) at random moments and started again with `--resume`, until
it comes to its end. A good share of the kills falls inside a save: a temporary file shows that one
is under way. The exit code is 0 only if nothing differs in the end, times left out.
"""

import argparse
import multiprocessing
import os
import random
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from compare_runs import DIFFERENCES, Comparison
from tabulate import tabulate

from engine.config import get_cfg
from engine.data import MetadataCatalog
from engine.startup import mistakes_in_one_line
from engine.utils.cpu_bfloat16 import has_working_bfloat16_kernels

TRAIN_NET = Path(__file__).with_name("train_net.py")

JOB = {
    "SEED": 0,
    "SOLVER.MAX_ITER": 60,
    "SOLVER.CHECKPOINT_PERIOD": 10,
    "CHECKPOINT.KEEP_LAST": 2,
    "TEST.EVAL_PERIOD": 15,
    "LOG_PERIOD": 7,
    "EMA.ENABLED": True,
    "EMA.DECAY": 0.9,
}
"""A short job with much that has state, and periods that meet now and then; overrides win."""

BEST_METRIC = {
    "classification": "+classification/accuracy",
    "language_model": "-language_model/loss",
}
"""By the kind of evaluator."""

MOMENTS = {"start-up": 2, "training": 2, "save": 8, "metrics": 2, "evaluation": 2, "end": 2}
"""When to kill, and how often each is chosen."""

LINES = {
    "training": "Starting training from",
    "evaluation": "Evaluating on",
    "end": "Total training time",
}
"""What the job prints when a moment has come."""

PART_OF_CHECKPOINT = re.compile(r".*(\.pth|last_checkpoint|manifest\.json)\.\w+\.tmp")
MOST_FAILURES = 5  # more of them teach nothing new


# --- killing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When to kill: `delay` seconds after its `count`-th sign."""

    name: str
    count: int = 1
    delay: float = 0.0


class Run:
    """One job in one folder, started as often as it takes.

    `kills` has the name of the moment of each kill, and whether it fell inside a save: then a part
    of a checkpoint is left.
    """

    def __init__(self, arguments: list[str], folder: Path, fresh: bool, timeout: float) -> None:
        self.folder = folder
        self.kills: list[tuple[str, bool]] = []
        self.failure = ""
        self.is_finished = False
        self.moment: Moment | None = None
        self._arguments = [*arguments, "--resume", f"OUTPUT_DIR={folder}"]
        self._fresh, self._timeout = fresh, timeout
        self._starts = 0
        folder.mkdir(parents=True)

    def start(self, moment: Moment | None) -> None:
        """Start or resume it, to be killed at the moment."""
        self.moment = moment
        self.output = self.folder.with_name(f"{self.folder.name}_start_{self._starts:03d}.txt")
        self._starts += 1
        self._old_parts = self._parts_of_checkpoints()
        self._had_checkpoint = any(self.folder.glob("model_0*.pth"))
        self._signs: set[Any] = set()
        self._due = float("inf")
        self.began = time.monotonic()
        self._process = multiprocessing.get_context("fork").Process(
            target=_become_job, args=(self._arguments, self.output, self._fresh)
        )
        self._process.start()

    def is_over(self) -> bool:
        """Whether this start has come to its end; kills it if the moment is there."""
        if self._process.exitcode is None:
            now = time.monotonic()
            if now - self.began > self._timeout:
                self.failure = f"not finished after {self._timeout:.0f} s"
            elif not self._is_due(now):
                return False
            self.kill()
        self._note_end()
        self.moment = None
        return True

    def kill(self) -> None:
        """Kill it with all its workers."""
        with suppress(ProcessLookupError):  # it has no group yet, or is no longer
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def _is_due(self, now: float) -> bool:
        if self.moment is None:
            return False
        if self._due == float("inf") and self._count_signs(self.moment.name) >= self.moment.count:
            self._due = now + self.moment.delay
        return now >= self._due

    def _count_signs(self, name: str) -> int:
        if name == "start-up":
            return 1
        if name == "save":
            self._signs |= self._parts_of_checkpoints() - self._old_parts
            return len(self._signs)
        if name == "metrics":
            with suppress(FileNotFoundError):
                stat = (self.folder / "metrics.json").stat()
                self._signs.add((stat.st_ino, stat.st_size))
            return len(self._signs) - 1  # the first is how it was
        return self.read_output().count(LINES[name])

    def _note_end(self) -> None:
        code = self._process.exitcode
        if self.failure:
            return
        if self._had_checkpoint and "Nothing to resume" in self.read_output():
            self.failure = "it started from the beginning, though there was a checkpoint"
        elif code == -signal.SIGKILL and self.moment:
            is_in_save = bool(self._parts_of_checkpoints() - self._old_parts)
            self.kills.append((self.moment.name, is_in_save))
        elif code == 0:
            self.is_finished = True
        else:
            self.failure = f"exit code {code}: …{self.read_output()[-600:]}"

    def _parts_of_checkpoints(self) -> set[str]:
        return set(filter(PART_OF_CHECKPOINT.fullmatch, os.listdir(self.folder)))

    def read_output(self) -> str:
        """What this start has printed so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def _become_job(arguments: list[str], output: Path, fresh: bool) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    command = [str(TRAIN_NET), *arguments]
    if fresh:
        os.execv(sys.executable, [sys.executable, *command])
    sys.argv = command
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        output.with_suffix(".modules").write_text("\n".join(sys.modules))


def run_undisturbed(run: Run) -> dict[str, float]:
    """Run it to its end; returns how many seconds its start-up and its training take."""
    trains_since = None
    run.start(None)
    while not run.is_over():
        if trains_since is None and LINES["training"] in run.read_output():
            trains_since = time.monotonic()
        time.sleep(0.01)
    middle, end = trains_since or time.monotonic(), time.monotonic()
    return {"start-up": middle - run.began, "training": end - middle}


def preload_modules(run: Run) -> None:
    """Import all that the job does: one that is forked from here then starts in no time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in run.output.with_suffix(".modules").read_text().split("\n"):
            with suppress(Exception):
                import_module(name)
    has_working_bfloat16_kernels()  # a process tries it, and forks inherit the answer


def draw_moment(rng: random.Random, seconds: dict[str, float]) -> Moment:
    """A moment to kill at; `seconds` says how long start-up and training take."""
    name = rng.choices(list(MOMENTS), list(MOMENTS.values()))[0]
    if name in seconds:
        return Moment(name, delay=rng.uniform(0, seconds[name]))
    if name == "end":
        return Moment(name, delay=rng.uniform(0, 0.2))
    # At once, to be inside of it; or a little later, between it and what follows.
    delay = rng.choice([0.0, rng.uniform(0, 0.002), rng.uniform(0, 0.02)])
    return Moment(name, rng.randint(1, 3), delay)


def torment(
    new_run: Callable[[int], Run],
    kills: int,
    jobs: int,
    rng: random.Random,
    seconds: dict[str, float],
) -> list[Run]:
    """Kill runs, `jobs` at a time, until there are so many kills and all have come to their end."""
    runs: list[Run] = []
    active: list[Run] = []

    def next_moment() -> Moment | None:
        planned = sum(len(run.kills) + (run.moment is not None) for run in runs)
        return draw_moment(rng, seconds) if planned < kills else None

    try:
        while True:
            for run in [run for run in active if run.is_over()]:
                if run.failure or run.is_finished:
                    active.remove(run)
                else:
                    run.start(next_moment())
            is_failing = sum(bool(run.failure) for run in runs) >= MOST_FAILURES
            while len(active) < jobs and not is_failing and (moment := next_moment()):
                runs.append(new_run(len(runs)))
                active.append(runs[-1])
                runs[-1].start(moment)
            if not active:
                return runs
            time.sleep(0.0003)
    finally:
        for run in active:
            run.kill()


# --- the program --------------------------------------------------------------------------------


def job_arguments(config_file: str, overrides: list[str]) -> list[str]:
    """Arguments for `train_net.py`: the config, shortened to JOB, then the overrides."""
    cfg = get_cfg()
    cfg.merge_from_file(config_file)
    job = dict(JOB)
    if len(names := cfg.DATASETS.VAL or cfg.DATASETS.TEST) == 1:
        kind = MetadataCatalog.get(names[0]).get("evaluator_type")
        job["CHECKPOINT.BEST_METRIC"] = BEST_METRIC.get(kind, "")
    pairs = [f"{key}={value}" for key, value in job.items()]
    cfg.merge_from_list([*pairs, *overrides])  # a mistake is an error now
    return ["--config-file", config_file, *pairs, *overrides]


def report(runs: list[Run], comparisons: list[Comparison]) -> str:
    """The kills by moment, and what differs."""
    by_moment = {name: [s for run in runs for at, s in run.kills if at == name] for name in MOMENTS}
    kills = [(name, len(found), sum(found)) for name, found in by_moment.items()]
    kills.append(("all", sum(row[1] for row in kills), sum(row[2] for row in kills)))
    counts = sum((c.counts for c in comparisons), Counter({"runs compared": len(comparisons)}))
    counts["resumes that failed"] = sum(bool(run.failure) for run in runs)
    rows = [(what, counts[what]) for what in ("runs compared", "resumes that failed", *DIFFERENCES)]
    headers = ("killed in", "kills", "of them inside a save")
    return f"{tabulate(kills, headers)}\n\n{tabulate(rows, ('', 'count'))}"


def main(args: argparse.Namespace, arguments: list[str], folder: Path) -> bool:
    """Run it all below a folder, and print what comes out; returns whether nothing differs."""
    make = partial(Run, arguments, fresh=args.fresh, timeout=args.timeout)
    try:
        reference = make(folder=folder / "reference")
    except OSError as error:
        sys.exit(f"{error.filename} cannot be made ({error.strerror}): name another --output-dir")
    seconds = run_undisturbed(reference)
    if not reference.is_finished:
        sys.exit(f"the undisturbed run failed: {reference.failure}")
    if not args.fresh:
        preload_modules(reference)
        seconds["start-up"] /= 4  # most of it was imports
    began = time.monotonic()
    runs = torment(
        lambda number: make(folder=folder / f"victim_{number:03d}"),
        args.kills,
        args.jobs,
        random.Random(args.seed),
        seconds,
    )
    minutes = (time.monotonic() - began) / 60
    # Only now: processes are not forked from one that has computed with torch.
    compared = [(run, Comparison(reference.folder, run.folder)) for run in runs if run.is_finished]
    print(report(runs, [comparison for _, comparison in compared]))
    print(f"\n{minutes:.1f} minutes, {sum(len(run.kills) + 1 for run in runs)} starts")
    for run in runs:
        if run.failure:
            print(f"\n{run.folder} failed, see {run.output}: {run.failure}")
    for run, comparison in compared:
        if comparison.notes:
            print(f"\n{run.folder} differs from {reference.folder}\n{comparison.summary()}")
    is_exact = not any(run.failure for run in runs) and not any(c.notes for _, c in compared)
    return is_exact and bool(compared)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="how many, over all runs")
    parser.add_argument("--config-file", required=True, metavar="FILE", help="a YAML config")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one start")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="a new interpreter for each start: slow, but as in life",
    )
    parser.add_argument("--output-dir", help="folder for all runs, kept; else a temporary one")
    parser.add_argument("opts", nargs="*", default=[], metavar="KEY VALUE", help="overrides")
    args = parser.parse_intermixed_args()
    if args.kills < 1:
        parser.error("--kills must be 1 or more: without a kill there is nothing to compare")
    if args.jobs < 1:
        parser.error("--jobs must be 1 or more: without a run there is nothing to kill")
    sys.path.insert(0, os.getcwd())  # trainers of projects in this folder
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # such that no job is left behind
    with mistakes_in_one_line():
        arguments = job_arguments(args.config_file, args.opts)
    folder = Path(args.output_dir or tempfile.mkdtemp(prefix="torture-"))
    is_exact = main(args, arguments, folder)
    if is_exact and not args.output_dir:
        shutil.rmtree(folder)
    sys.exit(not is_exact)
