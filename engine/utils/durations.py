"""Lengths of time as people write them."""

import re

_UNITS = {"d": 86400, "day": 86400, "h": 3600, "hour": 3600, "m": 60, "min": 60, "minute": 60}
_UNITS |= {"s": 1, "sec": 1, "second": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?(?![a-z])\s*")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")


def parse_duration(text: str) -> float:
    """The seconds in "3h50min", "90 min", "45s", "1d 2h", "02:30:00" or Slurm's "1-02:30:00"."""
    seconds = seconds_in(text) if isinstance(text, str) else None
    if not seconds:
        raise ValueError(
            "a length of time is above 0 and like '3h50min', '90 min', '45s', '1d 2h' or "
            f"'02:30:00'; got {text!r}"
        )
    return seconds


def seconds_in(text: str) -> float | None:
    """As `parse_duration`, but 0 too, and None for what is no length of time."""
    text = text.strip().lower()
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    parts = [(float(number), unit) for number, unit in _PART.findall(text)]
    if not parts or _PART.sub("", text) or not all(unit in _UNITS for _, unit in parts):
        return None
    return sum(number * _UNITS[unit] for number, unit in parts)
