"""TrainerBase: what a checkpoint holds of it, and how a run goes on from there."""

import pytest
import torch

from engine import HookBase
from engine.hooks import CallbackHook, IterationTimer
from small_trainers import Steps, at, fail


class Counter(HookBase):
    """Counts steps, and keeps the count in a checkpoint."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def after_step(self) -> None:
        self.count += 1

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict) -> None:
        self.count = state_dict["count"]


def test_the_saved_iteration_is_the_last_finished_one_wherever_it_is_asked():
    seen: dict[str, list[int]] = {}

    def save(point: str):
        return lambda t: seen.setdefault(point, []).append(t.state_dict()["iteration"])

    points = ("before_train", "before_step", "after_backward", "after_step", "after_train")
    Steps(CallbackHook(**{point: save(point) for point in points})).train(3, 5)
    assert seen == {
        "before_train": [2],
        "before_step": [2, 3],
        "after_backward": [2, 3],
        "after_step": [3, 4],
        "after_train": [4],
    }


@pytest.mark.parametrize(("point", "saved"), [("after_backward", 2), ("after_step", 3)])
def test_the_saved_iteration_after_a_failure_is_that_of_the_last_whole_step(point, saved):
    trainer = Steps(CallbackHook(**{point: at(3, fail)}))
    with pytest.raises(OSError, match="disk is full"):
        trainer.train(0, 9)
    assert trainer.state_dict()["iteration"] == saved


def test_two_hooks_of_one_class_keep_both_states(tmp_path):
    trainer = Steps(Counter(100), Counter(200), IterationTimer())
    trainer.train(0, 5)
    torch.save(trainer.state_dict(), tmp_path / "state.pth")
    state = torch.load(tmp_path / "state.pth", weights_only=True)
    assert state["hooks"] == {"Counter": {"count": 105}, "Counter#2": {"count": 205}}

    first, second = Counter(), Counter()
    resumed = Steps(first, second)
    resumed.load_state_dict(state)
    assert (resumed.iter, first.count, second.count) == (4, 105, 205)


def test_a_resumed_run_knows_the_histories_and_notes_of_the_run_before(tmp_path):
    def make() -> Steps:
        return Steps(CallbackHook(after_step=lambda t: t.storage.put_scalar("x", t.iter**2)))

    first = make()
    first.train(0, 4)
    first.storage.information = {"classes": ["a", "b"], "best": 0.5}
    torch.save(first.state_dict(), tmp_path / "state.pth")

    resumed = make()
    resumed.load_state_dict(torch.load(tmp_path / "state.pth", weights_only=True))
    resumed.train(resumed.iter + 1, 6)
    history = resumed.storage.history("x")
    assert history.values() == [(float(i * i), i) for i in range(6)]
    assert resumed.storage.information == {"classes": ["a", "b"], "best": 0.5}


def test_a_run_that_does_not_go_on_from_the_saved_one_has_none_of_its_histories():
    trainer = Steps(CallbackHook(after_step=lambda t: t.storage.put_scalar("x", t.iter)))
    trainer.train(0, 4)
    trainer.load_state_dict(trainer.state_dict())
    trainer.train(0, 2)
    assert trainer.storage.history("x").values() == [(0.0, 0), (1.0, 1)]


def test_a_state_for_a_hook_that_is_not_there_is_noticed(log):
    trainer = Steps(Counter(3))
    trainer.train(0, 1)
    resumed = Steps()
    resumed.load_state_dict(trainer.state_dict())
    resumed.train(1, 2)
    assert "The state of the hook Counter is not used: there is no such hook" in log.text


def test_a_hook_that_is_registered_after_the_load_has_its_state_back_too(log):
    class Late(Counter):
        loads = 0

        def load_state_dict(self, state_dict: dict) -> None:
            super().load_state_dict(state_dict)
            self.loads += 1

    def make_late() -> list[HookBase]:
        early = Counter(200)
        early.priority = 10  # before the one that is there, which is Counter#2 from then on
        return [early, Late(300)]

    saved = Steps(Counter(100), *make_late())
    saved.train(0, 5)

    first = Counter()
    trainer = Steps(first)
    trainer.load_state_dict(saved.state_dict())
    early, late = make_late()
    trainer.register_hooks([early, late])
    for start in (5, 10):
        trainer.train(start, start + 5)
    assert (first.count, early.count, late.count, late.loads) == (115, 215, 315, 1)
    assert "is not used" not in log.text


def test_a_hook_that_saves_but_cannot_load_is_noticed(log):
    class Saving(HookBase):
        def state_dict(self) -> dict:
            return {"x": 1}

    trainer = Steps(Saving())
    trainer.load_state_dict(trainer.state_dict())
    assert "Saving saved a state but has no load_state_dict" in log.text


def test_a_state_of_detectron2s_shape_is_taken():
    counter = Counter()
    trainer = Steps(counter)
    trainer.load_state_dict({"iteration": 9, "hooks": {"Counter": {"count": 10}}})
    assert (trainer.iter, counter.count) == (9, 10)
