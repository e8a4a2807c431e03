"""The bytes of TensorBoard's event files: the parts of event.proto and summary.proto for scalars.

By hand, since to make the protobuf objects takes several times as long, in the training thread.
"""

import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import BinaryIO

import google_crc32c

# Field 10 of `Event`, `source_metadata`, with its `writer`: tells our files from those of others.
_MARK = b"\x52\x0f\x0a\x0dengine.events"


def encode_head(wall_time: float) -> bytes:
    """The record that begins a file: an `Event` with the `file_version` (field 3)."""
    time = struct.pack("<d", wall_time)
    return encode_record(b"\x09" + time + b"\x1a\x0dbrain.Event:2" + _MARK)


def encode_restart(wall_time: float, step: int) -> bytes:
    """A record on which readers drop what they have of `step` and later: an `Event` with a
    `session_log` (field 7) of the status START."""
    time = struct.pack("<d", wall_time)
    return encode_record(b"\x09" + time + b"\x10" + _varint(step) + b"\x3a\x02\x08\x01")


def read_records(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The data of each record, and where it ends. Stops at one that is torn or damaged."""
    end = 0
    while len(head := file.read(12)) == 12 and head[8:] == _masked_crc(head[:8]):
        (length,) = struct.unpack_from("<Q", head)
        data = file.read(length)
        if file.read(4) != _masked_crc(data):
            return
        end += length + 16
        yield data, end


def is_own_head(data: bytes) -> bool:
    """Whether the first record of a file was made by `encode_head`."""
    return data.endswith(_MARK)


def encode_scalars(scalars: dict[str, float]) -> bytes:
    """A `Summary` with a `simple_value` for each name."""
    packer, heads = _summary_template(tuple(scalars))
    parts: list[bytes | float] = [*heads, *heads]
    parts[::2], parts[1::2] = heads, scalars.values()
    try:
        return packer.pack(*parts)
    except OverflowError:
        parts[1::2] = map(_as_float32, scalars.values())
        return packer.pack(*parts)


def encode_event(wall_time: float, step: int, summary: bytes) -> bytes:
    """An `Event` around an encoded `Summary`: fields 1 (double), 2 (varint) and 5 (message)."""
    time, length = struct.pack("<d", wall_time), _varint(len(summary))
    return b"\x09" + time + b"\x10" + _varint(step) + b"\x2a" + length + summary


def encode_record(data: bytes) -> bytes:
    """The data framed as a record of an event file: its length and checksums around it."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


@lru_cache(maxsize=64)
def _summary_template(names: tuple[str, ...]) -> tuple[struct.Struct, list[bytes]]:
    """What packs a `Summary`, and what comes before each of its floats."""
    heads = list(map(_value_head, names))
    return struct.Struct("<" + "".join([f"{len(head)}sf" for head in heads])), heads


def _value_head(name: str) -> bytes:
    """A `Summary.Value`, field 1 of `Summary`, up to its float: fields 1 (tag) and 2 (float)."""
    text = name.encode()
    value = b"\x0a" + _varint(len(text)) + text + b"\x15"
    return b"\x0a" + _varint(len(value) + 4) + value


def _as_float32(value: float) -> float:
    try:
        struct.pack("<f", value)
        return value
    except OverflowError:
        return math.copysign(math.inf, value)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that another byte follows."""
    number &= 0xFFFF_FFFF_FFFF_FFFF  # a negative number is its two's complement
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
