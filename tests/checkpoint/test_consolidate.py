import pytest
import torch
from torch import nn

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer, CheckpointError
from engine.checkpoint.consolidate import consolidate_checkpoint
from engine.hooks import EMAHook


class TiedRegression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, batch):
        inputs, targets = batch
        return (self.norm(self.second(self.first(inputs))) - targets).square().mean()


@pytest.fixture
def run(tmp_path, shard, batches):
    """A sharded run with an average, saved as `model_0000003`; the trainer."""
    torch.manual_seed(0)
    model = shard(TiedRegression())
    trainer = SimpleTrainer(model, batches, torch.optim.Adam(model.parameters(), 0.1))
    trainer.register_hooks([EMAHook(0.5)])
    trainer.train(0, 4)
    Checkpointer(model, tmp_path, trainer=trainer).save("model_0000003", iteration=3)
    return trainer


def whole(weights: dict) -> dict:
    return {name: getattr(v, "full_tensor", lambda v=v: v)() for name, v in weights.items()}


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_the_weights_are_those_of_the_folder(tmp_path, run, name):
    output = tmp_path / "out" / name
    consolidate_checkpoint(str(tmp_path / "model_0000003"), str(output), weights_only=True)
    model = TiedRegression()
    assert Checkpointer(model).load(str(output)) == {}
    assert_same(model.state_dict(), whole(run.model.state_dict()))


def test_a_file_with_everything_can_be_resumed_from(tmp_path, run, batches):
    consolidate_checkpoint(
        f"{tmp_path}/model_0000003/", str(tmp_path / "out" / "model_0000003.pth")
    )
    model = TiedRegression()
    trainer = SimpleTrainer(model, batches, torch.optim.Adam(model.parameters(), 0.1))
    trainer.register_hooks([EMAHook(0.5)])
    checkpointer = Checkpointer(model, tmp_path / "out", trainer=trainer)
    assert checkpointer.resume_or_load("") == {"iteration": 3}
    moments = trainer.optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(moments, run.optimizer.state_dict()["state"][0]["exp_avg"].full_tensor())
    assert trainer.iter == 3


@pytest.mark.parametrize("name", ["average.pth", "average.safetensors"])
def test_the_averaged_weights_are_written_if_asked(tmp_path, run, name):
    consolidate_checkpoint(str(tmp_path / "model_0000003"), str(tmp_path / name), average=True)
    model = TiedRegression()
    assert Checkpointer(model).load(str(tmp_path / name)) == {}
    ema = run._hooks[0]
    assert_same(model.state_dict(), whole(ema.averaged_state_dict()))
    assert not torch.equal(model.first.weight, whole(run.model.state_dict())["first.weight"])
    assert model.second.weight is model.first.weight


def test_the_average_of_a_run_of_one_process_is_taken_from_its_file(tmp_path, batches):
    model = TiedRegression()
    trainer = SimpleTrainer(model, batches, torch.optim.Adam(model.parameters(), 0.1))
    trainer.register_hooks([EMAHook(0.5)])
    trainer.train(0, 4)
    checkpointer = Checkpointer(model, tmp_path, trainer=trainer, background=True)
    checkpointer.save("model_0000003")
    checkpointer.wait()
    output = str(tmp_path / "average.safetensors")
    consolidate_checkpoint(str(tmp_path / "model_0000003.pth"), output, average=True)
    averaged = TiedRegression()
    assert Checkpointer(averaged).load(output) == {}
    assert_same(averaged.state_dict(), trainer._hooks[0].averaged_state_dict())
    assert not torch.equal(averaged.first.weight, model.first.weight)


def test_without_an_average_it_says_so(tmp_path, shard):
    Checkpointer(shard(nn.Linear(2, 2)), tmp_path).save("model")
    with pytest.raises(ValueError, match="model holds no average of the weights: EMA was off"):
        consolidate_checkpoint(str(tmp_path / "model"), str(tmp_path / "a.pth"), average=True)
    assert not (tmp_path / "a.pth").exists()


def test_an_average_is_written_in_the_precision_of_the_weights(tmp_path, batches):
    model = nn.Linear(4, 4, dtype=torch.bfloat16)
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    ema = EMAHook(0.5, model=model)
    trainer.register_hooks([ema])
    trainer.run_step = lambda: None
    trainer.train(0, 2)
    assert ema.average["weight"].dtype == torch.float32
    Checkpointer(model, tmp_path, trainer=trainer).save("model")
    consolidate_checkpoint(str(tmp_path / "model.pth"), str(tmp_path / "out.pth"), average=True)
    written = torch.load(tmp_path / "out.pth")["model"]
    assert_same(written, model.state_dict())


def test_an_average_of_another_model_is_refused(tmp_path, batches):
    model = nn.Sequential(nn.Linear(4, 4))
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([EMAHook(0.5, model=model[0])])
    trainer.run_step = lambda: None
    trainer.train(0, 2)
    Checkpointer(model, tmp_path, trainer=trainer).save("model")
    with pytest.raises(ValueError, match="average of 'weight', which is no weight of its model"):
        consolidate_checkpoint(str(tmp_path / "model.pth"), str(tmp_path / "a.pth"), average=True)


def test_averages_of_buffers_that_are_not_saved_are_left_out(tmp_path, batches):
    model = nn.Linear(4, 4)
    model.register_buffer("cache", torch.ones(2), persistent=False)
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([EMAHook(0.5, buffers=True)])
    trainer.run_step = lambda: None
    trainer.train(0, 2)
    Checkpointer(model, tmp_path, trainer=trainer).save("model")
    consolidate_checkpoint(str(tmp_path / "model.pth"), str(tmp_path / "out.pth"), average=True)
    assert_same(torch.load(tmp_path / "out.pth")["model"], model.state_dict())


def test_a_part_of_a_folder_is_refused(tmp_path, run):
    part = tmp_path / "model_0000003" / "state.pth"
    assert part.exists()
    with pytest.raises(ValueError, match=r"is a part of a checkpoint, which is the folder .*0003"):
        consolidate_checkpoint(str(part), str(tmp_path / "out.pth"))


def test_a_damaged_folder_is_refused(tmp_path, run):
    (tmp_path / "model_0000003" / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"model_0000003 is damaged: __0_0.distcp has 0 bytes"
    ):
        consolidate_checkpoint(str(tmp_path / "model_0000003"), str(tmp_path / "a.pth"))


def test_what_is_not_there_and_what_is_no_weights_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .*nothing"):
        consolidate_checkpoint(str(tmp_path / "nothing"), "a.pth")
    with pytest.raises(ValueError, match=r"'a.bin'; it must end in .pth or .safetensors"):
        consolidate_checkpoint(str(tmp_path), "a.bin")


def test_a_checkpoint_is_not_written_over(tmp_path):
    checkpointer = Checkpointer(nn.Linear(2, 2), tmp_path)
    for name in ("first", "second"):
        checkpointer.save(name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for output in ("first.pth", "second.pth"):
        with pytest.raises(ValueError, match=rf"{output} is a checkpoint that is there"):
            consolidate_checkpoint(str(tmp_path / "first.pth"), str(tmp_path / output))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
