"""Sharded models, on one process and on two."""

import math
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from engine import SimpleTrainer
from engine.checkpoint import Checkpointer
from engine.evaluation import DatasetEvaluator, inference_on_dataset
from engine.hooks import EMAHook, EvalHook, FirstStepCheck, SafetensorsHook
from engine.parallel import comm
from engine.parallel.ddp import create_ddp_model
from engine.parallel.fsdp import (
    batches_in_step,
    create_fsdp_model,
    is_sharded,
    is_sharded_tensor,
    shard_like,
    tied_parameters,
)
from engine.solver import GradientClipper

Weights = dict[str, torch.Tensor]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs):
        return inputs + self.norm(self.linear(inputs)).tanh()


class Net(nn.Module):
    """Widths that two ranks cannot share evenly, and an output of which one rank has nothing."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(5), Block(5))
        self.head = nn.Linear(5, 1)
        if tied:
            self.blocks[1].linear.weight = self.blocks[0].linear.weight

    def forward(self, batch):
        inputs, targets = batch
        return {"loss_fit": (self.head(self.blocks(inputs)) - targets).square().mean()}


def batches(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(comm.get_rank())
    return [
        (torch.randn(4, 5, generator=generator), torch.randn(4, 1, generator=generator))
        for _ in range(number)
    ]


class Experts(nn.Module):
    """Each rank uses another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(5, 1), nn.Linear(5, 1)])

    def forward(self, batch):
        return self.experts[comm.get_rank()](batch[0]).square().mean()


class WithEmpty(Net):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 5))


class MeanLoss(DatasetEvaluator):
    def reset(self):
        self._losses = []

    def process(self, inputs, outputs):
        self._losses.append(outputs["loss_fit"].item())

    def evaluate(self):
        every = [loss for losses in comm.all_gather(self._losses) for loss in losses]
        return {"loss": sum(every) / len(every), "batches": len(every)}


class WithBuffers(Net):
    """One of a dtype that torch does not send, and a sparse one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor([comm.get_rank() + 7], dtype=torch.int16))
        self.register_buffer("adjacency", torch.eye(2).to_sparse())


def wrap(strategy: str, **options) -> nn.Module:
    torch.manual_seed(comm.get_rank())  # all must get the weights of rank 0
    if strategy == "ddp":
        return create_ddp_model(Net(), **options)
    return create_fsdp_model(Net(), shard_classes=["Block"], **options)


def whole_weights(model: nn.Module) -> Weights:
    model = getattr(model, "module", model)
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in model.state_dict().items()
    }


def train(model: nn.Module, steps: int, hooks=(), **options) -> SimpleTrainer:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    trainer = SimpleTrainer(model, batches(3 * steps), optimizer, **options)
    trainer.register_hooks(hooks)
    trainer.train(0, steps)
    return trainer


def norms(trainer: SimpleTrainer) -> list[float]:
    return [value for value, _ in trainer.storage.history("grad_norm").values()]


def difference(first: Weights, second: Weights) -> float:
    return max((value - second[name]).abs().max().item() for name, value in first.items())


def compare_training() -> dict:
    """How far weights and norms under the two strategies are apart."""
    seen = {}
    for name, steps, clipper in [
        ("model norm", 50, GradientClipper(0.5)),
        ("parameter norm", 5, GradientClipper(0.1, scope="parameter")),
        ("value", 5, GradientClipper(0.1, by="value")),
        ("largest element", 5, GradientClipper(0.1, norm_type=math.inf)),
    ]:
        ddp, fsdp = (train(wrap(how), steps, clip_gradients=clipper) for how in ("ddp", "fsdp"))
        pairs = zip(norms(ddp), norms(fsdp), strict=True)
        seen[name] = {
            "weights": difference(whole_weights(ddp.model), whole_weights(fsdp.model)),
            "norms": max(abs(a - b) for a, b in pairs),
            "largest norm": max(norms(ddp)),
        }
    return seen


def compare_averages() -> dict:
    """Weights of runs that evaluate their average now and then, on uneven numbers of batches."""
    results, weights, averages = [], [], []
    for how in ("ddp", "fsdp"):
        model, ema = wrap(how), EMAHook(0.9)

        def evaluate(model=model):
            result = inference_on_dataset(model, batches(3 - comm.get_rank()), MeanLoss())
            results.append(result)
            return result

        trainer = train(model, 9, [ema, EvalHook(3, evaluate)])
        weights.append(whole_weights(trainer.model))
        averages.append(
            {k: getattr(v, "full_tensor", lambda v=v: v)() for k, v in ema.average.items()}
        )
    half = len(results) // 2
    return {
        "weights": difference(*weights),
        "averages": difference(*averages),
        "average to weights": difference(weights[0], averages[0]),
        "losses": [[r["loss"] for r in results[:half]], [r["loss"] for r in results[half:]]],
        "batches": results[-1]["batches"],
    }


class Losses(MeanLoss):
    def evaluate(self):
        return {"losses": list(chain(*comm.all_gather(self._losses)))}


def evaluate_uneven(numbers: list[int]) -> list[list[float]]:
    """The losses under both strategies of so many batches on each rank, which come as a stream."""
    own = batches(numbers[comm.get_rank()])
    models = wrap("ddp"), wrap("fsdp")
    return [inference_on_dataset(model, iter(own), Losses())["losses"] for model in models]


class CountReductions(TorchDispatchMode):
    """Counts how often gradients are summed over the ranks."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


