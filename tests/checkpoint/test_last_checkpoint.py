import pytest
from torch import nn

from engine.checkpoint import Checkpointer
from engine.checkpoint.last_checkpoint import begin_run, has_begun_anew, tag_last


@pytest.mark.parametrize("left", ["last_checkpoint", "model_0000003.pth", "model_0000003"])
def test_a_run_that_begins_where_another_has_saved_is_told_from_it(tmp_path, left):
    (tmp_path / left).write_text("model_0000003.pth")
    assert not has_begun_anew(str(tmp_path))
    begin_run(str(tmp_path))
    assert has_begun_anew(str(tmp_path))
    tag_last(str(tmp_path), "model_0000007.pth")
    assert not has_begun_anew(str(tmp_path))
    assert (tmp_path / "last_checkpoint").read_text() == "model_0000007.pth"


def test_where_nothing_was_saved_nothing_is_noted(tmp_path):
    (tmp_path / "metrics.json").touch()
    begin_run(str(tmp_path))
    begin_run(str(tmp_path / "missing"))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.json"]


def test_a_run_that_begins_anew_where_another_has_saved_says_so(tmp_path, log):
    model = nn.Linear(1, 1)
    Checkpointer(model, tmp_path / "new").begin_run()
    assert log.text == ""
    Checkpointer(model, tmp_path).save("model_0000009")
    Checkpointer(model, tmp_path).begin_run()
    assert f"{tmp_path} has checkpoints of an earlier run. This one begins anew" in log.text
