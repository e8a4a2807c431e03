import copy
import glob
import os
import pickle
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from fvcore.common.checkpoint import Checkpointer as FvcoreCheckpointer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from iopath.common.file_io import PathHandler, PathManager
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer, CheckpointError
from engine.checkpoint.consolidate import consolidate_checkpoint
from engine.hooks import BestCheckpointer, EMAHook, EvalHook, LRScheduler


class State:
    """Something with a state of any kind."""

    def __init__(self, state=None) -> None:
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state) -> None:
        self.state = state


class Payload:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def fill(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)


def values(model: nn.Module) -> set[float]:
    return set(torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())


def as_lists(state):
    """A state that == can compare."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: as_lists(value) for key, value in state.items()}
    return [as_lists(value) for value in state] if isinstance(state, (list, tuple)) else state


def save_three(folder: Path) -> list[Path]:
    """Checkpoints of three iterations; all weights are the iteration's number."""
    model = nn.Linear(2, 2)
    for iteration in (9, 19, 29):
        fill(model, iteration)
        Checkpointer(model, folder).save(f"model_{iteration:07d}", iteration=iteration)
    return sorted(folder.glob("*.pth"))


def warnings(log) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelname == "WARNING"]


# --- saving ------------------------------------------------------------------------------------


def test_all_states_of_a_run_come_back(tmp_path, model, batches):
    def make_run(model):
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        trainer = SimpleTrainer(model, batches, optimizer)
        checkpointer = Checkpointer(model, tmp_path, trainer=trainer)
        hooks = [
            LRScheduler(scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3)),
            EMAHook(0.9),
            EvalHook(2, lambda: {"accuracy": np.float64(trainer.iter)}),
            BestCheckpointer(2, checkpointer, "accuracy"),
        ]
        trainer.register_hooks(hooks)
        return trainer, checkpointer

    trainer, checkpointer = make_run(copy.deepcopy(model))
    trainer.train(0, 7)
    trainer.storage.note = {"seen": np.int64(5)}
    checkpointer.save("model_0000006", iteration=6, score=np.float32(0.5))

    resumed, loader = make_run(model)
    assert loader.resume_or_load("") == {"iteration": 6, "score": 0.5}
    before, after = trainer.state_dict(), resumed.state_dict()
    assert after.pop("iteration") == before.pop("iteration") == 6
    assert before.pop("storage")["notes"] == {"note": {"seen": 5}}
    assert before.pop("finished")
    assert len(before.pop("random_states")) == 1
    assert set(before["hooks"]) == {"LRScheduler", "EMAHook", "BestCheckpointer"}
    assert as_lists(after) == as_lists(before)
    assert as_lists(resumed.model.state_dict()) == as_lists(trainer.model.state_dict())
    stored = torch.load(tmp_path / "model_0000006.pth", weights_only=True)
    assert stored["trainer"]["storage"]["notes"] == {"note": {"seen": 5}}


@pytest.mark.parametrize("state", [Path("a"), deque([1]), State()], ids=repr)
def test_a_state_that_would_not_load_is_refused_before_anything_is_written(tmp_path, state):
    data = State({"epochs": [0, state]})
    checkpointer = Checkpointer(nn.Linear(1, 1), tmp_path, sampler=data)
    with pytest.raises(TypeError, match=r"sampler\['epochs'\]\[1\] is a "):
        checkpointer.save("model_0000009")
    data.state = {}
    with pytest.raises(TypeError, match=r"seen\[0\] is a "):
        checkpointer.save("model_0000009", seen=[state])
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    save_three(tmp_path)

    def broken(data, file):
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", broken)
    checkpointer = Checkpointer(nn.Linear(2, 2), tmp_path)
    for name in ("model_0000029", "model_0000039"):
        with pytest.raises(OSError, match="no space left"):
            checkpointer.save(name)
    monkeypatch.undo()
    assert checkpointer.resume_or_load("")["iteration"] == 29
    assert len(list(tmp_path.iterdir())) == 5  # three checkpoints, last_checkpoint, the manifest


