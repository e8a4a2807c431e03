#!/usr/bin/env python3
"""What many ranks would send and wait for, calculated: the table in docs/cost_of_many_ranks.md.

    python tools/cost_of_many_ranks.py [--metrics 100] [--latency-us 30] [--gb-per-second 3]

gloo works in rings: a sum over R ranks is 2 (R - 1) messages one after the other, a gathering of
what all ranks have is R - 1. Metrics are one message from each rank to rank 0, which takes them in
one after the other. Each takes the latency, and its bytes at the bandwidth. A second table has what
rank 0 then computes with the metrics, measured here.
"""

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from tabulate import tabulate

from engine.events.joint_plan import JointPlan, Layout
from engine.events.storage import EventStorage

RANKS = (2, 8, 64, 512, 4096)
TIMES = ("time", "data_time")
FLAGS = 4  # bytes
WINDOW = EventStorage().smoothing_window  # iterations that a message has values of
RANDOM_STATE = 16_164  # bytes of one rank, pickled


def calculate(ranks: int, metrics: int, latency: float, bandwidth: float) -> dict[str, Any]:
    """Bytes, and seconds that a rank would wait, for one message of each kind."""

    def sum_seconds(size: int) -> float:
        return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)

    values = (metrics + len(TIMES)) * WINDOW
    received = 8 * values * (ranks - 1)
    return {
        "ranks": ranks,
        "stop flags: ms": sum_seconds(FLAGS) * 1e3,
        "metrics to rank 0: MB": received / 1e6,
        "their ms": ((ranks - 1) * latency + received / bandwidth) * 1e3,
        "random states on rank 0: MB": ranks * RANDOM_STATE / 1e6,
        "ms for these": (2 * (ranks - 1) * latency + ranks * RANDOM_STATE / bandwidth) * 1e3,
    }


def joining_seconds(ranks: int, metrics: int) -> float:
    """How long rank 0 takes to make the metrics of all ranks those of one run."""
    names = metrics + len(TIMES)
    layout = Layout(np.tile(np.arange(names), WINDOW), np.repeat(np.arange(WINDOW)[::-1], names))
    plan = JointPlan([layout] * ranks, np.arange(names) >= metrics, WINDOW)
    values = np.random.default_rng(0).random(ranks * names * WINDOW)
    seconds = []
    for _ in range(5):
        start = perf_counter()
        plan.join(values, 0)
        seconds.append(perf_counter() - start)
    return median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--metrics", type=int, default=100, help="besides the two times")
    parser.add_argument("--latency-us", type=float, default=30, help="of one message")
    parser.add_argument("--gb-per-second", type=float, default=3, help="between two machines")
    args = parser.parse_args()
    if args.metrics < 0:
        parser.error(f"--metrics must be 0 or more, got {args.metrics}")
    if not args.latency_us >= 0:
        parser.error(f"--latency-us must be 0 or more, got {args.latency_us}")
    if not args.gb_per_second > 0:
        parser.error(f"--gb-per-second must be above 0, got {args.gb_per_second}")
    rows = [
        calculate(ranks, args.metrics, args.latency_us / 1e6, args.gb_per_second * 1e9)
        for ranks in RANKS
    ]
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".3g"))
    joining = [
        {"ranks": ranks, "joining the metrics: ms": joining_seconds(ranks, args.metrics) * 1e3}
        for ranks in RANKS
    ]
    print(f"\n{tabulate(joining, headers='keys', tablefmt='github', floatfmt='.2g')}")


if __name__ == "__main__":
    main()
