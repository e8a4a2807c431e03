"""This file is also the program of the two processes: see `processes` and `work`."""

import json
import os
import subprocess
import sys

import pytest
import torch.distributed as dist

from engine.parallel.joint_errors import joint_errors


class Unusual(ValueError):
    """Cannot be made from a message alone."""

    def __init__(self, part: str, number: int) -> None:
        super().__init__(f"{part} {number}")


def error_of(rank: int | None, error: Exception) -> list[str]:
    try:
        with joint_errors():
            if dist.get_rank() == rank:
                raise error
    except Exception as caught:
        return [type(caught).__name__, str(caught)]
    return []


def work(rank: int, store: str) -> dict:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    class Local(OSError):
        """Cannot be sent."""

    seen = {
        "nothing": error_of(None, KeyError()),
        "full disk": error_of(1, OSError(28, "No space left on device")),
        "unusual": error_of(0, Unusual("part", 3)),
        "local": error_of(1, Local("gone")),
    }
    dist.destroy_process_group()
    return seen


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What `work` returned on rank 0 and on rank 1."""
    store = str(tmp_path_factory.mktemp("errors") / "store")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), store],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [json.loads(output) for output in outputs]


def test_alone_an_error_comes_out_as_it_is():
    error = Unusual("part", 3)
    with pytest.raises(Unusual) as caught, joint_errors():
        raise error
    assert caught.value is error


def test_without_an_error_nothing_is_raised(processes):
    assert [process["nothing"] for process in processes] == [[], []]


def test_the_error_of_one_rank_is_raised_on_all_with_type_and_message(processes):
    message = "[Errno 28] No space left on device"
    assert processes[1]["full disk"] == ["OSError", message]
    assert processes[0]["full disk"] == ["OSError", f"rank 1: {message}"]


def test_an_error_that_cannot_be_sent_comes_as_the_nearest_type(processes):
    assert processes[0]["unusual"] == ["Unusual", "part 3"]
    assert processes[1]["unusual"] == ["ValueError", "rank 0: part 3"]
    assert processes[1]["local"] == ["Local", "gone"]
    assert processes[0]["local"] == ["OSError", "rank 1: gone"]


if __name__ == "__main__":
    print(json.dumps(work(int(sys.argv[1]), sys.argv[2])))