def test_the_folder_is_made(tmp_path):
    Checkpointer(nn.Linear(1, 1), tmp_path / "a" / "b").save("model")
    assert (tmp_path / "a" / "b" / "model.pth").is_file()


def test_nothing_is_saved_without_a_folder_or_where_it_is_switched_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Checkpointer(nn.Linear(1, 1)).save("model")
    Checkpointer(nn.Linear(1, 1), "out", save_to_disk=False).save("model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_that_is_not_local_is_refused_where_it_would_be_saved_to(kind):
    folder = kind("s3://bucket/run")
    with pytest.raises(ValueError, match=r"must be a local folder, got 's3:/+bucket/run': mount"):
        Checkpointer(nn.Linear(1, 1), folder)
    Checkpointer(nn.Linear(1, 1), folder, save_to_disk=False)


def test_a_temporary_that_takes_its_name_meanwhile_is_passed_over(tmp_path, monkeypatch):
    temporary = tmp_path / "results.json.0123abcd.tmp"
    temporary.touch()
    os.utime(temporary, (0, 0))
    list_files = glob.glob

    def list_and_rename(pattern):
        found = list_files(pattern)
        temporary.rename(tmp_path / "results.json")
        return found

    monkeypatch.setattr(glob, "glob", list_and_rename)
    Checkpointer(nn.Linear(1, 1), tmp_path).save("model")
    assert {"model.pth", "results.json"} <= set(os.listdir(tmp_path))


def test_what_is_saved_after_a_run_has_begun_is_of_that_run_only(tmp_path):
    checkpointer = Checkpointer(nn.Linear(1, 1), tmp_path)
    for name in ("first", "second"):
        checkpointer.begin_run()
        checkpointer.save(name)
        assert checkpointer.names_of_run() == {f"{name}.pth"}


def test_a_file_that_is_not_tagged_is_not_resumed_from(tmp_path):
    model = nn.Linear(1, 1)
    checkpointer = Checkpointer(model, tmp_path)
    checkpointer.save("model_0000009", iteration=9)
    checkpointer.save("model_best", tag_as_last=False, iteration=11)
    assert (tmp_path / "last_checkpoint").read_text() == "model_0000009.pth"
    assert checkpointer.resume_or_load("")["iteration"] == 9


# --- loading what should not be trusted --------------------------------------------------------


@pytest.mark.parametrize("write", [torch.save, lambda o, f: Path(f).write_bytes(pickle.dumps(o))])
@pytest.mark.parametrize("place", ["top", "model", "extra"])
def test_a_payload_is_refused_and_not_run(tmp_path, write, place):
    payload = Payload(tmp_path / "hacked")
    content = {
        "top": payload,
        "model": {"model": {"weight": payload}},
        "extra": {"model": nn.Linear(1, 1).state_dict(), "trainer": payload},
    }
    path = tmp_path / "model.pth"
    write(content[place], path)
    model = nn.Linear(1, 1)
    fill(model, 0.5)
    with pytest.raises(CheckpointError, match=r"model.pth cannot be loaded") as caught:
        Checkpointer(model).load(str(path))
    assert not (tmp_path / "hacked").exists()
    assert values(model) == {0.5}
    if write is torch.save:
        assert f"it holds {os.mkdir.__module__}.mkdir" in str(caught.value)
    assert "weights_only" not in str(caught.value)  # no advice to load it unsafely


def test_a_payload_as_the_newest_checkpoint_is_passed_over(tmp_path, log):
    paths = save_three(tmp_path)
    torch.save(Payload(tmp_path / "hacked"), paths[-1])
    (tmp_path / "manifest.json").unlink()  # or its checksum would tell first
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")["iteration"] == 19
    assert not (tmp_path / "hacked").exists()
    assert "could run code" in warnings(log)[0]


def test_arrays_of_numpy_are_refused_as_no_plain_values(tmp_path):
    torch.save({"weight": np.ones((1, 1))}, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=r"it holds numpy\S+, which is no plain value"):
        Checkpointer(nn.Linear(1, 1)).load(str(tmp_path / "model.pth"))


@pytest.mark.parametrize("content", [torch.ones(2), [1], 3, "model", {"model": 3}], ids=repr)
def test_a_file_without_a_dict_of_weights_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match=r"model.pth cannot be loaded: it holds no dict"):
        Checkpointer(nn.Linear(1, 1)).load(str(tmp_path / "model.pth"))


