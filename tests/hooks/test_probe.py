import json
import math

import numpy as np
import pytest
import torch

from engine.events import EventStorage
from engine.hooks.evaluation import EvalHook
from engine.hooks.probe import ProbeHook, probe
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    """Its step probes what `look` returns."""

    def __init__(self, look, *hooks):
        super().__init__()
        self.look = look
        self.register_hooks(hooks)

    def run_step(self):
        for name, value in self.look().items():
            probe(name, value)


def probe_once(folder, **values):
    """What the index says after one step that probed these values, and the trainer."""
    trainer = Trainer(lambda: values, ProbeHook(folder, period=1))
    trainer.train(0, 1)
    return json.loads((folder / "step-0" / "index.json").read_text()), trainer


def load(file):
    return torch.load(file, weights_only=True)


def test_the_steps_of_the_period_are_written(tmp_path):
    Trainer(lambda: {"one": 1}, ProbeHook(tmp_path, period=2)).train(0, 5)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-1", "step-3"]


def test_what_an_evaluation_probes_is_not_of_the_step(tmp_path):
    evaluation = EvalHook(1, lambda: probe("of the evaluation", 2))
    Trainer(lambda: {"one": 1}, evaluation, ProbeHook(tmp_path, period=1)).train(0, 2)
    assert list(json.loads((tmp_path / "step-0" / "index.json").read_text())) == ["one"]


def test_tensors_and_arrays_are_files_that_torch_loads(tmp_path):
    weights = torch.randn(2, 3, requires_grad=True)
    index, _ = probe_once(tmp_path, weights=weights * 1, array=np.arange(4))
    assert index["weights"] == {"kind": "tensor", "file": "0-weights.pt"}
    assert torch.equal(load(tmp_path / "step-0" / "0-weights.pt"), weights)
    assert load(tmp_path / "step-0" / index["array"]["file"]).tolist() == [0, 1, 2, 3]


def test_arrays_may_be_flipped_or_read_only(tmp_path):
    array = np.arange(3)
    array.flags.writeable = False
    index, _ = probe_once(tmp_path, flipped=array[::-1], fixed=array)
    assert load(tmp_path / "step-0" / index["flipped"]["file"]).tolist() == [2, 1, 0]
    assert load(tmp_path / "step-0" / index["fixed"]["file"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(3, 2, 5), (2, 5, 3), (1, 2, 5), (2, 5, 4)])
def test_images_are_pngs_and_go_to_the_writers(tmp_path, shape):
    from PIL import Image

    image = torch.randint(0, 255, shape, dtype=torch.uint8)
    index, trainer = probe_once(tmp_path, picture=image)
    assert index["picture"] == {"kind": "image", "file": "0-picture.png"}
    with Image.open(tmp_path / "step-0" / "0-picture.png") as opened:
        pixels = torch.tensor(np.array(opened))
    [(name, shown, _)] = trainer.storage.unwritten_images(reader=trainer)
    assert name == "probe/picture"
    assert torch.equal(pixels, shown.permute(1, 2, 0).expand_as(pixels))


def test_a_tensor_of_bytes_in_no_shape_of_an_image_is_a_tensor(tmp_path):
    index, _ = probe_once(tmp_path, ids=torch.zeros(2, 2, dtype=torch.uint8))
    assert index["ids"]["kind"] == "tensor"


def test_texts_are_files(tmp_path):
    index, _ = probe_once(tmp_path, caption="größer\nals")
    file = tmp_path / "step-0" / index["caption"]["file"]
    assert file.suffix == ".txt"
    assert file.read_text(encoding="utf-8") == "größer\nals"


def test_numbers_stand_in_the_index_and_go_to_the_writers(tmp_path):
    index, trainer = probe_once(
        tmp_path,
        python=3,
        tensor=torch.tensor(0.5),
        array=np.float32(0.25),
        flag=np.bool_(True),
        bad=math.nan,
    )
    values = {name: entry["value"] for name, entry in index.items()}
    assert values == {"python": 3, "tensor": 0.5, "array": 0.25, "flag": True, "bad": None}
    assert trainer.storage.latest()["probe/tensor"] == (0.5, 0)


def test_any_name_is_a_file_of_its_own_inside_the_folder(tmp_path):
    index, _ = probe_once(tmp_path / "probes", **{"../../a b": "first", "../../a_b": "second"})
    assert len({entry["file"] for entry in index.values()}) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"probes"}
    assert (tmp_path / "probes" / "step-0" / index["../../a b"]["file"]).read_text() == "first"


def test_a_value_is_kept_as_it_is_when_probed_and_the_last_one_counts(tmp_path):
    state = torch.zeros(2)

    def run_step():
        probe("state", "an earlier one")
        probe("state", state)
        state.add_(1)

    trainer = Trainer(dict, ProbeHook(tmp_path, period=1))
    trainer.run_step = run_step
    trainer.train(0, 1)
    assert load(tmp_path / "step-0" / "0-state.pt").tolist() == [0, 0]


def test_nothing_is_kept_where_no_hook_wants_it(tmp_path):
    probe("outside of a run", 1)
    with EventStorage() as storage:
        before = dict(vars(storage))
        probe("without a hook", torch.zeros(2))
        assert vars(storage) == before
    trainer = Trainer(dict, ProbeHook(tmp_path, period=1))
    trainer.train(0, 1)
    assert list(tmp_path.iterdir()) == []


def test_probes_are_no_part_of_the_trainers_state(tmp_path):
    hook = ProbeHook(tmp_path, period=1)
    trainer = Trainer(lambda: {"text": "x"}, hook)
    trainer.train(0, 1)
    hook.before_step()
    assert trainer.state_dict()["storage"]["notes"] == {}


def test_other_objects_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"probe 'batch' must be .*, got list"):
        probe_once(tmp_path, batch=[1, 2])


def test_a_full_disk_does_not_end_the_run(small_disk, log):
    trainer = Trainer(lambda: {"large": torch.ones(2**20)}, ProbeHook(small_disk, period=1))
    trainer.train(0, 3)
    assert trainer.iter == 3
    assert f"{small_disk / 'step-0'} is not written (" in log.text
