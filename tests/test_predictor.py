import pytest
import torch

from engine import DefaultTrainer
from engine.data import get_dataset
from engine.modeling import build_model
from engine.predictor import DefaultPredictor

pytestmark = pytest.mark.usefixtures("log")


def darken(sample):
    return {**sample, "image": sample["image"] * 0}


@pytest.fixture
def weights(digits_cfg, tmp_path):
    path = str(tmp_path / "weights.pth")
    torch.save({"model": build_model(digits_cfg()).state_dict()}, path)
    return path


def test_it_predicts_one_sample_as_the_model_does(digits_cfg, weights):
    cfg = digits_cfg("MODEL.WEIGHTS", weights)
    model = build_model(cfg).eval()
    model.load_state_dict(torch.load(weights, weights_only=True)["model"])
    sample = get_dataset("digits_test")[0]
    outputs = DefaultPredictor(cfg)(sample)
    expected = model({"image": sample["image"][None]})
    torch.testing.assert_close(outputs["logits"], expected["logits"])
    assert not outputs["logits"].requires_grad


def test_samples_pass_the_mapper_of_the_test_set(digits_cfg, weights, monkeypatch):
    import engine.zoo.digits as digits

    monkeypatch.setattr(digits, "darken", darken, raising=False)
    predict = DefaultPredictor(
        digits_cfg("MODEL.WEIGHTS", weights, "DATALOADER.TEST_MAPPER", "engine.zoo.digits:darken")
    )
    samples = get_dataset("digits_test")
    torch.testing.assert_close(predict(samples[0])["logits"], predict(samples[1])["logits"])
    torch.testing.assert_close(predict({"image": torch.ones(1, 8, 8)}), predict(samples[0]))


def test_samples_are_made_a_batch_as_those_of_the_test_set(digits_cfg, weights):
    collate = "engine.data:trivial_batch_collator"
    predict = DefaultPredictor(digits_cfg("MODEL.WEIGHTS", weights, "DATALOADER.COLLATE", collate))
    predict.model = lambda batch: batch
    assert predict({"image": 3}) == [{"image": 3}]


def test_it_keeps_a_config_of_its_own(digits_cfg):
    cfg = digits_cfg()
    assert DefaultPredictor(cfg).cfg == cfg
    assert DefaultPredictor(cfg).cfg is not cfg


def test_the_trainer_that_the_config_names_builds_the_model(digits_cfg, weights, monkeypatch):
    class Own(DefaultTrainer):
        @classmethod
        def build_model(cls, cfg):
            built.append(cls)
            return super().build_model(cfg)

    import engine.zoo.digits as digits

    built = []
    monkeypatch.setattr(digits, "Own", Own, raising=False)
    DefaultPredictor(digits_cfg("MODEL.WEIGHTS", weights, "TRAINER", "engine.zoo.digits:Own"))
    assert built == [Own]
