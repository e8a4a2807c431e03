import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from engine.config import ConfigError, get_cfg
from engine.parallel.strategy import check_strategy, no_gradient_sync, prepare_model, wrap_model
from engine.solver import build_optimizer


def config(*overrides):
    cfg = get_cfg()
    cfg.merge_from_list(overrides)
    return cfg


def build(*overrides) -> nn.Module:
    cfg = config(*overrides)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return wrap_model(cfg, prepare_model(cfg, model))


def work(rank: int, folder: Path) -> dict:
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("engine").addHandler(handler)
    seen = {
        name: [cls.__name__ for cls in type(build("PARALLEL.STRATEGY", name)).__mro__]
        for name in ("none", "ddp", "fsdp")
    }
    sharded = build("PARALLEL.STRATEGY", "fsdp")
    fused = build_optimizer(config("SOLVER.OPTIMIZER.fused", True), sharded)
    seen["fused"] = fused.defaults["fused"]
    synced = build("PARALLEL.SYNC_BN", True)
    seen["norm"] = type(synced.module[1]).__name__
    compiled = config("COMPILE.ENABLED", True, "COMPILE.BACKEND", "eager")
    ddp = wrap_model(compiled, nn.Linear(1, 1))
    with no_gradient_sync(ddp):
        ddp(torch.ones(1, 1) * rank).backward()
    seen["own gradient"] = ddp.module.weight.grad.item()
    with no_gradient_sync(nn.Sequential(ddp)):
        ddp(torch.ones(1, 1) * rank).backward()
    seen["own gradients"] = ddp.module.weight.grad.item()
    ddp.zero_grad()
    ddp(torch.ones(1, 1) * rank).backward()
    seen["mean gradient"] = ddp.module.weight.grad.item()
    seen["by the user"] = [build_spread_by_the_user(strategy) for strategy in ("ddp", "fsdp")]
    seen["frozen later"] = [
        freeze_in_replicated(freeze, unused)
        for freeze, unused in ((True, False), (False, False), (True, True))
    ]
    messages_before = len(messages)
    wrap_model(config("PARALLEL.STRATEGY", "none"), DistributedDataParallel(nn.Linear(1, 1)))
    seen["of a strategy of its own"] = messages[messages_before:]
    return {**seen, "messages": messages}


def build_spread_by_the_user(strategy: str) -> list[str | bool]:
    """What becomes of models that are replicated, sharded, and replicated in a part."""
    cfg = config("PARALLEL.STRATEGY", strategy)
    replicated, sharded = DistributedDataParallel(nn.Linear(1, 1)), fully_shard(nn.Linear(2, 2))
    found: list[str | bool] = [
        wrap_model(cfg, prepare_model(cfg, model)) is model for model in (replicated, sharded)
    ]
    try:
        wrap_model(cfg, prepare_model(cfg, nn.Sequential(replicated, nn.Linear(1, 1))))
    except ValueError as error:
        found.append(str(error))
    return found