# --- damaged and missing files -----------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    contents = {
        "empty": b"",
        "zeros": bytes(len(data)),
        "garbage": b"garbage" * 100,
        "half": data[: len(data) // 2],
        "one byte short": data[:-1],
    }
    path.write_bytes(contents[how])


@pytest.mark.parametrize("how", ["empty", "zeros", "garbage", "half", "one byte short"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path, log, how):
    paths = save_three(tmp_path)
    damage(paths[2], how)
    model = nn.Linear(2, 2)
    assert Checkpointer(model, tmp_path).resume_or_load("")["iteration"] == 19
    assert values(model) == {19.0}
    (warning,) = warnings(log)
    assert f"{paths[2]} cannot be loaded: it is damaged" in warning
    assert f"trying {paths[1]}" in warning
    assert f"Resumed from {paths[1]}" in log.text


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 10_000))
def test_wherever_a_file_is_cut_the_damage_is_noticed(tmp_path, cut):
    path = tmp_path / "model.pth"
    Checkpointer(nn.Linear(2, 2), tmp_path).save("model", numbers=list(range(100)))
    data = path.read_bytes()
    path.write_bytes(data[: cut % len(data)])
    with pytest.raises(CheckpointError, match=r"model.pth cannot be loaded"):
        Checkpointer(nn.Linear(2, 2)).load(str(path))


def test_several_damaged_checkpoints_are_passed_over(tmp_path, log):
    paths = save_three(tmp_path)
    damage(paths[2], "empty")
    damage(paths[1], "half")
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")["iteration"] == 9
    first, second = warnings(log)
    assert f"{paths[2]} cannot" in first
    assert f"{paths[1]} cannot" in second


def test_a_run_with_damaged_checkpoints_only_does_not_start_over(tmp_path):
    for path in save_three(tmp_path):
        damage(path, "half")
    with pytest.raises(CheckpointError, match=r"model_0000009.pth cannot be loaded"):
        Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")


def test_a_newest_checkpoint_that_is_gone_is_named_and_the_one_before_is_used(tmp_path, log):
    paths = save_three(tmp_path)
    paths[2].unlink()
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")["iteration"] == 19
    assert str(paths[2]) in warnings(log)[0]


@pytest.mark.parametrize("tag", [None, "", "model_0000099.pth"])
def test_a_run_is_resumed_whatever_became_of_its_tag(tmp_path, log, tag):
    save_three(tmp_path)
    if tag is None:
        (tmp_path / "last_checkpoint").unlink()
    else:
        (tmp_path / "last_checkpoint").write_text(tag)
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")["iteration"] == 29


@pytest.mark.parametrize("tag", [None, "", "model_0000099.pth"])
def test_the_checkpoint_of_a_finished_run_is_resumed_from_whatever_became_of_its_tag(tmp_path, tag):
    Checkpointer(nn.Linear(2, 2), tmp_path).save("model_final", iteration=29)
    Checkpointer(nn.Linear(2, 2), tmp_path).save("model_best", tag_as_last=False, iteration=39)
    if tag is None:
        (tmp_path / "last_checkpoint").unlink()
    else:
        (tmp_path / "last_checkpoint").write_text(tag)
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")["iteration"] == 29


def test_the_end_of_a_run_that_was_trained_further_is_used_where_all_after_it_is_damaged(tmp_path):
    model = nn.Linear(2, 2)
    checkpointer = Checkpointer(model, tmp_path)
    for name, iteration in (("model_0000009", 9), ("model_final", 14), ("model_0000019", 19)):
        checkpointer.save(name, iteration=iteration)
    damage(tmp_path / "model_0000019.pth", "half")
    assert Checkpointer(model, tmp_path).resume_or_load("")["iteration"] == 14


