import json
from pathlib import Path

import pytest

from engine.checkpoint.folder import (
    delete_checkpoint,
    find_damage,
    rename_folder,
    secure_file,
    size_and_checksum,
    write_listing,
)


def make_folder(path: Path, text: str = "weights") -> Path:
    """A complete folder of two files."""
    path.mkdir()
    for name in ("part_0", "part_1"):
        (path / name).write_text(f"{text} of {name}")
    write_listing(str(path), {p.name: secure_file(str(p)) for p in path.iterdir()})
    return path


def test_a_complete_folder_has_no_damage(tmp_path):
    folder = make_folder(tmp_path / "model")
    assert find_damage(str(folder)) is None
    assert set(json.loads((folder / "files.json").read_text())["files"]) == {"part_0", "part_1"}


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        (lambda path: path.unlink(), "part_1 is missing"),
        (lambda path: path.write_text(""), "part_1 has 0 bytes, and 17 were saved"),
        (lambda path: path.write_text("w" * 17), "the checksum of part_1 is not that"),
    ],
)
def test_a_file_that_changed_is_named(tmp_path, change, damage):
    folder = make_folder(tmp_path / "model")
    change(folder / "part_1")
    assert find_damage(str(folder)).startswith(damage)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}"])
def test_a_folder_without_a_list_is_no_checkpoint(tmp_path, text):
    folder = make_folder(tmp_path / "model")
    if text is None:
        (folder / "files.json").unlink()
    else:
        (folder / "files.json").write_text(text)
    assert "a folder without one is no checkpoint" in find_damage(str(folder))


def test_several_ranks_look_at_a_share_each_and_at_all_together(tmp_path):
    folder = make_folder(tmp_path / "model")
    (folder / "part_1").unlink()
    shares = [slice(rank, None, 3) for rank in range(3)]
    assert [find_damage(str(folder), share) for share in shares] == [
        None,
        "part_1 is missing",
        None,
    ]


def test_the_checksum_of_a_folder_tells_its_content(tmp_path):
    first = size_and_checksum(str(make_folder(tmp_path / "a")))
    assert first == size_and_checksum(str(make_folder(tmp_path / "b")))
    assert first != size_and_checksum(str(make_folder(tmp_path / "c", "weightz")))
    assert first[0] == 34  # bytes in the two files


def test_a_file_that_another_machine_has_kept_to_itself_is_noticed(tmp_path):
    entry = {"size": 1, "sha256": ""}
    with pytest.raises(OSError, match="need a folder that all machines share"):
        write_listing(str(tmp_path), {"__8_0.distcp": entry})


def test_a_folder_takes_the_name_of_another(tmp_path):
    old, new = make_folder(tmp_path / "model", "old"), make_folder(tmp_path / "new", "new")
    aside = rename_folder(str(new), str(old))
    assert (tmp_path / "model" / "part_0").read_text() == "new of part_0"
    assert Path(aside, "part_0").read_text() == "old of part_0"
    assert rename_folder(aside, str(tmp_path / "free")) is None


def test_where_a_folder_cannot_be_renamed_the_old_one_keeps_its_name(tmp_path):
    make_folder(tmp_path / "model")
    with pytest.raises(FileNotFoundError):
        rename_folder(str(tmp_path / "nothing"), str(tmp_path / "model"))
    assert find_damage(str(tmp_path / "model")) is None


def test_files_and_folders_are_deleted(tmp_path):
    delete_checkpoint(str(make_folder(tmp_path / "model")))
    (tmp_path / "model.pth").write_text("")
    delete_checkpoint(str(tmp_path / "model.pth"))
    assert list(tmp_path.iterdir()) == []


def test_no_half_of_a_folder_is_left_under_its_name_when_the_process_dies(tmp_path, monkeypatch):
    def die(path):
        (Path(path) / "part_0").unlink()
        raise KeyboardInterrupt

    make_folder(tmp_path / "model")
    monkeypatch.setattr("shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        delete_checkpoint(str(tmp_path / "model"))
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".tmp")