class Around(nn.Module):
    """A module of the user's that has a sharded one in it."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, batch):
        return self.inside(batch)


class Delegating(Around):
    """Gives what its inner module has as its own."""

    def __init__(self) -> None:
        super().__init__(Block(5))
        self.head = nn.Linear(5, 1)

    def forward(self, batch):
        return self.head(self.inside(batch[0])).square().mean()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inside"), name)


class Stage(nn.ModuleList):
    def forward(self, inputs):
        return self[0](inputs)


def count_reductions(model: nn.Module, accumulate: int) -> int:
    """In one step."""
    with CountReductions() as counted:
        train(model, 1, accumulate=accumulate)
    return counted.count


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5))


def train_normed(**options) -> Weights:
    torch.manual_seed(0)
    return whole_weights(train(create_fsdp_model(Normed(), **options), 5).model)


def error_of(function) -> str:
    try:
        return f"returned {function()}"
    except (ValueError, RuntimeError) as error:
        return str(error)


def load_damaged(folder: Path) -> None:
    """Loads a checkpoint of which rank 1's shard has other bytes than were saved."""
    checkpointer = Checkpointer(wrap("fsdp"), folder)
    checkpointer.save("model_damaged")
    if comm.is_main_process():
        shard = folder / "model_damaged" / "__1_0.distcp"
        shard.write_bytes(shard.read_bytes()[::-1])
    comm.synchronize()
    checkpointer.load(str(folder / "model_damaged"))


def work(rank: int, folder: Path) -> dict:
    torch.set_num_threads(1)
    accumulated = [
        whole_weights(train(wrap(how), 5, accumulate=3).model) for how in ("ddp", "fsdp")
    ]
    half = wrap("fsdp", param_dtype="bfloat16", reduce_dtype="float32")
    train(half, 2)
    compiled = wrap("fsdp")
    compiled.compile(backend="eager")
    train(compiled, 5)
    evaluated = wrap("fsdp")
    inference_on_dataset(evaluated, batches(1), None)
    exported = train(wrap("fsdp"), 2, [SafetensorsHook(str(folder))])
    buffered = create_fsdp_model(WithBuffers())
    part = shard_like(torch.arange(25.0).view(5, 5), wrap("fsdp").blocks[0].linear.weight)
    seen = {
        "training": compare_training(),
        "averages": compare_averages(),
        "accumulated": difference(*accumulated),
        "reductions": [
            count_reductions(wrap("fsdp"), 1),
            count_reductions(wrap("fsdp"), 3),
            count_reductions(Around(wrap("fsdp")), 3),
        ],
        "normed": [
            difference(train_normed(param_dtype="bfloat16", shard_classes=classes), train_normed())
            for classes in ([], ["Sequential"], ["BatchNorm1d"])
        ],
        "bfloat16": difference(whole_weights(half), whole_weights(exported.model)),
        "dtypes": list({str(weight.dtype) for weight in half.state_dict().values()}),
        "compiled": difference(
            whole_weights(compiled), whole_weights(train(wrap("fsdp"), 5).model)
        ),
        "evaluated": [is_sharded_tensor(parameter) for parameter in evaluated.parameters()],
        "names": list(compiled.state_dict()) == list(Net().state_dict()),
        "part": part.to_local().tolist(),
        "exported": {k: v.tolist() for k, v in whole_weights(exported.model).items()},
        "tied": error_of(lambda: create_fsdp_model(Net(tied=True), shard_classes=["Block"])),
        "tied as one": tied_parameters(create_fsdp_model(Net(tied=True))),
        "empty": error_of(lambda: create_fsdp_model(WithEmpty())),
        "buffers": [buffer.to_dense().tolist() for buffer in buffered.buffers()],
        "experts": error_of(lambda: train(create_fsdp_model(Experts()), 1, [FirstStepCheck()])),
        "delegating": [
            is_sharded_tensor(parameter)
            for parameter in create_fsdp_model(Delegating(), shard_classes=["Block"]).parameters()
        ],
        "damaged": error_of(lambda: load_damaged(folder)),
        "no batch": evaluate_uneven([1, 0]),
        "streams": evaluate_uneven([2, 5]),
        "nothing": evaluate_uneven([0, 0]),
    }
    return seen


# --- one process -------------------------------------------------------------------------------


