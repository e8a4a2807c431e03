#!/usr/bin/env python3
"""What the engine costs, as ratios to a bare PyTorch loop measured side by side in one run.

    python tools/benchmark.py [--ddp] [--quick] [--json FILE]

Blocks of 20 bare steps alternate with blocks of 20 engine steps, so that whatever else the machine
does falls on both. An engine's block has a write in its middle: what a write leaves in the caches
slows the steps after it. Each kind of step is measured in several rounds, in turns with the others,
as a machine has faster and slower hours. Times are CPU time of the whole process; intervals are
95 % bootstrap intervals over the blocks, of which the slowest and quickest twentieth are left out.
A row "bare / bare" shows what the measurement itself cannot tell apart.
"""

import argparse
import gc
import json
import logging
import os
import random
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from benchmark_saving import measure_saving
from fvcore.common.param_scheduler import CosineParamScheduler
from tabulate import tabulate
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine import (
    DefaultTrainer,
    EventStorage,
    SimpleTrainer,
    TrainerBase,
    get_event_storage,
    hooks,
)
from engine.config import CfgNode, get_cfg
from engine.evaluation import ClassificationEvaluator, inference_on_dataset
from engine.events import CommonMetricPrinter, EventWriter, JSONWriter, TensorboardXWriter, scalar
from engine.solver import torch_calls

BLOCK = 20  # steps in a block, and the period of the writers
WARMUP = 10  # blocks that are not counted
SIZES = {"small": (64, 64, 32), "medium": (128, 256, 128), "large": (256, 1024, 256)}


class Seconds(NamedTuple):
    """CPU time of the process but for `polling_clocks`, and wall time."""

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> "Seconds":
        polling = sum(map(time.clock_gettime, polling_clocks()))
        return cls(time.process_time() - polling, time.perf_counter())

    def until(self, end: "Seconds") -> "Seconds":
        return Seconds(end.cpu - self.cpu, end.wall - self.wall)


@cache
def polling_clocks() -> list[int]:
    """The CPU clocks of the threads that gloo polls the network with, on Linux: while a message of
    another rank waits for this one they spin, which is no work."""
    clocks = []
    for path in Path("/proc/self/task").glob("*/comm"):
        if path.read_text().strip() == "gloo_tcp_loop":
            clocks.append(~int(path.parent.name) << 3 | 6)  # as of pthread_getcpuclockid
    return clocks


Pairs = list[tuple[Seconds, Seconds]]  # of a block, and of one of the bare loop


