import pytest

from engine.config.errors import ConfigError, naming, naming_unknown, nearest_keys
from engine.utils.registry import UnknownNameError, locate

KNOWN = ["SOLVER", "SOLVER.BASE_LR", "SOLVER.BASE_LR_END", "SOLVER.MAX_ITER", "TEST.EVAL_PERIOD"]


def test_the_message_prints_plainly_and_is_caught_as_key_or_value_error():
    error = ConfigError("a.yaml: unknown key 'X'")
    assert str(error) == "a.yaml: unknown key 'X'"
    assert isinstance(error, KeyError)
    assert isinstance(error, ValueError)


def test_an_unknown_name_and_a_wrong_value_are_told_with_their_key():
    for name_it in (naming, naming_unknown):
        with pytest.raises(UnknownNameError, match=r"^MODEL.NAME: no 'a'$"), name_it("MODEL.NAME"):
            raise UnknownNameError("no 'a'")
    with pytest.raises(ConfigError, match=r"^TIME_LIMIT: too short$"), naming("TIME_LIMIT"):
        raise ValueError("too short")


def test_an_error_in_a_module_of_the_users_own_stays_what_it_is(tmp_path, monkeypatch):
    (tmp_path / "project_with_a_mistake.py").write_text("int('three')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="invalid literal") as error, naming_unknown("TRAINER"):
        locate("project_with_a_mistake:Trainer")
    assert type(error.value) is ValueError


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("SOLVER.BASE_LRR", "did you mean SOLVER.BASE_LR?"),
        ("SOLVER.MAX_ITR", "did you mean SOLVER.MAX_ITER?"),
        ("BASE_LR", "did you mean SOLVER.BASE_LR?"),
        ("TEST.BASE_LR", "did you mean SOLVER.BASE_LR?"),
        ("solver.base_lr", "did you mean SOLVER.BASE_LR?"),
        ("SLOVER", "did you mean SOLVER?"),
        ("SLOVER.MAX_ITR", "did you mean SOLVER.MAX_ITER?"),
        ("EVAL_PERID", "did you mean TEST.EVAL_PERIOD?"),
        ("ZEBRA", ""),
    ],
)
def test_the_nearest_known_key_is_named(key, hint):
    assert nearest_keys(key, KNOWN) == hint


def test_a_close_key_in_the_same_section_comes_before_that_name_elsewhere():
    known = [*KNOWN, "EMA.PERIOD"]
    assert nearest_keys("TEST.PERIOD", known) == "did you mean TEST.EVAL_PERIOD or EMA.PERIOD?"
