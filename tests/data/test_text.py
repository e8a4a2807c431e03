import sysconfig
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.data import CharacterDataset, MetadataCatalog, get_dataset, load_characters
from engine.data.text import VOCABULARY, decode, encode


@given(st.text(alphabet=VOCABULARY))
def test_encoding_and_decoding_gives_the_text_back(text):
    assert decode(encode(text)) == text


def test_a_character_outside_the_vocabulary_becomes_a_question_mark():
    assert decode(encode("naïve\r")) == "na?ve?"


def test_each_character_after_the_first_is_a_target_once():
    dataset = CharacterDataset("abcdefgh", sequence_length=3)
    texts = [decode(sample["tokens"]) for sample in dataset]
    assert texts == ["abcd", "defg"]
    assert dataset[0]["tokens"].dtype == torch.int64


def test_a_text_shorter_than_one_sequence_is_refused():
    with pytest.raises(ValueError, match=r"has 3 characters, fewer than one sequence of 3 \+ 1"):
        CharacterDataset("abc", sequence_length=3)


def test_files_are_joined_in_order_cut_and_split(tmp_path):
    for name, text in [("a", "0123456789"), ("b", "abcdefghij")]:
        (tmp_path / name).write_text(text)
    files = [tmp_path / "b", tmp_path / "a"]
    options = {"sequence_length": 1, "max_characters": 15, "val_share": 0.2}
    assert decode(load_characters("train", files, **options).tokens) == "abcdefghij01"
    assert decode(load_characters("val", files, **options).tokens) == "234"


def test_the_default_text_is_the_standard_library():
    val = get_dataset("characters_val")
    assert len(get_dataset("characters_train")) > 5 * len(val)
    assert val[0]["tokens"].shape == (129,)
    text = decode(load_characters("train", max_characters=2000).tokens)
    source = Path(sysconfig.get_path("stdlib"), "__future__.py").read_text()  # first by name
    assert text == source[: len(text)]
    assert MetadataCatalog.get("characters_train").vocabulary == VOCABULARY
