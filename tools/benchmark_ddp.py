"""What the engine costs on two gloo processes: the part of tools/benchmark.py with --ddp.

Blocks of the engine's steps alternate with blocks of a bare DistributedDataParallel loop in the
same two processes. Times are of rank 0, the one that writes: `ratio` by CPU time, without that of
the threads that gloo polls the network with; `wall` by wall time, most of which is waiting.

Both loops train the same model, which measures 5 or 100 numbers in each step. The bare loop drops
them, the engine's logs them.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from benchmark import (
    BLOCK,
    SIZES,
    WARMUP,
    Classifier,
    Interleave,
    Pairs,
    all_writers,
    make_parts,
    measure_in_rounds,
    one_against_other,
    prepare_process,
    ratio_with_interval,
    row_of_steps,
    typical,
)
from fvcore.common.param_scheduler import CosineParamScheduler
from torch.nn.parallel import DistributedDataParallel

from engine import SimpleTrainer, get_event_storage, hooks, launch
from engine.parallel import comm
from engine.parallel.ddp import create_ddp_model
from engine.parallel.joint_flags import JointFlags


class MoreMetrics(Classifier):
    """The classifier with its five metrics, and more of them, put together or one by one."""

    def __init__(
        self, inputs: int, hidden: int, logs: bool, count: int = 5, together: bool = True
    ) -> None:
        super().__init__(inputs, hidden, logs)
        self.weights = {f"group{number % 7}/metric{number}": number for number in range(5, count)}
        self.together = together
        self.steps = 0

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.steps += 1
        share = 1 / self.steps
        metrics = {name: weight * share for name, weight in self.weights.items()}
        if self.logs and self.together:
            get_event_storage().put_scalars(metrics)
        elif self.logs:
            storage = get_event_storage()
            for name, value in metrics.items():
                storage.put_scalar(name, value)
        return super().forward(batch)


def train(
    size: str, blocks: int, metrics: int, *extra: hooks.HookBase, together: bool = True
) -> None:
    """So many blocks of the engine's steps, with timer, schedule and all three writers."""
    make_model = partial(MoreMetrics, count=metrics, together=together)
    model, batches, optimizer = make_parts(size, True, make_model)
    trainer = SimpleTrainer(create_ddp_model(model), batches, optimizer)
    schedule = hooks.LRScheduler(scheduler=CosineParamScheduler(1.0, 0.1))
    with tempfile.TemporaryDirectory() as folder:
        writers = all_writers(folder, blocks * BLOCK) if comm.is_main_process() else []
        writing = hooks.PeriodicWriter(writers, BLOCK, over_ranks=True)
        trainer.register_hooks([hooks.IterationTimer(), schedule, writing, *extra])
        trainer.train(0, blocks * BLOCK)


