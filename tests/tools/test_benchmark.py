"""That the benchmark measures; its figures are not asserted, as they are those of the machine."""

import json
import runpy
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "tools" / "benchmark.py"


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARK.parent)  # as for a script that is started
        return runpy.run_path(str(BENCHMARK), run_name="benchmark")


def test_the_ratio_of_pairs_lies_in_its_interval(benchmark):
    ratio, low, high = benchmark["ratio_with_interval"]([(2.0, 1.0), (3.0, 1.0), (4.0, 2.0)])
    assert ratio == 9 / 4
    assert 2 <= low <= ratio <= high <= 3
    over_others = benchmark["ratio_with_interval"]([(2.0, 1.0)], [(4.0, 1.0), (4.0, 1.0)])
    assert over_others == (0.5, 0.5, 0.5)


def test_what_the_machine_does_now_and_then_is_not_typical(benchmark):
    assert benchmark["typical"]([1.0] * 18 + [0.0, 1000.0]) == 1
    assert benchmark["typical"]([1.0, 3.0]) == 2


def test_what_is_compared_is_measured_in_turns(benchmark):
    calls = []
    measures = {name: lambda blocks, name=name: calls.append(name) or [name] for name in "ab"}
    pairs = benchmark["measure_in_rounds"](measures, blocks=20, rounds=3)
    assert calls == ["a", "b"] * 3
    assert pairs == {"a": ["a"] * 3, "b": ["b"] * 3}


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("measure", ["engine_against_bare", "bare_against_bare"])
def test_blocks_of_two_loops_are_measured_in_pairs(benchmark, measure):
    pairs = benchmark[measure]("small", 14)
    assert len(pairs) == 3  # the first ones warm up
    assert all(min(*one, *bare) > 0 for one, bare in pairs)


@pytest.mark.usefixtures("log")
def test_a_step_that_writes_nothing_turns_no_tensor_into_a_number(benchmark):
    counts = benchmark["measure_conversions"](steps=40)
    assert counts.keys() == {"per_quiet_step", "per_writing_step"}
    assert counts["per_quiet_step"] == 0


@pytest.mark.usefixtures("log")
def test_the_small_measurements_have_their_figures(benchmark):
    assert benchmark["measure_empty_step"](100).keys() == {"added_us"}
    wide = benchmark["measure_wide_write"]()
    assert wide.keys() == {"names", "write_ms", "put_ns", "put_together_ns"}
    assert wide["put_together_ns"] < wide["put_ns"]
    memory = benchmark["measure_memory"](1000)
    assert [row["steps"] for row in memory] == [100, 1000]
    assert memory[0].keys() == {"steps", "bytes", "bytes_per_scalar"}


@pytest.mark.slow
def test_all_figures_are_written_as_json(start_tool, tmp_path):
    done = start_tool("benchmark.py", "--quick", "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures.keys() >= {
        "steps",
        "empty_step",
        "puts",
        "wide_write",
        "memory",
        "conversions",
        "saving",
    }
    for row in figures["steps"]:
        assert row.keys() >= {"step", "compared", "ratio", "low", "high", "bare_us", "added_us"}
    assert [row["stored"] for row in figures["puts"]] == [10**4, 10**5, 10**6]


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_the_figures_of_two_processes_are_written_as_json(start_tool, tmp_path):
    arguments = ["--ddp", "--quick", "--json", tmp_path / "figures.json"]
    done = start_tool("benchmark.py", *arguments, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["metrics"] for row in figures["ddp_messages"]] == [5, 100]
    compared = {row["compared"] for row in figures["ddp_steps"]}
    assert compared >= {"100 metrics / bare", "100 metrics / 5 metrics", "bare / bare"}
    for row in figures["ddp_steps"]:
        assert row["low"] <= row["ratio"] <= row["high"]
        assert row["wall_low"] <= row["wall"] <= row["wall_high"]
