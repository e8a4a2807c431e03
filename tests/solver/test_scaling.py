import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import get_cfg
from engine.solver.scaling import lengths_in_iterations, scale_to_processes


def make(*overrides, frozen=True):
    cfg = get_cfg()
    cfg.merge_from_list(overrides)
    if frozen:
        cfg.freeze()
    return cfg


WRITTEN_FOR_8 = (
    "SOLVER.REFERENCE_WORLD_SIZE", 8,
    "SOLVER.IMS_PER_BATCH", 16,
    "SOLVER.BASE_LR", 0.1,
    "SOLVER.MAX_ITER", 5000,
    "SOLVER.STEPS", (4000, "3 epoch"),
    "SOLVER.WARMUP_ITERS", 1000,
    "SOLVER.CHECKPOINT_PERIOD", 1000,
    "TEST.EVAL_PERIOD", "2 epoch",
    "EMA.START", 100,
)  # fmt: skip


def test_twice_the_processes_take_half_the_iterations_with_twice_the_batch():
    cfg = scale_to_processes(make(*WRITTEN_FOR_8), 16)
    solver = cfg.SOLVER
    assert (solver.IMS_PER_BATCH, solver.BASE_LR, solver.MAX_ITER) == (32, 0.2, 2500)
    assert (solver.STEPS, solver.WARMUP_ITERS) == ((2000, "3 epoch"), 500)
    assert (solver.CHECKPOINT_PERIOD, cfg.TEST.EVAL_PERIOD, cfg.EMA.START) == (500, "2 epoch", 50)
    assert solver.REFERENCE_WORLD_SIZE == 16


def test_periods_that_change_shrink_in_all_their_parts():
    given = ("TEST.EVAL_PERIOD", "1000; 100 from 9000; 1 epoch from 3 epoch")
    cfg = scale_to_processes(
        make(*WRITTEN_FOR_8, *given, "SOLVER.CHECKPOINT_PERIOD", "50 iter"), 16
    )
    assert cfg.TEST.EVAL_PERIOD == "500; 50 from 4500; 1 epoch from 3 epoch"
    assert cfg.SOLVER.CHECKPOINT_PERIOD == 25


def test_all_learning_rates_grow_alike():
    rates = ("SOLVER.BASE_LR_END", 0.01, "SOLVER.WARMUP_START_LR", 0.02)
    solver = scale_to_processes(make(*WRITTEN_FOR_8, *rates), 16).SOLVER
    assert (solver.BASE_LR_END, solver.WARMUP_START_LR) == (0.02, 0.04)


def test_what_is_not_0_never_becomes_0():
    cfg = make(
        "SOLVER.REFERENCE_WORLD_SIZE", 1,
        "SOLVER.CHECKPOINT_PERIOD", 4,
        "SOLVER.WARMUP_ITERS", 0,
        "TEST.EVAL_PERIOD", 4,
    )  # fmt: skip
    scaled = scale_to_processes(cfg, 8)
    assert (scaled.SOLVER.CHECKPOINT_PERIOD, scaled.TEST.EVAL_PERIOD) == (1, 1)
    assert scaled.SOLVER.WARMUP_ITERS == 0


@pytest.mark.parametrize("frozen", [True, False])
def test_the_frozen_state_is_kept_and_the_given_config_left_alone(frozen):
    cfg = make(*WRITTEN_FOR_8, frozen=frozen)
    scaled = scale_to_processes(cfg, 4)
    assert scaled.is_frozen() is cfg.is_frozen() is frozen
    assert cfg.SOLVER.MAX_ITER == 5000
    assert scaled.SOLVER.MAX_ITER == 10000


@pytest.mark.parametrize("reference", [0, 4])
def test_nothing_changes_without_a_reference_or_with_the_right_number(reference):
    cfg = make("SOLVER.REFERENCE_WORLD_SIZE", reference)
    assert scale_to_processes(cfg, 4) is cfg


@given(st.integers(1, 64), st.integers(1, 64))
def test_scaling_there_and_back_is_the_same_config(reference, processes):
    cfg = make(
        "SOLVER.REFERENCE_WORLD_SIZE", reference,
        "SOLVER.IMS_PER_BATCH", 4 * reference,
        "SOLVER.MAX_ITER", 64 * processes,
        "SOLVER.STEPS", (48 * processes,),
        "SOLVER.WARMUP_ITERS", 16 * processes,
        "SOLVER.CHECKPOINT_PERIOD", 8 * processes,
        "TEST.EVAL_PERIOD", 8 * processes,
    )  # fmt: skip
    there = scale_to_processes(cfg, processes)
    batch_size = there.SOLVER.IMS_PER_BATCH
    assert batch_size == 4 * processes
    back = scale_to_processes(there, reference)
    base_lr = back.SOLVER.BASE_LR
    assert base_lr == pytest.approx(cfg.SOLVER.BASE_LR)
    back.defrost()
    back.SOLVER.BASE_LR = cfg.SOLVER.BASE_LR
    assert back == cfg


def test_lengths_in_epochs_become_iterations():
    cfg = make(
        "SOLVER.MAX_ITER", "2 epoch",
        "SOLVER.STEPS", ("1 epoch", 150),
        "SOLVER.WARMUP_ITERS", "0.5 epoch",
        "SOLVER.MOMENTUM_SCHEDULE.WARMUP_ITERS", "1 epoch",
        "SOLVER.MOMENTUM_SCHEDULE.STEPS", ("1 epoch",),
        "EMA.START", "1 epoch",
    )  # fmt: skip
    in_iterations = lengths_in_iterations(cfg, 90.5)
    solver = in_iterations.SOLVER
    assert (solver.MAX_ITER, solver.STEPS, solver.WARMUP_ITERS) == (181, (90, 150), 45)
    momentum = solver.MOMENTUM_SCHEDULE
    assert (momentum.WARMUP_ITERS, momentum.STEPS, in_iterations.EMA.START) == (90, (90,), 90)
    assert in_iterations.is_frozen()
    assert cfg.SOLVER.MAX_ITER == "2 epoch"


def test_a_config_in_iterations_needs_no_length_of_an_epoch():
    assert lengths_in_iterations(make(), None) == make()
    with pytest.raises(ValueError, match="'2 epoch' needs the length of an epoch"):
        lengths_in_iterations(make("SOLVER.MAX_ITER", "2 epoch"), None)
