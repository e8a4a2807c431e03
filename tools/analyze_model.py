#!/usr/bin/env python3
"""How large the model of a config is, and what it computes for a batch of its first test set.

python tools/analyze_model.py --config-file configs/digits/cnn.yaml
python tools/analyze_model.py --config-file … TEST.BATCH_SIZE=1 --tasks flop structure
"""

import argparse
import os
import sys
from typing import Any

from tabulate import tabulate
from train_net import find_trainer

from engine import DefaultTrainer
from engine.config import CfgNode, ConfigError, get_cfg
from engine.startup import mistakes_in_one_line
from engine.utils import analysis
from engine.utils.console import reader_may_leave

TASKS = ("parameter", "flop", "activation", "structure")


def analyze(cfg: CfgNode, tasks: list[str]) -> None:
    trainer = find_trainer(cfg)
    model = trainer.build_model(cfg)
    if "parameter" in tasks:
        print(analysis.parameter_count_table(model), end="\n\n")
        print(analysis.parameter_status_table(model), end="\n\n")
    if "flop" in tasks:
        batch = first_batch(trainer, cfg)
        print(analysis.model_summary(model, batch), end="\n\n")
        print(analysis.flop_count_table(model, batch), end="\n\n")
    if "activation" in tasks:
        counts = analysis.activation_count_operators(model, first_batch(trainer, cfg))
        headers = ("operator", "million activations")
        print(tabulate(counts.items(), headers, tablefmt="pipe"), end="\n\n")
    if "structure" in tasks:
        print(model)


def first_batch(trainer: type[DefaultTrainer], cfg: CfgNode) -> Any:
    if not cfg.DATASETS.TEST:
        raise ConfigError("DATASETS.TEST is empty: name a data set that the model can be tried on")
    return next(iter(trainer.build_test_loader(cfg, cfg.DATASETS.TEST[0])))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config-file", required=True, metavar="FILE", help="the config")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="what to print")
    parser.add_argument("opts", nargs="*", metavar="KEY=VALUE", help="overrides of the config")
    args = parser.parse_intermixed_args()
    with mistakes_in_one_line():
        cfg = get_cfg()
        cfg.merge_from_file(args.config_file)
        cfg.merge_from_list(args.opts)
        with reader_may_leave():
            analyze(cfg, args.tasks)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # trainers of projects in this folder
    main()