def test_alone_the_model_stays_as_it_is():
    model = Net()
    assert create_fsdp_model(model, shard_classes=["Block"], cpu_offload=True) is model
    assert not is_sharded(model)
    assert list(batches_in_step(model, [7])) == [(7, True)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_classes": ["Blok"]}, "no module of a class 'Blok'; did you mean Block?"),
        ({"shard_classes": ["ModuleList"]}, "a ModuleList is not called itself and cannot be"),
        ({"param_dtype": "bfloat"}, "'bfloat' is not a precision .* did you mean bfloat16"),
        ({"reduce_dtype": "int8"}, "'int8' is not a precision for sharded weights: use float32"),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest_name(options, message):
    with pytest.raises(ValueError, match=message):
        create_fsdp_model(nn.ModuleList([Net()]), **options)


def test_a_list_of_modules_with_a_forward_of_its_own_can_be_sharded():
    model = Stage([Block(5)])
    assert create_fsdp_model(model, shard_classes=["Stage"]) is model


def test_weights_with_two_names_are_found():
    assert tied_parameters(Net()) == {}
    assert tied_parameters(Net(tied=True)) == {"blocks.1.linear.weight": "blocks.0.linear.weight"}


def test_a_tensor_is_cut_only_where_the_other_is():
    tensor = torch.ones(3)
    assert shard_like(tensor, torch.zeros(3)) is tensor


# --- two processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["model norm", "parameter norm", "value", "largest element"])
def test_the_weights_and_norms_are_those_of_ddp(processes, clipping):
    for seen in processes:
        assert seen["training"][clipping]["weights"] < 1e-5
        assert seen["training"][clipping]["norms"] < 1e-5
        assert seen["training"][clipping]["largest norm"] > 0.6  # clipping had something to do


def test_gradients_are_sent_once_a_step_however_many_batches_it_has(processes):
    for seen in processes:
        assert seen["reductions"] == [3, 3, 3]  # two blocks, and the rest of the model
        assert seen["accumulated"] < 1e-5


def test_averages_and_uneven_evaluations_are_those_of_ddp(processes):
    for seen in processes:
        averages = seen["averages"]
        assert averages["weights"] < 1e-5
        assert averages["averages"] < 1e-5
        assert averages["average to weights"] > 1e-3  # or nothing was tested
        assert averages["losses"][1] == pytest.approx(averages["losses"][0], abs=1e-5)
        assert averages["batches"] == 5


def test_an_evaluation_leaves_the_shards_and_not_copies_of_what_they_hold(processes):
    for seen in processes:
        assert all(seen["evaluated"])  # an optimizer of copies would train nothing


@pytest.mark.parametrize(("case", "number"), [("no batch", 1), ("streams", 7), ("nothing", 0)])
def test_each_batch_counts_once_however_few_a_rank_has(processes, case, number):
    for seen in processes:
        ddp, fsdp = seen[case]
        assert len(fsdp) == number
        assert fsdp == pytest.approx(ddp, abs=1e-6)


def test_weights_that_are_computed_with_in_bfloat16_stay_in_float32(processes):
    assert processes[0]["dtypes"] == ["torch.float32"]
    assert 0 < processes[0]["bfloat16"] < 0.05


def test_batch_norm_computes_in_float32_whatever_the_other_weights_do(processes):
    for seen in processes:
        assert all(0 < one < 0.05 for one in seen["normed"])


def test_a_compiled_model_keeps_its_names_and_trains_alike(processes):
    assert processes[0]["names"]
    assert processes[0]["compiled"] < 1e-6


def test_each_rank_takes_its_part_of_a_whole_tensor(processes):
    whole = torch.arange(25.0).view(5, 5).tolist()
    assert [seen["part"] for seen in processes] == [whole[:3], whole[3:]]


def test_exported_weights_are_whole(processes, folder):
    from safetensors.torch import load_file

    exported = load_file(folder / "model_final.safetensors")
    assert {k: v.tolist() for k, v in exported.items()} == processes[0]["exported"]


def test_a_module_that_gives_what_another_has_is_sharded_itself(processes):
    assert all(processes[0]["delegating"])


def test_weights_that_share_memory_are_not_sharded_apart(processes):
    assert "blocks.1.linear.weight and blocks.0.linear.weight share" in processes[0]["tied"]
    assert "PARALLEL.FSDP.SHARD_CLASSES is ['Block']" in processes[0]["tied"]
    assert processes[0]["tied as one"] == {"blocks.1.linear.weight": "blocks.0.linear.weight"}


def test_all_ranks_say_the_same_of_a_shard_that_is_damaged(processes):
    for seen in processes:
        assert "model_damaged cannot be loaded: it is damaged" in seen["damaged"]
        assert "the checksum of __1_0.distcp is not that" in seen["damaged"]


def test_an_empty_parameter_is_refused_by_its_name(processes):
    assert "PARALLEL.STRATEGY is 'fsdp': the parameter 'nothing' is" in processes[0]["empty"]


def test_the_buffers_of_rank_0_are_those_of_all_but_for_sparse_ones(processes):
    for seen in processes:
        assert seen["buffers"] == [[7], [[1, 0], [0, 1]]]


def test_ranks_that_use_different_parameters_are_noticed_in_the_first_step(processes):
    for seen in processes:
        assert "have a gradient of experts.0.weight and others none" in seen["experts"]