def bare_block(size: str, metrics: int = 5, flags: JointFlags | None = None) -> Callable[[], None]:
    """A function that runs a block of steps of the plainest loop, and in each of them asks for
    flags, if it is to."""
    make_model = partial(MoreMetrics, count=metrics)
    model, batches, optimizer = make_parts(size, False, make_model)
    wrapped = DistributedDataParallel(model)
    place = 0

    def run() -> None:
        nonlocal place
        for _ in range(BLOCK):
            if flags:
                flags.ask(False, False)
            loss = wrapped(batches[place % len(batches)])["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            place += 1

    return run


def engine_against_bare(size: str, blocks: int, metrics: int, together: bool = True) -> Pairs:
    interleave = Interleave(bare_block(size, metrics))
    train(size, blocks, metrics, interleave, together=together)
    return interleave.pairs


def bare_against_bare(size: str, blocks: int, asks: bool = False) -> Pairs:
    flags = JointFlags() if asks else None
    return one_against_other(bare_block(size, flags=flags), bare_block(size), blocks)


def measure_steps_of_two(blocks: int, rounds: int) -> list[dict[str, Any]]:
    """A step over that of a bare DDP loop, at three sizes."""
    return launch(_measure_steps, 2, args=(blocks, rounds))


def _measure_steps(blocks: int, rounds: int) -> list[dict[str, Any]]:
    prepare_process()
    return [row for size in SIZES for row in compare_with_bare(size, blocks, rounds)]


def compare_with_bare(size: str, blocks: int, rounds: int) -> list[dict[str, Any]]:
    count = max(blocks // {"small": 1, "medium": 2, "large": 4}[size], WARMUP + 10)
    engine = partial(engine_against_bare, size)
    measured = measure_in_rounds(
        {
            "5 metrics": partial(engine, metrics=5),
            "100 metrics": partial(engine, metrics=100),
            "100 one by one": partial(engine, metrics=100, together=False),
            "bare + stop flags": partial(bare_against_bare, size, asks=True),
            "bare": partial(bare_against_bare, size),
        },
        count,
        rounds,
    )
    rows = [_row(size, f"{name} / bare", pairs) for name, pairs in measured.items()]
    return [*rows, _growth(size, measured["5 metrics"], measured["100 metrics"])]


def _row(size: str, compared: str, pairs: Pairs) -> dict[str, Any]:
    wall_us = typical([bare.wall for _, bare in pairs]) / BLOCK * 1e6
    return {**row_of_steps(size, compared, pairs), **_by_wall(pairs), "bare_wall_us": wall_us}


def _growth(size: str, few: Pairs, many: Pairs) -> dict[str, Any]:
    """What a step with many metrics costs of one with few, each over its bare loop."""
    compared = {"step": size, "compared": "100 metrics / 5 metrics"}
    by_cpu = [[(one.cpu, bare.cpu) for one, bare in pairs] for pairs in (many, few)]
    ratio, low, high = ratio_with_interval(*by_cpu)
    return {**compared, "ratio": ratio, "low": low, "high": high, **_by_wall(many, few)}


def _by_wall(*pairs: Pairs) -> dict[str, float]:
    by_wall = [[(one.wall, bare.wall) for one, bare in some] for some in pairs]
    wall, low, high = ratio_with_interval(*by_wall)
    return {"wall": wall, "wall_low": low, "wall_high": high}


class CountMessages(hooks.HookBase):
    """Counts what rank 0 gets in quiet and in writing steps, but for gradients and stop flags."""

    priority = hooks.Priority.LOWEST

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.bytes = self.last_bytes = 0

    def before_step(self) -> None:
        self.received = 0

    def after_step(self) -> None:
        if self.trainer.iter >= 2 * BLOCK:  # before, there are new names
            kind = "writing" if (self.trainer.iter + 1) % BLOCK == 0 else "quiet"
            self.counts[kind] += self.received
            self.counts[f"{kind} steps"] += 1
            self.bytes = self.last_bytes

    @contextmanager
    def counting(self) -> Iterator[None]:
        receive = vars(dist.ProcessGroup)["recv"]  # getattr would not give what is set back below
        others = {name: getattr(dist, name) for name in ("all_reduce", "all_gather_object")}

        def count_message(group: Any, tensors: list[torch.Tensor], *args: Any) -> dist.Work:
            self.received += 1
            self.last_bytes = tensors[0].nbytes
            return receive(group, tensors, *args)

        def count_other(name: str, *args: Any, **kwargs: Any) -> Any:
            self.received += 1
            return others[name](*args, **kwargs)

        self.received = 0
        dist.ProcessGroup.recv = count_message
        for name in others:
            setattr(dist, name, partial(count_other, name))
        try:
            yield
        finally:
            dist.ProcessGroup.recv = receive
            for name, function in others.items():
                setattr(dist, name, function)


class TimeJoins(hooks.HookBase):
    """The CPU and wall seconds of each exchange of metrics, from when both processes are there."""

    def before_train(self) -> None:
        storage, self.seconds = self.trainer.storage, list[tuple[float, float]]()
        join = storage.join_ranks

        def timed() -> None:
            storage.sync()
            comm.synchronize()
            start = time.process_time(), time.perf_counter()
            join()
            self.seconds.append((time.process_time() - start[0], time.perf_counter() - start[1]))

        storage.join_ranks = timed  # type: ignore[method-assign]

    def after_train(self) -> None:
        del self.trainer.storage.join_ranks  # a cycle would keep the storage alive


def measure_messages() -> list[dict[str, Any]]:
    """Messages from the other rank beside gradients and stop flags; size and cost of one."""
    return launch(_measure_messages, 2)


def _measure_messages() -> list[dict[str, Any]]:
    prepare_process()
    return [_count_and_time(metrics) for metrics in (5, 100)]


def _count_and_time(metrics: int, blocks: int = 40) -> dict[str, Any]:
    counter, timer = CountMessages(), TimeJoins()
    with counter.counting():
        train("small", 10, metrics, counter)
    train("small", blocks, metrics, timer)
    cpu, wall = (median(column) for column in zip(*timer.seconds[2:], strict=True))
    return {
        "metrics": metrics,
        "in a quiet step": counter.counts["quiet"] / counter.counts["quiet steps"],
        "in a writing step": counter.counts["writing"] / counter.counts["writing steps"],
        "bytes": counter.bytes,
        "cpu_us": cpu * 1e6,
        "wall_us": wall * 1e6,
    }
