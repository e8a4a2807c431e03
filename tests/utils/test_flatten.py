from hypothesis import given
from hypothesis import strategies as st

from engine.utils.flatten import flatten

NAMES = st.text("abc", min_size=1, max_size=3)
TREES = st.recursive(
    st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1), max_leaves=8
)


def test_leaves_are_named_by_their_path():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": None}) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": None,
    }


@given(st.dictionaries(NAMES, TREES))
def test_every_leaf_is_found_at_its_path(tree):
    for path, value in flatten(tree).items():
        node = tree
        for name in path.split("."):
            node = node[name]
        assert node == value
