from hypothesis import given
from hypothesis import strategies as st

from engine.utils.unique_names import unique_names


class Outer:
    class Inner:
        pass


def test_names_are_those_of_the_classes_numbered_from_the_second_on():
    objects = [Outer(), Outer.Inner(), Outer(), Outer()]
    assert unique_names(objects) == ["Outer", "Outer.Inner", "Outer#2", "Outer#3"]


@given(st.lists(st.sampled_from([1, "a", 2.0, None])))
def test_no_name_comes_twice_and_further_objects_change_no_earlier_name(objects):
    names = unique_names(objects)
    assert len(set(names)) == len(objects)
    assert unique_names([*objects, 1])[:-1] == names
