#!/usr/bin/env python3
"""What many ranks would send and wait for, calculated: the table in docs/cost_of_many_ranks.md.

    python tools/cost_of_many_ranks.py [--metrics 100] [--latency-us 30] [--gb-per-second 3]

gloo works in rings: a sum over R ranks is 2 (R - 1) messages one after the other, a gathering of
what all ranks have is R - 1. Each takes the latency, and its bytes at the bandwidth.
"""

import argparse
from typing import Any

from tabulate import tabulate

from engine.events.metric_vector import MetricVector
from engine.events.storage import EventStorage

RANKS = (2, 8, 64, 512, 4096)
TIMES = ("time", "data_time")
FLAGS = 3  # bytes
RANDOM_STATE = 16_164  # bytes of one rank, pickled


def calculate(ranks: int, metrics: int, latency: float, bandwidth: float) -> dict[str, Any]:
    """Bytes, and seconds that a rank would wait, for one message of each kind."""

    def sum_seconds(size: int) -> float:
        return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)

    vector = metric_vector_bytes(ranks, metrics)
    return {
        "ranks": ranks,
        "stop flags: ms": sum_seconds(FLAGS) * 1e3,
        "metrics: kB": vector / 1e3,
        "metrics: ms": sum_seconds(vector) * 1e3,
        "random states on rank 0: MB": ranks * RANDOM_STATE / 1e6,
        "their ms": (2 * (ranks - 1) * latency + ranks * RANDOM_STATE / bandwidth) * 1e3,
    }


def metric_vector_bytes(ranks: int, metrics: int) -> int:
    """The size of the vector that is summed when metrics are written."""
    window = EventStorage()._log_period
    names = [f"metric{number}" for number in range(metrics)]
    vector = MetricVector(names, TIMES, window + 1, 0, ranks)
    return vector.pack({}, range(window), header=0.0).nbytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--metrics", type=int, default=100, help="besides the two times")
    parser.add_argument("--latency-us", type=float, default=30, help="of one message")
    parser.add_argument("--gb-per-second", type=float, default=3, help="between two machines")
    args = parser.parse_args()
    rows = [
        calculate(ranks, args.metrics, args.latency_us / 1e6, args.gb_per_second * 1e9)
        for ranks in RANKS
    ]
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".3g"))


if __name__ == "__main__":
    main()
