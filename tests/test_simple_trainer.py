"""SimpleTrainer: one model, one optimizer, one data loader."""

import copy
import json
import math
import weakref

import pytest
import torch
from fvcore.common.param_scheduler import CosineParamScheduler
from torch import nn

from engine import AMPTrainer, SimpleTrainer, TrainerBase, get_event_storage
from engine.checkpoint import Checkpointer
from engine.events import CommonMetricPrinter, EventStorage, JSONWriter, TensorboardXWriter
from engine.hooks import (
    CallbackHook,
    EvalHook,
    IterationTimer,
    LRScheduler,
    PeriodicCheckpointer,
    PeriodicWriter,
)
from engine.solver import GradientClipper
from small_trainers import Numbered, OwnLoop, Pair, make_trainer, weights


def values(trainer: TrainerBase, name: str) -> list[float]:
    return [value for value, _ in trainer.storage.history(name).values()]


def iterations(trainer: TrainerBase, name: str) -> list[int]:
    return [iteration for _, iteration in trainer.storage.history(name).values()]


# --- what a step does --------------------------------------------------------------------------


@pytest.mark.parametrize("zero_grad_before_forward", [False, True])
def test_the_weights_are_those_of_a_loop_written_by_hand(
    model, batches, tmp_path, zero_grad_before_forward
):
    by_hand = copy.deepcopy(model)
    optimizer = torch.optim.SGD(by_hand.parameters(), 0.1, momentum=0.9)
    for step in range(20):
        (loss,) = by_hand(batches[step % 6]).values()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    trainer = make_trainer(
        model, batches, zero_grad_before_forward=zero_grad_before_forward, async_write_metrics=True
    )
    writers = [
        CommonMetricPrinter(20),
        JSONWriter(tmp_path / "metrics.json"),
        TensorboardXWriter(tmp_path),
    ]
    trainer.register_hooks([IterationTimer(), PeriodicWriter(writers, period=7)])
    trainer.train(0, 20)
    assert torch.equal(weights(model), weights(by_hand))


@pytest.mark.parametrize("zero_grad_before_forward", [False, True])
def test_gradients_are_cleared_before_or_after_the_forward_pass(batches, zero_grad_before_forward):
    seen = []

    def outputs(weight, batch):
        seen.append(weight.grad is None)
        return weight * batch

    model = Numbered(outputs)
    trainer = make_trainer(model, [1.0], zero_grad_before_forward=zero_grad_before_forward)
    trainer.train(0, 3)
    assert seen == [True, zero_grad_before_forward, zero_grad_before_forward]


def test_one_loss_may_be_returned_as_it_is():
    trainer = make_trainer(Numbered(lambda weight, batch: weight * batch), [2.0])
    trainer.train(0, 1)
    assert trainer.storage.latest()["total_loss"] == (2.0, 0)


def test_the_losses_of_a_dict_are_summed_and_all_are_stored():
    model = Numbered(lambda weight, batch: {"loss_a": weight, "loss_b": weight * batch})
    trainer = make_trainer(model, [3.0])
    trainer.train(0, 1)
    latest = trainer.storage.latest()
    assert {name: latest[name] for name in ("loss_a", "loss_b", "total_loss")} == {
        "loss_a": (1.0, 0),
        "loss_b": (3.0, 0),
        "total_loss": (4.0, 0),
    }
    assert model.weight.grad == 4


def test_a_loss_in_a_dict_by_itself_is_stored_under_its_name_and_as_the_total():
    trainer = make_trainer(Numbered(lambda weight, batch: {"loss": weight * batch}), [3.0])
    trainer.train(0, 1)
    latest = trainer.storage.latest()
    assert latest["loss"] == latest["total_loss"] == (3.0, 0)


@pytest.mark.parametrize("metric", [99.0, 99, torch.tensor(99.0), torch.tensor([99])])
def test_a_metric_beside_the_losses_is_stored_and_not_minimised(metric):
    model = Numbered(lambda weight, batch: {"loss": weight * batch, "accuracy": metric})
    trainer = make_trainer(model, [3.0], accumulate=2)
    trainer.train(0, 1)
    latest = trainer.storage.latest()
    assert latest["accuracy"] == (99.0, 0)
    assert latest["total_loss"] == (3.0, 0)
    assert model.weight.grad == 3


