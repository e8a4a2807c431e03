"""Numbers of a config that depend on the number of processes or on the length of an epoch."""

import logging

from engine.config import CfgNode, naming
from engine.utils.lengths import parse_length, to_iterations

logger = logging.getLogger(__name__)


def scale_to_processes(cfg: CfgNode, processes: int) -> CfgNode:
    """The config for so many processes, where SOLVER.REFERENCE_WORLD_SIZE says another number.

    Batch size and learning rate grow with the number of processes, and numbers of iterations
    shrink, so that the same samples are seen.
    """
    reference = cfg.SOLVER.REFERENCE_WORLD_SIZE
    if reference in (0, processes):
        return cfg
    scale = processes / reference
    scaled = cfg.clone()
    scaled.defrost()
    solver = scaled.SOLVER
    solver.IMS_PER_BATCH = round(solver.IMS_PER_BATCH * scale)
    for key in ("BASE_LR", "BASE_LR_END", "WARMUP_START_LR"):
        if rate := dict.__getitem__(solver, key):
            setattr(solver, key, rate * scale)
    for node, key in (
        (solver, "MAX_ITER"),
        (solver, "WARMUP_ITERS"),
        (solver, "CHECKPOINT_PERIOD"),
        (scaled.TEST, "EVAL_PERIOD"),
        (solver.MOMENTUM_SCHEDULE, "WARMUP_ITERS"),
        (scaled.EMA, "START"),
    ):
        setattr(node, key, _divided(dict.__getitem__(node, key), scale))
    for node in (solver, solver.MOMENTUM_SCHEDULE):
        # dict's own access: that a number is scaled does not mean that anything uses it.
        node.STEPS = tuple(_divided(step, scale) for step in dict.__getitem__(node, "STEPS"))
    solver.REFERENCE_WORLD_SIZE = processes
    if cfg.is_frozen():
        scaled.freeze()
    logger.info(
        "Scaled from %d to %d processes: batch size %d, learning rate %g, length %s",
        reference,
        processes,
        solver.IMS_PER_BATCH,
        solver.BASE_LR,
        solver.MAX_ITER,
    )
    return scaled


def lengths_in_iterations(cfg: CfgNode, epoch_length: float | None) -> CfgNode:
    """The config with lengths of training such as "2 epoch" turned into iterations."""
    result = cfg.clone()
    result.defrost()
    solver, momentum = result.SOLVER, result.SOLVER.MOMENTUM_SCHEDULE
    # dict's own access: that a length is converted does not mean that anything uses it.
    for node, key, name in (
        (solver, "MAX_ITER", "SOLVER.MAX_ITER"),
        (solver, "WARMUP_ITERS", "SOLVER.WARMUP_ITERS"),
        (momentum, "WARMUP_ITERS", "SOLVER.MOMENTUM_SCHEDULE.WARMUP_ITERS"),
        (result.EMA, "START", "EMA.START"),
    ):
        with naming(name):
            setattr(node, key, to_iterations(dict.__getitem__(node, key), epoch_length))
    for node in (solver, momentum):
        with naming("STEPS"):
            steps = dict.__getitem__(node, "STEPS")
            node.STEPS = tuple(to_iterations(step, epoch_length) for step in steps)
    if cfg.is_frozen():
        result.freeze()
    return result


def _divided(length: int | str, scale: float) -> int | str:
    # Epochs and minutes stay what they are, as does 0, which means never: nothing else becomes it.
    if isinstance(length, int):
        return max(1, round(length / scale)) if length > 0 else length
    if ";" in length:  # a period that changes: "1000; 100 from 9000"
        return "; ".join(str(_divided(one.strip(), scale)) for one in length.split(";"))
    if " from " in length:
        return " from ".join(str(_divided(one, scale)) for one in length.split(" from "))
    iterations, _ = parse_length(length) or (0, 0)
    return _divided(iterations, scale) if iterations else length
