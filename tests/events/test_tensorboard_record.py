import io
import struct

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from engine.events.tensorboard_record import (
    encode_event,
    encode_head,
    encode_record,
    encode_restart,
    encode_scalars,
    is_own_head,
    read_records,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=300)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(NAMES, st.floats(), max_size=20), st.floats(0, 1e10), st.integers(-1, 2**62))
@example({"loss": 1e300, "gain": -1e300}, 0.0, 0)  # beyond what 32 bits hold
@example({"50%": 1.0, "%b" + 27 * "x": 2.0, "%": 3.0}, 0.0, 0)  # a length of 37 is a "%" too
def test_protobuf_reads_what_was_put_in(scalars, wall_time, step):
    event = Event.FromString(encode_event(wall_time, step, encode_scalars(scalars)))
    assert (event.wall_time, event.step) == (wall_time, step)
    found = {value.tag: value.simple_value for value in event.summary.value}
    with np.errstate(over="ignore"):
        expected = {name: float(np.float32(value)) for name, value in scalars.items()}
    assert str(found) == str(expected)


def test_any_summary_can_be_in_an_event():
    summary = Summary(value=[Summary.Value(tag="note", metadata={"display_name": "n" * 200})])
    event = Event.FromString(encode_event(1.5, 7, summary.SerializeToString()))
    assert event.summary == summary


@given(st.binary(max_size=400))
def test_a_record_is_framed_as_tensorboard_frames_it(data):
    class Sink:
        written = b""

        def write(self, part):
            self.written += part

    sink = Sink()
    RecordWriter(sink).write(data)
    assert encode_record(data) == sink.written
    assert struct.unpack_from("<Q", sink.written) == (len(data),)


def test_a_file_begins_with_its_version_and_who_wrote_it():
    ((data, _),) = read_records(io.BytesIO(encode_head(1.5)))
    event = Event.FromString(data)
    assert (event.wall_time, event.file_version) == (1.5, "brain.Event:2")
    assert event.source_metadata.writer == "engine.events"
    assert is_own_head(data)
    assert not is_own_head(Event(file_version="brain.Event:2").SerializeToString())


def test_a_restart_has_its_step():
    ((data, _),) = read_records(io.BytesIO(encode_restart(1.5, 300)))
    event = Event.FromString(data)
    assert (event.wall_time, event.step) == (1.5, 300)
    assert event.session_log.status == SessionLog.START


@given(st.lists(st.binary(max_size=60), max_size=5), st.data())
def test_records_are_read_up_to_one_that_is_torn_or_damaged(contents, draw):
    records = [encode_record(data) for data in contents]
    ends = [len(b"".join(records[: n + 1])) for n in range(len(records))]
    whole = b"".join(records)
    assert list(read_records(io.BytesIO(whole))) == list(zip(contents, ends, strict=True))
    cut = draw.draw(st.integers(0, len(whole)))
    expected = [(data, end) for data, end in zip(contents, ends, strict=True) if end <= cut]
    assert list(read_records(io.BytesIO(whole[:cut]))) == expected
    if cut < len(whole):
        damaged = whole[:cut] + bytes([whole[cut] ^ 1]) + whole[cut + 1 :]
        assert list(read_records(io.BytesIO(damaged))) == expected