def test_a_run_that_begins_anew_does_not_go_on_from_the_end_of_another(tmp_path, log):
    Checkpointer(nn.Linear(2, 2), tmp_path).save("model_final", iteration=29)
    (tmp_path / "last_checkpoint").unlink()
    Checkpointer(nn.Linear(2, 2), tmp_path).begin_run()
    assert "has checkpoints of an earlier run" in log.text
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("") == {}


def test_a_half_written_temporary_is_not_resumed_from(tmp_path):
    paths = save_three(tmp_path)
    (tmp_path / "model_0000039.pth.1a2b3c4d.tmp").write_bytes(paths[0].read_bytes())
    (tmp_path / "last_checkpoint").unlink()
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("")["iteration"] == 29


def test_pretrained_weights_in_the_folder_are_no_checkpoint_of_the_run(tmp_path, log):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "resnet_50.pth")
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("") == {}
    assert "Nothing to resume" in log.text


@pytest.mark.parametrize("exists", [True, False])
def test_with_nothing_to_resume_it_says_where_it_looked(tmp_path, log, exists):
    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
    model = nn.Linear(2, 2)
    fill(model, 3)
    assert Checkpointer(model, folder).resume_or_load("") == {}
    assert warnings(log) == [f"Nothing to resume: no checkpoint in {folder}"]
    assert values(model) == {3.0}


def test_with_nothing_to_resume_the_given_weights_are_loaded_without_their_states(tmp_path):
    model, pretrained = nn.Linear(2, 2), nn.Linear(2, 2)
    fill(pretrained, 7)
    Checkpointer(pretrained, tmp_path / "old", trainer=State({"iteration": 99})).save("model")
    trainer = State("untouched")
    checkpointer = Checkpointer(model, tmp_path / "new", trainer=trainer)
    checkpointer.resume_or_load(str(tmp_path / "old" / "model.pth"))
    assert (values(model), trainer.state) == ({7.0}, "untouched")


def test_without_resume_the_checkpoints_of_the_run_are_left_alone(tmp_path, log):
    save_three(tmp_path)
    assert Checkpointer(nn.Linear(2, 2), tmp_path).resume_or_load("", resume=False) == {}
    assert warnings(log) == []


