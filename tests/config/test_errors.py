import pytest

from engine.config.errors import ConfigError, nearest_keys

KNOWN = ["SOLVER", "SOLVER.BASE_LR", "SOLVER.BASE_LR_END", "SOLVER.MAX_ITER", "TEST.EVAL_PERIOD"]


def test_the_message_prints_plainly_and_is_caught_as_key_or_value_error():
    error = ConfigError("a.yaml: unknown key 'X'")
    assert str(error) == "a.yaml: unknown key 'X'"
    assert isinstance(error, KeyError)
    assert isinstance(error, ValueError)


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
