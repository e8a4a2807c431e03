"""Evaluators, and the loop that has them look at a model's outputs for a data set."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine.events import get_event_storage, has_event_storage
from engine.parallel import comm
from engine.parallel.fsdp import batches_in_step, reshard
from engine.utils.endless import batches_per_epoch
from engine.utils.registry import Registry

logger = logging.getLogger(__name__)

EVALUATOR_REGISTRY = Registry("EVALUATOR")
"""Evaluators of your own, for the `evaluator_type` in the metadata of data sets: classes, or
functions, that take the config and the name of the data set."""

WARM_UP_BATCHES = 5  # not in the times: the first ones fill caches and start workers
SECONDS_BETWEEN_LINES = 5.0
CALLBACKS = ("on_start", "before_inference", "after_inference", "on_end")


class DatasetEvaluator:
    """Measures the outputs of a model, batch by batch; `inference_on_dataset` drives it."""

    def reset(self) -> None:
        """Forget what was seen: an evaluation begins."""

    def process(self, inputs: Any, outputs: Any) -> None:
        """Take in one batch and what the model gave for it, on the device where it is."""

    def evaluate(self) -> dict[str, Any] | None:
        """The results over all ranks: numbers, nested as {"task": {"metric": number}}.

        All ranks call it. It should return the same on each: see `engine.evaluation.Totals`.
        """


class DatasetEvaluators(DatasetEvaluator):
    """Several evaluators as one: each sees every batch, and their results are merged."""

    def __init__(self, evaluators: Sequence[DatasetEvaluator]) -> None:
        for evaluator in evaluators:
            _check_evaluator(evaluator)
        self._evaluators = list(evaluators)

    def reset(self) -> None:
        for evaluator in self._evaluators:
            evaluator.reset()

    def process(self, inputs: Any, outputs: Any) -> None:
        for evaluator in self._evaluators:
            evaluator.process(inputs, outputs)

    def evaluate(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for evaluator in self._evaluators:
            for key, value in _results_of(evaluator).items():
                if key in merged:
                    raise ValueError(
                        f"two evaluators give results under the key {key!r}, the second one is "
                        f"{type(evaluator).__name__}: evaluate them apart, or rename one"
                    )
                merged[key] = value
        return merged


def inference_on_dataset(
    model: Callable[[Any], Any],
    data_loader: Iterable[Any],
    evaluator: DatasetEvaluator | Sequence[DatasetEvaluator] | None,
    callbacks: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Any]:
    """Run the model over all batches, in eval mode and without gradients; the evaluator's results.

    With None for an evaluator the model is only run, and timed. `callbacks` are called without
    arguments at "on_start", "before_inference", "after_inference" and "on_end". Work that a GPU
    was given counts, in the times that are logged, where the program waits for it.
    """
    evaluator = _as_one(evaluator)
    on_start, before_inference, after_inference, on_end = _all_callbacks(callbacks)
    emit = get_event_storage().emit if has_event_storage() else _do_nothing
    evaluator.reset()
    eval_mode = inference_context(model) if isinstance(model, nn.Module) else nullcontext()
    if isinstance(model, nn.Module) and _find_senders(model):
        comm.copy_from_rank_0(dict(model.named_buffers()))
    with eval_mode, torch.no_grad():
        on_start()
        progress = _Progress(batches_per_epoch(data_loader))
        started = perf_counter()
        for inputs, is_own in batches_in_step(model, data_loader):
            if not is_own:
                model(inputs)  # what comes out is counted already, here or on another rank
                continue
            loaded = perf_counter()
            before_inference()
            emit("before_eval_step")
            outputs = model(inputs)
            emit("after_eval_step", outputs)
            after_inference()
            computed = perf_counter()
            evaluator.process(inputs, outputs)
            finished = perf_counter()
            progress.add(started, loaded, computed, finished)
            started = finished
        progress.finish()
        on_end()
    return _results_of(evaluator)


@contextmanager
def inference_context(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards each module is in the mode in which it was before.

    Where DistributedDataParallel sends buffers around in a forward pass, it does not inside: ranks
    may have different numbers of batches. A sharded model has its shards afterwards: parameters
    that are gathered are copies, and what is done to them would be lost.
    """
    modes = [(module, module.training) for module in model.modules()]
    senders = _find_senders(model)
    model.eval()
    for sender in senders:
        sender.require_forward_param_sync = False
    try:
        yield
    finally:
        reshard(model)
        for sender in senders:
            sender.require_forward_param_sync = True
        # First for models that do more in train() than set the flag, then each one's own flag.
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


