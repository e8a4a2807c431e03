import pytest
import torch

from engine.hooks import CallbackHook
from engine.hooks.visualization import VisualizationHook
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    """Evaluates five batches after each step; the output of batch n is n."""

    def __init__(self, hook):
        super().__init__()
        self.register_hooks([hook, CallbackHook(after_step=Trainer.evaluate)])

    def run_step(self):
        pass

    def evaluate(self):
        self.before_eval()
        for batch in range(5):
            self.before_eval_step()
            self.after_eval_step(batch)
        self.after_eval({})


def draw(output):
    return torch.full((3, 2, 2), output, dtype=torch.uint8)


def images(trainer):
    stored = trainer.storage.unwritten_images(reader=trainer)
    return [(name, int(image[0, 0, 0]), iteration) for name, image, iteration in stored]


def test_every_so_many_batches_of_each_evaluation_are_drawn():
    trainer = Trainer(VisualizationHook(draw, period=2, name="mask"))
    trainer.train(0, 2)
    first = [("mask/0", 0, 0), ("mask/2", 2, 0), ("mask/4", 4, 0)]
    assert images(trainer) == first + [(name, n, 1) for name, n, _ in first]


def test_a_short_evaluation_shows_its_first_batch():
    trainer = Trainer(VisualizationHook(draw))
    trainer.train(0, 1)
    assert images(trainer) == [("prediction/0", 0, 0)]


def test_none_is_no_picture():
    trainer = Trainer(VisualizationHook(lambda output: draw(output) if output else None, period=3))
    trainer.train(0, 1)
    assert images(trainer) == [("prediction/3", 3, 0)]


def test_the_period_is_at_least_one_batch():
    with pytest.raises(ValueError, match="1 batch or more, got 0"):
        VisualizationHook(draw, period=0)