def freeze_in_replicated(freeze: bool, find_unused_parameters: bool) -> str:
    """What a rule does to a weight of a model that the user's code has replicated."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].weight.requires_grad_(freeze)
    replicated = DistributedDataParallel(model, find_unused_parameters=find_unused_parameters)
    rule = {"MATCH": "0.weight", "FREEZE": freeze}
    try:
        build_optimizer(config("SOLVER.PARAM_RULES", [rule]), replicated)
    except ConfigError as error:
        return str(error)
    return "frozen" if not model[0].weight.requires_grad else "trained"


# --- one process -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["none", "ddp", "fsdp"])
def test_alone_every_strategy_leaves_the_model_as_it_is(strategy):
    model = build("PARALLEL.STRATEGY", strategy, "PARALLEL.SYNC_BN", True)
    assert type(model) is nn.Sequential
    assert type(model[1]) is nn.BatchNorm1d


def test_an_unknown_strategy_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"'fdsp', not one of none, ddp, fsdp; did you mean fsdp"):
        check_strategy("fdsp")


@pytest.mark.parametrize(
    ("key", "value"),
    [("PARALLEL.DDP.COMPRESSION", "fp8"), ("PARALLEL.FSDP.SHARD_CLASSES", ["Block"])],
)
def test_wrong_arguments_of_a_strategy_are_refused_in_one_process_too(key, value):
    strategy = key.split(".")[1].lower()
    with pytest.raises(ValueError, match=f"{value}|Block"):
        build("PARALLEL.STRATEGY", strategy, key, value)


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [("BACKEND", "inducter", "inductor"), ("MODE", "max_autotune", "max-autotune")],
)
def test_an_unknown_way_to_compile_is_refused_with_the_nearest_one(key, value, hint):
    with pytest.raises(ValueError, match=f"COMPILE.{key} is '{value}', not one of .*mean {hint}"):
        build("COMPILE.ENABLED", True, f"COMPILE.{key}", value)


def test_a_compiled_model_keeps_its_names_and_gives_the_same():
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    compiled = build("COMPILE.ENABLED", True, "COMPILE.BACKEND", "aot_eager")
    assert compiled._compiled_call_impl is not None
    assert list(compiled.state_dict()) == list(plain.state_dict())
    inputs = torch.randn(3, 2)
    for model in (plain, compiled):
        model(inputs).sum().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad)


def test_the_gradients_of_a_plain_model_are_its_own_anyway():
    model = nn.Linear(1, 1)
    with no_gradient_sync(model):
        model(torch.ones(1, 1)).backward()
    assert model.weight.grad.item() == 1


# --- two processes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_is_wrapped_as_the_config_says(processes):
    seen = processes[0]
    assert seen["none"][0] == "Sequential"
    assert seen["ddp"][0] == DistributedDataParallel.__name__
    assert seen["fsdp"][:2] == ["FSDPSequential", "FSDPModule"]
    assert "2 processes train 2 models" in seen["messages"][0]


@pytest.mark.slow
def test_a_model_that_the_user_has_spread_over_processes_is_left_as_it_is(processes):
    for replicated, sharded, part in processes[0]["by the user"]:
        assert [replicated, sharded] == [True, True]
        assert part.startswith("0 is in DistributedDataParallel or sharded already, and Sequential")
    assert "PARALLEL has no effect on it" in "".join(processes[0]["messages"])


@pytest.mark.slow
def test_a_rule_cannot_freeze_what_the_user_has_replicated_nor_the_other_way_round(processes):
    frozen, trained, unused = processes[0]["frozen later"]
    assert "FREEZE is true for 0.weight, which is in DistributedDataParallel already" in frozen
    assert "FREEZE is false for 0.weight" in trained
    assert unused == "frozen"


@pytest.mark.slow
def test_no_strategy_is_no_reason_to_warn_where_the_user_has_one(processes):
    assert processes[0]["of a strategy of its own"] == []


@pytest.mark.slow
def test_on_the_cpu_batch_norm_stays_as_it_is_with_a_warning(processes):
    assert processes[0]["norm"] == "BatchNorm1d"
    assert "SyncBatchNorm does not run on the CPU" in "".join(processes[0]["messages"])


@pytest.mark.slow
def test_gradients_are_kept_on_their_rank_where_it_is_asked(processes):
    assert [seen["own gradient"] for seen in processes] == [0, 1]
    assert [seen["own gradients"] for seen in processes] == [0, 2]
    assert [seen["mean gradient"] for seen in processes] == [0.5, 0.5]


def test_an_option_of_the_optimizer_that_sharded_weights_lack_is_left_out(processes):
    assert [seen["fused"] for seen in processes] == [False, False]
    assert "SOLVER.OPTIMIZER.fused is not used" in "".join(processes[0]["messages"])
