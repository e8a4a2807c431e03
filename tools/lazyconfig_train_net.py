#!/usr/bin/env python3
"""Train from a Python config: a SimpleTrainer and its hooks, put together in the open.

    python tools/lazyconfig_train_net.py --config-file configs/digits/lazy_mlp.py
    python tools/lazyconfig_train_net.py --config-file … train.max_iter=100 optimizer.lr=0.05

The config defines `model`, `optimizer`, `lr_multiplier`, `dataloader` and `train`.
"""

import argparse
import sys
import weakref
from typing import Any

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
from engine.checkpoint import Checkpointer
from engine.config import LazyConfig, instantiate
from engine.evaluation import inference_on_dataset, print_csv_format
from engine.hooks.stopping import REQUEUE_EXIT_CODE
from engine.launch import was_restarted
from engine.parallel import comm
from engine.parallel.device import choose_device
from engine.startup import mistakes_in_one_line


def do_test(cfg: Any, model: nn.Module) -> dict[str, Any]:
    loader, evaluator = instantiate(cfg.dataloader.test), instantiate(cfg.dataloader.evaluator)
    results = inference_on_dataset(model, loader, evaluator)
    print_csv_format(results)
    return results


def do_train(cfg: Any, resume: bool) -> None:
    model = instantiate(cfg.model).to(choose_device(cfg.train.device))
    cfg.optimizer.params.model = model
    optimizer = instantiate(cfg.optimizer)
    model = create_ddp_model(model, **cfg.train.ddp)
    trainer_class = AMPTrainer if cfg.train.amp.enabled else SimpleTrainer
    trainer = trainer_class(model, instantiate(cfg.dataloader.train), optimizer)
    checkpointer = Checkpointer(model, cfg.train.output_dir, trainer=weakref.proxy(trainer))
    is_main = comm.is_main_process()
    writers = default_writers(cfg.train.output_dir, cfg.train.max_iter) if is_main else []
    trainer.register_hooks(
        [
            hooks.IterationTimer(),
            hooks.LRScheduler(scheduler=instantiate(cfg.lr_multiplier)),
            hooks.EvalHook(cfg.train.eval_period, lambda: do_test(cfg, model)),
            hooks.PeriodicWriter(writers, cfg.train.log_period, over_ranks=True),
            hooks.PeriodicCheckpointer(checkpointer, **cfg.train.checkpointer),
            hooks.StopOnSignal(),
        ]
    )
    trainer.iter = -1  # the last finished iteration, unless a checkpoint knows better
    checkpointer.resume_or_load(cfg.train.init_checkpoint, resume=resume)
    trainer.train(trainer.iter + 1, cfg.train.max_iter)
    if trainer.requeue:
        sys.exit(REQUEUE_EXIT_CODE)  # stopped by a signal: start it again, with --resume


def read_config(args: argparse.Namespace) -> Any:
    """The config: the file, then the command line."""
    return LazyConfig.apply_overrides(LazyConfig.load(args.config_file), args.opts)


def main(args: argparse.Namespace) -> None:
    cfg = read_config(args)
    default_setup(cfg, args)
    if args.eval_only:
        model = instantiate(cfg.model).to(choose_device(cfg.train.device))
        checkpointer = Checkpointer(model, cfg.train.output_dir)
        checkpointer.resume_or_load(cfg.train.init_checkpoint, resume=args.resume)
        do_test(cfg, model)
    else:
        do_train(cfg, args.resume or was_restarted())


if __name__ == "__main__":
    args = default_argument_parser().parse_args()
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