def test_a_model_can_put_metrics_of_its_own():
    def outputs(weight, batch):
        get_event_storage().put_scalar("input", batch)
        return weight * batch

    trainer = make_trainer(Numbered(outputs), [3.0, 4.0])
    trainer.train(0, 3)
    assert trainer.storage.history("input").values() == [(3.0, 0), (4.0, 1), (3.0, 2)]


@pytest.mark.parametrize("output", [None, {}, [1.0], "loss", (torch.ones(()),)])
def test_an_output_that_is_no_loss_is_refused_with_what_is_expected(output):
    trainer = make_trainer(Numbered(lambda weight, batch: output), [3.0])
    with pytest.raises(TypeError, match=r"Numbered returned .* a loss or a dict of losses"):
        trainer.train(0, 1)


def test_a_loss_with_several_elements_is_refused_by_name():
    model = Numbered(lambda weight, batch: {"loss": weight, "errors": torch.ones(3)})
    with pytest.raises(ValueError, match=r"'errors' must be one real number, .* shape \(3,\)"):
        make_trainer(model, [3.0]).train(0, 1)


def test_a_model_in_eval_mode_is_refused(model, batches):
    trainer = make_trainer(model, batches)
    model.eval()
    with pytest.raises(RuntimeError, match=r"the model is in eval mode; call model.train\(\)"):
        trainer.train(0, 1)


def test_the_model_is_put_into_training_mode(model, batches):
    make_trainer(model.eval(), batches)
    assert model.training


def test_after_backward_sees_the_gradients_that_the_optimizer_will_use(model, batches):
    before = weights(model)

    def keep_bias_only(trainer: TrainerBase) -> None:
        model.linear.weight.grad.zero_()

    trainer = make_trainer(model, batches)
    trainer.register_hooks([CallbackHook(after_backward=keep_bias_only)])
    trainer.train(0, 3)
    changed = weights(model) != before
    assert changed.tolist() == [False] * 4 + [True]


def test_an_interrupt_in_the_model_ends_the_run_with_files_closed(tmp_path):
    def outputs(weight, batch):
        if batch == 3.0:
            raise KeyboardInterrupt
        return weight * batch

    writer = JSONWriter(tmp_path / "metrics.json")
    trainer = make_trainer(Numbered(outputs), [1.0, 2.0, 3.0])
    trainer.register_hooks([PeriodicWriter([writer])])
    with pytest.raises(KeyboardInterrupt):
        trainer.train(0, 9)
    (line,) = (tmp_path / "metrics.json").read_text().splitlines()
    assert json.loads(line)["iteration"] == 1
    assert trainer.state_dict()["iteration"] == 1


def test_the_time_to_get_the_data_is_stored_for_each_step(model, batches):
    trainer = make_trainer(model, batches)
    trainer.train(0, 3)
    assert iterations(trainer, "data_time") == iterations(trainer, "rank_data_time") == [0, 1, 2]


def test_metrics_are_stored_every_gather_metric_period(model, batches):
    trainer = make_trainer(model, batches, gather_metric_period=5)
    trainer.train(0, 17)
    for name in ("total_loss", "loss_fit", "data_time"):
        assert iterations(trainer, name) == [4, 9, 14]


@pytest.mark.parametrize("option", ["gather_metric_period", "accumulate"])
def test_counts_below_one_are_refused(model, batches, option):
    with pytest.raises(ValueError, match="accumulate must be at least 1"):
        make_trainer(model, batches, **{option: 0})


# --- accumulation ------------------------------------------------------------------------------


