#!/usr/bin/env python3
"""Train from a Python config: a SimpleTrainer and its hooks, put together in the open.

    python tools/lazyconfig_train_net.py --config-file configs/digits/lazy_mlp.py
    python tools/lazyconfig_train_net.py --config-file … train.max_iter=100 optimizer.lr=0.05

The config defines `model`, `optimizer`, `lr_multiplier`, `dataloader` and `train`: see
docs/tutorials/lazy_configs.md. Ends as tools/train_net.py does: with 0, 75 (to be resumed) or 1.
"""

import argparse
import copy
import logging
import os
import sys
import weakref
from typing import Any

from fvcore.common.param_scheduler import ParamScheduler
from omegaconf import OmegaConf
from torch import nn

from engine import (
    AMPTrainer,
    SimpleTrainer,
    create_ddp_model,
    default_argument_parser,
    default_setup,
    default_writers,
    hooks,
    launch,
)
from engine.checkpoint import Checkpointer, MissingCheckpointError
from engine.config import ConfigError, LazyConfig, instantiate, naming
from engine.evaluation import inference_on_dataset, print_csv_format, write_results
from engine.hooks.stopping import REQUEUE_EXIT_CODE
from engine.parallel import comm
from engine.parallel.device import choose_device
from engine.startup import decide_resume, mistakes_in_one_line, write_config
from engine.utils.endless import batches_per_epoch
from engine.utils.lengths import to_iterations
from engine.utils.suggest import hint_at

logger = logging.getLogger("engine.tools.lazyconfig_train_net")

REQUIRED = (
    "model",
    "optimizer.params",
    "lr_multiplier",
    "dataloader.train",
    "dataloader.test",
    "dataloader.evaluator",
    "train.max_iter",
)
DEFAULTS = {
    "train.output_dir": "output",
    "train.init_checkpoint": "",
    "train.eval_period": 0,
    "train.log_period": 20,
    "train.checkpointer.period": 5000,
    "train.amp.enabled": False,
    "train.ddp.broadcast_buffers": False,
    "train.device": "auto",
    "train.seed": -1,
    "train.threads": 0,
    "train.cudnn_benchmark": False,
    "train.float32_precision": "",
}
EXAMPLES = """examples:
  lazyconfig_train_net.py --config-file configs/digits/lazy_mlp.py
  lazyconfig_train_net.py --config-file cfg.py --num-gpus 8 optimizer.lr=0.01 train.output_dir=out
  lazyconfig_train_net.py --config-file cfg.py --eval-only train.init_checkpoint=out/model_final.pth
KEY=VALUE changes a key that the config has, +KEY=VALUE adds one."""


def do_test(cfg: Any, model: nn.Module, file: str = "results.json") -> dict[str, Any]:
    loader, evaluator = instantiate(cfg.dataloader.test), instantiate(cfg.dataloader.evaluator)
    results = inference_on_dataset(model, loader, evaluator)
    print_csv_format(results)
    if comm.is_main_process() and cfg.train.output_dir:
        write_results(results, os.path.join(cfg.train.output_dir, file))
    return results


def do_train(cfg: Any, resume: bool) -> None:
    model = build_model(cfg)
    optimizer_of_model = copy.deepcopy(cfg.optimizer)
    optimizer_of_model.params.model = model
    optimizer = instantiate(optimizer_of_model)
    model = create_ddp_model(model, **cfg.train.ddp)
    loader = instantiate(cfg.dataloader.train)
    with naming("train.max_iter"):
        max_iter = to_iterations(cfg.train.max_iter, batches_per_epoch(loader))
        if max_iter < 1:
            raise ValueError(f"expected 1 iteration or more, got {cfg.train.max_iter!r}")
    trainer_class = AMPTrainer if cfg.train.amp.enabled else SimpleTrainer
    trainer = trainer_class(model, loader, optimizer)
    checkpointer = Checkpointer(model, cfg.train.output_dir, trainer=weakref.proxy(trainer))
    writers = default_writers(cfg.train.output_dir, max_iter) if comm.is_main_process() else []
    trainer.register_hooks(
        [
            hooks.IterationTimer(),
            hooks.LRScheduler(scheduler=build_schedule(cfg)),
            hooks.EvalHook(cfg.train.eval_period, lambda: do_test(cfg, model)),
            hooks.PeriodicWriter(writers, cfg.train.log_period, over_ranks=True),
            hooks.PeriodicCheckpointer(checkpointer, **cfg.train.checkpointer),
            hooks.StopOnSignal(),
        ]
    )
    trainer.iter = -1  # the last finished iteration, unless a checkpoint knows better
    checkpointer.resume_or_load(cfg.train.init_checkpoint, resume=resume)
    if trainer.iter >= max_iter:
        raise ConfigError(
            f"train.max_iter is {max_iter}, but {trainer.iter + 1} iterations are done of the run "
            f"in {cfg.train.output_dir}: raise it, or do not resume"
        )
    if comm.is_main_process() and cfg.train.output_dir:
        write_config(cfg, cfg.train.output_dir)
    trainer.train(trainer.iter + 1, max_iter)
    if trainer.requeue:
        sys.exit(REQUEUE_EXIT_CODE)  # stopped by a signal: start it again, with --resume