class Classifier(nn.Module):
    """An MLP with one hidden layer that returns its loss, and in the engine logs 5 scalars."""

    def __init__(self, inputs: int, hidden: int, logs: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        self.logs = logs

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        if self.logs:
            put_five_scalars(loss)
        return {"loss": loss}


def put_five_scalars(loss: torch.Tensor) -> None:
    storage = get_event_storage()
    storage.put_scalar("cross_entropy", loss)
    storage.put_scalar("cross_entropy_again", loss)
    storage.put_scalar("batch/size", 32)
    storage.put_scalar("batch/share", 0.25)
    storage.put_scalar("batch/weight", 1.0, smoothing_hint=False)


def make_parts(
    size: str, logs: bool, make_model: Callable[..., Classifier] = Classifier
) -> tuple[Classifier, list, torch.optim.Optimizer]:
    inputs, hidden, batch_size = SIZES[size]
    torch.manual_seed(0)
    model = make_model(inputs, hidden, logs)
    batches = [
        (torch.randn(batch_size, inputs), torch.randint(10, (batch_size,))) for _ in range(8)
    ]
    return model, batches, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def bare_block(size: str) -> Callable[[], None]:
    """A function that runs a block of steps of the plainest loop."""
    model, batches, optimizer = make_parts(size, logs=False)
    model.train()
    place = 0

    def run() -> None:
        nonlocal place
        for _ in range(BLOCK):
            loss = model(batches[place % len(batches)])["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            place += 1

    return run


def quick_block(size: str) -> Callable[[], None]:
    """The same with SimpleTrainer's calls into torch."""
    model, batches, optimizer = make_parts(size, logs=False)
    model.train()
    place = 0

    def run() -> None:
        nonlocal place
        for _ in range(BLOCK):
            loss = model(batches[place % len(batches)])["loss"]
            torch_calls.zero_grad(optimizer)
            torch_calls.backward(loss)
            torch_calls.step(optimizer)
            place += 1

    return run


class Interleave(hooks.HookBase):
    """Between blocks of the trainer's steps runs another block, and measures both."""

    priority = hooks.Priority.HIGHEST

    def __init__(self, other_block: Callable[[], None]) -> None:
        self.other_block = other_block
        self.pairs: Pairs = []

    def before_step(self) -> None:
        if self.trainer.iter % BLOCK != BLOCK // 2:
            return
        end = Seconds.now()
        self.other_block()
        other = end.until(Seconds.now())
        if self.trainer.iter > (WARMUP + 1) * BLOCK:
            self.pairs.append((self.start.until(end), other))
        self.start = Seconds.now()


def all_writers(folder: str, max_iter: int | None = None) -> list[EventWriter]:
    return [
        CommonMetricPrinter(max_iter),
        JSONWriter(os.path.join(folder, "metrics.json")),
        TensorboardXWriter(folder),
    ]


def usual_hooks(folder: str, max_iter: int) -> list[hooks.HookBase]:
    return [hooks.IterationTimer(), hooks.PeriodicWriter(all_writers(folder, max_iter), BLOCK)]


def typical(values: Sequence[float]) -> float:
    """The mean without the smallest and the largest twentieth: those are the machine's."""
    cut = len(values) // 20
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def ratio_with_interval(
    pairs: list[tuple[float, float]], over: list[tuple[float, float]] | None = None
) -> tuple[float, float, float]:
    """What is typical of the first over that of the second, with the bounds of its 95 % interval;
    over the same of other pairs, if there are any."""

    def ratio(sample: list[tuple[float, float]]) -> float:
        firsts, seconds = zip(*sample, strict=True)
        return typical(firsts) / typical(seconds)

    def resampled(sample: list[tuple[float, float]]) -> float:
        return ratio(generator.choices(sample, k=len(sample)))

    generator, over = random.Random(0), over or [(1.0, 1.0)]
    ratios = sorted(resampled(pairs) / resampled(over) for _ in range(1000))
    return ratio(pairs) / ratio(over), ratios[25], ratios[974]


def measure_in_rounds(
    measures: dict[str, Callable[[int], Pairs]], blocks: int, rounds: int
) -> dict[str, Pairs]:
    """What each of some functions measures, which are called in turns, with so many blocks a
    round."""
    pairs: dict[str, Pairs] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            pairs[name] += measure(blocks)
    return pairs


def engine_against_bare(size: str, blocks: int) -> Pairs:
    model, batches, optimizer = make_parts(size, logs=True)
    trainer = SimpleTrainer(model, batches, optimizer)
    interleave = Interleave(bare_block(size))
    schedule = hooks.LRScheduler(scheduler=CosineParamScheduler(1.0, 0.1))
    with tempfile.TemporaryDirectory() as folder:
        trainer.register_hooks([interleave, schedule, *usual_hooks(folder, blocks * BLOCK)])
        trainer.train(0, blocks * BLOCK)
    return interleave.pairs


class BenchTrainer(DefaultTrainer):
    """DefaultTrainer with its default hooks and writers, on the parts of the small model."""

    parts = make_parts("small", logs=False)

    @classmethod
    def build_model(cls, cfg: CfgNode) -> nn.Module:
        return cls.parts[0]

    @classmethod
    def build_optimizer(cls, cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
        return cls.parts[2]

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> list:
        return cls.parts[1]


def default_trainer_against_bare(blocks: int) -> Pairs:
    interleave = Interleave(bare_block("small"))
    with tempfile.TemporaryDirectory() as folder:
        cfg = get_cfg()
        cfg.merge_from_list([f"SOLVER.MAX_ITER={blocks * BLOCK}", f"OUTPUT_DIR={folder}"])
        trainer = BenchTrainer(cfg)
        trainer.register_hooks([interleave])
        trainer.train()
    return interleave.pairs


def measure_evaluation(rounds: int) -> dict[str, float]:
    """An evaluation over a bare no-grad loop that computes the same accuracy and loss."""
    model, batches, _ = make_parts("medium", logs=False)
    samples = [{"image": images, "label": labels} for images, labels in batches * 10]

    def forward(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model.layers(batch["image"])

    class Logits(nn.Module):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return forward(batch)

    @torch.no_grad()
    def bare() -> None:
        correct = loss = torch.zeros(())
        for batch in samples:
            logits = forward(batch)
            correct = correct + (logits.argmax(1) == batch["label"]).sum()
            loss = loss + nn.functional.cross_entropy(logits, batch["label"], reduction="sum")

    pairs = []
    for number in range(rounds + 3):
        start = time.process_time()
        inference_on_dataset(Logits(), samples, ClassificationEvaluator())
        middle = time.process_time()
        bare()
        if number >= 3:
            pairs.append((middle - start, time.process_time() - middle))
    ratio, low, high = ratio_with_interval(pairs)
    return {"ratio": ratio, "low": low, "high": high}


def bare_against_bare(size: str, blocks: int) -> Pairs:
    return one_against_other(bare_block(size), bare_block(size), blocks)


def quick_against_bare(size: str, blocks: int) -> Pairs:
    return one_against_other(quick_block(size), bare_block(size), blocks)


def one_against_other(first: Callable[[], None], second: Callable[[], None], blocks: int) -> Pairs:
    pairs = []
    for block in range(blocks):
        start = Seconds.now()
        first()
        middle = Seconds.now()
        second()
        if block > WARMUP:
            pairs.append((start.until(middle), middle.until(Seconds.now())))
    return pairs


def measure_steps(blocks: int, rounds: int) -> list[dict[str, Any]]:
    """(a) the step over the bare loop, at three sizes."""
    rows = []
    for size in SIZES:
        # The larger the step, the fewer blocks give the same precision.
        count = max(blocks // (1 if size == "small" else 3), WARMUP + 10)
        measures: dict[str, Callable[[int], Pairs]] = {
            "SimpleTrainer": partial(engine_against_bare, size),
            "bare": partial(bare_against_bare, size),
        }
        if size == "small":
            measures["DefaultTrainer"] = default_trainer_against_bare
            measures["bare with quick calls"] = partial(quick_against_bare, size)
        measured = measure_in_rounds(measures, count, rounds)
        rows += [row_of_steps(size, f"{name} / bare", pairs) for name, pairs in measured.items()]
    return rows


def row_of_steps(size: str, compared: str, pairs: Pairs) -> dict[str, Any]:
    ratio, low, high = ratio_with_interval([(one.cpu, bare.cpu) for one, bare in pairs])
    bare_us = typical([bare.cpu for _, bare in pairs]) / BLOCK * 1e6
    return {
        "step": size,
        "compared": compared,
        "ratio": ratio,
        "low": low,
        "high": high,
        "bare_us": bare_us,
        "added_us": (ratio - 1) * bare_us,
    }


class EmptyStep(TrainerBase):
    """A trainer whose step only logs; it notes the time of some iterations."""

    def __init__(self, noted: tuple[int, int]) -> None:
        super().__init__()
        self.noted, self.marks = noted, list[float]()

    def run_step(self) -> None:
        if self.iter in self.noted:
            self.marks.append(time.process_time())
        put_five_scalars(LOSS)


LOSS = torch.tensor(1.0)


def measure_empty_step(steps: int) -> dict[str, float]:
    """Microseconds that hooks, writers and 5 scalars cost around a step that does nothing."""
    _, _, optimizer = make_parts("small", logs=False)
    first, last = steps // 10, steps - 1
    trainer = EmptyStep((first, last))
    schedule = hooks.LRScheduler(optimizer, CosineParamScheduler(1.0, 0.1))
    with tempfile.TemporaryDirectory() as folder:
        trainer.register_hooks([schedule, *usual_hooks(folder, steps)])
        trainer.train(0, steps)
    start, end = trainer.marks
    return {"added_us": (end - start) / (last - first) * 1e6}


def measure_puts() -> list[dict[str, float]]:
    """(b) one `put_scalar` of a float, and one write of 10 names, as the history grows."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, EventStorage() as storage:
        writers = all_writers(folder)
        names = [f"metric{index}" for index in range(10)]
        stored = 0
        for target in (10**4, 10**5, 10**6):
            count = (target - stored) // len(names)
            start = time.process_time()
            for _ in range(count):
                for name in names:
                    storage.put_scalar(name, 1.0)
                storage.step()
            put_ns = (time.process_time() - start) / (count * len(names)) * 1e9
            stored = target
            rows.append(
                {"stored": target, "put_ns": put_ns, "write_us": _write_us(storage, writers, names)}
            )
        for writer in writers:
            writer.close()
    return rows


def measure_wide_write(rounds: int = 1000) -> dict[str, float]:
    """One write of 200 names to all three writers; and to put them, one by one and together."""
    with tempfile.TemporaryDirectory() as folder, EventStorage() as storage:
        writers = all_writers(folder)
        metrics = {f"group{index % 7}/metric{index}": 1.0 for index in range(200)}
        cost = _write_us(storage, writers, list(metrics))
        start = time.process_time()
        for _ in range(rounds):
            for name, value in metrics.items():
                storage.put_scalar(name, value)
            storage.step()
        middle = time.process_time()
        for _ in range(rounds):
            storage.put_scalars(metrics)
            storage.step()
        end = time.process_time()
        for writer in writers:
            writer.close()
    ns_each = 1e9 / rounds / len(metrics)
    return {
        "names": 200,
        "write_ms": cost / 1e3,
        "put_ns": (middle - start) * ns_each,
        "put_together_ns": (end - middle) * ns_each,
    }


def _write_us(
    storage: EventStorage, writers: list[EventWriter], names: list[str], rounds: int = 20
) -> float:
    seconds = []
    for _ in range(rounds):
        for _ in range(BLOCK):
            for name in names:
                storage.put_scalar(name, 1.0)
            storage.step()
        start = time.process_time()
        for writer in writers:
            writer.write()
        seconds.append(time.process_time() - start)
    return sorted(seconds)[rounds // 2] * 1e6


def measure_memory(steps: int) -> list[dict[str, float]]:
    """(c) bytes that a storage holds after so many steps, per scalar ever put."""
    rows = []
    tracemalloc.start()
    with EventStorage() as storage:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for step in range(1, steps + 1):
            storage.put_scalar("loss", step * 0.5)
            storage.step()
            if step in (steps // 10, steps):
                held = tracemalloc.get_traced_memory()[0] - before
                rows.append({"steps": step, "bytes": held, "bytes_per_scalar": held / step})
    tracemalloc.stop()
    return rows


class CountConversions(TorchDispatchMode):
    """Counts what would stop an accelerator: a tensor turned into a number."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def measure_conversions(steps: int = 60) -> dict[str, float]:
    """(d) conversions in a step, with CPU tensors taking the path of accelerators.

    A step that writes has one stacked transfer (`tolist`), which is not counted here.
    """
    model, batches, optimizer = make_parts("small", logs=True)
    trainer = SimpleTrainer(model, batches, optimizer)
    counts: Counter[str] = Counter()
    items: Counter[str] = Counter()
    schedule = hooks.LRScheduler(scheduler=CosineParamScheduler(1.0, 0.1))
    item = torch.Tensor.item

    def count_item(tensor: torch.Tensor) -> Any:
        items["item"] += 1
        return item(tensor)

    def kind(trainer: TrainerBase) -> str:
        return "writing" if (trainer.iter + 1) % BLOCK == 0 else "quiet"

    def note(trainer: TrainerBase) -> None:
        counts[kind(trainer)] += mode.count + items.pop("item", 0)
        counts[f"{kind(trainer)} steps"] += 1
        mode.count = 0

    last = hooks.CallbackHook(after_step=note)
    last.priority = hooks.Priority.LOWEST
    scalar.DEFERS_ALL = True
    torch.Tensor.item = count_item  # type: ignore[method-assign, assignment]
    try:
        with tempfile.TemporaryDirectory() as folder, CountConversions() as mode:
            trainer.register_hooks([schedule, last, *usual_hooks(folder, steps)])
            trainer.train(0, steps)
    finally:
        scalar.DEFERS_ALL, torch.Tensor.item = False, item  # type: ignore[method-assign]
    return {
        f"per_{name}_step": counts[name] / counts[f"{name} steps"] for name in ("quiet", "writing")
    }


def prepare_process() -> None:
    torch.set_num_threads(1)
    # The printer's lines are made and handed to logging, as in a run, but not shown here.
    logging.getLogger("engine").addHandler(logging.FileHandler(os.devnull))
    logging.getLogger("engine").setLevel(logging.INFO)
    logging.getLogger("engine").propagate = False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ddp", action="store_true", help="measure two processes instead")
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    args = parser.parse_args()
    prepare_process()
    scale, rounds = (10, 1) if args.quick else (1, 5)

    results: dict[str, Any] = {}
    sections: list[tuple[str, str, Callable[[], Any]]] = [
        ("steps", "(a) a step over the bare loop", lambda: measure_steps(120, rounds)),
        ("evaluation", "an evaluation over a bare loop", lambda: measure_evaluation(60 // scale)),
        ("empty_step", "a step that does nothing", lambda: measure_empty_step(20000 // scale)),
        ("puts", "(b) put_scalar, and a write of 10 names", measure_puts),
        ("wide_write", "200 names: one write, and to put one", measure_wide_write),
        ("memory", "(c) memory of the storage", lambda: measure_memory(10**6)),
        ("conversions", "(d) tensors turned into numbers", measure_conversions),
        ("saving", "stall of the loop by a save", lambda: measure_saving(20 // scale)),
    ]
    if args.ddp:
        from benchmark_ddp import measure_messages, measure_steps_of_two  # they import this file

        sections = [
            (
                "ddp_steps",
                "a step over a bare DDP loop",
                lambda: measure_steps_of_two(100, rounds),
            ),
            ("ddp_messages", "what is sent besides gradients and flags", measure_messages),
        ]
    for key, title, measure in sections:
        results[key] = measure()
        rows = results[key] if isinstance(results[key], list) else [results[key]]
        print(f"\n{title}\n{tabulate(rows, headers='keys', floatfmt='.4g')}", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
