import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config.errors import ConfigError
from engine.config.yaml_text import dump_yaml, load_yaml, parse_value

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.5E4", 15000.0),
        (".5e1", 5.0),
        ("-2e+2", -200.0),
        ("(1, 2)", (1, 2)),
        ("('a', 'b')", ("a", "b")),
        ("None", None),
        ("2024-01-01", "2024-01-01"),
        ("'1e-3'", "1e-3"),
        ("(not a tuple)", "(not a tuple)"),
    ],
)
def test_what_a_line_means(text, value):
    assert load_yaml(f"KEY: {text}", "a.yaml") == {"KEY": value}


def test_an_empty_file_is_an_empty_config():
    assert load_yaml("# nothing yet\n", "a.yaml") == {}


@settings(deadline=None)
@given(trees)
def test_what_is_dumped_loads_as_the_same(value):
    assert load_yaml(dump_yaml({"KEY": value}), "dump") == {"KEY": value}


@pytest.mark.parametrize("text", ["1e-3", "(1, 2)", "None", "2024-01-01", "yes"])
def test_text_that_looks_like_a_value_stays_text(text):
    assert load_yaml(dump_yaml({"KEY": text}), "dump") == {"KEY": text}


def test_a_python_tag_is_refused_and_nothing_runs(tmp_path):
    trap = tmp_path / "trap"
    with pytest.raises(ConfigError, match=r"(?s)bad.yaml, line 2: .*python/object.*plain values"):
        load_yaml(f"A: 1\nB: !!python/object/apply:os.mkdir ['{trap}']\n", "bad.yaml")
    assert not trap.exists()


def test_broken_yaml_names_file_and_line():
    with pytest.raises(ConfigError, match=r"bad.yaml, line 3: not valid YAML"):
        load_yaml("A: 1\nB: [1, 2\nC: 3\n", "bad.yaml")


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ConfigError, match=r"weights.pth: not valid YAML"):
        load_yaml(b"PK\x03\x04\xff\xfe", "weights.pth")


def test_a_key_written_twice_is_refused():
    with pytest.raises(ConfigError, match=r"bad.yaml, line 4: .*SOLVER is there twice"):
        load_yaml("SOLVER:\n  A: 1\nTEST: {}\nSOLVER:\n  B: 1\n", "bad.yaml")


@pytest.mark.parametrize("text", ["SOLVER: &a {OPTIMIZER: *a}", "HOOKS: &a [{NAME: *a}]"])
def test_an_alias_within_itself_is_refused(text):
    with pytest.raises(ConfigError, match=r"bad.yaml, line 2: .*an alias .* within what it stands"):
        load_yaml(f"A: 1\n{text}\n", "bad.yaml")


def test_an_alias_beside_its_anchor_is_a_copy():
    assert load_yaml("A: &a {B: [1]}\nC: *a\n", "a.yaml") == {"A": {"B": [1]}, "C": {"B": [1]}}


def test_a_file_nested_too_deeply_is_refused():
    with pytest.raises(ConfigError, match=r"bad.yaml: it is nested too deeply"):
        load_yaml(f"A: {'[' * 3000}{']' * 3000}", "bad.yaml")


def test_a_list_is_no_config():
    with pytest.raises(ConfigError, match=r"a.yaml: expected KEY: value lines, got \[1\]"):
        load_yaml("- 1", "a.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("1e-3", 0.001),
        ("True", True),
        ("true", True),
        ("None", None),
        ("null", None),
        ("(1, 2)", (1, 2)),
        ("[(1, 2), (3, 4)]", [(1, 2), (3, 4)]),
        ("[{NAME: EMAHook}]", [{"NAME": "EMAHook"}]),
        ("'5'", "5"),
        ("2 epoch", "2 epoch"),
        ("#fff", "#fff"),
        ("", ""),
        ("1j", "1j"),
        ("!!python/name:os.system", "!!python/name:os.system"),
        ("&a [*a]", "&a [*a]"),
    ],
)
def test_what_a_word_on_the_command_line_means(text, value):
    assert parse_value(text) == value


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_typed(text):
    parse_value(text)
