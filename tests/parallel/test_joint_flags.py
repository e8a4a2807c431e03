from pathlib import Path

import torch.distributed as dist

from engine.parallel import joint_flags
from engine.parallel.joint_flags import JointFlags


def work(rank: int, folder: Path) -> dict:
    known_after = {}
    for at in (0, 3, 10, 100):
        early = JointFlags()
        answers = [early.ask(rank == 1 and call >= at)[0] for call in range(200)]
        known_after[at] = answers.index(True) - at
        early.settle(False)
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
    dist.init_process_group("gloo", init_method=f"file://{folder}/second", rank=rank, world_size=2)
    in_another_world = JointFlags().settle(rank == 0, False)
    dist.destroy_process_group()
    return {
        "known after": known_after,
        "rare": seen,
        "answers": answers,
        "at once": at_once,
        "in another world": in_another_world,
    }


def test_each_answer_is_what_any_rank_said_to_the_question_before(processes):
    none, first, second = [False, False], [True, False], [False, True]
    assert processes[0]["answers"][:5] == [none, none, first, second, none]
    assert processes[0]["answers"] == processes[1]["answers"]


def test_ranks_that_ask_often_send_now_and_then_and_get_the_same_answers(processes):
    first, second = (one["rare"] for one in processes)
    assert first == second
    assert 2 <= sum(first) < 250


def test_a_flag_of_a_short_run_is_known_soon(processes):
    assert processes[0]["known after"] == processes[1]["known after"]
    known_after = {int(at): calls for at, calls in processes[0]["known after"].items()}
    assert all(calls <= 2 + at / 4 for at, calls in known_after.items()), known_after


def test_in_the_end_all_know_what_is_said_now(processes):
    assert processes[0]["answers"][-1] == processes[1]["answers"][-1] == [True, True]
    assert processes[0]["at once"] == processes[1]["at once"] == [True, False]


def test_flags_work_in_a_second_world(processes):
    assert [one["in another world"] for one in processes] == [[True, False]] * 2
