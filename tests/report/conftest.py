import json

import pytest


@pytest.fixture
def make_run(tmp_path):
    """Writes the folder of a run: its metrics, and whatever other files are given by name."""

    def make(name, rows, **files):
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for file, text in files.items():
            (folder / file.replace("_yaml", ".yaml").replace("_txt", ".txt")).write_text(text)
        return folder

    return make