def test_four_batches_of_four_accumulated_are_a_batch_of_sixteen(model):
    generator = torch.Generator().manual_seed(0)
    small = [
        (torch.randn(4, 4, generator=generator), torch.randn(4, 1, generator=generator))
        for _ in range(40)
    ]
    large = [
        tuple(map(torch.cat, zip(*small[start : start + 4], strict=True)))
        for start in range(0, 40, 4)
    ]
    other = copy.deepcopy(model)
    trainers = [make_trainer(model, small, accumulate=4), make_trainer(other, large)]
    for trainer in trainers:
        trainer.register_hooks([LRScheduler(scheduler=CosineParamScheduler(1.0, 0.0))])
        trainer.train(0, 20)
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-5, atol=1e-6)
    assert values(trainers[0], "lr") == values(trainers[1], "lr")
    assert len(set(values(trainers[0], "lr"))) == 20
    assert values(trainers[0], "loss_fit") == pytest.approx(values(trainers[1], "loss_fit"))
    assert trainers[0].epoch_of(15) == trainers[1].epoch_of(15) == 1


def test_after_backward_comes_once_when_all_batches_are_accumulated():
    gradients = []
    model = Numbered(lambda weight, batch: weight * batch)
    trainer = make_trainer(model, [1.0, 2.0, 3.0, 6.0], accumulate=4)
    trainer.register_hooks(
        [CallbackHook(after_backward=lambda t: gradients.append(model.weight.grad.item()))]
    )
    trainer.train(0, 2)
    assert gradients == [3.0, 3.0]


def test_a_metric_that_only_some_of_the_batches_have_is_averaged_over_those():
    def outputs(weight, batch):
        return {"loss": weight * batch} | ({"odd": batch} if batch % 2 else {})

    trainer = make_trainer(Numbered(outputs), [1.0, 2.0, 3.0, 6.0], accumulate=4)
    trainer.train(0, 1)
    assert trainer.storage.latest()["odd"] == (2.0, 0)


def test_only_the_last_batch_of_a_step_synchronises_gradients():
    synced = []

    class Ddp(Numbered):
        """Notes what DistributedDataParallel would do: skip the sending inside no_sync."""

        is_syncing = True

        def no_sync(self):
            model = self

            class NoSync:
                def __enter__(self):
                    model.is_syncing = False

                def __exit__(self, *args):
                    model.is_syncing = True

            return NoSync()

    model = Ddp(lambda weight, batch: weight * batch)
    model.weight.register_hook(lambda grad: synced.append(model.is_syncing))
    make_trainer(model, [1.0], accumulate=3).train(0, 2)
    assert synced == [False, False, True] * 2


# --- clipping ----------------------------------------------------------------------------------


