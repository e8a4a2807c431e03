import math

import pytest
import torch

from engine.config import get_cfg
from engine.data import CharacterDataset, DatasetCatalog, load_characters
from engine.data.text import VOCABULARY
from engine.zoo import CharacterGRU
from engine.zoo.char_lm import Trainer


def test_the_loss_falls(train):
    text = load_characters("train", max_characters=50_000, sequence_length=32)
    storage = train(CharacterGRU(hidden=32), text, 40)
    losses = [loss for loss, _ in storage.history("loss_lm").values()]
    assert losses[0] == pytest.approx(math.log(len(VOCABULARY)), rel=0.1)
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])
    assert 0 < storage.latest()["train/accuracy"][0] < 100


def test_each_character_but_the_last_gets_logits():
    outputs = CharacterGRU(hidden=8).eval()({"tokens": torch.zeros(2, 11, dtype=torch.long)})
    assert outputs["logits"].shape == (2, 10, len(VOCABULARY))


def test_a_prediction_depends_on_nothing_that_comes_after_it():
    model = CharacterGRU(hidden=8).eval()
    tokens = torch.randint(len(VOCABULARY), (2, 11))
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % len(VOCABULARY)
    logits, others = model({"tokens": tokens})["logits"], model({"tokens": changed})["logits"]
    assert torch.equal(logits[:, :6], others[:, :6])
    assert not torch.equal(logits[:, 6:], others[:, 6:])


@pytest.fixture
def tiny_texts():
    """Two texts to train on, in which b follows a 30 times and c 10 times, and one to test."""
    texts = {"tiny_1": "ab" * 30, "tiny_2": "ac" * 10, "tiny_val": "ab" * 50 + "a"}
    for name, text in texts.items():
        DatasetCatalog.register(name, lambda text=text: CharacterDataset(text, 10))
    yield
    for name in texts:
        DatasetCatalog.remove(name)


@pytest.mark.usefixtures("tiny_texts", "own_loggers")
def test_the_trainer_reports_the_loss_of_a_bigram_model_of_the_training_texts(tmp_path):
    cfg = get_cfg()
    cfg.OUTPUT_DIR = str(tmp_path)
    cfg.DATASETS.TRAIN = ("tiny_1", "tiny_2")
    cfg.DATASETS.TEST = ("tiny_val",)
    cfg.DATALOADER.NUM_WORKERS = 0
    results = Trainer.test(cfg, CharacterGRU(hidden=8))["language_model"]
    # One is added to each count; b begins 29 pairs, all of them "ba".
    b_after_a, a_after_b = 31 / (40 + 97), 30 / (29 + 97)
    expected = -(math.log(b_after_a) + math.log(a_after_b)) / 2
    assert results["bigram_loss"] == pytest.approx(expected, rel=1e-5)
    assert results["loss"] == pytest.approx(math.log(97), rel=0.1)
