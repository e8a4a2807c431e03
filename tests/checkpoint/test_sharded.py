"""Checkpoints that are folders of shards, on the one rank that a test is."""

import json
import math
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer, CheckpointError
from engine.checkpoint.sharded import STATE_FILE, read_sharded, write_sharded
from engine.hooks import EMAHook, PeriodicCheckpointer


class Payload:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)


@pytest.fixture
def filled(shard):
    """Makes a sharded model of which all weights have one value: `filled(7)`."""

    def make(value: float) -> nn.Module:
        model = nn.Linear(2, 2)
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
        return shard(model)

    return make


def values(model: nn.Module) -> set[float]:
    whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return set(torch.cat([tensor.detach().flatten() for tensor in whole]).tolist())


def save_three(folder: Path, filled) -> list[Path]:
    """Folders of three iterations; all weights are the iteration's number."""
    for iteration in (9, 19, 29):
        checkpointer = Checkpointer(filled(iteration), folder)
        checkpointer.save(f"model_{iteration:07d}", iteration=iteration)
    return [folder / f"model_{iteration:07d}" for iteration in (9, 19, 29)]


def warnings(log) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelname == "WARNING"]


# --- what is written ---------------------------------------------------------------------------


def test_a_sharded_model_is_saved_as_a_folder_that_the_manifest_lists(tmp_path, filled):
    path = save_three(tmp_path, filled)[-1]
    listed = json.loads((path / "files.json").read_text())["files"]
    assert set(listed) == {".metadata", "__0_0.distcp", "state.pth"}
    assert {p.name for p in path.iterdir()} == {*listed, "files.json"}
    record = json.loads((tmp_path / "manifest.json").read_text())["checkpoints"][path.name]
    assert record["iteration"] == 29
    assert record["size"] == sum(entry["size"] for entry in listed.values())
    assert set(record) == {"size", "sha256", "saved", "iteration", "run"}
    assert (tmp_path / "last_checkpoint").read_text() == "model_0000029"
    assert list(tmp_path.glob("*.tmp")) == []


def test_all_that_is_not_sharded_is_plain(tmp_path, shard, model, batches):
    model = shard(model)
    trainer = SimpleTrainer(model, batches, torch.optim.Adam(model.parameters(), 0.1))
    trainer.register_hooks([EMAHook(0.5)])
    checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
    trainer.train(0, 3)
    checkpointer.save("model", iteration=2)
    stored = torch.load(tmp_path / "model" / STATE_FILE, weights_only=True)["state"]
    moment = stored["trainer"]["optimizer"]["state"][0]["exp_avg"]
    assert moment.is_meta
    assert moment.shape == (1, 4)
    assert stored["trainer"]["optimizer"]["state"][0]["step"] == 3
    assert stored["trainer"]["iteration"] == 2
    whole = read_sharded(str(tmp_path / "model"))
    average = whole["trainer"]["hooks"]["EMAHook"]["average"]["linear.weight"]
    assert torch.equal(average, trainer._hooks[0].average["linear.weight"].full_tensor())


