#!/usr/bin/env python3
"""A training loop written by hand: no trainer and no hooks, only the storage, the writers and a
checkpoint. It trains a small network on the digits that scikit-learn's package contains.

    python tools/plain_train_net.py --output-dir output/plain [--resume] [--max-iter 600]
"""

import argparse
import math
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # beside another job, spinning costs 15 ×

import torch
from torch import nn
from torch.nn import functional as F

from engine.checkpoint import Checkpointer
from engine.data import TrainLoader, build_test_loader, build_train_loader, get_dataset
from engine.events import (
    CommonMetricPrinter,
    EventStorage,
    JSONWriter,
    TensorboardXWriter,
    get_event_storage,
)
from engine.startup import mistakes_in_one_line
from engine.utils.logger import setup_logger

WRITE_PERIOD, SAVE_PERIOD = 20, 200
BASE_LR = 0.1


class Digits(nn.Module):
    """A small MLP. It returns its loss in training and logits otherwise, and logs its accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self.layers(batch["image"])
        if not self.training:
            return logits
        accuracy = (logits.argmax(1) == batch["label"]).float().mean()
        get_event_storage().put_scalar("accuracy", accuracy)
        return F.cross_entropy(logits, batch["label"])


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    """The share of the test set that is classified rightly, in percent."""
    model.eval()
    correct = total = 0
    for batch in build_test_loader(get_dataset("digits_test"), batch_size=360):
        correct += (model(batch).argmax(1) == batch["label"]).sum().item()
        total += len(batch["label"])
    model.train()
    return 100 * correct / total


def train(model: nn.Module, loader: TrainLoader, args: argparse.Namespace) -> None:
    optimizer = torch.optim.SGD(model.parameters(), BASE_LR, momentum=0.9, weight_decay=1e-4)
    checkpointer = Checkpointer(model, args.output_dir, optimizer=optimizer)
    loaded = checkpointer.resume_or_load("", resume=args.resume)
    start_iter = loaded.get("iteration", -1) + 1
    logger = setup_logger(args.output_dir)  # only now: the folder is this program's
    logger.info("Training from iteration %d to %d", start_iter, args.max_iter)
    writers = [
        CommonMetricPrinter(args.max_iter),
        JSONWriter(os.path.join(args.output_dir, "metrics.json")),
        TensorboardXWriter(args.output_dir),
    ]
    for writer in writers:
        writer.rewind(start_iter)
    loader.start_at(start_iter)
    model.train()
    with EventStorage(start_iter) as storage:
        for storage.iter, batch in zip(range(start_iter, args.max_iter), loader, strict=False):
            # From the iteration alone: right also where the run that is resumed was a shorter one.
            lr = BASE_LR * (1 + math.cos(math.pi * storage.iter / args.max_iter)) / 2
            for group in optimizer.param_groups:
                group["lr"] = lr
            loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            storage.put_scalar("total_loss", loss)
            storage.put_scalar("lr", lr, smoothing_hint=False)

            done = storage.iter + 1
            if done % SAVE_PERIOD == 0 or done == args.max_iter:
                storage.put_scalar("test/accuracy", evaluate(model), smoothing_hint=False)
            if done % WRITE_PERIOD == 0 or done == args.max_iter:
                for writer in writers:
                    writer.write()
            if done % SAVE_PERIOD == 0 or done == args.max_iter:
                checkpointer.save(f"model_{storage.iter:07d}", iteration=storage.iter)
        for writer in writers:
            writer.close()
    logger.info("Accuracy on the test set: %.2f %%", evaluate(model))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output-dir", default="output/plain", help="folder of the run")
    parser.add_argument("--max-iter", type=int, default=600, help="length of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    args = parser.parse_args()
    if args.max_iter < 1:
        parser.error(f"--max-iter must be 1 or more, got {args.max_iter}")
    try:
        os.makedirs(args.output_dir, exist_ok=True)
    except OSError as error:
        sys.exit(f"{args.output_dir} cannot be made ({error.strerror}): name another --output-dir")
    setup_logger()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = build_train_loader(get_dataset("digits_train"), total_batch_size=64, seed=0)
    with mistakes_in_one_line():
        train(Digits(), loader, args)


if __name__ == "__main__":
    main()