class OnlyFetches(PathHandler):
    """A remote place whose files can be fetched, and no more: as of http in iopath."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def _get_supported_prefixes(self):
        return ["somewhere://"]

    def _get_local_path(self, path, force=False, **kwargs):
        return str(self.folder / path.removeprefix("somewhere://"))


def test_weights_come_from_a_remote_place_of_which_files_can_only_be_fetched(tmp_path):
    model = nn.Linear(2, 1)
    torch.save({"weight": torch.ones(1, 2), "head.bias": torch.ones(1)}, tmp_path / "some.pth")
    checkpointer = Checkpointer(model)
    checkpointer.path_manager = PathManager()
    checkpointer.path_manager.register_handler(OnlyFetches(tmp_path))
    checkpointer.load("somewhere://some.pth")
    assert model.weight.tolist() == [[1.0, 1.0]]
    assert model.bias.item() != 1.0
    checkpointer.load("somewhere://some.pth?matching_heuristics=True")
    assert model.bias.item() == 1.0
    with pytest.raises(FileNotFoundError, match="no checkpoint somewhere://other"):
        checkpointer.load("somewhere://other.pth")


def test_a_subclass_may_load_weights_that_it_has_got_elsewhere():
    class Given(Checkpointer):
        def load(self, path, checkpointables=None):
            self._load_model({"model": {"weight": torch.ones(1, 2), "bias": torch.ones(1)}})

    model = nn.Linear(2, 1)
    Given(model).load("anything")
    assert values(model) == {1.0}


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint \S*/nothing.pth .*MODEL.WEIGHTS"):
        Checkpointer(nn.Linear(1, 1)).load(str(tmp_path / "nothing.pth"))


# --- weights that do not fit -------------------------------------------------------------------


def two_layers(hidden: int = 4, outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, hidden), nn.Linear(hidden, outputs))


def save_weights(model: nn.Module, folder: Path) -> str:
    torch.save(model.state_dict(), folder / "weights.pth")
    return str(folder / "weights.pth")


def test_weights_that_do_not_fit_are_listed_and_the_others_are_loaded(tmp_path, log):
    saved, model = two_layers(outputs=2), two_layers(outputs=5)
    saved.extra = nn.Linear(1, 1, bias=False)
    model.new = nn.Linear(1, 1, bias=False)
    Checkpointer(model).load(save_weights(saved, tmp_path))
    assert torch.equal(model[0].weight, saved[0].weight)
    (table,) = warnings(log)
    assert [" ".join(line.split()) for line in table.splitlines()[3:]] == [
        "new.weight in the model only",
        "extra.weight in the checkpoint only",
        "1.weight other shape (2, 4) in the checkpoint, (5, 4) in the model",
        "1.bias other shape (2,) in the checkpoint, (5,) in the model",
    ]


def test_weights_that_fit_are_loaded_without_a_warning(tmp_path, log):
    Checkpointer(two_layers()).load(save_weights(two_layers(), tmp_path))
    assert warnings(log) == []


@pytest.mark.parametrize("suffix", ["", "?matching_heuristics=True"])
def test_weights_of_another_architecture_are_refused_with_a_table(tmp_path, suffix):
    saved = nn.Sequential(nn.Linear(7, 7), nn.Conv2d(1, 1, 3))
    model = two_layers()
    before = as_lists(model.state_dict())
    path = save_weights(saved, tmp_path)
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(model).load(path + suffix)
    message, *table = str(caught.value).splitlines()
    assert message.startswith(f"no weight of {path}")
    assert message.endswith("fits the model: it is of another architecture")
    assert any("0.weight" in row and "(7, 7) in the checkpoint, (4, 3)" in row for row in table)
    assert as_lists(model.state_dict()) == before


def test_a_long_table_is_cut(tmp_path, log):
    saved = nn.Sequential(nn.Linear(1, 1), *(nn.Linear(2, 2) for _ in range(50)))
    Checkpointer(nn.Sequential(nn.Linear(1, 1))).load(save_weights(saved, tmp_path))
    (table,) = warnings(log)
    assert table.endswith("… and 60 more")


def test_a_weight_with_two_names_may_be_saved_under_one(tmp_path, log):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    state = model.state_dict()
    del state["1.weight"]
    torch.save(state, tmp_path / "weights.pth")
    Checkpointer(model).load(str(tmp_path / "weights.pth"))
    assert warnings(log) == []


def test_weights_of_a_wrapped_model_are_loaded(tmp_path, log):
    saved, model = two_layers(), two_layers()
    Checkpointer(model).load(save_weights(nn.DataParallel(saved), tmp_path))
    assert torch.equal(model[1].weight, saved[1].weight)
    assert warnings(log) == []


class WithLoss(nn.Module):
    """Calls its only part "module", as wrappers do."""

    def __init__(self, module):
        super().__init__()
        self.module = module


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel])
def test_a_model_may_call_its_only_part_as_wrappers_do(tmp_path, log, wrap):
    saved, model = WithLoss(Migrating()), WithLoss(Migrating())
    nn.init.constant_(saved.module.weight, 3.0)
    Checkpointer(model).load(save_weights(wrap(saved), tmp_path))
    assert values(model) == {3.0}
    assert warnings(log) == []


def test_weights_are_matched_by_the_ends_of_their_names_when_asked(tmp_path, log):
    backbone = two_layers()
    model = nn.ModuleDict({"backbone": two_layers(), "head": nn.Linear(2, 2)})
    path = save_weights(backbone, tmp_path)
    with pytest.raises(CheckpointError, match="another architecture"):
        Checkpointer(model).load(path)
    Checkpointer(model).load(path + "?matching_heuristics=True")
    assert as_lists(model["backbone"].state_dict()) == as_lists(backbone.state_dict())
    (table,) = warnings(log)
    assert "head.weight" in table
    assert "backbone" not in table


class Migrating(nn.Module):
    """In version 2 its weight has another sign."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args) -> None:
        if local_metadata.get("version", 1) < 2:
            state_dict[prefix + "weight"] = -state_dict[prefix + "weight"]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def test_a_module_is_told_the_version_it_was_saved_with(tmp_path):
    model = nn.Sequential(Migrating())
    checkpointer = Checkpointer(model, tmp_path)
    checkpointer.save("model")
    checkpointer.resume_or_load("")
    assert values(model) == {1.0}