class TwoWeights(nn.Module):
    """Gradients 3 and 4 for the two elements of `a`, 12 for that of `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2))
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, batch):
        return (self.a * torch.tensor([3.0, 4.0])).sum() + 12 * self.b.sum()


@pytest.mark.parametrize(
    ("clipper", "expected"),
    [
        (GradientClipper(1.3), [0.3, 0.4, 1.2]),
        (GradientClipper(1.3, scope="group"), [0.78, 1.04, 1.3]),
        (GradientClipper(1.3, scope="parameter"), [0.78, 1.04, 1.3]),
        (GradientClipper(3.5, by="value"), [3.0, 3.5, 3.5]),
        (GradientClipper(100.0), [3.0, 4.0, 12.0]),
    ],
)
def test_gradients_are_clipped_before_the_step_and_their_norm_is_stored(clipper, expected):
    model = TwoWeights()
    groups = [{"params": [model.a]}, {"params": [model.b]}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    trainer = SimpleTrainer(model, [None], optimizer, clip_gradients=clipper)
    trainer.train(0, 1)
    torch.testing.assert_close(-weights(model), torch.tensor(expected))
    assert trainer.storage.latest()["grad_norm"] == (pytest.approx(13.0), 0)


def test_after_backward_comes_before_clipping():
    model = TwoWeights()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = SimpleTrainer(model, [None], optimizer, clip_gradients=GradientClipper(1.0))
    trainer.register_hooks([CallbackHook(after_backward=lambda t: model.b.grad.zero_())])
    trainer.train(0, 1)
    assert trainer.storage.latest()["grad_norm"] == (5.0, 0)


# --- state -------------------------------------------------------------------------------------


def make_saved_trainer(model: nn.Module, batches) -> SimpleTrainer:
    trainer = make_trainer(model, batches)
    scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 4, gamma=0.5)
    trainer.register_hooks([LRScheduler(scheduler=scheduler), IterationTimer()])
    return trainer


def test_a_resumed_run_ends_with_the_same_weights_and_histories(model, batches, tmp_path):
    started = copy.deepcopy(model)
    straight = make_saved_trainer(model, batches)
    straight.train(0, 20)

    first = make_saved_trainer(started, batches)
    first.train(0, 8)
    torch.save({"trainer": first.state_dict(), "model": started.state_dict()}, tmp_path / "8.pth")
    saved = torch.load(tmp_path / "8.pth", weights_only=True)

    other = type(model)()
    other.load_state_dict(saved["model"])
    resumed = make_saved_trainer(other, batches[2:] + batches[:2])
    resumed.load_state_dict(saved["trainer"])
    resumed.train(resumed.iter + 1, 20)

    assert torch.equal(weights(other), weights(model))
    for name in ("total_loss", "loss_fit", "lr"):
        expected = straight.storage.history(name)
        assert resumed.storage.history(name).values() == expected.values()
        assert resumed.storage.history(name).global_avg() == pytest.approx(expected.global_avg())
    assert resumed.state_dict()["hooks"] == straight.state_dict()["hooks"]


def test_a_state_has_the_keys_of_detectron2(model, batches):
    trainer = make_saved_trainer(model, batches)
    trainer.train(0, 3)
    state = trainer.state_dict()
    assert state["iteration"] == 2
    assert set(state["hooks"]) == {"LRScheduler"}
    assert set(state["optimizer"]) == {"state", "param_groups"}


# --- code written for detectron2 ---------------------------------------------------------------


class CustomStep(SimpleTrainer):
    """A step of one's own, written with the names that detectron2's users know."""

    def run_step(self) -> None:
        assert self.model.training
        data = next(self._data_loader_iter)
        loss_dict = self.model(data)
        losses = sum(loss_dict.values())
        self.optimizer.zero_grad()
        losses.backward()
        self.after_backward()
        self._write_metrics(loss_dict, 0.25)
        self.optimizer.step()


class Around(TrainerBase):
    """As detectron2's DefaultTrainer: its step writes by the trainer inside."""

    def __init__(self, inner: SimpleTrainer) -> None:
        super().__init__()
        self._trainer = inner

    def run_step(self) -> None:
        self._trainer._write_metrics({"loss": torch.tensor(float(self.iter))}, 0.1)


def test_metrics_that_are_written_by_a_trainer_inside_have_the_iteration_of_the_outer(
    model, batches
):
    trainer = Around(make_trainer(model, batches))
    trainer.train(0, 3)
    assert trainer.storage.history("loss").values() == [(0.0, 0), (1.0, 1), (2.0, 2)]