def test_sharded_weights_and_whole_buffers_are_averaged_alike(shard, batches):
    model = shard(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)))
    model.register_forward_hook(lambda module, inputs, output: output.square().mean())
    inputs = [batch[0] for batch in batches]
    ema = EMAHook(0.5, buffers=True)
    trainer = SimpleTrainer(model, inputs, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([ema])
    trainer.train(0, 1)
    first = model[0].running_mean.clone()
    trainer.train(1, 2)
    assert ema.count == 2
    assert torch.allclose(ema.average["0.running_mean"], (first + 2 * model[0].running_mean) / 4)
    assert ema.average["1.weight"].full_tensor().shape == (1, 4)


def test_a_model_is_averaged_of_which_a_part_is_not_sharded(shard, batches):
    model = nn.Sequential(nn.Linear(4, 4), shard(nn.Linear(4, 1)))
    model.register_forward_hook(lambda module, inputs, output: output.square().mean())
    inputs = [batch[0] for batch in batches]
    ema = EMAHook(0.0)
    trainer = SimpleTrainer(model, inputs, torch.optim.SGD(model.parameters(), 0.1))
    trainer.register_hooks([ema])
    trainer.train(0, 2)
    for name, weight in model.named_parameters():
        assert torch.equal(ema.average[name], weight), name


def test_weights_with_two_names_are_saved_once_and_loaded_twice(tmp_path, shard):
    model = shard(Tied())
    Checkpointer(model, tmp_path).save("model")
    state = read_sharded(str(tmp_path / "model"))["model"]
    assert list(state) != []
    assert set(state) == set(model.state_dict())
    assert state["second.weight"] is state["first.weight"]
    plain = Tied()
    Checkpointer(plain).load(str(tmp_path / "model"))
    assert torch.equal(plain.first.weight, model.state_dict()["first.weight"].full_tensor())


def test_weights_with_two_names_may_be_in_a_part_that_is_not_sharded(tmp_path, shard):
    model, plain = nn.Sequential(Tied(), shard(nn.Linear(3, 3))), Tied()
    Checkpointer(model, tmp_path).save("model")
    saved = read_sharded(str(tmp_path / "model"))["model"]
    assert saved["0.second.weight"] is saved["0.first.weight"]
    assert saved["1.weight"].shape == (3, 3)
    Checkpointer(plain).load(f"{tmp_path}/model?matching_heuristics=True")
    assert torch.equal(plain.second.weight, model[0].first.weight)


class SavedUnderOneName(Tied):
    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        del state["second.weight"]
        return state


def test_a_model_may_leave_out_the_second_name_of_a_weight_itself(tmp_path, shard):
    model, plain = shard(SavedUnderOneName()), SavedUnderOneName()
    Checkpointer(model, tmp_path).save("model")
    Checkpointer(plain).load(str(tmp_path / "model"))
    assert torch.equal(plain.second.weight, model.state_dict()["first.weight"].full_tensor())


def test_a_tensor_without_data_cannot_be_saved(tmp_path):
    with pytest.raises(TypeError, match=r"mask\[0\] has no data"):
        write_sharded(str(tmp_path), {"model": {}, "mask": [torch.ones(1, device="meta")]}, {})


def test_states_that_are_not_finite_are_refused(tmp_path, filled):
    checkpointer = Checkpointer(filled(1), tmp_path)
    checkpointer.save("model_best")
    checkpointer.model.load_state_dict(filled(math.nan).state_dict())
    with pytest.raises(FloatingPointError, match="weight is NaN or infinite"):
        checkpointer.save("model_best")
    model = nn.Linear(2, 2)
    Checkpointer(model, tmp_path).load(str(tmp_path / "model_best"))
    assert values(model) == {1.0}


def test_a_folder_is_replaced_by_a_new_one(tmp_path, filled):
    for value in (1, 2):
        Checkpointer(filled(value), tmp_path).save("model_best")
    model = nn.Linear(2, 2)
    Checkpointer(model).load(f"{tmp_path}/model_best/")
    assert values(model) == {2.0}
    assert {p.name for p in tmp_path.iterdir()} == {
        "model_best",
        "manifest.json",
        "last_checkpoint",
    }


def test_a_run_that_is_no_longer_sharded_or_now_is_leaves_no_older_one_behind(tmp_path, filled):
    for value, model in enumerate([filled(0), nn.Linear(2, 2), filled(2)]):
        nn.init.constant_(model.weight, value)
        Checkpointer(model, tmp_path).save("model_best")
        names = {path.name for path in tmp_path.iterdir()} - {"manifest.json", "last_checkpoint"}
        assert names == ({"model_best.pth"} if value == 1 else {"model_best"})
    (tmp_path / "model_final").mkdir()  # whatever it is, it is not ours
    Checkpointer(nn.Linear(2, 2), tmp_path).save("model_final")
    assert (tmp_path / "model_final").is_dir()


def test_nothing_is_saved_without_a_folder_or_where_it_is_switched_off(tmp_path, filled):
    Checkpointer(filled(1)).save("model")
    Checkpointer(filled(1), tmp_path, save_to_disk=False).save("model")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_what_was_there(small_disk, filled, shard, log):
    Checkpointer(filled(1), small_disk / "run").save("model_0000009", iteration=9)
    large = Checkpointer(shard(nn.Linear(300, 300)), small_disk / "run")
    with pytest.raises(OSError, match="No space left"):
        large.save("model_0000019")
    assert sorted(p.name for p in (small_disk / "run").iterdir()) == [
        "last_checkpoint",
        "manifest.json",
        "model_0000009",
    ]


def test_only_the_last_folders_are_kept(tmp_path, shard, model, batches):
    model = shard(model)
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    checkpointer = Checkpointer(model, tmp_path, background=True, trainer=trainer)
    trainer.register_hooks([PeriodicCheckpointer(checkpointer, 2, max_to_keep=2)])
    (tmp_path / "model_0000000").mkdir()  # somebody else's
    trainer.train(0, 9)
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"model_0000000", "model_0000005", "model_0000007", "model_final"}