def compiled(part: nn.Module) -> nn.Module:
    return torch.compile(part, backend="eager")


WRAPPERS = [
    nn.DataParallel,
    compiled,
    lambda part: compiled(nn.DataParallel(part)),
    checkpoint_wrapper,  # of activations
]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_parts_that_are_wrapped_or_compiled_have_the_names_of_plain_ones(tmp_path, log, wrap):
    def make(wrap=lambda part: part):
        part = wrap(nn.Sequential(Migrating(), Counting(2, 2)))
        return nn.ModuleDict({"part": part, "other": nn.Linear(1, 1)})

    models = {"wrapped": make(wrap), "plain": make()}
    for value, (saved, other) in enumerate([("wrapped", "plain"), ("plain", "wrapped")], start=2):
        fill(models[saved], value)
        Checkpointer(models[saved], tmp_path).save(saved)
        Checkpointer(models[other]).load(f"{tmp_path}/{saved}.pth")
        assert values(models[other]) == {value}
    assert warnings(log) == []


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_second_model_may_be_wrapped_or_not(tmp_path, wrap):
    model, wrapped, plain = nn.Linear(1, 1), wrap(Migrating()), Migrating()
    for value, (saved, other) in enumerate([(wrapped, plain), (plain, wrapped)], start=2):
        fill(saved, value)
        Checkpointer(model, tmp_path, second=saved).save("model")
        Checkpointer(model, tmp_path, second=other).load(f"{tmp_path}/model.pth")
        assert values(other) == {value}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_run_goes_on_where_parts_of_its_model_are_no_longer_wrapped(
    tmp_path, model, batches, wrap
):
    def make_checkpointer(model: nn.Module) -> Checkpointer:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        trainer = SimpleTrainer(model, batches, optimizer)
        trainer.register_hooks([EMAHook(0.5)])
        return Checkpointer(model, tmp_path, trainer=trainer)

    with_parts = copy.deepcopy(model)
    with_parts.linear = wrap(with_parts.linear)
    checkpointer = make_checkpointer(with_parts)
    checkpointer.checkpointables["trainer"].train(0, 3)
    checkpointer.save("model")
    resumed = make_checkpointer(model)
    resumed.resume_or_load("")
    states = [one.checkpointables["trainer"].state_dict() for one in (checkpointer, resumed)]
    for key in ("optimizer", "trained", "hooks"):
        assert as_lists(states[0][key]) == as_lists(states[1][key])


