"""The digits as a Python config, for tools/lazyconfig_train_net.py."""

import torch
from fvcore.common.param_scheduler import CosineParamScheduler

from engine.config import LazyCall as L
from engine.data import build_test_loader, build_train_loader, get_dataset
from engine.evaluation import ClassificationEvaluator
from engine.solver import WarmupParamScheduler, get_default_optimizer_params
from engine.zoo.digits import DigitsMLP

model = L(DigitsMLP)(hidden=256)

optimizer = L(torch.optim.SGD)(
    params=L(get_default_optimizer_params)(weight_decay=1e-4), lr=0.1, momentum=0.9
)
lr_multiplier = L(WarmupParamScheduler)(
    scheduler=L(CosineParamScheduler)(start_value=1.0, end_value=0.0),
    warmup_factor=0.01,
    warmup_length=0.05,
)

dataloader = {
    "train": L(build_train_loader)(
        dataset=L(get_dataset)(names="digits_train"), total_batch_size=64, seed=0
    ),
    "test": L(build_test_loader)(dataset=L(get_dataset)(names="digits_test"), batch_size=360),
    "evaluator": L(ClassificationEvaluator)(),
}

train = {
    "output_dir": "output/digits_lazy",
    "max_iter": 600,
    "eval_period": 200,
    "checkpointer": {"period": 200, "max_to_keep": 3},
    "seed": 0,
    "threads": 1,
}