def build_model(cfg: Any) -> nn.Module:
    with naming("train.device"):
        device = choose_device(cfg.train.device)
    return instantiate(cfg.model).to(device)


def load_weights(cfg: Any, model: nn.Module, resume: bool) -> None:
    """Load what is to be evaluated: train.init_checkpoint, or with `resume` the last checkpoint."""
    checkpointer, weights = Checkpointer(model, cfg.train.output_dir), cfg.train.init_checkpoint
    if resume and not (weights or checkpointer.has_any()):
        raise MissingCheckpointError(
            f"there is no checkpoint in {os.path.abspath(cfg.train.output_dir)}: name one with "
            "train.init_checkpoint, or another train.output_dir"
        )
    if not (resume or weights):
        logger.warning(
            "No weights are given (train.init_checkpoint, or --resume): the model is used as it is "
            "made"
        )
    checkpointer.resume_or_load(weights, resume=resume)


def build_schedule(cfg: Any) -> ParamScheduler:
    try:
        schedule = instantiate(cfg.lr_multiplier)
        problem = f"got {schedule!r:.60}"
    except TypeError as error:  # torch's schedules want an optimizer
        schedule, problem = None, str(error)
    if not isinstance(schedule, ParamScheduler):
        raise ConfigError(
            "lr_multiplier must be a ParamScheduler of fvcore, such as CosineParamScheduler: "
            + problem
        )
    return schedule


def read_config(args: argparse.Namespace) -> Any:
    """The config: the file, what it need not say, then the command line."""
    if not args.config_file:
        raise ConfigError("name a config: --config-file configs/digits/lazy_mlp.py, for example")
    cfg = LazyConfig.load(args.config_file)
    if cfg and all(str(key).isupper() for key in cfg):
        raise ConfigError(f"{args.config_file} is a config for tools/train_net.py: use that")
    for key in REQUIRED:
        if OmegaConf.select(cfg, key) is None:
            raise ConfigError(
                f"{args.config_file}: defines no {key}{hint_at(key, cfg)} "
                "(what a config holds: docs/tutorials/lazy_configs.md)"
            )
    for key, value in DEFAULTS.items():
        if OmegaConf.select(cfg, key) is None:
            OmegaConf.update(cfg, key, value, force_add=True)
    return LazyConfig.apply_overrides(cfg, args.opts)


def warn_of_mistyped_keys(cfg: Any) -> None:
    """A config may have keys of its own under `train`, if they do not look like ours."""
    known = [key.split(".")[1] for key in (*REQUIRED, *DEFAULTS) if key.startswith("train.")]
    for key in cfg.train:
        if key not in known and (hint := hint_at(str(key), known)):
            logger.warning("Nothing here reads train.%s%s", key, hint)


def main(args: argparse.Namespace) -> None:
    cfg = read_config(args)
    default_setup(cfg, args)
    warn_of_mistyped_keys(cfg)
    if args.eval_only:
        model = build_model(cfg)
        load_weights(cfg, model, args.resume)
        do_test(cfg, model, "evaluation.json")  # a run's own results stay as they are
    else:
        do_train(cfg, decide_resume(args.resume, cfg.train.output_dir))


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # what configs of projects in this folder import
    parser = default_argument_parser(EXAMPLES)
    parser.description = "Train or evaluate what a Python config describes."
    args = parser.parse_args()
    with mistakes_in_one_line():
        read_config(args)  # a mistake in it is one message, however many processes there shall be
        launch(
            main,
            args.num_gpus,
            num_machines=args.num_machines,
            machine_rank=args.machine_rank,
            dist_url=args.dist_url,
            args=(args,),
            max_restarts=args.max_restarts,
        )