class Counting(nn.Linear):
    """Keeps a plain value beside its weights."""

    seen = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Filling(nn.BatchNorm1d):
    """Makes up statistics that a checkpoint lacks, as modules of detectron2 do."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict.setdefault(prefix + "running_mean", torch.zeros(2))
        super()._load_from_state_dict(state_dict, prefix, *args)


def test_extra_states_disturb_nothing_else(tmp_path):
    saved, model = (
        nn.Sequential(Counting(2, 2), Filling(2)),
        nn.Sequential(Counting(2, 2), Filling(2)),
    )
    nn.init.constant_(saved[1].running_mean, 5)
    checkpointer = Checkpointer(saved, tmp_path)
    checkpointer.save("model")
    checkpointer.save("model.pth")  # a name like any other
    Checkpointer(model).load(f"{tmp_path}/model.pth")
    assert model[1].running_mean.tolist() == [5.0, 5.0]
    assert (tmp_path / "model.pth.pth").exists()
    with pytest.raises(CheckpointError, match=r"no weight of .* fits the model"):
        Checkpointer(nn.Sequential(Counting(3, 3))).load(f"{tmp_path}/model.pth")


def test_extra_states_of_modules_come_back(tmp_path, log):
    saved, model = nn.Sequential(Counting(2, 2)), nn.Sequential(Counting(2, 2))
    saved[0].seen = 5
    Checkpointer(saved, tmp_path).save("model_0000003", iteration=3)
    Checkpointer(model, tmp_path).resume_or_load("")
    assert model[0].seen == 5
    assert torch.equal(model[0].weight, saved[0].weight)
    Checkpointer(nn.Sequential(nn.Linear(2, 2)), tmp_path).resume_or_load("")
    assert "0._extra_state" in log.text
    consolidate_checkpoint(f"{tmp_path}/model_0000003.pth", f"{tmp_path}/weights.safetensors")
    model[0].seen = 7
    Checkpointer(model).load(f"{tmp_path}/weights.safetensors")
    assert model[0].seen == 7  # that format has no place for it


# --- other formats -----------------------------------------------------------------------------


def test_files_of_fvcore_are_loaded_and_the_other_way_round(tmp_path):
    ours, theirs = nn.Linear(2, 2), nn.Linear(2, 2)
    FvcoreCheckpointer(theirs, str(tmp_path)).save("model_0000004", iteration=4)
    assert Checkpointer(ours, tmp_path).resume_or_load("")["iteration"] == 4
    assert torch.equal(ours.weight, theirs.weight)
    fill(ours, 2)
    Checkpointer(ours, tmp_path).save("model_0000009", iteration=9)
    assert FvcoreCheckpointer(theirs, str(tmp_path)).resume_or_load("")["iteration"] == 9
    assert values(theirs) == {2.0}


def test_safetensors_are_loaded_and_damage_is_noticed(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    saved, model = nn.Linear(2, 2), nn.Linear(2, 2)
    path = tmp_path / "weights.safetensors"
    safetensors.save_file(saved.state_dict(), path)
    Checkpointer(model).load(str(path))
    assert torch.equal(model.weight, saved.weight)
    damage(path, "half")
    with pytest.raises(CheckpointError, match=r"weights.safetensors cannot be loaded"):
        Checkpointer(model).load(str(path))


def test_a_damaged_name_of_the_last_checkpoint_is_none(tmp_path):
    model = nn.Linear(1, 1)
    checkpointer = Checkpointer(model, tmp_path)
    checkpointer.save("model_0000003", iteration=3)
    checkpointer.save("model_0000007", iteration=7)
    (tmp_path / "last_checkpoint").write_bytes(b"\xff\xfe\x00")
    assert Checkpointer(model, tmp_path).resume_or_load("")["iteration"] == 7


def test_weights_may_be_below_the_name_that_other_programs_use(tmp_path):
    model = nn.Linear(1, 1)
    fill(model, 3.0)
    torch.save({"epoch": 4, "state_dict": model.state_dict()}, tmp_path / "lightning.ckpt")
    other = nn.Linear(1, 1)
    Checkpointer(other).load(str(tmp_path / "lightning.ckpt"))
    assert other.weight.item() == 3.0
    assert Checkpointer(other).load(None) == {}


class Picky(State):
    """Takes no state with a number above 15."""

    def load_state_dict(self, state) -> None:
        if state["number"] > 15:
            raise CheckpointError("that is of another kind")


def test_a_state_that_does_not_fit_ends_the_run_and_is_no_damage(tmp_path):
    model = nn.Linear(2, 2)
    for iteration in (9, 19):
        checkpointer = Checkpointer(model, tmp_path, hook=State({"number": iteration}))
        checkpointer.save(f"model_{iteration:07d}", iteration=iteration)
    with pytest.raises(CheckpointError, match="that is of another kind"):
        Checkpointer(model, tmp_path, hook=Picky()).resume_or_load("")


def test_weights_alone_are_not_resumed_from(tmp_path):
    model = nn.Linear(2, 2)
    Checkpointer(model, tmp_path).save("average")
    with pytest.raises(CheckpointError, match=r"average\.pth has no state of the trainer"):
        Checkpointer(model, tmp_path, trainer=State()).resume_or_load("")
    assert Checkpointer(model, tmp_path).resume_or_load("") == {}
