import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from engine.utils import analysis


class Classifier(nn.Module):
    """Takes a batch as loaders give it and returns losses, as trainers want them."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
        self.head = nn.Linear(4, 10)
        self.spare = nn.Linear(3, 3)

    def forward(self, batch):
        logits = self.head(self.backbone(batch["image"]).mean((2, 3)))
        if not self.training:
            return {"logits": logits, "names": batch["name"]}
        return {"loss": nn.functional.cross_entropy(logits, batch["label"])}


@pytest.fixture
def model():
    model = Classifier()
    model.backbone[0].requires_grad_(False)
    return model


@pytest.fixture
def batch():
    return {
        "image": torch.rand(2, 1, 8, 8),
        "label": torch.tensor([1, 2]),
        "name": ["first", "second"],
    }


CONV_FLOPS = 2 * 4 * 6 * 6 * 9
HEAD_FLOPS = 2 * 4 * 10


def test_parameters_are_counted_by_module(model):
    counts = analysis.parameter_count(model)
    assert (counts["backbone.0"], counts["head"], counts[""]) == (40, 50, 40 + 8 + 50 + 12)
    assert "head.weight" in analysis.parameter_count_table(model)


def test_the_status_table_tells_trainable_from_frozen(model):
    rows = {}
    for line in analysis.parameter_status_table(model).splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = cells
    assert rows["(model)"] == ["110", "70 (63.6%)", "40 (36.4%)"]
    assert rows["backbone"] == ["48", "8 (16.7%)", "40 (83.3%)"]
    assert rows["backbone.0"] == ["40", "0 (0.0%)", "40 (100.0%)"]
    assert rows["head"] == ["50", "50 (100.0%)", "0 (0.0%)"]


def test_flops_of_a_model_that_takes_a_dict(model, batch):
    flops = analysis.flop_count_operators(model, batch)
    assert flops["conv"] == CONV_FLOPS / 1e9
    assert flops["linear"] == HEAD_FLOPS / 1e9
    assert analysis.flop_count(model, batch) == round(sum(flops.values()) * 1e9)


def test_activations_are_the_outputs_of_convolutions_and_products(model, batch):
    activations = analysis.activation_count_operators(model, batch)
    assert activations == {"conv": 2 * 4 * 6 * 6 / 1e6, "linear": 2 * 10 / 1e6}


def test_the_analysis_names_modules_as_the_model_does(model, batch):
    by_module = analysis.FlopCountAnalysis(model.eval(), batch).by_module()
    assert by_module["backbone.0"] == CONV_FLOPS
    assert by_module["head"] == HEAD_FLOPS


def test_a_tuple_is_the_arguments():
    class Product(nn.Module):
        def forward(self, left, right):
            return left @ right

    assert analysis.flop_count(Product(), (torch.rand(2, 3), torch.rand(3, 4))) == 2 * 3 * 4
    assert analysis.flop_count(nn.Linear(4, 10), torch.rand(2, 4)) == HEAD_FLOPS


@pytest.mark.parametrize("frozen", [False, True])
def test_attention_counts(frozen):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).requires_grad_(not frozen)
    flops = analysis.flop_count_operators(layer, torch.rand(2, 5, 16))
    assert flops["scaled_dot_product_attention"] == 2 * 4 * 5 * 5 * (4 + 4) / 1e9
    assert flops["linear"] == 2 * 5 * (16 * 48 + 16 * 16 + 16 * 32 + 32 * 16) / 1e9


def test_the_summary_is_one_line(model, batch):
    assert analysis.model_summary(model, batch) == (
        "parameters 110 | FLOPs 3.25 K, 2.59 K in convolutions | "
        "activations 308, 288 in convolutions"
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (999_600, "1 M"), (25.6e6, "25.6 M"), (3e12, "3 T")],
)
def test_large_numbers_are_short(number, text):
    assert analysis._short(number) == text


def test_unused_parameters_are_named_and_frozen_ones_are_not(model, batch):
    assert analysis.find_unused_parameters(model, batch) == {"spare.weight", "spare.bias"}


def test_a_model_without_losses_is_told_to_train():
    with pytest.raises(ValueError, match=r"model.train\(\)"):
        analysis.find_unused_parameters(nn.Flatten(), torch.rand(2, 2))


@pytest.mark.parametrize("analyse", [analysis.model_summary, analysis.find_unused_parameters])
def test_a_model_is_left_as_it_was(model, batch, analyse):
    model.train()
    model.backbone[1].eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()

    analyse(model, batch)

    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert model.spare.weight.grad is None


def test_batch_norm_statistics_survive_a_pass_in_training_mode(model, batch):
    analysis.find_unused_parameters(model.train(), batch)
    assert model.backbone[1].num_batches_tracked == 0
    assert model.backbone[1].running_mean.tolist() == [0, 0, 0, 0]


def test_counting_says_nothing_on_the_console():
    script = (
        "import torch, engine.utils.analysis as a\n"
        "print(a.model_summary(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Softplus()),\n"
        "                      torch.rand(1, 2)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert process.stdout.startswith("parameters 9 ")
    assert "jit" not in process.stderr
    assert "Unsupported" not in process.stderr
