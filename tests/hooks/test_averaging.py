import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from engine import SimpleTrainer, TrainerBase
from engine.hooks import CallbackHook
from engine.hooks.averaging import EMAHook


class WithBatchNorm(nn.Module):
    """Has buffers, and one weight under two names."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.inner.weight

    def forward(self, batch):
        inputs, targets = batch
        outputs = self.tied(self.norm(self.inner(inputs)))
        return (outputs.sum(1, keepdim=True) - targets).square().mean()


@pytest.fixture
def with_batch_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return WithBatchNorm()


def make_trainer(model, batches, *hooks):
    trainer = SimpleTrainer(model, batches, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))
    trainer.register_hooks(hooks)
    return trainer


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_bits(some, others):
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        assert torch.equal(tensor, others[name]), name


def record(model, history):
    """Keeps the weights after each step, and those before the first."""
    return CallbackHook(
        before_train=lambda trainer: history.append(weights_of(model)),
        after_step=lambda trainer: history.append(weights_of(model)),
    )


def evaluate(model, seen, every=1):
    """Evaluations that note the weights they see."""

    def after_step(trainer):
        if (trainer.iter + 1) % every == 0:
            trainer.before_eval()
            seen.append(weights_of(model))
            trainer.after_eval({})

    return CallbackHook(after_step=after_step)


def test_the_average_is_that_of_the_formula(model, batches):
    history, ema = [], EMAHook(decay=0.8)
    make_trainer(model, batches, ema, record(model, history)).train(0, 10)
    for name, average in ema.average.items():
        expected = history[0][name]
        for weights in history[1:]:
            expected = 0.8 * expected + 0.2 * weights[name]
        torch.testing.assert_close(average, expected)
    assert ema.count == 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_average_of_weights_in_low_precision_moves_as_that_of_others(dtype):
    averages = {}
    for kind in (torch.float32, dtype):
        model = nn.Linear(1, 1, bias=False).to(kind)
        nn.init.zeros_(model.weight)
        seen, ema = [], EMAHook(0.999, model=model)
        trainer = TrainerBase()
        trainer.run_step = lambda model=model: nn.init.ones_(model.weight)
        trainer.register_hooks([ema, evaluate(model, seen, every=100)])
        trainer.train(0, 500)
        averages[kind] = ema.average["weight"].item()
        assert seen[-1]["weight"].dtype == kind
        assert seen[-1]["weight"].item() == pytest.approx(averages[kind], rel=0.01)
    assert averages[dtype] == pytest.approx(averages[torch.float32], rel=1e-5)
    assert averages[dtype] == pytest.approx(1 - 0.999**500, rel=1e-3)
    assert model.weight.item() == 1


@pytest.mark.parametrize(("start", "first"), [(0, 0), (4, 4), ("4", 4), ("1 epoch", 6)])
def test_the_average_begins_with_the_weights_after_the_start(model, batches, start, first):
    history, ema = [], EMAHook(decay=1.0, start=start)  # a decay of 1 stays where it began
    make_trainer(model, batches, ema, record(model, history)).train(0, 10)
    assert_same_bits(ema.averaged_state_dict(), history[first])


def test_a_start_that_is_no_length_is_refused_at_once():
    with pytest.raises(ValueError, match="iterations or '2 epoch', got 'soon'"):
        EMAHook(start="soon")


def test_before_the_start_there_is_nothing_to_save_and_the_model_is_evaluated(model, batches):
    history, seen, ema = [], [], EMAHook(start=20)
    make_trainer(model, batches, ema, record(model, history), evaluate(model, seen)).train(0, 3)
    assert ema.state_dict() == {}
    for weights, evaluated in zip(history[1:], seen, strict=True):
        assert_same_bits(evaluated, weights)
    assert_same_bits(ema.averaged_state_dict(), history[-1])


def test_a_period_leaves_steps_out(model, batches):
    history, ema = [], EMAHook(decay=0.0, period="1 epoch")  # a decay of 0 takes the latest
    make_trainer(model, batches, ema, record(model, history)).train(0, 10)
    assert ema.count == 1
    assert_same_bits(ema.averaged_state_dict(), history[6])


def test_evaluations_see_the_average_and_training_never_does(model, batches):
    plain = copy.deepcopy(model)
    make_trainer(plain, batches).train(0, 10)
    seen, averages, ema = [], [], EMAHook(decay=0.9)
    note_average = CallbackHook(after_step=lambda trainer: averages.append(copy.copy(ema.average)))
    make_trainer(model, batches, ema, note_average, evaluate(model, seen, every=10)).train(0, 10)
    assert_same_bits(seen[0], averages[-1])
    assert not torch.equal(seen[0]["linear.weight"], plain.linear.weight)
    assert_same_bits(weights_of(model), weights_of(plain))


def test_an_evaluation_that_fails_leaves_the_trained_weights_behind(model, batches):
    plain = copy.deepcopy(model)
    make_trainer(plain, batches).train(0, 3)

    def fail(trainer):
        if trainer.iter == 2:
            trainer.before_eval()
            raise OSError("the test set is gone")

    ema = EMAHook(decay=0.5)
    with pytest.raises(OSError, match="the test set is gone"):
        make_trainer(model, batches, ema, CallbackHook(after_step=fail)).train(0, 10)
    assert_same_bits(weights_of(model), weights_of(plain))
    assert not torch.equal(ema.average["linear.weight"], plain.linear.weight)


@pytest.mark.parametrize("stop", [2, 4, 7])
def test_a_resumed_run_has_the_same_average(with_batch_norm, batches, stop):
    straight = copy.deepcopy(with_batch_norm)
    expected = EMAHook(decay=0.9, start=4, buffers=True)
    make_trainer(straight, batches, expected).train(0, 12)

    first = copy.deepcopy(with_batch_norm)
    trainer = make_trainer(first, batches, EMAHook(decay=0.9, start=4, buffers=True))
    trainer.train(0, stop)
    file = io.BytesIO()
    torch.save({"model": first.state_dict(), "trainer": trainer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)

    with_batch_norm.load_state_dict(saved["model"])
    resumed = EMAHook(decay=0.9, start=4, buffers=True)
    later = batches[stop % 6 :] + batches[: stop % 6]
    trainer = make_trainer(with_batch_norm, later, resumed)
    trainer.load_state_dict(saved["trainer"])
    trainer.train(stop, 12)
    assert_same_bits(resumed.average, expected.average)
    assert resumed.count == expected.count == 8


def test_buffers_are_the_models_unless_they_are_averaged_too(with_batch_norm, batches):
    other = copy.deepcopy(with_batch_norm)
    own, averaged = EMAHook(decay=0.5), EMAHook(decay=0.5, buffers=True)
    make_trainer(with_batch_norm, batches, own).train(0, 6)
    make_trainer(other, batches, averaged).train(0, 6)
    name = "norm.running_mean"
    assert torch.equal(own.averaged_state_dict()[name], with_batch_norm.norm.running_mean)
    assert not torch.equal(averaged.averaged_state_dict()[name], other.norm.running_mean)
    assert averaged.averaged_state_dict()["norm.num_batches_tracked"] == 6


def test_a_mask_of_minus_infinity_stays_as_it_is(with_batch_norm, batches):
    mask = torch.full((4, 4), -torch.inf).triu(1)
    with_batch_norm.register_buffer("mask", mask.clone())
    ema = EMAHook(decay=0.5, buffers=True)
    make_trainer(with_batch_norm, batches, ema).train(0, 6)
    assert torch.equal(ema.averaged_state_dict()["mask"], mask)
    resumed = EMAHook(decay=0.5, buffers=True, model=with_batch_norm)
    resumed.load_state_dict(ema.state_dict())
    assert resumed.average.keys() == ema.average.keys()


class MakesBuffer(WithBatchNorm):
    """The first forward pass makes a buffer, as position embeddings do with what they cache."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", None, persistent=False)

    def forward(self, batch):
        if self.cache is None:
            self.cache = torch.ones(len(batch[0]), 1)
        return super().forward((batch[0] * self.cache, batch[1]))