def _find_senders(model: nn.Module) -> list[DistributedDataParallel]:
    """What sends its buffers around in forward passes: the model, or parts of a user's own."""
    replicated = [one for one in model.modules() if isinstance(one, DistributedDataParallel)]
    return [one for one in replicated if one.will_sync_module_buffers()]


class _Progress:
    """How long batches take, logged now and then and at the end."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._batches = 0
        self._begin = self._logged = perf_counter()
        self._start_timing()
        logger.info(
            "Evaluating %s", "an unknown number of batches" if total is None else _batches(total)
        )

    def add(self, started: float, loaded: float, computed: float, finished: float) -> None:
        if self._batches == WARM_UP_BATCHES:
            self._start_timing()
        self._batches += 1
        self._timed += 1
        self._data += loaded - started
        self._compute += computed - loaded
        self._evaluation += finished - computed
        if finished - self._logged >= SECONDS_BETWEEN_LINES:
            self._logged = finished
            self._log_progress()

    def finish(self) -> None:
        if torch.cuda.is_initialized():
            since = perf_counter()
            torch.cuda.synchronize()
            self._compute += perf_counter() - since
        seconds = perf_counter() - self._begin
        duration = f"{seconds:.2f} s" if seconds < 60 else timedelta(seconds=round(seconds))
        logger.info("Evaluated %s in %s: %s", _batches(self._batches), duration, self._times())

    def _start_timing(self) -> None:
        self._timed = 0
        self._data = self._compute = self._evaluation = 0.0

    def _log_progress(self) -> None:
        done, eta = str(self._batches), ""
        if self._total is not None:
            left = int((self._total - self._batches) * self._seconds_a_batch())
            done, eta = f"{done}/{self._total}", f", ETA {timedelta(seconds=left)}"
        logger.info("Evaluated %s batches: %s%s.", done, self._times(), eta)

    def _seconds_a_batch(self) -> float:
        return (self._data + self._compute + self._evaluation) / max(1, self._timed)

    def _times(self) -> str:
        parts = {"data": self._data, "compute": self._compute, "eval": self._evaluation}
        means = ", ".join(
            f"{name} {sum_ / max(1, self._timed):.4f}" for name, sum_ in parts.items()
        )
        return f"{self._seconds_a_batch():.4f} s a batch ({means})"


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"


def _as_one(evaluator: DatasetEvaluator | Sequence[DatasetEvaluator] | None) -> DatasetEvaluator:
    if evaluator is None:
        return DatasetEvaluators([])
    if isinstance(evaluator, Sequence) and not isinstance(evaluator, str):
        return DatasetEvaluators(evaluator)
    _check_evaluator(evaluator)
    return evaluator


def _check_evaluator(evaluator: Any) -> None:
    is_made = not isinstance(evaluator, type)
    if not (is_made and all(hasattr(evaluator, name) for name in ("reset", "process", "evaluate"))):
        raise TypeError(f"an evaluator must be a DatasetEvaluator, got {evaluator!r:.80}")


def _results_of(evaluator: DatasetEvaluator) -> dict[str, Any]:
    results = evaluator.evaluate() or {}
    if not isinstance(results, Mapping):
        name = type(evaluator).__name__
        raise TypeError(f"{name}.evaluate must return a dict or None, got {results!r:.80}")
    return results


def _all_callbacks(given: Mapping[str, Callable[[], object]] | None) -> list[Callable]:
    given = given or {}
    for name in given:
        if name not in CALLBACKS:
            raise ValueError(f"there is no callback {name!r}, only {', '.join(CALLBACKS)}")
    return [given.get(name, _do_nothing) for name in CALLBACKS]


def _do_nothing(*args: Any) -> None:
    pass
