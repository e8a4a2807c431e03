"""Where code for detectron2 finds what it imports, once its package is called engine."""

from importlib import import_module

import pytest
import torch

from engine import hooks
from engine.checkpoint import PeriodicCheckpointer
from engine.config import get_cfg
from engine.solver import maybe_add_gradient_clipping


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("solver.build", "build_optimizer build_lr_scheduler maybe_add_gradient_clipping"),
        ("solver.build", "get_default_optimizer_params reduce_param_groups"),
        ("solver.lr_scheduler", "LRMultiplier LRScheduler WarmupParamScheduler"),
        ("solver.lr_scheduler", "WarmupMultiStepLR WarmupCosineLR"),
        ("data.build", "build_batch_data_loader trivial_batch_collator worker_init_reset_seed"),
        ("data.common", "DatasetFromList MapDataset ToIterableDataset"),
        ("evaluation.testing", "flatten_results_dict print_csv_format verify_results"),
    ],
)
def test_modules_have_the_names_they_have_there(module, names):
    folder = import_module(f"engine.{module.partition('.')[0]}")
    for name in names.split():
        assert getattr(import_module(f"engine.{module}"), name) is getattr(folder, name)


def test_the_hook_that_saves_is_found_beside_the_checkpointer():
    assert PeriodicCheckpointer is hooks.PeriodicCheckpointer


def test_without_clipping_an_optimizer_or_its_class_stays_as_it_is():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for one in (optimizer, torch.optim.SGD):
        assert maybe_add_gradient_clipping(get_cfg(), one) is one