# --- what is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_folder_is_resumed_by_a_sharded_model_or_a_whole_one(tmp_path, filled, is_sharded):
    save_three(tmp_path, filled)
    model = filled(0) if is_sharded else nn.Linear(2, 2)
    assert Checkpointer(model, tmp_path).resume_or_load("") == {"iteration": 29}
    assert values(model) == {29.0}


def test_a_file_is_resumed_by_a_sharded_model(tmp_path, shard, model, batches):
    def make_trainer(model):
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        trainer = SimpleTrainer(model, batches, optimizer)
        trainer.register_hooks([EMAHook(0.5)])
        return trainer, Checkpointer(model, tmp_path, trainer=trainer)

    trainer, checkpointer = make_trainer(model)
    trainer.train(0, 3)
    checkpointer.save("model_0000002")
    resumed = []
    for fresh in (type(model)(), shard(type(model)())):
        trainer, checkpointer = make_trainer(fresh)
        checkpointer.resume_or_load("")
        trainer.train(3, 6)
        resumed.append(trainer)
    whole, sharded = resumed
    for name, weight in whole.model.named_parameters():
        assert torch.allclose(sharded.model.state_dict()[name].full_tensor(), weight)
        average = sharded._hooks[0].average[name].full_tensor()
        assert torch.allclose(average, whole._hooks[0].average[name])


def test_an_optimizer_of_ones_own_is_resumed_from_a_file(tmp_path, shard):
    def step(model, optimizer) -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    for model in (nn.Linear(2, 2), shard(nn.Linear(2, 2))):
        optimizer = torch.optim.Adam(model.parameters())
        checkpointer = Checkpointer(model, tmp_path, optimizer=optimizer)
        checkpointer.resume_or_load("")
        step(model, optimizer)
        checkpointer.save("model_0000000", iteration=0)
    assert optimizer.state[model.weight]["step"] == 2
    step(model, optimizer)


def test_a_second_model_may_be_sharded_or_not(tmp_path, filled):
    models = [(filled(1), filled(2)), (nn.Linear(2, 2), nn.Linear(2, 2))]
    for (model, second), (other, other_second) in (models, models[::-1]):
        Checkpointer(model, tmp_path, second=second).save("model")
        nn.init.constant_(other_second.weight, 0)
        Checkpointer(other, tmp_path, second=other_second).resume_or_load("")
        assert values(other_second) == {2.0}


def test_a_second_model_may_be_the_one_that_is_sharded(tmp_path, filled):
    second = filled(2)
    optimizer = torch.optim.SGD(second.parameters(), 0.1, momentum=0.9)
    sum(parameter.sum() for parameter in second.parameters()).backward()
    optimizer.step()
    saved = Checkpointer(nn.Linear(2, 2), tmp_path, second=second, optimizer=optimizer)
    saved.save("model")
    state = read_sharded(str(tmp_path / "model"))
    assert state["second"]["weight"].unique() == pytest.approx(1.9)
    assert torch.equal(state["optimizer"]["state"][0]["momentum_buffer"], torch.ones(2, 2))
    other = filled(0)
    new = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    Checkpointer(nn.Linear(2, 2), tmp_path, second=other, optimizer=new).resume_or_load("")
    assert values(other) == values(second)
    new.step()


