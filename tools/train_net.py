#!/usr/bin/env python3
"""Train or evaluate what a config describes.

    python tools/train_net.py --config-file configs/digits/cnn.yaml
    python tools/train_net.py --config-file configs/digits/cnn.yaml SOLVER.MAX_ITER 900 --resume
    python tools/train_net.py --config-file … --eval-only MODEL.WEIGHTS=output/model_final.pth
    python tools/train_net.py --config-file … --num-gpus 8 --max-restarts 3
    torchrun --nproc-per-node 8 tools/train_net.py --config-file …

The config names its trainer (`TRAINER: package.module:Class`), so one script serves all projects.
Ends with 0 when the run is complete, with 75 when a signal or TIME_LIMIT stopped it and it is to be
resumed, and with 1 after an error.
"""

import argparse
import os
import sys
from typing import Any

from engine import launch
from engine.config import CfgNode, ConfigError, config_template, get_cfg, naming_unknown
from engine.defaults import DefaultTrainer, default_argument_parser, default_setup
from engine.evaluation import verify_results
from engine.hooks.stopping import REQUEUE_EXIT_CODE
from engine.parallel import comm
from engine.parallel.strategy import prepare_model
from engine.startup import decide_resume, mistakes_in_one_line
from engine.train_loop import TrainerBase
from engine.utils.console import reader_may_leave
from engine.utils.registry import locate


def read_config(args: argparse.Namespace) -> CfgNode:
    """The config: defaults, then the file, then the command line; frozen."""
    cfg = get_cfg()
    if args.config_file:
        cfg.merge_from_file(args.config_file)
    cfg.merge_from_list(args.opts)
    cfg.freeze()
    return cfg


def find_trainer(cfg: CfgNode) -> type[DefaultTrainer]:
    """The class that TRAINER names."""
    if not cfg.TRAINER:
        return DefaultTrainer
    with naming_unknown("TRAINER"):
        found = locate(cfg.TRAINER)
    if not (isinstance(found, type) and issubclass(found, TrainerBase)):
        raise ConfigError(
            f"TRAINER must be a class of trainers, such as a kind of DefaultTrainer; got {found}"
        )
    return found


def main(args: argparse.Namespace) -> Any:
    cfg = read_config(args)
    default_setup(cfg, args)
    trainer_class = find_trainer(cfg)
    if args.eval_only:
        model = prepare_model(cfg, trainer_class.build_model(cfg))
        trainer_class.load_weights(cfg, model, resume=args.resume)
        results = trainer_class.test(cfg, model)
        if comm.is_main_process():
            verify_results(cfg, results)
        return results
    resume = decide_resume(args.resume or cfg.CHECKPOINT.AUTO_RESUME, cfg.OUTPUT_DIR)
    trainer = trainer_class(cfg)
    trainer.resume_or_load(resume=resume)
    results = trainer.train()
    if trainer.requeue:
        sys.exit(REQUEUE_EXIT_CODE)  # tells a scheduler to start this again, with --resume
    return results


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # trainers of projects in this folder
    parser = default_argument_parser()
    parser.description = "Train or evaluate what a config describes."
    parser.add_argument(
        "--print-config-template", action="store_true", help="print all keys with what they mean"
    )
    args = parser.parse_args()
    if args.print_config_template:
        with reader_may_leave():
            print(config_template())
        sys.exit()
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
