from engine.utils.default_property import default_property


class Trainer:
    @default_property
    def length(self):
        """How long."""
        return 3


def test_it_is_computed_unless_the_instance_has_its_own():
    one, other = Trainer(), Trainer()
    other.length = 7
    assert (one.length, other.length) == (3, 7)
    del other.length
    assert other.length == 3
    assert Trainer.length.__doc__ == "How long."