def test_a_second_model_may_be_sharded_no_longer(tmp_path, filled):
    Checkpointer(filled(1), tmp_path, second=filled(2)).save("model")
    second = nn.Linear(2, 2)
    Checkpointer(filled(0), tmp_path, second=second).resume_or_load("")
    assert values(second) == {2.0}


@pytest.mark.parametrize("background", [False, True])
def test_a_shard_of_what_is_no_model_of_the_checkpointer_is_not_saved_as_if_it_were_whole(
    tmp_path, filled, background
):
    checkpointer = Checkpointer(nn.Linear(2, 2), tmp_path, background=background)
    with pytest.raises(TypeError, match=r"teacher\['weight'\] is sharded, and no model of the"):
        checkpointer.save("model", teacher=filled(2).state_dict())
    assert list(tmp_path.iterdir()) == []


def test_weights_saved_under_ddp_are_loaded_into_shards(tmp_path, filled):
    torch.save(
        {"module.weight": torch.ones(2, 2), "module.bias": torch.ones(2)}, tmp_path / "a.pth"
    )
    model = filled(0)
    Checkpointer(model).load(str(tmp_path / "a.pth"))
    assert values(model) == {1.0}


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "state.pth", "files.json"])
@pytest.mark.parametrize("how", ["gone", "cut", "one bit"])
def test_a_damaged_newest_folder_is_named_and_the_one_before_is_used(
    tmp_path, log, filled, name, how
):
    paths = save_three(tmp_path, filled)
    data = bytearray((paths[2] / name).read_bytes())
    if how == "gone":
        (paths[2] / name).unlink()
    elif how == "cut":
        (paths[2] / name).write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        (paths[2] / name).write_bytes(data)
    model = filled(0)
    assert Checkpointer(model, tmp_path).resume_or_load("")["iteration"] == 19
    assert values(model) == {19.0}
    (warning,) = warnings(log)
    assert f"{paths[2]} cannot be loaded: it is damaged" in warning
    assert f"trying {paths[1]}" in warning


@pytest.mark.parametrize("name", [".metadata", "state.pth"])
def test_a_payload_is_refused_and_not_run(tmp_path, filled, name):
    path = save_three(tmp_path, filled)[-1]
    payload = Payload(tmp_path / "hacked")
    if name == ".metadata":
        (path / name).write_bytes(pickle.dumps(payload))
    else:
        torch.save({"state": {"model": payload}, "tied": {}}, path / name)
    os.remove(tmp_path / "manifest.json")
    listing = json.loads((path / "files.json").read_text())
    listing["files"].pop(name)  # its checksum would tell first
    (path / "files.json").write_text(json.dumps(listing))
    with pytest.raises(CheckpointError, match="mkdir, which is no plain value"):
        Checkpointer(filled(0)).load(str(path))
    assert not (tmp_path / "hacked").exists()


def test_other_folders_with_a_number_are_not_resumed_from(tmp_path, filled):
    (tmp_path / "code_20261116").mkdir()
    assert Checkpointer(filled(0), tmp_path).resume_or_load("") == {}
    save_three(tmp_path, filled)
    for name in ("last_checkpoint", "manifest.json"):
        (tmp_path / name).unlink()
    assert Checkpointer(filled(0), tmp_path).resume_or_load("") == {"iteration": 29}


@pytest.mark.parametrize("name", [STATE_FILE, "__0_0.distcp"])
def test_a_file_in_a_folder_is_no_checkpoint(tmp_path, filled, name):
    Checkpointer(filled(7), tmp_path).save("model")
    with pytest.raises(CheckpointError, match=f"{name} is a part of .* the folder .*model$"):
        Checkpointer(nn.Linear(2, 2)).load(f"{tmp_path}/model/{name}")


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, filled):
    with pytest.raises(CheckpointError, match="a folder without one is no checkpoint"):
        Checkpointer(filled(0)).load(str(tmp_path))


def test_tensors_that_are_not_wanted_are_left_without_data(tmp_path, filled):
    path = save_three(tmp_path, filled)[0]
    weights = read_sharded(str(path), is_wanted=lambda where: where == "model['bias']")["model"]
    assert weights["bias"].tolist() == [9.0, 9.0]
    assert weights["weight"].is_meta
