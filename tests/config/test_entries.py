import math

import pytest

from engine.config import ConfigError, build_entry
from engine.utils.registry import Registry, UnknownNameError

SHAPES = Registry("SHAPE")


@SHAPES.register()
class Circle:
    def __init__(self, radius: float, colour: str = "red", measure=None) -> None:
        if radius < 0:
            raise ValueError("a radius is 0 or more")
        self.radius, self.colour, self.measure = radius, colour, measure


def build(entry, **offered):
    return build_entry("SHAPES", entry, SHAPES, offered, Circle)


def test_keys_are_arguments_in_any_case():
    circle = build({"NAME": "Circle", "RADIUS": 2, "colour": "blue"})
    assert (circle.radius, circle.colour) == (2, "blue")


def test_text_with_a_colon_stays_text_where_text_is_wanted():
    assert build({"NAME": "Circle", "RADIUS": 1, "COLOUR": "light:blue"}).colour == "light:blue"


def test_what_is_offered_fills_arguments_without_a_default():
    assert vars(build({"NAME": "Circle"}, radius=3, colour="blue", depth=1)) == {
        "radius": 3,
        "colour": "red",
        "measure": None,
    }
    assert build({"NAME": "Circle", "RADIUS": 1}, radius=3).radius == 1


def test_import_paths_name_the_class_and_functions_for_it():
    circle = build({"NAME": f"{__name__}:Circle", "RADIUS": 1, "MEASURE": "math:sqrt"})
    assert circle.measure is math.sqrt


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("Circle", "an entry of SHAPES is {NAME: …, and arguments}, got 'Circle'"),
        ({"NAME": None}, "an entry of SHAPES is {NAME: …, and arguments}"),
        ({"NAME": "Circle", 1: 2}, "SHAPES: Circle has no argument '1'"),
        ({"RADIUS": 1}, "an entry of SHAPES is {NAME: …, and arguments}"),
        ({"NAME": "Circle"}, "SHAPES: Circle: missing a required argument: 'radius'"),
        ({"NAME": "Circle", "RADIUS": -1}, "SHAPES: Circle: a radius is 0 or more"),
        ({"NAME": "Circle", "RADUS": 1}, "SHAPES: Circle has no argument 'radus'; did you mean"),
        (
            {"NAME": "Circle", "RADIUS": "big"},
            "Circle: RADIUS: expected a number, got 'big'",
        ),
        (
            {"NAME": "Circle", "RADIUS": 1, "COLOUR": 7},
            "Circle: COLOUR: expected text, got 7",
        ),
        ({"NAME": "Cirlce"}, "SHAPES: no 'Cirlce' in the SHAPE registry"),
        (
            {"NAME": "Circle", "RADIUS": 1, "MEASURE": "math:sqr"},
            "SHAPES: Circle: cannot locate 'math:sqr'",
        ),
        ({"NAME": "math:pi"}, "SHAPES: 'math:pi' is no class or function, but 3.14"),
        (
            {"NAME": "fractions:Fraction"},
            "fractions:Fraction is no Circle, but Fraction",
        ),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(entry, message):
    with pytest.raises((ConfigError, UnknownNameError)) as error:
        build(entry)
    assert message in str(error.value)


@SHAPES.register()
class Polygon(Circle):
    def __init__(self, corners: "int" = 3, **sides: "float") -> None:
        super().__init__(len(corners) if corners == 4 else corners)  # a mistake, for 4
        self.sides = sides


def test_annotations_may_be_text_and_hold_for_other_arguments_too():
    assert build({"NAME": "Polygon", "CORNERS": 1e1, "BASE": 2}).sides == {"base": 2}
    with pytest.raises(ConfigError, match="SHAPES: Polygon: BASE: expected a number, got 'long'"):
        build({"NAME": "Polygon", "BASE": "long"})


def test_a_mistake_in_a_class_of_the_users_own_stays_what_it_is():
    with pytest.raises(TypeError, match=r"object of type 'int' has no len"):
        build({"NAME": "Polygon", "CORNERS": 4})
