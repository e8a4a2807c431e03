import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CfgNode, get_cfg
from engine.evaluation import (
    flatten_results_dict,
    print_csv_format,
    read_results,
    results_table,
    verify_results,
    write_results,
)
from engine.events import EventStorage

TWO_SETS = {
    "digits_test": {"classification": {"accuracy": 98.5, "loss": 0.05, "accuracy-7": 91.0}},
    "fashion_test": {"classification": {"accuracy": 91.25, "top5_accuracy": 99.0}},
}


def cells(table):
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    return [[cell.strip() for cell in line] for line in (lines[0], *lines[2:])]


def expecting(*rows):
    cfg = get_cfg()
    cfg.TEST.EXPECTED_RESULTS = [list(row) for row in rows]
    return cfg


def test_nested_results_get_names_with_slashes():
    assert flatten_results_dict({"a": {"b": {"c": 1}, "d": 2.5}, "e": 3}) == {
        "a/b/c": 1.0,
        "a/d": 2.5,
        "e": 3.0,
    }


nested = st.recursive(
    st.floats(allow_nan=False),
    lambda values: st.dictionaries(st.text("abc", min_size=1), values, max_size=3),
)


@given(st.dictionaries(st.text("abc", min_size=1), nested))
def test_every_number_is_found_under_its_path(results):
    flat = flatten_results_dict(results)
    for name, value in flat.items():
        found = results
        for key in name.split("/"):
            found = found[key]
        assert found == value

    def leaves(node):
        return sum(map(leaves, node.values())) if isinstance(node, dict) else 1

    assert len(flat) == leaves(results)


def test_all_kinds_of_numbers_become_floats():
    flat = flatten_results_dict({"a": np.float32(0.5), "b": torch.tensor(2), "c": np.array(3)})
    assert flat == {"a": 0.5, "b": 2.0, "c": 3.0}
    assert {type(value) for value in flat.values()} == {float}


def test_json_takes_all_kinds_of_numbers_and_has_null_for_what_is_not_finite(tmp_path):
    results = {"digits": {"accuracy": np.float32(0.5), "loss": torch.tensor(math.nan), 3: 360}}
    write_results(results, f"{tmp_path}/new/results.json")
    text = (tmp_path / "new/results.json").read_text()
    assert json.loads(text) == {"digits": {"accuracy": 0.5, "loss": None, "3": 360}}
    assert "360.0" not in text
    read = read_results(f"{tmp_path}/new/results.json")["digits"]
    assert (read["accuracy"], math.isnan(read["loss"])) == (0.5, True)
    assert read_results(f"{tmp_path}/none.json") == {}


def test_results_that_cannot_be_written_are_a_warning_while_a_run_trains(tmp_path, log):
    (tmp_path / "file").touch()
    with EventStorage():
        write_results({"accuracy": 0.5}, f"{tmp_path}/file/results.json")
    assert f"{tmp_path}/file/results.json cannot be written: File exists" in log.text
    with pytest.raises(OSError, match="File exists"):
        write_results({"accuracy": 0.5}, f"{tmp_path}/file/results.json")


@pytest.mark.parametrize("value", ["98.5", None, [1, 2], torch.zeros(2)])
def test_what_is_not_a_number_is_refused_by_name(value):
    with pytest.raises((TypeError, ValueError), match="'digits/classification/accuracy' must be"):
        flatten_results_dict({"digits": {"classification": {"accuracy": value}}})


def test_two_results_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two results have the name 'a/b'"):
        flatten_results_dict({"a": {"b": 1}, "a/b": 2})


def test_the_table_has_a_row_a_data_set_and_a_column_a_metric():
    assert cells(results_table(TWO_SETS)) == [
        ["classification", "accuracy", "loss", "top5_accuracy"],
        ["digits_test", "98.5000", "0.0500", ""],
        ["fashion_test", "91.2500", "", "99.0000"],
    ]


def test_a_single_data_set_is_the_row_all():
    assert cells(results_table({"classification": {"accuracy": 98.5}})) == [
        ["classification", "accuracy"],
        ["all", "98.5000"],
    ]


def test_different_tasks_are_named_in_their_rows():
    results = {"digits": {"boxes": {"AP": 1}, "masks": {"AP": math.nan}}, "AP": 3}
    assert cells(results_table(results)) == [
        ["", "AP"],
        ["all", "3.0000"],
        ["digits/boxes", "1.0000"],
        ["digits/masks", "nan"],
    ]


def test_names_of_groups_that_look_like_numbers_stay_as_they_are():
    results = {name: {"task": {"metric": 1}} for name in ("007", "1e3", "2.50")}
    assert [row[0] for row in cells(results_table(results))[1:]] == ["007", "1e3", "2.50"]


def test_a_table_of_nothing_says_so():
    assert results_table({}) == results_table({"classification": {}}) == "no results"


def test_csv_lines_can_be_copied_into_a_spreadsheet(log):
    print_csv_format({**TWO_SETS, "seconds": 1.5})
    assert log.messages == [
        "copypaste: seconds=1.5000",
        "copypaste: Task: digits_test/classification",
        "copypaste: accuracy,loss",
        "copypaste: 98.5000,0.0500",
        "copypaste: Task: fashion_test/classification",
        "copypaste: accuracy,top5_accuracy",
        "copypaste: 91.2500,99.0000",
    ]


def test_expected_results_that_came_out_are_confirmed(log):
    cfg = expecting(
        ("digits_test", "classification", "accuracy", 98.0, 0.5),
        ("fashion_test", "classification", "accuracy", 91.25, 0),
    )
    assert verify_results(cfg, TWO_SETS)
    assert "Results are as expected" in log.text


def test_without_expectations_all_is_well():
    assert verify_results(get_cfg(), {})


@pytest.mark.parametrize("accuracy", [97.9, 99.1, math.nan, math.inf])
def test_a_result_out_of_tolerance_ends_the_process_with_code_1(accuracy, log):
    cfg = expecting(("classification", "accuracy", 98.5, 0.5))
    with pytest.raises(SystemExit) as exit:
        verify_results(cfg, {"classification": {"accuracy": accuracy}})
    assert exit.value.code == 1
    assert "Results are not as expected" in log.text
    assert str(accuracy) in log.text


def test_a_missing_result_ends_the_process_and_near_names_are_shown(log):
    cfg = expecting(("classification", "acuracy", 98.5, 0.5))
    with pytest.raises(SystemExit):
        verify_results(cfg, {"classification": {"accuracy": 98.5}})
    assert "missing; did you mean classification/accuracy?" in log.text


@pytest.mark.parametrize("row", [["accuracy", 98.5], ["a", "b", "98.5 %", 1], 7])
def test_expectations_of_another_form_are_refused(row):
    cfg = CfgNode({"TEST": {"EXPECTED_RESULTS": [row]}})
    with pytest.raises(ValueError, match=r"rows of \[task, metric, value, tolerance\]"):
        verify_results(cfg, {})
