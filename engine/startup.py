"""What a training script does before it trains: command line, folders, logs, seeds."""

import argparse
import json
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import torch
from torch import nn

from engine.checkpoint import begin_run, has_checkpoints
from engine.config import CfgNode, ConfigError, build_entry, track_reads
from engine.config.yaml_text import load_yaml
from engine.events import CommonMetricPrinter, EventWriter, JSONWriter, TensorboardXWriter
from engine.events.trackers import MLflowWriter, TrackerWriter, TrackioWriter, WandbWriter
from engine.launch import may_restart, was_restarted
from engine.mistakes import MISTAKES
from engine.parallel import comm
from engine.parallel.device import kind_and_backend
from engine.parallel.watch import LaunchError
from engine.utils.claims import claim
from engine.utils.disk import check_free_space, state_size
from engine.utils.environment import (
    collect_env_info,
    copy_code,
    environment_table,
    git_state,
    seed_all_rng,
)
from engine.utils.faults import report_faults_to
from engine.utils.files import PathManager, atomic_write, is_remote
from engine.utils.lengths import to_iterations
from engine.utils.logger import setup_logger
from engine.utils.registry import Registry

logger = logging.getLogger(__name__)

WRITER_REGISTRY = Registry("WRITER")
"""Writers that a config names in WRITERS."""
for _writer in (MLflowWriter, TrackioWriter, WandbWriter):
    WRITER_REGISTRY.register(_writer)