@pytest.mark.parametrize("start", [0, 2])
def test_a_buffer_that_a_forward_pass_makes_stays_as_it_is(batches, start):
    ema, seen, model = EMAHook(decay=0.5, start=start, buffers=True), [], MakesBuffer()
    make_trainer(model, batches, ema, evaluate(model, seen)).train(0, 6)
    assert len(seen) == 6
    assert model.cache is not None
    assert "norm.running_mean" in ema.average
    resumed = EMAHook(decay=0.5, buffers=True, model=MakesBuffer())
    resumed.load_state_dict(ema.state_dict())
    assert_same_bits(resumed.average, ema.average)


def test_a_sparse_buffer_stays_as_it_is(with_batch_norm, batches):
    with_batch_norm.register_buffer("adjacency", torch.eye(4).to_sparse())
    ema = EMAHook(decay=0.5, buffers=True)
    make_trainer(with_batch_norm, batches, ema).train(0, 6)
    assert torch.equal(ema.averaged_state_dict()["adjacency"].to_dense(), torch.eye(4))
    assert "adjacency" not in ema.average


def test_the_averaged_state_dict_loads_into_a_new_model(with_batch_norm, batches):
    ema = EMAHook(decay=0.5)
    make_trainer(with_batch_norm, batches, ema).train(0, 6)
    before = weights_of(with_batch_norm)
    state = ema.averaged_state_dict()
    assert_same_bits(weights_of(with_batch_norm), before)
    assert torch.equal(state["tied.weight"], state["inner.weight"])
    assert torch.equal(state["tied.weight"], ema.average["inner.weight"])
    WithBatchNorm().load_state_dict(state)
    ema.before_eval()
    assert_same_bits(ema.averaged_state_dict(), state)


@pytest.mark.usefixtures("one_rank")
def test_names_are_those_of_the_model_inside_ddp(model, batches):
    ema = EMAHook(decay=0.5)
    make_trainer(DistributedDataParallel(model), batches, ema).train(0, 2)
    assert ema.averaged_state_dict().keys() == model.state_dict().keys() == ema.average.keys()


def test_another_model_than_the_trainers_can_be_averaged(model, batches):
    teacher = nn.Linear(2, 2)
    ema = EMAHook(model=teacher)
    make_trainer(model, batches, ema).train(0, 1)
    assert list(ema.average) == ["weight", "bias"]


def test_an_average_of_another_model_is_refused(model):
    ema = EMAHook(model=model)
    average = {"linear.weight": torch.zeros(1, 3), "head.bias": torch.zeros(1)}
    with pytest.raises(ValueError, match="does not fit the model") as caught:
        ema.load_state_dict({"average": average, "count": 3})
    assert "linear.bias is missing" in str(caught.value)
    assert "head.bias is not in the model" in str(caught.value)
    assert "linear.weight is (1, 3), in the model (1, 4)" in str(caught.value)
    assert ema.average == {}


def test_a_period_that_never_comes_is_refused():
    with pytest.raises(ValueError, match=r"EMA\.PERIOD\) is 0: it would never average"):
        EMAHook(period=0)
