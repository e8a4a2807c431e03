import pytest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.json").write_text('{"iteration": 4, "loss": 0.5}\n{"itera')
    return tmp_path / "run"


def test_a_page_is_written_of_a_run_that_was_killed(run_tool, folder, tmp_path, capsys):
    run_tool("report.py", folder, "-o", tmp_path / "page.html")
    assert capsys.readouterr().out.startswith(f"Wrote {tmp_path / 'page.html'} (0.0")
    assert '<th scope="row">loss</th>' in (tmp_path / "page.html").read_text()


def test_the_page_is_called_report_where_no_name_is_given(run_tool, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_tool("report.py", "run")
    assert (tmp_path / "report.html").exists()


def test_bad_input_is_told_in_one_line(run_tool, folder, tmp_path):
    def refusal(*arguments):
        with pytest.raises(SystemExit) as ended:
            run_tool("report.py", *arguments)
        assert "\n" not in ended.value.code
        return ended.value.code

    assert f"{tmp_path / 'none'} is not a folder: give" in refusal(tmp_path / "none")
    assert f"{tmp_path / 'metrics.json'} is not there: give" in refusal(tmp_path)
    assert "is given twice" in refusal(folder, folder)
    page = tmp_path / "none" / "page.html"
    assert refusal(folder, "-o", page).startswith(
        f"{page} cannot be written (No such file or directory): give -o a file in a folder"
    )
    assert f"{folder} cannot be written (Is a directory)" in refusal(folder, "-o", folder)
    assert not list(tmp_path.glob("*.tmp"))
    (folder / "config.yaml").write_text("a: [")
    assert "config.yaml, line 1: not valid YAML" in refusal(folder)
    (folder / "metrics.json").write_text('{"itera\n{"iteration": 4, "loss": 0.5}\n')
    assert "metrics.json, line 1: expected" in refusal(folder)
