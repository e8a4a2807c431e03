"""DefaultTrainer: from a config to a trained, evaluated, saved model."""

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from engine import hooks
from engine.amp_trainer import AMPTrainer
from engine.checkpoint import Checkpointer
from engine.config import (
    CfgNode,
    ConfigError,
    config_differences,
    is_tracked,
    naming,
    track_reads,
)
from engine.data import MetadataCatalog
from engine.data.from_config import (
    check_test_sets,
    members_of,
    test_loader_from_config,
    train_loader_from_config,
)
from engine.evaluation import (
    EVALUATOR_REGISTRY,
    ClassificationEvaluator,
    DatasetEvaluator,
    LanguageModelEvaluator,
    check_expected_results,
    inference_on_dataset,
    print_csv_format,
    read_results,
    results_table,
    verify_results,
    write_results,
)
from engine.evaluation.totals import NothingEvaluatedError
from engine.events import EventWriter, has_event_storage
from engine.hooks.from_config import (
    HOOK_REGISTRY,
    build_early_stopping,
    build_ema,
    build_hook,
    build_time_limit,
    build_watchdog,
)
from engine.modeling import build_model, load_weights
from engine.parallel import comm
from engine.parallel.ddp import create_ddp_model
from engine.parallel.fsdp import device_type_of
from engine.parallel.strategy import prepare_model, wrap_model
from engine.predictor import DefaultPredictor
from engine.run_report import list_unread_keys, log_analysis, log_end
from engine.simple_trainer import SimpleTrainer
from engine.solver import (
    build_grad_scaler,
    build_gradient_clipper,
    build_lr_scheduler,
    build_optimizer,
    param_group_table,
)
from engine.solver.scaling import lengths_in_iterations, scale_to_processes
from engine.startup import (
    build_writer,
    check_space_for_checkpoints,
    default_argument_parser,
    default_setup,
    default_writers,
    write_config,
)
from engine.train_loop import TrainerBase
from engine.utils.claims import FolderInUseError, claim
from engine.utils.default_property import default_property
from engine.utils.logger import setup_logger
from engine.utils.random_state import seeded
from engine.utils.registry import find

__all__ = [
    "HOOK_REGISTRY",
    "DefaultPredictor",
    "DefaultTrainer",
    "create_ddp_model",
    "default_argument_parser",
    "default_setup",
    "default_writers",
]

logger = logging.getLogger(__name__)


