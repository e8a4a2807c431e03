"""Runs that are killed with SIGKILL at random moments, beside one that is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Forks for each run, since to import torch takes longer than the run itself.
SCRIPT = """
import math, os, random, signal, sys, time
import numpy.random, PIL.PngImagePlugin, torch, torch.utils.tensorboard
from engine import TrainerBase
from engine.checkpoint import Checkpointer
from engine.events import JSONWriter, TensorboardXWriter
from engine.hooks import EvalHook, PeriodicCheckpointer, PeriodicWriter

straight, killed = sys.argv[1:3]
seed, max_iter, most_kills = map(int, sys.argv[3:])

class Steps(TrainerBase):
    def run_step(self):
        put, at = self.storage.put_scalar, self.iter
        put("loss", math.sin(at))
        put("lr", 1 / (at + 1), smoothing_hint=False)
        if at % 10 == 8:  # in a checkpoint before it is written
            put("rare", at)
        if at % 5 == 3:
            self.storage.put_image("picture", torch.full((3, 8, 8), at % 256, dtype=torch.uint8))
        if at % 6 == 2:
            self.storage.put_histogram("weights", torch.arange(at + 1.0), bins=5)
        os.write(self.pipe, b".")

def run(folder, pipe):
    torch.set_num_threads(1)
    trainer = Steps()
    trainer.pipe = pipe
    background = dice.random() < 0.5
    model = torch.nn.Linear(2, 2)
    checkpointer = Checkpointer(model, folder, trainer=trainer, background=background)
    writers = [JSONWriter(f"{folder}/metrics.json"), TensorboardXWriter(folder)]
    trainer.register_hooks([
        EvalHook(4, lambda: {"accuracy": math.cos(trainer.iter)}),
        PeriodicWriter(writers, 7),
        PeriodicCheckpointer(checkpointer, 10, max_to_keep=2),
    ])
    found = checkpointer.resume_or_load("", resume=True)
    trainer.train(trainer.iter + 1 if found else 0, max_iter)

def start(folder):
    steps, pipe = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            run(folder, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(pipe)
    return process, steps

def end(process, steps):
    status = os.waitpid(process, 0)[1]
    os.close(steps)
    return status

dice = random.Random(seed)
process, steps = start(straight)
while os.read(steps, 100):
    pass
assert end(process, steps) == 0
for kills in range(most_kills):
    process, steps = start(killed)
    for _ in range(dice.randrange(40)):
        os.read(steps, 1)
    time.sleep(dice.uniform(0, 0.01))
    os.kill(process, signal.SIGKILL)
    assert end(process, steps) == signal.SIGKILL, "it came to its end"
process, steps = start(killed)
while os.read(steps, 100):
    pass
assert end(process, steps) == 0
"""


def run_both(folder: Path, seed: int, max_iter: int, kills: int) -> tuple[Path, Path]:
    straight, killed = folder / "straight", folder / "killed"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    arguments = [str(straight), str(killed), str(seed), str(max_iter), str(kills)]
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, env=environment
    )
    assert process.returncode == 0, process.stderr
    return straight, killed


def everything(folder: Path) -> dict[str, list]:
    """Each step and content by tag: all that is in the files, not only what TensorBoard shows."""
    guidance = {"scalars": 0, "images": 0, "histograms": 0}
    events = EventAccumulator(str(folder), guidance, purge_orphaned_data=False).Reload()
    tags = events.Tags()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    images = {
        tag: [(e.step, e.encoded_image_string) for e in events.Images(tag)]
        for tag in tags["images"]
    }
    histograms = {
        tag: [(e.step, e.histogram_value) for e in events.Histograms(tag)]
        for tag in tags["histograms"]
    }
    return {**scalars, **images, **histograms}


@pytest.mark.parametrize(
    ("seed", "max_iter", "kills"), [(0, 300, 6), pytest.param(1, 1100, 25, marks=pytest.mark.slow)]
)
def test_metrics_and_curves_are_those_of_a_run_that_was_never_killed(
    tmp_path, seed, max_iter, kills
):
    straight, killed = run_both(tmp_path, seed, max_iter, kills)
    assert (killed / "metrics.json").read_bytes() == (straight / "metrics.json").read_bytes()
    expected = everything(straight)
    assert set(expected) == {"loss", "lr", "rare", "accuracy", "picture", "weights"}
    assert everything(killed) == expected
    assert [step for step, _ in expected["picture"]] == list(range(3, max_iter, 5))
