from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoint.matching import match_by_suffix

NAMES = st.lists(
    st.lists(st.sampled_from(["a", "b", "conv"]), min_size=1, max_size=3).map(".".join),
    unique=True,
)


def test_names_match_with_and_without_what_stands_before_them():
    assert match_by_suffix(["backbone.conv1.weight"], ["conv1.weight"]) == {
        "backbone.conv1.weight": "conv1.weight"
    }
    assert match_by_suffix(["conv1.weight"], ["backbone.conv1.weight"]) == {
        "conv1.weight": "backbone.conv1.weight"
    }


def test_only_whole_parts_of_names_match():
    assert match_by_suffix(["myconv1.weight", "weight1"], ["conv1.weight", "1"]) == {}


def test_prefixes_that_both_differ_do_not_match():
    assert match_by_suffix(["student.conv.weight"], ["teacher.conv.weight"]) == {}


def test_the_longest_common_end_wins():
    saved = ["bias", "fc.bias", "head.fc.bias"]
    wanted = ["model.head.fc.bias", "model.tail.fc.bias"]
    assert match_by_suffix(saved, wanted) == {
        "head.fc.bias": "model.head.fc.bias",
        "fc.bias": "model.tail.fc.bias",
    }


def test_an_equal_name_wins_over_one_that_only_ends_alike():
    assert match_by_suffix(["ema.fc.bias", "fc.bias"], ["fc.bias"]) == {"fc.bias": "fc.bias"}
    assert match_by_suffix(["a", "b.a"], ["b.a", "c.b.a"]) == {"b.a": "b.a", "a": "c.b.a"}


@given(saved=NAMES, wanted=NAMES)
def test_each_name_is_used_once_and_equal_ones_find_each_other(saved, wanted):
    matches = match_by_suffix(saved, wanted)
    assert set(matches) <= set(saved)
    assert len(set(matches.values())) == len(matches)
    for old, new in matches.items():
        assert f".{old}".endswith(f".{new}") or f".{new}".endswith(f".{old}")
    for name in set(saved) & set(wanted):
        assert matches[name] == name