def test_a_step_of_ones_own_learns_and_stores_the_same(model, batches):
    other = copy.deepcopy(model)
    custom = CustomStep(model, batches, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    simple = make_trainer(other, batches)
    for trainer in (custom, simple):
        trainer.train(0, 8)
    assert torch.equal(weights(model), weights(other))
    assert values(custom, "total_loss") == values(simple, "total_loss")
    assert set(values(custom, "data_time")) == {0.25}


def test_a_step_of_ones_own_raises_for_a_bad_loss():
    model = Numbered(lambda weight, batch: {"loss": weight * batch})
    trainer = CustomStep(model, [1.0, 1.0, math.nan], torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(FloatingPointError, match="at iteration 2: loss = nan"):
        trainer.train(0, 5)


class StaticMetrics(TrainerBase):
    """A trainer for two models that stores the metrics of each by the static method."""

    def __init__(self, loss: float) -> None:
        super().__init__()
        self.loss = torch.tensor(loss)

    def run_step(self) -> None:
        losses = {"loss_a": self.loss, "loss_b": torch.tensor(2.0)}
        SimpleTrainer.write_metrics(losses, 0.5, self.iter)
        SimpleTrainer.write_metrics({"gan_loss": self.loss}, 0.5, self.iter, prefix="gan_")


def test_metrics_can_be_stored_by_the_static_method():
    trainer = StaticMetrics(1.0)
    trainer.train(0, 3)
    assert trainer.storage.history("total_loss").values() == [(3.0, i) for i in range(3)]
    assert trainer.storage.latest()["gan_total_loss"] == (1.0, 2)
    assert trainer.storage.latest()["loss_b"] == (2.0, 2)
    assert trainer.storage.latest()["data_time"] == (0.5, 2)


def test_the_static_method_is_also_called_as_in_detectron2_0_6():
    """There it has no iteration, and the prefix comes third."""
    with EventStorage(7) as storage:
        SimpleTrainer.write_metrics({"loss": torch.tensor(1.0)}, 0.5)
        SimpleTrainer.write_metrics({"loss": torch.tensor(2.0)}, 0.5, "gan_")
    assert storage.latest()["total_loss"] == (1.0, 7)
    assert storage.latest()["gan_total_loss"] == (2.0, 7)


def test_the_static_method_raises_for_a_bad_loss():
    with pytest.raises(FloatingPointError, match="at iteration 0: loss_a = inf"):
        StaticMetrics(math.inf).train(0, 3)


def test_the_module_of_detectron2s_name_has_it_too():
    from engine import train_loop

    assert train_loop.SimpleTrainer is SimpleTrainer
    with pytest.raises(AttributeError, match="SimplerTrainer"):
        train_loop.SimplerTrainer  # noqa: B018 the access is what is tested


class OwnSimpleLoop(OwnLoop, SimpleTrainer):
    pass


def test_a_loop_of_ones_own_saves_what_it_has_done(model, batches, tmp_path):
    trainer = OwnSimpleLoop(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    checkpointer = Checkpointer(model, tmp_path, trainer=weakref.proxy(trainer))
    trainer.register_hooks([PeriodicCheckpointer(checkpointer, 4)])
    trainer.train(0, 10)
    saved = torch.load(tmp_path / "model_final.pth", weights_only=True)
    assert saved["trainer"]["iteration"] == 9


def test_a_loop_of_ones_own_that_fails_has_failed(model, batches, tmp_path):
    evaluated = []
    batches[3] = None  # its step fails
    trainer = OwnSimpleLoop(model, batches, torch.optim.SGD(model.parameters(), 0.01))
    checkpointer = PeriodicCheckpointer(Checkpointer(model, tmp_path), 100)
    trainer.register_hooks([EvalHook(0, lambda: evaluated.append(1)), checkpointer])
    with pytest.raises(TypeError):
        trainer.train(0, 5)
    assert (trainer.failed, evaluated) == (True, [])
    assert not (tmp_path / "last_checkpoint").exists()
    trainer.failed, trainer.data_loader = False, batches[:3]
    try:
        raise KeyError("what the program handles by training on")
    except KeyError:
        trainer.train(0, 3)
    assert (trainer.failed, evaluated) == (False, [1])


def test_a_subclass_may_have_a_constructor_of_its_own(model, batches):
    """As for detectron2, without ours."""

    class Own(SimpleTrainer):
        def __init__(self, model, loader):
            TrainerBase.__init__(self)
            self.model, self.data_loader = model, loader
            self.optimizer = torch.optim.SGD(model.parameters(), 0.1)

    trainer = Own(model, batches)
    trainer.train(0, 3)
    assert trainer.storage.latest()["total_loss"][1] == 2


@pytest.mark.parametrize("kind", [SimpleTrainer, AMPTrainer])
def test_a_run_with_an_optimizer_of_ones_own_around_others_is_resumed(
    model, batches, tmp_path, kind
):
    started = copy.deepcopy(model)
    kind(model, batches, Pair(model)).train(0, 18)

    first = kind(started, batches, Pair(started))
    first.train(0, 12)
    Checkpointer(started, tmp_path, trainer=first).save("last")
    other = type(model)()
    resumed = kind(other, batches, Pair(other))
    Checkpointer(other, tmp_path, trainer=resumed).resume_or_load("")
    resumed.train(resumed.iter + 1, 18)
    assert torch.equal(weights(other), weights(model))


def test_the_state_of_an_optimizer_may_have_a_form_of_its_own(model, batches):
    class Counting(torch.optim.SGD):
        steps = 0

        def step(self, closure=None):
            self.steps += 1
            return super().step(closure)

        def state_dict(self):
            return {"inner": super().state_dict(), "steps": self.steps}

        def load_state_dict(self, state):
            super().load_state_dict(state["inner"])
            self.steps = state["steps"]

    def make() -> SimpleTrainer:
        optimizer = Counting(model.parameters(), 0.1, momentum=0.9)
        return SimpleTrainer(model, batches, optimizer)

    first, resumed = make(), make()
    first.train(0, 3)
    resumed.load_state_dict(first.state_dict())
    assert resumed.optimizer.steps == 3
    assert len(resumed.optimizer.state) == 2  # a momentum for each parameter


def test_a_subclass_with_its_own_step_needs_no_data_loader(log):
    """As the trainers of GANs and teachers that are written for detectron2."""

    class Own(SimpleTrainer):
        def __init__(self):
            TrainerBase.__init__(self)
            self.batches = iter(range(100))

        def run_step(self):
            self.storage.put_scalar("batch", next(self.batches))

    trainer = Own()
    trainer.train(5, 8)
    assert trainer.storage.latest()["batch"] == (2.0, 7)
    assert "begin anew" not in log.text


def test_metrics_may_be_written_in_the_trainers_thread(model, batches):
    """As detectron2 does, and trainers for it."""

    class Own(SimpleTrainer):
        def run_step(self):
            losses = self.model(next(self._data_loader_iter))
            self.concurrent_executor.submit(
                self._write_metrics, {"loss": losses["loss_fit"]}, 0.1, iter=self.iter
            ).result()

    trainer = Own(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(2):
        trainer.train(0, 3)
        assert len(trainer.storage.history("total_loss").values()) == 3


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            lambda x: {"loss_ce": x, "loss_box": x.mean()},
            r"loss_ce of shape \(4, 1\): a loss is one",
        ),
        (lambda x: {"loss": x.mean().detach()}, "loss, of which none has a gradient"),
        (lambda x: {"loss": 1.5}, "loss, of which none has a gradient"),
        (lambda x: x, r"total_loss of shape \(4, 1\)"),
        (lambda x: {"loss": [x.mean(), x.sum()]}, "loss as a list: a loss is one number"),
        (lambda x: {"losses": {"loss": x.mean()}}, "losses as a dict: a loss is one number"),
    ],
    ids=["vector", "detached", "float", "logits", "list", "dict"],
)
def test_what_cannot_be_minimised_is_named(batches, output, message):
    class Net(nn.Linear):
        def forward(self, batch):
            return output(super().forward(batch[0]))

    model = Net(4, 1)
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(TypeError, match=f"Net returned {message}"):
        trainer.train(0, 2)


def test_a_number_for_clipping_is_refused_with_what_to_write(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"got 1\.0; try engine\.solver\.GradientClipper\(1\.0\)"):
        SimpleTrainer(model, batches, optimizer, clip_gradients=1.0)


def test_data_that_begin_anew_in_a_resumed_run_are_told(model, batches, log):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    SimpleTrainer(model, batches, optimizer).train(3, 5)
    assert "The data loader (list) has no start_at(iteration): its data begin anew" in log.text
    log.clear()
    trainer = SimpleTrainer(model, batches, optimizer)
    trainer.train(0, 3)
    trainer.train(3, 5)  # goes on where it was
    assert "begin anew" not in log.text


def test_the_state_of_an_optimizer_is_not_given_to_other_layers(batches):
    def make(frozen: str) -> SimpleTrainer:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        model.get_parameter(frozen).requires_grad_(False)
        trained = [p for p in model.parameters() if p.requires_grad]
        return SimpleTrainer(model, batches, torch.optim.Adam(trained, 0.1))

    state = make("0.weight").state_dict()
    make("0.weight").load_state_dict(state)
    with pytest.raises(ValueError, match=r"it has one of 0.bias where there is 0.weight now"):
        make("1.weight").load_state_dict(state)
    del state["trained"]  # as in checkpoints of earlier versions
    make("1.weight").load_state_dict(state)
