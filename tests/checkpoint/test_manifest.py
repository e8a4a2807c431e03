import hashlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.checkpoint import Checkpointer, CheckpointError
from engine.checkpoint.folder import secure_file, write_listing
from engine.checkpoint.manifest import Manifest


def save(folder: Path, name: str, **extra) -> Path:
    Checkpointer(nn.Linear(3, 3), folder).save(name, **extra)
    return folder / f"{name}.pth"


def test_a_checkpoint_is_listed_with_its_size_and_checksum(tmp_path):
    path = save(tmp_path, "model_0000009", iteration=9)
    (record,) = json.loads((tmp_path / "manifest.json").read_text())["checkpoints"].values()
    assert record["size"] == path.stat().st_size
    assert record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert record["iteration"] == 9
    assert set(record) == {"size", "sha256", "saved", "iteration", "run"}


def test_a_checkpoint_that_is_gone_is_no_longer_listed(tmp_path):
    save(tmp_path, "model_0000009").unlink()
    save(tmp_path, "model_0000019")
    assert list(Manifest(str(tmp_path)).records()) == ["model_0000019.pth"]


def test_any_bit_that_changed_is_noticed(tmp_path):
    path = save(tmp_path, "model")
    data = path.read_bytes()
    for place in range(0, len(data), 37):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"model.pth cannot be loaded: it is damaged"):
            Checkpointer(nn.Linear(3, 3)).load(str(path))


def test_a_file_without_an_entry_is_loaded(tmp_path):
    model = nn.Linear(3, 3)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    save(tmp_path, "model")
    other = nn.Linear(3, 3)
    Checkpointer(other).load(str(tmp_path / "weights.pth"))
    assert torch.equal(other.weight, model.weight)


def test_a_process_that_dies_before_or_after_the_renaming_leaves_a_listed_file(tmp_path):
    manifest, path = Manifest(str(tmp_path)), tmp_path / "model_best.pth"
    path.write_bytes(b"old")
    manifest.announce(path.name, str(path))
    new = tmp_path / "new"
    new.write_bytes(b"newer")
    manifest.announce(path.name, str(new))
    assert manifest.damage(path.name) is None  # it died here: the old one stands
    new.rename(path)
    assert manifest.damage(path.name) is None  # or here: the new one does
    path.write_bytes(b"old!!")
    assert manifest.damage(path.name) == "its checksum is not that of the file that was saved"
    path.write_bytes(b"newer")
    manifest.settle(path.name)
    path.write_bytes(b"old")
    assert manifest.damage(path.name) == "it has 3 bytes, and 5 were saved"


def make_folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "part").write_text(text)
    write_listing(str(path), {"part": secure_file(str(path / "part"))})
    return path


def test_a_process_that_dies_while_a_folder_takes_the_name_of_another_loses_none(tmp_path):
    manifest, path = Manifest(str(tmp_path)), tmp_path / "model_best"
    new = make_folder(tmp_path / "model_best.00000000.tmp", "old")

    def found() -> str:
        assert manifest.damage("model_best") is None
        return Path(manifest.locate("model_best"), "part").read_text()

    manifest.announce("model_best", str(new))
    assert found() == "old"  # it died before the first one had its name
    manifest.finish_renames()
    assert (path / "part").read_text() == "old"
    manifest.settle("model_best")

    new = make_folder(tmp_path / "model_best.11111111.tmp", "new")
    manifest.announce("model_best", str(new))
    assert found() == "old"
    path.rename(tmp_path / "model_best.22222222.tmp")
    assert found() == "new"  # here nothing has the name
    manifest.finish_renames()
    assert (path / "part").read_text() == found() == "new"
    manifest.settle("model_best")
    assert set(manifest.records()["model_best"]) == {"size", "sha256", "saved"}


def test_another_folder_under_the_name_of_a_checkpoint_is_noticed(tmp_path):
    manifest = Manifest(str(tmp_path))
    manifest.announce("model", str(make_folder(tmp_path / "model", "saved")))
    (tmp_path / "model").rename(tmp_path / "away")
    make_folder(tmp_path / "model", "other")
    assert manifest.damage("model") == "its checksum is not that of the file that was saved"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"checkpoint',
        '{"checkpoints": []}',
        '{"checkpoints": {"model.pth": null}}',
        '{"checkpoints": {"model.pth": {"size": 3}}}',
    ],
)
def test_a_damaged_manifest_is_named_and_stops_nobody(tmp_path, log, text):
    path = save(tmp_path, "model")
    (tmp_path / "manifest.json").write_text(text)
    Checkpointer(nn.Linear(3, 3)).load(str(path))
    assert f"{tmp_path / 'manifest.json'} is damaged" in log.text
    save(tmp_path, "model")
    assert list(Manifest(str(tmp_path)).records()) == ["model.pth"]
