import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from engine import HookBase, TrainerBase, get_event_storage
from engine.events import EventWriter, JSONWriter, TensorboardXWriter
from engine.hooks import CallbackHook, EvalHook, PeriodicWriter


class Steps(TrainerBase):
    """Puts its iteration as the scalar `x` and, with `images`, an image too."""

    def __init__(self, *hooks: HookBase, images: bool = False) -> None:
        super().__init__()
        self.images = images
        self.register_hooks(hooks)

    def run_step(self) -> None:
        self.storage.put_scalar("x", self.iter, smoothing_hint=False)
        if self.images:
            self.storage.put_image("picture", torch.zeros(3, 4, 4))


class Recording(EventWriter):
    """Notes the iterations at which it is called, and fails in the methods it is told to."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.written: list[int] = []
        self.images: list[int] = []
        self.rewound: list[int] = []
        self.closed = 0

    def rewind(self, iteration: int) -> None:
        self.rewound.append(iteration)
        self._fail_in("rewind")

    def write(self) -> None:
        self._fail_in("write")
        storage = get_event_storage()
        self.written.append(storage.iter)
        self.images.extend(at for _, _, at in storage.unwritten_images(self))

    def close(self) -> None:
        self.closed += 1
        self._fail_in("close")

    def _fail_in(self, method: str) -> None:
        if method in self.failing:
            raise OSError(f"{method} failed")


class StopAfter(HookBase):
    """Stops the run after an iteration."""

    def __init__(self, iteration: int, requeue: bool = False) -> None:
        self.iteration = iteration
        self.requeue = requeue

    def after_step(self) -> None:
        if self.trainer.iter == self.iteration:
            self.trainer.stop("enough", requeue=self.requeue)


def images(folder) -> list[int]:
    """The iterations of the images that TensorBoard shows."""
    shown = EventAccumulator(str(folder), {"images": 0}).Reload()
    return [event.step for event in shown.Images("picture")]


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_written_every_period_and_at_the_last_step(tmp_path):
    trainer = Steps(PeriodicWriter([JSONWriter(tmp_path / "metrics.json")]))
    trainer.train(0, 50)
    assert lines(tmp_path / "metrics.json") == [
        {"iteration": 19, "x": 19.0},
        {"iteration": 39, "x": 39.0},
        {"iteration": 49, "x": 49.0},
    ]


def test_each_writer_is_asked_every_period_at_the_last_step_and_at_the_end_then_closed():
    writer = Recording()
    Steps(PeriodicWriter([writer], period=4)).train(0, 10)
    assert (writer.written, writer.closed) == ([3, 7, 9, 10], 1)


def test_the_period_may_be_in_epochs():
    class Epochs(Steps):
        def epoch_of(self, iteration: int) -> int:
            return iteration // 3

    writer = Recording()
    Epochs(PeriodicWriter([writer], period="1 epoch")).train(0, 9)
    assert writer.written == [2, 5, 8, 9]


def test_what_an_evaluation_puts_is_written_in_its_step(tmp_path):
    class Evaluation(HookBase):
        def after_step(self) -> None:
            if self.trainer.iter in (4, 9):
                self.trainer.storage.put_scalar("accuracy", self.trainer.iter / 10, False)
                self.trainer.after_eval({})

    Steps(PeriodicWriter([JSONWriter(tmp_path / "metrics.json")]), Evaluation()).train(0, 30)
    written = lines(tmp_path / "metrics.json")
    assert [line["iteration"] for line in written] == [4, 9, 19, 29]
    assert [line.get("accuracy") for line in written] == [0.4, 0.9, None, None]


def test_what_a_hook_puts_at_the_end_is_written(tmp_path):
    class AtTheEnd(HookBase):
        def after_train(self) -> None:
            self.trainer.storage.put_scalar("accuracy", 0.9)

    Steps(PeriodicWriter([JSONWriter(tmp_path / "metrics.json")]), AtTheEnd()).train(0, 5)
    assert lines(tmp_path / "metrics.json") == [
        {"iteration": 4, "x": 4.0},
        {"iteration": 5, "accuracy": 0.9},
    ]


def test_images_reach_every_writer_and_are_forgotten_then():
    writers = [Recording(), Recording()]
    trainer = Steps(PeriodicWriter(writers, period=3), images=True)
    trainer.train(0, 7)
    assert [writer.images for writer in writers] == [[0, 1, 2, 3, 4, 5, 6]] * 2
    assert trainer.storage._vis_data == []


def test_a_second_run_goes_on_in_the_same_files(tmp_path):
    writers = [JSONWriter(tmp_path / "metrics.json"), TensorboardXWriter(tmp_path / "tb")]
    trainer = Steps(PeriodicWriter(writers, period=5))
    trainer.train(0, 10)
    trainer.train(10, 20)
    assert [line["x"] for line in lines(tmp_path / "metrics.json")] == [4, 9, 14, 19]
    assert list((tmp_path / "tb").iterdir())


def test_a_resumed_run_takes_back_what_was_written_after_its_beginning(tmp_path):
    first = Steps(PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=5))
    first.train(0, 18)
    resumed = Steps(PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], period=5))
    resumed.train(10, 20)
    assert [line["iteration"] for line in lines(tmp_path / "metrics.json")] == [4, 9, 14, 19]


def test_a_run_that_is_to_be_continued_leaves_the_rest_to_the_run_that_goes_on(tmp_path):
    """Lines are as in a run without a stop: at 4, 9 and 14, none at 11."""
    path = tmp_path / "metrics.json"
    first = Steps(PeriodicWriter([JSONWriter(path)], period=5), StopAfter(11, requeue=True))
    first.train(0, 15)
    assert [line["iteration"] for line in lines(path)] == [4, 9]
    resumed = Steps(PeriodicWriter([JSONWriter(path)], period=5))
    resumed.load_state_dict(first.state_dict())
    resumed.train(12, 15)
    assert [line["iteration"] for line in lines(path)] == [4, 9, 14]


def test_files_of_several_periods_are_as_in_a_run_without_a_stop(tmp_path):
    """In the run that goes on, the one of the longer period writes first."""

    def put_another(trainer) -> None:
        trainer.storage.put_scalar(f"y{trainer.iter}", trainer.iter)

    def train(folder, start: int, end: int, state: dict | None = None, *hooks: HookBase) -> Steps:
        folder.mkdir(exist_ok=True)
        often = PeriodicWriter([JSONWriter(folder / "often.json")], period=4)
        seldom = PeriodicWriter([JSONWriter(folder / "seldom.json")], period=10)
        trainer = Steps(often, seldom, CallbackHook(after_step=put_another), *hooks)
        trainer.load_state_dict(state) if state else None
        trainer.train(start, end)
        return trainer

    stopped = train(tmp_path / "stopped", 0, 30, None, StopAfter(8, requeue=True))
    train(tmp_path / "stopped", 9, 30, stopped.state_dict())
    train(tmp_path / "straight", 0, 30)
    for name in ("often.json", "seldom.json"):
        assert lines(tmp_path / "stopped" / name) == lines(tmp_path / "straight" / name)


def test_a_run_that_is_stopped_for_good_writes_the_rest(tmp_path):
    path = tmp_path / "metrics.json"
    Steps(PeriodicWriter([JSONWriter(path)], period=5), StopAfter(11)).train(0, 15)
    assert [line["iteration"] for line in lines(path)] == [4, 9, 11]


def test_images_put_before_a_checkpoint_are_in_the_files_when_it_is_made(tmp_path):
    """The checkpoint does not hold them, so a run resumed from it could not write them."""
    writers = [JSONWriter(tmp_path / "metrics.json"), TensorboardXWriter(tmp_path)]
    trainer = Steps(PeriodicWriter(writers, period=100), images=True)

    def check(trainer) -> None:
        if trainer.iter == 5:
            trainer.state_dict()
            assert images(tmp_path) == [0, 1, 2, 3, 4, 5]
            assert lines(tmp_path / "metrics.json") == []  # numbers are in the checkpoint

    trainer.register_hooks([CallbackHook(after_step=check)])
    trainer.train(0, 8)
    trainer.state_dict()
    assert images(tmp_path) == list(range(8))


def test_writers_are_rewound_to_the_start_of_the_run():
    writer = Recording()
    Steps(PeriodicWriter([writer])).train(7, 9)
    assert writer.rewound == [7]


def test_what_is_not_a_writer_is_refused():
    with pytest.raises(TypeError, match="must be an EventWriter, got str"):
        PeriodicWriter(["metrics.json"])


def test_a_writer_that_fails_to_write_ends_the_run_and_keeps_no_other_from_its_work(tmp_path, log):
    other = Recording()
    bad = Recording("write")
    writers = [other, bad, JSONWriter(tmp_path / "metrics.json")]
    trainer = Steps(PeriodicWriter(writers, period=5))
    with pytest.raises(OSError, match="write failed"):
        trainer.train(0, 20)
    assert (other.written, other.closed, bad.closed) == ([4, 4], 1, 1)
    assert [line["iteration"] for line in lines(tmp_path / "metrics.json")] == [4]
    assert trainer.failed


def test_writers_that_fail_to_close_keep_no_other_from_closing(log):
    writers = [Recording("close"), Recording("write", "close"), Recording()]
    trainer = Steps(PeriodicWriter(writers, period=0))
    with pytest.raises(OSError, match="write failed"):
        trainer.train(0, 3)
    assert [writer.closed for writer in writers] == [1, 1, 1]
    later = [record.message for record in log.records if record.message.startswith("After")]
    assert sorted(message.rpartition(": ")[2] for message in later) == [
        "close failed",
        "close failed",
        "write failed",
    ]


def test_a_writer_that_cannot_be_rewound_leaves_no_other_open(tmp_path):
    (tmp_path / "metrics.json").write_text("these are not metrics\n")
    opened = Recording()
    trainer = Steps(PeriodicWriter([opened, JSONWriter(tmp_path / "metrics.json")]))
    with pytest.raises(ValueError, match=r"metrics.json:1: not a line of metrics"):
        trainer.train(5, 10)
    assert (opened.written, opened.closed) == ([], 1)


@pytest.mark.parametrize("period", [1, 20])
def test_a_finished_run_that_is_trained_further_keeps_the_results_of_its_end(tmp_path, period):
    def train(start: int, end: int, state: dict | None = None) -> dict:
        evaluation = EvalHook(6, lambda: {"accuracy": float(trainer.iter)})
        writers = [JSONWriter(tmp_path / "metrics.json"), TensorboardXWriter(tmp_path)]
        saved = {}
        save = CallbackHook(after_train=lambda trainer: saved.update(trainer.state_dict()))
        trainer = Steps(evaluation, PeriodicWriter(writers, period))
        trainer.register_hooks([save], priority="LOWEST")
        if state:
            trainer.load_state_dict(state)
        trainer.train(start, end)
        return saved

    train(4, 9, train(0, 4))
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    expected = range(10) if period == 1 else [3, 4, 5, 8, 9]
    assert [line["iteration"] for line in lines] == list(expected)
    found = [(line["iteration"], line["accuracy"]) for line in lines if "accuracy" in line]
    assert found == [(4, 4.0), (5, 5.0), (9, 9.0)]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == found


def test_a_resumed_run_loses_no_line_though_some_iterations_are_ahead(tmp_path):
    """As where something is logged by samples."""

    def train(start: int, end: int, state: dict | None = None) -> dict:
        writers = [JSONWriter(tmp_path / "metrics.json"), TensorboardXWriter(tmp_path)]
        saved = {}

        def put(trainer) -> None:
            trainer.storage.put_scalar("by_sample", 1.0, cur_iter=64 * trainer.iter)

        def save(trainer) -> None:
            if trainer.iter == 9:
                saved.update(trainer.state_dict())

        trainer = Steps(CallbackHook(after_step=put), PeriodicWriter(writers, 5))
        trainer.register_hooks([CallbackHook(after_step=save)], priority="LOWEST")
        if state:
            trainer.load_state_dict(state)
        trainer.train(start, end)
        return saved

    train(10, 20, train(0, 14))
    text = (tmp_path / "metrics.json").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["iteration"] for line in lines if "x" in line] == [4, 9, 14, 19]
    assert [line["iteration"] for line in lines if "by_sample" in line] == [
        64 * iteration for iteration in (4, 9, 14, 19)
    ]
    events = EventAccumulator(str(tmp_path), purge_orphaned_data=False).Reload()
    assert [event.step for event in events.Scalars("x")] == [4, 9, 14, 19]


def test_images_wait_for_all_who_take_some(tmp_path):
    fast, slow = Recording(), TensorboardXWriter(tmp_path)
    others = PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], 3)
    Steps(PeriodicWriter([fast], 2), PeriodicWriter([slow], 10), others, images=True).train(0, 20)
    assert fast.images == list(range(20))
    events = EventAccumulator(str(tmp_path), {"images": 0}).Reload()
    assert [event.step for event in events.Images("picture")] == list(range(20))


class LooksAtImages(EventWriter):
    """As for detectron2: it takes no images, but looks at all that are there."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def write(self) -> None:
        self.seen += [at for _, _, at in get_event_storage()._vis_data]


def test_images_wait_for_those_who_look_at_all_though_a_checkpoint_has_others_take_them(tmp_path):
    looks = LooksAtImages()
    writer = PeriodicWriter([looks, TensorboardXWriter(tmp_path)], 10)
    checkpoint = CallbackHook(after_step=lambda trainer: trainer.state_dict())
    Steps(writer, checkpoint, images=True).train(0, 20)
    assert looks.seen == list(range(20))


def test_images_that_nobody_takes_do_not_pile_up(tmp_path):
    trainer = Steps(PeriodicWriter([JSONWriter(tmp_path / "metrics.json")], 5), images=True)
    trainer.train(0, 12)
    assert len(trainer.storage._vis_data) == 0
