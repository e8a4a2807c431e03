"""The Python in README and docs runs: each page is one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import get_cfg

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda page: page.stem
)
def test_the_code_of_a_page_runs(page, tmp_path):
    program = tmp_path / f"{page.stem}.py"
    program.write_text("\n".join(BLOCK.findall(page.read_text())))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_settings_of_a_page_are_known(page, tmp_path):
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)
    ):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        get_cfg().merge_from_file(file)
