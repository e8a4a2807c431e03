import math

import pytest

from engine.events import EventStorage, JSONWriter
from engine.report import read_metrics


def test_what_a_writer_has_written_is_read(tmp_path):
    writer = JSONWriter(str(tmp_path / "metrics.json"))
    with EventStorage() as storage:
        for storage.iter in range(3):
            loss = math.nan if storage.iter == 1 else 0.5 * storage.iter
            storage.put_scalar("loss", loss, smoothing_hint=False)
            writer.write()
        storage.put_scalar("eval/accuracy", 97.5)
        writer.write()
    writer.close()
    metrics = read_metrics(tmp_path / "metrics.json")
    assert {name: at.tolist() for name, (at, _) in metrics.items()} == {
        "loss": [0, 1, 2],
        "eval/accuracy": [2],
    }
    values = metrics["loss"][1].tolist()
    assert math.isnan(values[1])
    assert (values[0], values[2]) == (0.0, 1.0)


def test_values_that_other_programs_write_as_nan_or_infinity_are_gaps(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text('{"iteration": 0, "a": NaN, "b": Infinity}\n')
    metrics = read_metrics(path)
    assert [math.isnan(metrics[name][1][0]) for name in "ab"] == [True, True]


@pytest.mark.parametrize(
    "rest", ['{"iteration": 1, "lo', "\0\0\0", '{"iteration": 1, "a": \xff', "\n"]
)
def test_a_last_line_that_a_killed_process_has_left_is_left_out(tmp_path, rest):
    path = tmp_path / "metrics.json"
    path.write_bytes(b'{"iteration": 0, "a": 1.5}\n' + rest.encode("latin-1"))
    (values,) = (values.tolist() for _, values in read_metrics(path).values())
    assert values == [1.5]


@pytest.mark.parametrize(
    "broken", ['{"iteration": 1, "lo', "[1]", "7", '{"a": 1}', '{"iteration": 1, "a": "text"}', ""]
)
def test_a_broken_line_in_the_middle_is_named_with_its_number(tmp_path, broken):
    path = tmp_path / "metrics.json"
    path.write_text(f'{{"iteration": 0, "a": 1}}\n{broken}\n{{"iteration": 2, "a": 1}}\n')
    with pytest.raises(ValueError, match=r"metrics\.json, line 2: .*mend or delete") as raised:
        read_metrics(path)
    assert "\n" not in str(raised.value)
