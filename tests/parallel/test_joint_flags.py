"""This file is also the program of the two processes: see `processes` and `work`."""

import json
import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from engine.parallel import joint_flags
from engine.parallel.joint_flags import JointFlags


def work(rank: int, store: str) -> dict:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rare = JointFlags()
    seen = [rare.ask(rank == 1)[0] for _ in range(300)]
    joint_flags.SECONDS = 0  # in each call from now on
    flags = JointFlags()
    answers = [
        flags.ask(False, False),
        flags.ask(rank == 1, False),
        flags.ask(False, rank == 0),
        flags.ask(False, False),
        flags.ask(False, False),
        flags.settle(rank == 0, rank == 1),
    ]
    at_once = JointFlags().settle(rank == 1, False)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{store}2", rank=rank, world_size=2)
    in_another_world = JointFlags().settle(rank == 0, False)
    dist.destroy_process_group()
    return {
        "rare": seen,
        "answers": answers,
        "at once": at_once,
        "in another world": in_another_world,
    }


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What `work` returned on rank 0 and on rank 1."""
    store = tmp_path_factory.mktemp("flags") / "store"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(store)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        return [json.loads(process.communicate(timeout=90)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_each_answer_is_what_any_rank_said_to_the_question_before(processes):
    none, first, second = [False, False], [True, False], [False, True]
    assert processes[0]["answers"][:5] == [none, none, first, second, none]
    assert processes[0]["answers"] == processes[1]["answers"]


def test_ranks_that_ask_often_send_now_and_then_and_get_the_same_answers(processes):
    first, second = (one["rare"] for one in processes)
    assert first == second
    assert 2 <= sum(first) < 250


def test_in_the_end_all_know_what_is_said_now(processes):
    assert processes[0]["answers"][-1] == processes[1]["answers"][-1] == [True, True]
    assert processes[0]["at once"] == processes[1]["at once"] == [True, False]


def test_flags_work_in_a_second_world(processes):
    assert [one["in another world"] for one in processes] == [[True, False]] * 2


if __name__ == "__main__":
    print(json.dumps(work(int(sys.argv[1]), sys.argv[2])))
