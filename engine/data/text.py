"""Text as sequences of characters, by default the sources of Python's standard library."""

import sysconfig
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch.utils.data import Dataset

from engine.data.catalog import DatasetCatalog, MetadataCatalog

Split = Literal["train", "val"]

VOCABULARY = "\t\n" + "".join(map(chr, range(32, 127)))
"""Tab, newline and the printable ASCII characters; a character's token is its position here."""

_TOKENS = torch.full((256,), VOCABULARY.index("?"))
_TOKENS[torch.tensor(list(VOCABULARY.encode()))] = torch.arange(len(VOCABULARY))


class CharacterDataset(Dataset[dict[str, torch.Tensor]]):
    """One text, cut into {"tokens": LongTensor[sequence_length + 1]}.

    Neighbours share one character, the last of one being the first of the next: with all but the
    last as input and all but the first as target, a pass predicts each character once.
    """

    def __init__(self, text: str, sequence_length: int) -> None:
        if len(text) <= sequence_length:
            raise ValueError(
                f"the text has {len(text)} characters, fewer than one sequence of "
                f"{sequence_length} + 1: use more text or a smaller sequence_length"
            )
        self.tokens = encode(text)
        self.sequence_length = sequence_length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence_length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin = range(len(self))[index] * self.sequence_length
        return {"tokens": self.tokens[begin : begin + self.sequence_length + 1]}


def load_characters(
    split: Split,
    files: Sequence[str | Path] | None = None,
    *,
    sequence_length: int = 128,
    max_characters: int = 2_000_000,
    val_share: float = 0.1,
) -> CharacterDataset:
    """The first or, for "val", the last part of the text of all files in the order given.

    Without `files`: those of the standard library, which differ between versions of Python. The
    text is cut at `max_characters` before it is split.
    """
    text = _read(standard_library() if files is None else files, max_characters)
    border = round(len(text) * (1 - val_share))
    return CharacterDataset(text[:border] if split == "train" else text[border:], sequence_length)


def encode(text: str) -> torch.Tensor:
    """The tokens of a text, one for each character; what is not in the vocabulary becomes "?"."""
    if not text:
        return torch.empty(0, dtype=torch.long)  # frombuffer refuses an empty buffer
    characters = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8)
    return _TOKENS[characters.long()]


def decode(tokens: Iterable[int]) -> str:
    """The text of these tokens."""
    return "".join(VOCABULARY[token] for token in tokens)


def standard_library() -> list[Path]:
    """The modules at the top of Python's standard library, sorted by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if not files:
        raise FileNotFoundError(
            f"this Python has no sources of its standard library in {folder}: name text files"
        )
    return files


def _read(files: Iterable[str | Path], max_characters: int) -> str:
    texts: list[str] = []
    missing = max_characters
    for file in files:
        if missing <= 0:
            break
        texts.append(Path(file).read_text(encoding="utf-8", errors="replace")[:missing])
        missing -= len(texts[-1])
    return "".join(texts)


for _split in ("train", "val"):
    DatasetCatalog.register(f"characters_{_split}", partial(load_characters, _split))
    MetadataCatalog.get(f"characters_{_split}").set(
        evaluator_type="language_model", vocabulary=VOCABULARY
    )
