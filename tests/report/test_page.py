import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from engine.report import build_page, read_runs
from engine.report.page import COLORS

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """Tables, data and tags of a page, as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.tables, self.texts, self.data = [], {}, [], None
        self._script, self._is_in_cell = "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag == "script":
            self._script = attributes.get("id", "code")
        elif tag == "table":
            self._rows = self.tables[attributes["id"]] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        self._is_in_cell |= tag in ("td", "th")

    def handle_endtag(self, tag):
        self._is_in_cell &= tag not in ("td", "th")
        if tag == "script":
            self._script = ""

    def handle_data(self, text):
        if self._script:
            self.data = json.loads(text) if self._script == "data" else self.data
            return
        self.texts.append(text)
        if self._is_in_cell:
            self._rows[-1][-1] += text


@pytest.fixture
def show(make_run):
    """The page of runs that are given as {name: (rows, config)}."""

    def show(runs):
        folders = [make_run(name, rows, config_yaml=text) for name, (rows, text) in runs.items()]
        return Page(build_page(read_runs(folders)))

    return show


def test_all_curves_are_in_the_data_losses_first(show):
    rows = [
        {"iteration": 0, "lr": 0.1, "total_loss": 2.0, "a/accuracy": 1.0},
        {"iteration": 5, "total_loss": None, "val/loss": 3.0, "val/accuracy": 5.0},
        {"iteration": 9, "total_loss": 1.0},
    ]
    data = show({"run": (rows, "")}).data
    assert [run["name"] for run in data["runs"]] == ["run"]
    names = {group["name"]: [m["name"] for m in group["metrics"]] for group in data["groups"]}
    assert list(names.items()) == [
        ("", ["total_loss", "lr"]),
        ("val", ["val/loss", "val/accuracy"]),
        ("a", ["a/accuracy"]),
    ]
    (curve,) = data["groups"][0]["metrics"][0]["curves"]
    assert curve == {"points": [[0, 5, 9], [2.0, None, 1.0]], "means": [[], []]}


def test_runs_have_colours_and_then_dashes_of_their_own(show):
    page = show({f"run{i}": ([{"iteration": 0, "a": 1}], "") for i in range(3 * len(COLORS))})
    styles = {(run["color"], run["dash"]) for run in page.data["runs"]}
    assert len(styles) == 3 * len(COLORS)
    assert len({run["color"] for run in page.data["runs"][: len(COLORS)]}) == len(COLORS)


def test_the_table_has_last_and_best_of_each_metric_and_run(show):
    rows = [
        {"iteration": 1, "loss": 0.5, "acc": 7.0, "lr": 0.1},
        {"iteration": 2, "loss": 0.75, "acc": None},
    ]
    page = show({"x": (rows, ""), "y": ([{"iteration": 3, "loss": 0.25}], "")})
    assert page.tables["values"] == [
        ["", "x", "y"],
        ["metric", "best is", "last", "best", "last", "best"],
        ["loss", "min", "0.75 at 2", "0.5 at 1", "0.25 at 3", "0.25 at 3"],
        ["acc", "max", "not finite", "7 at 1", "", ""],
        ["lr", "", "0.1 at 1", "", "", ""],
    ]


def test_only_settings_that_differ_are_listed(show):
    rows = [{"iteration": 0, "a": 1}]
    page = show(
        {
            "x": (rows, "SOLVER: {LR: 0.1, STEPS: [1]}\nSEED: 0"),
            "y": (rows, "SOLVER: {LR: 0.2, STEPS: [1]}\nSEED: '0'"),
            "z": (rows, "SOLVER: {LR: 0.1, STEPS: [1]}\nSEED: 0\nNEW: 1"),
        }
    )
    assert page.tables["differences"] == [
        ["setting", "x", "y", "z"],
        ["NEW", "–", "–", "1"],
        ["SEED", "0", "'0'", "0"],
        ["SOLVER.LR", "0.1", "0.2", "0.1"],
    ]
    page = show({"x": (rows, "SEED: 0"), "y": (rows, "SEED: 0"), "z": (rows, "SEED: 0")})
    assert "No setting differs." in page.texts


def test_the_config_of_a_single_run_is_folded(show):
    page = show({"x": ([], "SEED: 5 # <b>")})
    assert "SEED: 5 # <b>" in page.texts
    assert ("details", {}) in page.tags


def test_names_are_text_whatever_they_hold(show):
    name = "</script><script>alert(1)</script><b title='x\"'>&amp;"
    row = {"iteration": 0, name: 1.0}
    page = show({"<i>&lt;run": ([row], f"'{name[:9]}': 1"), "other": ([row], "a: '<u>'")})
    assert page.data["groups"][0]["metrics"][0]["name"] == name
    assert page.tables["values"][2][0] == name
    assert page.tables["values"][0][1] == "<i>&lt;run"
    assert page.tables["differences"][1][0] == "</script>"
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2
    assert "u" not in tags
    assert not [attributes for _, attributes in page.tags if "title" in attributes]


def test_nothing_is_fetched(show):
    page = show({"x": ([{"iteration": 0, "a": 1}], "")})
    contents = [attributes.get("content", "") for tag, attributes in page.tags if tag == "meta"]
    assert any(content.startswith("default-src 'none'") for content in contents)
    assert not [attributes for _, attributes in page.tags if {"src", "href"} & attributes.keys()]


def test_the_parts_of_the_page_are_installed_with_the_package(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for part in ("page.html", "page.css", "page.js"):
        assert (tmp_path / "engine" / "report" / part).read_text() == (
            ROOT / "engine" / "report" / part
        ).read_text()
