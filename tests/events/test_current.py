import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from engine.events import (
    EventStorage,
    NoEventStorageError,
    get_event_storage,
    has_event_storage,
)


def test_outside_of_a_with_there_is_no_storage_and_the_error_says_how_to_open_one():
    assert not has_event_storage()
    with pytest.raises(NoEventStorageError, match="`with EventStorage"):
        get_event_storage()
    with pytest.raises(AssertionError):  # what code for detectron2 expects
        get_event_storage()


def test_the_innermost_storage_is_the_current_one():
    with EventStorage() as outer, EventStorage() as throw_away:
        assert get_event_storage() is throw_away
        get_event_storage().put_scalar("loss", 1.0)
    assert outer.latest() == {}
    with outer:
        with throw_away, outer:
            assert get_event_storage() is outer
            with throw_away:
                pass
            assert get_event_storage() is outer
        with throw_away:
            with outer:
                pass
            assert get_event_storage() is throw_away
        assert get_event_storage() is outer
    assert not has_event_storage()


def test_a_storage_closed_late_does_not_close_another_one():
    def generate():
        with EventStorage():
            yield

    generator = generate()
    next(generator)
    with EventStorage() as storage:
        generator.close()
        assert get_event_storage() is storage
    assert not has_event_storage()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_closes_the_storage(error):
    with EventStorage() as outer:
        with pytest.raises(error), EventStorage():
            raise error
        assert get_event_storage() is outer


def log_in_nested_backward_passes() -> None:
    """Nested deeply enough, autograd leaves the thread that called it, as with accelerators."""

    def block(inputs, depth):
        get_event_storage().put_scalar("depth", depth)
        if depth == 0:
            return inputs
        return checkpoint(block, inputs * weight, depth - 1, use_reentrant=True)

    weight = torch.ones(1, requires_grad=True)
    with EventStorage() as storage:
        block(weight * 1.0, 70).sum().backward()
    assert storage.history("depth").count == 71 * 72 // 2  # each level runs again in each above it


def test_autograds_own_threads_find_the_storage():
    # In a process of its own: torch does not fork, nor always end, well any more after that.
    command = "import os, test_current; test_current.log_in_nested_backward_passes(); os._exit(0)"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    subprocess.run(
        [sys.executable, "-c", command], check=True, env={**os.environ, "PYTHONPATH": path}
    )


def test_each_thread_has_its_own_storages():
    seen = {}

    def work(shared):
        seen["at first"] = has_event_storage()
        with EventStorage() as own:
            get_event_storage().put_scalar("loss", 1.0)
            seen["own"] = own.latest()
        with shared:
            get_event_storage().put_scalar("from the thread", 2.0)

    with EventStorage() as storage:
        thread = threading.Thread(target=work, args=(storage,))
        thread.start()
        thread.join()
        assert get_event_storage() is storage
    assert seen == {"at first": False, "own": {"loss": (1.0, 0)}}
    assert storage.latest() == {"from the thread": (2.0, 0)}