class DefaultTrainer(TrainerBase):
    """Builds everything from a config; each piece is a class method that a subclass may override::

        class Trainer(DefaultTrainer):
            @classmethod
            def build_evaluator(cls, cfg, dataset_name):
                return MyEvaluator(dataset_name)

        trainer = Trainer(cfg)
        trainer.resume_or_load(resume=args.resume)
        trainer.train()

    It owns a SimpleTrainer or AMPTrainer that does the step. For something that does not fit, take
    a SimpleTrainer and put it together yourself: `tools/lazyconfig_train_net.py` shows how.
    """

    _resumed_from: str | None = None  # the newest checkpoint, when it was looked for

    def __init__(self, cfg: CfgNode) -> None:
        super().__init__()
        self._given_cfg = cfg
        if not logging.getLogger("engine").isEnabledFor(logging.INFO):
            setup_logger()  # default_setup was not called
        track_reads(cfg)
        self._refuse_unknown_test_sets(cfg)
        cfg = self.auto_scale_workers(cfg, comm.get_world_size())
        check_expected_results(cfg)
        model = prepare_model(cfg, self.build_model(cfg))
        optimizer = self.build_optimizer(cfg, model)
        data_loader = self.build_train_loader(cfg)
        model = wrap_model(cfg, model)
        options = {
            "accumulate": cfg.SOLVER.ACCUMULATE,
            "clip_gradients": build_gradient_clipper(cfg),
            "nonfinite": cfg.SOLVER.NONFINITE,
        }
        if cfg.SOLVER.AMP.ENABLED:
            options["precision"] = getattr(torch, cfg.SOLVER.AMP.PRECISION)
            options["grad_scaler"] = build_grad_scaler(cfg, device_type_of(model))
            options["log_grad_scaler"] = cfg.SOLVER.AMP.LOG_SCALE
            self._trainer: SimpleTrainer = AMPTrainer(model, data_loader, optimizer, **options)
        else:
            self._trainer = SimpleTrainer(model, data_loader, optimizer, **options)
        self.cfg = lengths_in_iterations(cfg, self._trainer.epoch_length)
        self.max_iter = self.cfg.SOLVER.MAX_ITER
        self.scheduler: Any = None
        if cfg.DEFAULT_HOOKS.LRScheduler.ENABLED:  # else nothing would end its warm-up
            self.scheduler = self.build_lr_scheduler(self.cfg, optimizer)
        self.checkpointer = Checkpointer(
            model,
            cfg.OUTPUT_DIR,
            background=cfg.CHECKPOINT.BACKGROUND,
            trainer=weakref.proxy(self),
        )
        self.register_hooks(self.build_hooks())

    # --- running ----------------------------------------------------------------------------

    def resume_or_load(self, resume: bool = True) -> None:
        """Go on from the last checkpoint in OUTPUT_DIR; without `resume`, or where there is none,
        start from the weights MODEL.WEIGHTS, if any."""
        resume = self.cfg.CHECKPOINT.AUTO_RESUME or resume
        self._resumed_from = self.checkpointer.get_checkpoint_file() if resume else None
        self.checkpointer.resume_or_load(self.cfg.MODEL.WEIGHTS, resume=resume)

    def train(self) -> dict[str, Any]:  # type: ignore[override]
        """Train to the end; returns the results of the last evaluation.

        Ends the process with 1 if they are not those of TEST.EXPECTED_RESULTS. If `requeue` is set
        afterwards, the run was stopped by a signal or a time limit, and is to be resumed.
        """
        if self.start_iter > self.max_iter:
            raise ConfigError(
                f"SOLVER.MAX_ITER is {self.max_iter}, but {self.start_iter} iterations are done of "
                f"the run in {self.cfg.OUTPUT_DIR}: raise it, or do not resume"
            )
        with claim(self.cfg.OUTPUT_DIR) if comm.is_main_process() else nullcontext() as has_waited:
            known = self._resumed_from
            if has_waited and known not in (None, self.checkpointer.get_checkpoint_file()):
                raise FolderInUseError(
                    f"another run has saved checkpoints in {self.cfg.OUTPUT_DIR} since this one "
                    "has looked there: start it again"
                )
            super().train(self.start_iter, self.max_iter)
        results = self.last_eval_results
        if not (self.has_advanced or results):  # the run was complete, as after a restart
            saved = read_results(os.path.join(self.cfg.OUTPUT_DIR, "results.json"))
            results = _only_or_all(saved)
        if comm.is_main_process():
            log_end(self._hooks, self.checkpointer, self.requeue)
        # Evaluators may give their results to the main process only.
        if comm.is_main_process() and (self.has_advanced or results) and not self.requeue:
            verify_results(self.cfg, results)
        return results

    def before_train(self) -> None:
        self._trainer.begin_data_at(self.start_iter)
        if comm.is_main_process():
            self._write_config()
        if self.cfg.ANALYSIS.ENABLED and comm.is_main_process():
            log_analysis(self.model, next(iter(self.data_loader)))
        if self.cfg.DEFAULT_HOOKS.PeriodicCheckpointer.ENABLED:
            check_space_for_checkpoints(
                self.cfg,
                self.model,
                self.optimizer,
                start_iter=self.start_iter,
                epoch_length=self.epoch_length,
            )
        super().before_train()
        if comm.is_main_process() and is_tracked(self.cfg):  # unless the constructor is another one
            list_unread_keys(self.cfg)

    def after_train(self) -> None:
        super().after_train()
        self._trainer.end_data()

    def run_step(self) -> None:
        self._trainer.iter = self.iter
        self._trainer.run_step()

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "_trainer": self._trainer.state_dict(),
            "config": self._config_text,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict.get("config", self._config_text)  # not in checkpoints of others
        if table := config_differences(saved, self._config_text):  # first: they may be why it fails
            logger.warning("The checkpoint was saved with other settings:\n%s", table)
        self._trainer.load_state_dict(state_dict["_trainer"])
        super().load_state_dict(state_dict)  # then a schedule sets the LR, which may be another now
        self.start_iter = self.iter + 1

    # --- hooks and writers ------------------------------------------------------------------

    def build_hooks(self) -> list[hooks.HookBase | None]:
        """The default hooks that are switched on, then those of HOOKS. Priorities order them:

        the step is timed first; averages and statistics change the weights that an evaluation
        sees; writers come after all that is measured, and checkpoints last, so that they hold
        what the other hooks did in their step. Hooks of HOOKS without a priority of their own come
        after the evaluation. The last in the list is the PeriodicWriter, as in detectron2.
        """
        cfg = self.cfg
        on = {name: node.ENABLED for name, node in cfg.DEFAULT_HOOKS.items()}
        is_main = comm.is_main_process()
        keep = cfg.CHECKPOINT.KEEP_LAST or None
        make_hook = partial(
            build_hook,
            checkpointer=self.checkpointer,
            eval_period=cfg.TEST.EVAL_PERIOD,
            output_dir=cfg.OUTPUT_DIR,
        )
        # Bound to a proxy: a hook that held its trainer would keep the model from being freed.
        evaluate = partial(type(self)._evaluate, weakref.proxy(self))
        return [
            hooks.IterationTimer() if on["IterationTimer"] else None,
            hooks.LRScheduler() if on["LRScheduler"] else None,
            hooks.FirstStepCheck() if on["FirstStepCheck"] else None,
            build_ema(cfg),
            self._build_precise_bn_hook(),
            hooks.EvalHook(cfg.TEST.EVAL_PERIOD, evaluate) if on["EvalHook"] else None,
            self._build_best_checkpointer(),
            build_early_stopping(cfg),
            hooks.ProgressBar(cfg.LOG_PERIOD) if on["ProgressBar"] and is_main else None,
            hooks.PeriodicCheckpointer(
                self.checkpointer, cfg.SOLVER.CHECKPOINT_PERIOD, max_to_keep=keep
            )
            if on["PeriodicCheckpointer"]
            else None,
            build_time_limit(cfg),
            hooks.StopOnSignal() if on["StopOnSignal"] else None,
            *map(make_hook, cfg.HOOKS or ()),
            build_watchdog(cfg),
            hooks.PeriodicWriter(
                self.build_writers() if is_main else [], cfg.LOG_PERIOD, over_ranks=True
            )
            if on["PeriodicWriter"]
            else None,
        ]

    def build_writers(self) -> list[EventWriter]:
        """The console, metrics.json and TensorBoard, then those of WRITERS."""
        return [
            *default_writers(self.cfg.OUTPUT_DIR, self.max_iter),
            *(build_writer(self.cfg, settings) for settings in self.cfg.WRITERS or ()),
        ]

    # --- what subclasses override -----------------------------------------------------------

    @classmethod
    def build_model(cls, cfg: CfgNode) -> nn.Module:
        """The model MODEL.META_ARCHITECTURE on its device."""
        model = build_model(cfg)
        logger.info("Model:\n%s", model)
        return model

    @classmethod
    def build_optimizer(cls, cfg: CfgNode, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer that SOLVER describes."""
        optimizer = build_optimizer(cfg, model)
        logger.info("Parameter groups:\n%s", param_group_table(optimizer, model))
        return optimizer

    @classmethod
    def build_lr_scheduler(cls, cfg: CfgNode, optimizer: torch.optim.Optimizer) -> Any:
        """The schedule that SOLVER describes; all its lengths are in iterations here."""
        return build_lr_scheduler(cfg, optimizer)

    @classmethod
    def build_train_loader(cls, cfg: CfgNode) -> Iterable[Any]:
        """The batches of DATASETS.TRAIN, endlessly."""
        return train_loader_from_config(cfg)

    @classmethod
    def build_test_loader(cls, cfg: CfgNode, dataset_name: str) -> Iterable[Any]:
        """The batches of one test set or group of test sets, once."""
        return test_loader_from_config(cfg, dataset_name)

    @classmethod
    def build_evaluator(cls, cfg: CfgNode, dataset_name: str) -> DatasetEvaluator:
        """The evaluator for the `evaluator_type` that the data set's metadata names."""
        kind = MetadataCatalog.get(members_of(cfg, dataset_name)[0]).get("evaluator_type")
        predictions = None
        if cfg.TEST.SAVE_PREDICTIONS:
            predictions = os.path.join(cfg.OUTPUT_DIR, "predictions", f"{dataset_name}.pt")
        if kind == "classification":
            return ClassificationEvaluator(save_predictions=predictions)
        if kind == "language_model":
            return LanguageModelEvaluator()
        if kind and (kind in EVALUATOR_REGISTRY or "." in kind or ":" in kind):
            return find(EVALUATOR_REGISTRY, kind)(cfg, dataset_name)
        raise NotImplementedError(
            f"no evaluator is known for the data set {dataset_name!r}, whose evaluator_type is "
            f"{kind!r}: override build_evaluator in your trainer, or set it in the metadata to "
            "classification, language_model, a name in EVALUATOR_REGISTRY or an import path"
        )

    @classmethod
    def test(
        cls,
        cfg: CfgNode,
        model: nn.Module,
        evaluators: DatasetEvaluator | list[DatasetEvaluator] | None = None,
    ) -> dict[str, Any]:
        """Evaluate on each of DATASETS.TEST and DATASETS.TEST_GROUPS.

        Returns the results by data set, or those of the only one. They are also logged as a table
        and written to `results.json`; by an evaluation in the folder of a run, which has its own,
        to `evaluation.json`.
        """
        names = [*cfg.DATASETS.TEST, *cfg.DATASETS.TEST_GROUPS]
        given = [evaluators] if isinstance(evaluators, DatasetEvaluator) else evaluators
        if given is not None and len(given) != len(names):
            raise ValueError(f"{len(given)} evaluators for {len(names)} test sets: {names}")
        results: dict[str, Any] = {}
        for number, name in enumerate(names):
            try:
                evaluator = given[number] if given else cls.build_evaluator(cfg, name)
            except NotImplementedError as error:
                logger.warning("%s is not evaluated: %s", name, error)
                results[name] = {}
                continue
            logger.info("Evaluating on %s", name)
            with seeded(cfg.TEST.SEED + comm.get_rank()) if cfg.TEST.SEED >= 0 else nullcontext():
                loader = cls.build_test_loader(cfg, name)
                try:
                    results[name] = inference_on_dataset(model, loader, evaluator)
                except NothingEvaluatedError as error:
                    raise ConfigError(f"the data set {name}: {error}") from error
        if comm.is_main_process() and any(results.values()):
            print_csv_format(results)
            logger.info("Results:\n%s", results_table(results))
            if cfg.OUTPUT_DIR:
                write_results(results, _results_file(cfg.OUTPUT_DIR))
        return _only_or_all(results)

    @classmethod
    def load_weights(cls, cfg: CfgNode, model: nn.Module, resume: bool = False) -> None:
        """Load what an evaluation needs: the weights of MODEL.WEIGHTS, or with `resume` of the last
        checkpoint; their average where there is one, as in the evaluations of its run."""
        load_weights(cfg, model, resume)

    @staticmethod
    def auto_scale_workers(cfg: CfgNode, num_workers: int) -> CfgNode:
        """The config for `num_workers` processes, where it was written for another number.

        With SOLVER.REFERENCE_WORLD_SIZE set, batch size and learning rate grow with the number of
        processes, and numbers of iterations shrink, so that the same samples are seen.
        """
        return scale_to_processes(cfg, num_workers)

    # --- the inner trainer's parts ----------------------------------------------------------

    def epoch_of(self, iteration: int) -> int | None:
        return self._trainer.epoch_of(iteration)

    @default_property
    def epoch_length(self) -> float | None:
        return self._trainer.epoch_length

    @property
    def model(self) -> nn.Module:
        """The model, wrapped where there are several processes."""
        return self._trainer.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._trainer.model = model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._trainer.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._trainer.optimizer = optimizer

    @property
    def data_loader(self) -> Iterable[Any]:
        """The source of batches; setting it starts the new one at the next step."""
        return self._trainer.data_loader

    @data_loader.setter
    def data_loader(self, data_loader: Iterable[Any]) -> None:
        self._trainer.data_loader = data_loader

    @property
    def last_eval_results(self) -> dict[str, Any]:
        """The results of the last evaluation; {} before the first."""
        # detectron2's name: its users set it, and ask with `hasattr` whether there was one.
        return vars(self).get("_last_eval_results", {})

    @last_eval_results.setter
    def last_eval_results(self, results: dict[str, Any]) -> None:
        self._last_eval_results = results

    def reset_data_loader(self, data_loader_builder: Callable[[], Iterable[Any]]) -> None:
        """Drop the data loader, then take the one that the function builds."""
        self._trainer.reset_data_loader(data_loader_builder)
        self._trainer.start_data_at(self.next_iter)

    def _refuse_unknown_test_sets(self, cfg: CfgNode) -> None:
        # Now, and not at the first evaluation. A test loader of the user's own knows its names.
        own_loader = type(self).build_test_loader.__func__  # type: ignore[attr-defined]
        if own_loader is DefaultTrainer.build_test_loader.__func__:  # type: ignore[attr-defined]
            check_test_sets(cfg)

    def _write_config(self) -> None:
        folder = self.cfg.OUTPUT_DIR
        if os.path.isdir(folder):  # default_setup makes it
            write_config(getattr(self, "_given_cfg", self.cfg), folder)
        elif not folder:
            logger.warning("OUTPUT_DIR is empty: nothing of this run is saved")

    @cached_property
    def _config_text(self) -> str:
        return self.cfg.dump()

    def _evaluate(self) -> dict[str, Any]:
        """Evaluate on the validation sets, if any, and at the end of the run on the test sets too;
        returns what is to be stored."""
        datasets = self.cfg.DATASETS
        if not datasets.VAL:
            self.last_eval_results = self.test(self.cfg, self.model)
            return self.last_eval_results
        cfg = self.cfg.clone()
        cfg.defrost()
        cfg.DATASETS.TEST, cfg.DATASETS.TEST_GROUPS = datasets.VAL, CfgNode()
        results = self.last_eval_results = self.test(cfg, self.model)
        if not self._is_training and (datasets.TEST or datasets.TEST_GROUPS):
            self.last_eval_results = self.test(self.cfg, self.model)
        return results

    def _build_precise_bn_hook(self) -> hooks.HookBase | None:
        precise_bn = self.cfg.TEST.PRECISE_BN
        if not precise_bn.ENABLED:
            return None
        loader = self.build_train_loader(self.cfg)
        return hooks.PreciseBN(self.cfg.TEST.EVAL_PERIOD, self.model, loader, precise_bn.NUM_ITER)

    def _build_best_checkpointer(self) -> hooks.HookBase | None:
        cfg = self.cfg
        if not cfg.CHECKPOINT.BEST_METRIC:
            return None
        with naming("CHECKPOINT.BEST_METRIC"):
            return hooks.BestCheckpointer(
                cfg.TEST.EVAL_PERIOD, self.checkpointer, cfg.CHECKPOINT.BEST_METRIC
            )


def _results_file(folder: str) -> str:
    path = os.path.join(folder, "results.json")
    is_of_a_run = os.path.exists(path) and os.path.exists(os.path.join(folder, "metrics.json"))
    return path if has_event_storage() or not is_of_a_run else f"{folder}/evaluation.json"


def _only_or_all(results: dict[str, Any]) -> dict[str, Any]:
    return next(iter(results.values())) if len(results) == 1 else results
