import logging
import math

import pytest
import torch

from engine.events import EventStorage
from engine.events.nonfinite import NonFiniteGuard, find_nonfinite
from engine.events.step_metrics import losses_among, put_step_metrics

BAD = pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])


class Run:
    """Steps of one weight that a loss pulls down by 1 each."""

    is_stored = True

    def __init__(self, policy: str, fused: bool = False) -> None:
        self.guard = NonFiniteGuard(policy)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0, fused=fused)

    def step(self, storage: EventStorage, factor: float = 1.0) -> bool:
        self.optimizer.zero_grad()
        metrics = {"loss_box": self.weight.sum() + factor, "loss_cls": self.weight.sum()}
        (metrics["loss_box"] * factor).backward()
        total, numbers = put_step_metrics(metrics, 0.0, storage.iter, is_stored=self.is_stored)
        losses = losses_among(metrics, numbers)
        allowed = self.guard.allows_step(total, losses, storage.iter, self.optimizer)
        if allowed:
            self.optimizer.step()
        storage.step()
        return allowed


@pytest.mark.parametrize("policy", ["raise", "skip", "ignore"])
def test_a_finite_loss_is_always_stepped_on(policy):
    run = Run(policy)
    with EventStorage() as storage:
        assert run.step(storage)
    assert run.weight.item() == -1.0


@BAD
def test_raise_names_the_loss_and_the_iteration_in_that_very_step(bad):
    run = Run("raise")
    with EventStorage(7) as storage, pytest.raises(FloatingPointError) as error:
        run.step(storage, bad)
    assert "at iteration 7" in str(error.value)
    assert f"loss_box = {bad}" in str(error.value)
    assert "loss_cls" not in str(error.value)
    assert run.weight.item() == 0.0


@BAD
def test_skip_leaves_the_weights_says_so_and_goes_on(bad, caplog):
    run = Run("skip")
    with EventStorage() as storage:
        assert [run.step(storage, factor) for factor in (1.0, bad, 1.0)] == [True, False, True]
    assert run.weight.item() == -2.0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "at iteration 1" in caplog.text
    assert "the step is skipped" in caplog.text


def test_of_many_skipped_in_a_row_ever_fewer_are_logged_with_their_count(caplog):
    run = Run("skip")
    with EventStorage() as storage:
        for factor in [math.nan, 1.0] + [math.nan] * 40 + [1.0, math.nan]:
            run.step(storage, factor)
    ends = [record.message.split("the step is skipped")[1] for record in caplog.records]
    counts = [f", {n} in a row and {n + 1} in this run" for n in (2, 4, 8, 16, 32)]
    assert ends == ["", "", *counts, ""]
    assert run.guard.skipped == 42


def test_ignore_steps_on_anything(caplog):
    run = Run("ignore")
    with EventStorage() as storage:
        assert run.step(storage, math.nan)
    assert run.weight.isnan().all()
    assert caplog.text == ""


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match=r"must be one of .*'raise', 'skip', 'ignore'.* 'warn'"):
        NonFiniteGuard("warn")


def test_losses_that_are_finite_but_not_their_sum_are_all_named():
    message = find_nonfinite(math.inf, {"a": 1e308, "b": 1e308}, 3)
    assert message == "the loss became infinite or NaN at iteration 3: a = 1e+308, b = 1e+308"
    assert find_nonfinite(2.0, {"a": 1.0, "b": 1.0}, 3) == ""


# --- where tensors wait on their device ---------------------------------------------------------


@pytest.mark.usefixtures("on_accelerator")
def test_on_an_accelerator_the_error_comes_when_a_writer_asks_and_not_by_a_sync(operations):
    run = Run("raise")
    with EventStorage() as storage:
        with operations:
            assert [run.step(storage, factor) for factor in (1.0, math.nan, 1.0)] == [True] * 3
        assert operations.conversions == 0
        with pytest.raises(FloatingPointError, match=r"at iteration 1: .*loss_box = nan"):
            storage.latest()
        assert math.isnan(storage.latest()["loss_box"][0])  # told once, then readable


@pytest.mark.usefixtures("on_accelerator")
@pytest.mark.parametrize("place", [0, 999, 1_000, 2_100, 2_499, 2_500, 2_999])
def test_a_nan_between_two_writes_is_not_missed_wherever_it_is(place):
    guard, optimizer = NonFiniteGuard("raise"), torch.optim.SGD([torch.zeros(1)])

    def steps(storage):
        for storage.iter in range(3_000):
            loss = torch.tensor(math.nan if storage.iter == place else 1.0)
            guard.allows_step(loss, {"loss": loss}, storage.iter, optimizer)
        storage.latest()

    with (
        EventStorage() as storage,
        pytest.raises(FloatingPointError, match=f"at iteration {place}:"),
    ):
        steps(storage)


@pytest.mark.usefixtures("on_accelerator")
@BAD
def test_on_an_accelerator_a_fused_optimizer_skips_by_itself(bad, operations, caplog):
    run = Run("skip", fused=True)
    with EventStorage() as storage:
        assert run.step(storage, 1.0)  # the first step is waited for: it makes the state
        with operations:
            assert [run.step(storage, factor) for factor in (bad, 1.0)] == [True] * 2
        assert operations.conversions == 0
        assert run.weight.item() == -2.0
        storage.latest()
    assert "at iteration 1" in caplog.text
    assert "the step is skipped" in caplog.text


@pytest.mark.usefixtures("on_accelerator")
def test_on_an_accelerator_other_optimizers_are_not_stepped(caplog):
    run = Run("skip")
    with EventStorage() as storage:
        assert [run.step(storage, factor) for factor in (1.0, math.nan, 1.0)] == [True, False, True]
    assert run.weight.item() == -2.0
    assert caplog.text.count("the step is skipped") == 1


@pytest.mark.usefixtures("on_accelerator")
def test_a_metric_may_be_nan_where_the_loss_is_not():
    run = Run("raise")
    with EventStorage() as storage:
        run.step(storage)
        for name in ("acc", "total_loss", "val/total_loss"):
            storage.put_scalar(name, torch.tensor(math.nan))
            assert math.isnan(storage.latest()[name][0])


@pytest.mark.usefixtures("on_accelerator")
def test_only_losses_are_named():
    run = Run("raise")
    with EventStorage() as storage:
        storage.put_scalar("acc", torch.tensor(math.nan))
        run.step(storage, math.nan)
        with pytest.raises(FloatingPointError) as error:
            storage.sync()
    assert str(error.value).endswith("at iteration 0: loss_box = nan")


@pytest.mark.usefixtures("on_accelerator")
def test_a_loss_that_is_not_stored_is_looked_at_too():
    run = Run("raise")
    run.is_stored = False
    with EventStorage() as storage:
        run.step(storage, math.nan)
        with pytest.raises(FloatingPointError, match="at iteration 0: loss_box = nan"):
            storage.sync()


@pytest.mark.usefixtures("on_accelerator")
def test_a_guard_watches_the_storage_of_each_run():
    run = Run("raise")
    for _ in range(2):
        with EventStorage() as storage:
            run.weight.data.zero_()
            run.step(storage)
            run.step(storage, math.nan)
            with pytest.raises(FloatingPointError, match="at iteration 1"):
                storage.sync()
            storage.sync()
