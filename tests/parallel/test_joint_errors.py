import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from engine.parallel.joint_errors import is_echo, joint_errors


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
        notes = [is_echo(caught), *getattr(caught, "__notes__", [])]
        return [type(caught).__name__, str(caught), *notes]
    return []


def work(rank: int, folder: Path) -> dict:

    class Local(OSError):
        """Cannot be sent."""

    seen = {
        "nothing": error_of(None, KeyError()),
        "full disk": error_of(1, OSError(28, "No space left on device")),
        "unusual": error_of(0, Unusual("part", 3)),
        "local": error_of(1, Local("gone")),
    }
    return seen


def test_alone_an_error_comes_out_as_it_is():
    error = Unusual("part", 3)
    with pytest.raises(Unusual) as caught, joint_errors():
        raise error
    assert caught.value is error


def test_without_an_error_nothing_is_raised(processes):
    assert [process["nothing"] for process in processes] == [[], []]


def test_the_error_of_one_rank_is_raised_on_all_with_type_and_message(processes):
    message = "[Errno 28] No space left on device"
    assert processes[1]["full disk"] == ["OSError", message, False]
    assert processes[0]["full disk"][:3] == ["OSError", f"rank 1: {message}", True]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_its_traceback_is_with_it(processes):
    *_, note = processes[0]["full disk"]
    assert note.startswith("On rank 1:\nTraceback (most recent call last):")
    assert "    raise error\n" in note


def test_an_error_that_cannot_be_sent_comes_as_the_nearest_type(processes):
    assert processes[0]["unusual"] == ["Unusual", "part 3", False]
    assert processes[1]["unusual"][:2] == ["ValueError", "rank 0: part 3"]
    assert processes[1]["local"] == ["Local", "gone", False]
    assert processes[0]["local"][:2] == ["OSError", "rank 1: gone"]
