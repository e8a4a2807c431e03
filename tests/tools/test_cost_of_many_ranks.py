import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "cost_of_many_ranks.py"


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(TOOL))


def test_what_grows_with_ranks_grows_as_the_page_says(tool):
    size = tool["metric_vector_bytes"]
    slots, metrics, times = 21, 100, 2
    for ranks in (2, 4096):
        means_and_header = 1 + metrics * (2 * slots + 1)
        assert size(ranks, metrics) == 8 * (means_and_header + times * ((ranks + 1) * slots + 1))


def test_the_table_of_the_page_is_the_one_that_is_calculated(run_tool, capsys):
    run_tool("cost_of_many_ranks.py")
    table = capsys.readouterr().out.strip()
    assert table.count("\n") == 6
    assert table in (ROOT / "docs" / "cost_of_many_ranks.md").read_text(encoding="utf-8")
