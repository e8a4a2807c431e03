import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "cost_of_many_ranks.py"


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(TOOL))


def test_what_grows_with_ranks_grows_as_the_page_says(tool):
    values = (100 + 2) * 20
    for ranks in (2, 4096):
        row = tool["calculate"](ranks, 100, 30e-6, 3e9)
        assert row["metrics to rank 0: MB"] == 8 * values * (ranks - 1) / 1e6
        assert row["stop flags: ms"] == pytest.approx(2 * (ranks - 1) * 0.03, rel=1e-3)


def test_the_table_of_the_page_is_the_one_that_is_calculated(run_tool, capsys):
    run_tool("cost_of_many_ranks.py")
    calculated, measured = capsys.readouterr().out.strip().split("\n\n")
    assert calculated.count("\n") == measured.count("\n") == 6
    assert calculated in (ROOT / "docs" / "cost_of_many_ranks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--metrics=-5", "--metrics must be 0 or more, got -5"),
        ("--latency-us=-1", "--latency-us must be 0 or more, got -1.0"),
        ("--gb-per-second=0", "--gb-per-second must be above 0, got 0.0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(run_tool, capsys, argument, message):
    with pytest.raises(SystemExit):
        run_tool("cost_of_many_ranks.py", argument)
    assert message in capsys.readouterr().err
