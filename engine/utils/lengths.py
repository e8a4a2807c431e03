"""Lengths of training: numbers of iterations, or of epochs."""

import re
from numbers import Real

_LENGTH = re.compile(r"(\d+)(?:\s*(?:it|iter|iteration)s?)?|(\d+(?:\.\d+)?)\s*(?:ep|epoch)s?")


def parse_length(spec: object) -> tuple[int, float] | None:
    """The iterations and the epochs in 500, "500 iter" or "1.5 epoch"; None for anything else."""
    if isinstance(spec, Real) and not isinstance(spec, bool) and float(spec).is_integer():
        return int(float(spec)), 0.0  # of NumPy too, and what its `ceil` gives
    if isinstance(spec, str) and (found := _LENGTH.fullmatch(spec.strip().lower())):
        return int(found[1] or 0), float(found[2] or 0)
    return None


def check_length(length: int | str) -> tuple[int, float]:
    """The iterations and the epochs in a length of training; what is none is refused."""
    if (parsed := parse_length(length)) is None:
        raise ValueError(f"expected a number of iterations or '2 epoch', got {length!r}")
    return parsed


def to_iterations(length: int | str, epoch_length: float | None = None) -> int:
    """A length of training, 500 or "1.5 epoch", in iterations."""
    iterations, epochs = check_length(length)
    if epochs and epoch_length is None:
        raise ValueError(
            f"{length!r} needs the length of an epoch, which is not known here: give iterations"
        )
    return iterations + round(epochs * (epoch_length or 0.0))
