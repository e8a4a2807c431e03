import pytest

from engine.utils.lengths import parse_length, to_iterations


@pytest.mark.parametrize(
    ("spec", "parsed"),
    [
        (7, (7, 0)),
        (" 7 ", (7, 0)),
        ("7 iterations", (7, 0)),
        ("2 epoch", (0, 2)),
        ("1.5ep", (0, 1.5)),
        ("2 Epochs", (0, 2)),
    ],
)
def test_a_length_is_in_iterations_or_epochs(spec, parsed):
    assert parse_length(spec) == parsed


@pytest.mark.parametrize("spec", ["", "2 parsec", "1.5", 1.5, True, None, "10 min", "90 s", "-3"])
def test_anything_else_is_none(spec):
    assert parse_length(spec) is None
    with pytest.raises(ValueError, match=r"iterations or '2 epoch', got "):
        to_iterations(spec)


def test_epochs_become_iterations():
    assert to_iterations(7) == to_iterations("7 it") == 7
    assert to_iterations("1.5 epoch", epoch_length=10) == 15
    with pytest.raises(ValueError, match="'2 epoch' needs the length of an epoch"):
        to_iterations("2 epoch")
