import collections
import io

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events.notes import NeverSetError, plain_notes

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
PLAIN = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def through_a_checkpoint(notes):
    file = io.BytesIO()
    torch.save(notes, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]\w*", fullmatch=True), PLAIN, max_size=4))
def test_plain_values_come_back_from_a_checkpoint_as_they_were(attributes):
    loaded = through_a_checkpoint(plain_notes(attributes))
    assert repr(loaded) == repr(attributes)


def test_relatives_of_plain_values_become_plain_so_that_the_checkpoint_loads():
    point = collections.namedtuple("point", "x y")
    notes = plain_notes(
        {
            "counts": collections.defaultdict(int, {"a": 1}),
            "point": point(1, np.float32(0.5)),
            "best": np.float64(0.25),
            "seen": [np.int64(3), np.bool_(True)],
        }
    )
    loaded = through_a_checkpoint(notes)
    assert loaded == {"counts": {"a": 1}, "point": (1, 0.5), "best": 0.25, "seen": [3, True]}
    assert type(loaded["best"]) is float


def test_what_a_checkpoint_cannot_hold_is_left_out():
    attributes = {"model": torch.nn.Linear(1, 1), "list": [1, {"a": object()}], "kept": 1, "_x": 2}
    assert plain_notes(attributes) == {"kept": 1}


def test_notes_are_copies():
    information = {"seen": [1]}
    notes = plain_notes({"information": information})
    information["seen"].append(2)
    assert notes == {"information": {"seen": [1]}}


def test_a_note_that_was_never_made_is_named_with_what_is_close():
    class Storage:
        def __init__(self) -> None:
            self.information = self._private = 1

        def put_scalar(self) -> None: ...

    def message(name: str) -> str:
        return str(NeverSetError(name=name, obj=Storage()))

    assert message("infomation") == "storage.infomation was never set; did you mean information?"
    assert message("put_scalars") == "storage.put_scalars was never set; did you mean put_scalar?"
    assert message("privat") == "storage.privat was never set"