class _Parser(argparse.ArgumentParser):
    """Takes flags also after overrides: `… OUTPUT_DIR out --resume`."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return self.parse_intermixed_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: -"):
            message += " (a value that begins with a dash is given as KEY=VALUE)"
        super().error(message)


def default_argument_parser(epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser with the flags that every training script has."""
    script = os.path.basename(sys.argv[0])
    parser = _Parser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=epilog
        or f"""examples:
  {script} --config-file cfg.yaml
  {script} --config-file cfg.yaml --num-gpus 8 SOLVER.BASE_LR 0.01 OUTPUT_DIR out
  {script} --config-file cfg.yaml --eval-only MODEL.WEIGHTS=out/model_final.pth
KEY VALUE works as KEY=VALUE does, but for values that begin with a dash and are no numbers.""",
    )
    # argparse's own does not know 1e-3, and takes -1e-3 for a flag.
    parser._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
    parser.add_argument("--config-file", default="", metavar="FILE", help="the config")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in the output folder"
    )
    parser.add_argument("--eval-only", action="store_true", help="evaluate, do not train")
    parser.add_argument(
        "--num-gpus", type=int, default=1, help="processes on this machine; on the CPU without GPUs"
    )
    parser.add_argument("--num-machines", type=int, default=1, help="machines in all")
    parser.add_argument("--machine-rank", type=int, default=0, help="number of this machine")
    parser.add_argument(
        "--dist-url", default="auto", help="host:port of machine 0; auto on one machine"
    )
    parser.add_argument(
        "--max-restarts", type=int, default=0, help="times to go on after a process has died"
    )
    parser.add_argument(
        "opts",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="overrides of the config, before or after flags",
    )
    return parser


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """End the process with one line where an error says all that a user has to know."""
    try:
        yield
    except LaunchError as error:
        sys.exit(str(error))
    except (*MISTAKES, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def default_setup(cfg: Any, args: Any) -> None:
    """Make the output folder, set up logs, write down what is run, seed everything.

    Takes a CfgNode, or a LazyConfig with a `train` section. `args` may be any object.
    """
    if isinstance(cfg, CfgNode):
        track_reads(cfg)
    output_dir = _get(cfg, "OUTPUT_DIR", "output_dir", "")
    if is_remote(output_dir):
        raise ConfigError(
            f"OUTPUT_DIR must be a local folder, got {output_dir!r}: mount it, or copy the folder "
            "when the run is over"
        )
    rank = comm.get_rank()
    is_evaluation = getattr(args, "eval_only", False)
    if comm.is_main_process() and output_dir:
        _make_writable(output_dir)
        # Of arguments that do not say it, it is not known whether this run will train.
        if hasattr(args, "eval_only") and not is_evaluation:
            with claim(output_dir):  # nobody else is in it, before anything there changes
                pass
    comm.synchronize()
    for name in ("fvcore", "engine"):
        setup_logger(output_dir or None, rank, name=name)
    if output_dir:
        faults = os.path.join(output_dir, "faults.txt" if rank == 0 else f"faults.txt.rank{rank}")
        report_faults_to(faults)
        logger.info("Crashes, and what `kill -USR2 %d` asks for, go to %s", os.getpid(), faults)
    threads = _get(cfg, "THREADS", "threads", 0)
    if threads:
        torch.set_num_threads(threads)
    logger.info("Rank %d of %d", rank, comm.get_world_size())
    if comm.get_world_size() > 1:
        logger.info("The processes compute on %s and meet through %s", *kind_and_backend())
    logger.info("Environment:\n%s", environment_table())
    logger.info("Command line: %s", shlex.join(sys.argv))
    if is_evaluation and _get(cfg, "HOOKS", "hooks", []):
        logger.warning("HOOKS are those of training: without it none of them runs")
    if getattr(args, "config_file", ""):
        with PathManager.open(args.config_file) as file:
            logger.info("Contents of %s:\n%s", args.config_file, file.read())
    if comm.is_main_process() and output_dir:
        _write_down_start(cfg, output_dir, is_evaluation)
    seed = _get(cfg, "SEED", "seed", -1)
    seed_all_rng(None if seed < 0 else seed + rank)
    if not is_evaluation:
        torch.backends.cudnn.benchmark = _get(cfg, "CUDNN_BENCHMARK", "cudnn_benchmark", False)
    if precision := _get(cfg, "FLOAT32_PRECISION", "float32_precision", ""):
        if precision not in ("highest", "high", "medium"):  # torch would only warn
            raise ConfigError(
                f"train.float32_precision is {precision!r}; use 'highest', 'high' or 'medium'"
            )
        torch.set_float32_matmul_precision(precision)


def decide_resume(asked: bool, output_dir: str) -> bool:
    """Whether a run is to be resumed: it is asked for, or the launcher has started it again.

    All ranks call it. A run that is not resumed, and that may be restarted, begins anew in its
    folder: a restart must not go on with what is there of an older one. One that comes before the
    run has got so far here begins anew itself.
    """
    if asked or (was_restarted() and any(comm.all_gather(_has_begun(output_dir)))):
        return True
    if may_restart() and comm.is_main_process():
        begin_run(output_dir)
    comm.synchronize()
    if notes := _notes_of_launch():
        with open(notes, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{os.path.abspath(output_dir)}\n")
    return False


def _has_begun(output_dir: str) -> bool:
    """Whether this machine's launcher has seen a run begin in the folder."""
    if (notes := _notes_of_launch()) is None:
        return True
    if not os.path.exists(notes):
        return False
    with open(notes, encoding="utf-8", errors="surrogateescape") as file:
        return os.path.abspath(output_dir) in file.read().splitlines()


def _notes_of_launch() -> str | None:
    """A file that lasts through the restarts of this machine's launcher, ours or torchrun's, and no
    longer; None without one."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")  # attempt_0/0/error.json of its folder
    return os.path.abspath(f"{error_file}/../../../begun_in") if error_file else None


def default_writers(output_dir: str, max_iter: int | None = None) -> list[EventWriter]:
    """The console, `metrics.json` and TensorBoard; without a folder, the console alone."""
    if not output_dir:
        return [CommonMetricPrinter(max_iter)]
    PathManager.mkdirs(output_dir)
    return [
        CommonMetricPrinter(max_iter),
        JSONWriter(os.path.join(output_dir, "metrics.json")),
        TensorboardXWriter(output_dir),
    ]


def build_writer(cfg: CfgNode, settings: dict[str, Any]) -> EventWriter:
    """A writer from an entry of WRITERS: {NAME: WandbWriter, PROJECT: digits}.

    Trackers show the run's config, unless the entry has another.
    """
    offered = {"output_dir": cfg.OUTPUT_DIR}
    try:
        writer = build_entry("WRITERS", settings, WRITER_REGISTRY, offered, EventWriter)
    except ImportError as error:
        raise ConfigError(f"WRITERS: {error}") from error
    if isinstance(writer, TrackerWriter):
        writer.config = writer.config or load_yaml(cfg.dump(), "config")
    return writer


def check_space_for_checkpoints(
    cfg: CfgNode,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    start_iter: int = 0,
    epoch_length: float | None = None,
) -> None:
    """Refuse to start where two checkpoints do not fit in OUTPUT_DIR; warn where not all will.

    All ranks call it, so that an error is one on all of them.
    """
    problem: OSError | None = None
    if comm.is_main_process() and cfg.OUTPUT_DIR:
        os.makedirs(cfg.OUTPUT_DIR, exist_ok=True)
        there = 0
        if start_iter > 0:
            there = sum(name.endswith(".pth") for name in os.listdir(cfg.OUTPUT_DIR))
        size = state_size(model, optimizer, averages=cfg.EMA.ENABLED)
        count = _count_checkpoints(cfg, epoch_length) - there
        try:
            check_free_space(cfg.OUTPUT_DIR, size, count, least=1 if there else 2)
        except OSError as error:
            problem = error
    problem = comm.all_gather(problem)[0]
    if problem is not None:
        raise problem


def _count_checkpoints(cfg: CfgNode, epoch_length: float | None) -> int:
    """How many files a run has at most at a time: those kept, and one that is being written."""
    try:
        stages = str(cfg.SOLVER.CHECKPOINT_PERIOD).split(";")
        periods = [to_iterations(one.partition(" from ")[0], epoch_length) for one in stages]
        period = min(filter(None, periods), default=0)
        periodic = cfg.SOLVER.MAX_ITER // period if period > 0 else 0
    except ValueError:  # one in time: nobody knows how many it will be
        periodic = max(cfg.CHECKPOINT.KEEP_LAST, 1)
    if cfg.CHECKPOINT.KEEP_LAST:
        periodic = min(periodic, cfg.CHECKPOINT.KEEP_LAST)
    is_best_kept, final, in_writing = bool(cfg.CHECKPOINT.BEST_METRIC), 1, 1
    return periodic + is_best_kept + final + in_writing


def _get(cfg: Any, key: str, lazy_key: str, default: Any) -> Any:
    if isinstance(cfg, CfgNode):
        return cfg.get(key, default)
    return cfg.get("train", {}).get(lazy_key, default)


def _make_writable(folder: str) -> None:
    try:
        PathManager.mkdirs(folder)
        probe = os.path.join(folder, f".probe-{os.getpid()}")
        try:
            with PathManager.open(probe, "w") as file:
                file.write("There is space.")
        finally:
            with suppress(FileNotFoundError):
                PathManager.rm(probe)
    except OSError as error:
        raise ConfigError(
            f"OUTPUT_DIR cannot be written to ({error.strerror}); name another than {folder!r}"
        ) from error


def write_config(cfg: Any, folder: str) -> bool:
    """Write the full config as `config.yaml`, from which the run can be started again.

    Returns False, with a warning, where it holds what YAML cannot.
    """
    path = os.path.join(folder, "config.yaml")
    if isinstance(cfg, CfgNode):
        _write(path, cfg.dump())
        return True
    from engine.config import LazyConfig

    try:
        LazyConfig.save(cfg, path)
    except ValueError as error:
        logger.warning("config.yaml is not written: %s", error)
        return False
    return True


def _write_down_start(cfg: Any, output_dir: str, is_evaluation: bool) -> None:
    """The command line, and where it may train the config, the environment and the code."""
    path = os.path.join(output_dir, "command.txt")
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {shlex.join(sys.argv)}\n")
    has_config = os.path.exists(os.path.join(output_dir, "config.yaml"))
    if is_evaluation and has_config:  # the files of a run stay as they are
        return
    folder = os.path.join(output_dir, f"code_{time.strftime('%Y%m%d_%H%M%S')}")
    os.makedirs(folder, exist_ok=True)
    if write_config(cfg, folder) and not (has_config and has_checkpoints(output_dir)):
        # Else it belongs to weights that are there, until a training begins (write_config).
        write_config(cfg, output_dir)
    _write(os.path.join(output_dir, "environment.txt"), collect_env_info())
    state = git_state()
    _write(os.path.join(folder, "changes.diff"), state.pop("diff", ""))
    copy_code(folder, whole=_get(cfg, "COPY_CODE", "copy_code", "changes") == "all")
    _write(os.path.join(folder, "git.json"), json.dumps(state, indent=2))
    logger.info("Command line and environment are in %s; config and code in %s", output_dir, folder)


def _write(path: str, text: str) -> None:
    with atomic_write(path, "w") as file:
        file.write(text)
