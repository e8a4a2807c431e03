"""What acts around the steps of a trainer."""

from engine.hooks.averaging import EMAHook
from engine.hooks.base import HookBase, Priority
from engine.hooks.best import Best
from engine.hooks.best_checkpointer import BestCheckpointer
from engine.hooks.callback import CallbackHook
from engine.hooks.checkpointing import PeriodicCheckpointer
from engine.hooks.early_stopping import EarlyStopping
from engine.hooks.empty_cache import EmptyCacheHook
from engine.hooks.evaluation import EvalHook
from engine.hooks.first_step import FirstStepCheck
from engine.hooks.freeze_gradients import FreezeGradients
from engine.hooks.joint_period import JointPeriod
from engine.hooks.lr_scheduler import LRScheduler
from engine.hooks.memory import TorchMemoryStats
from engine.hooks.precise_bn import PreciseBN
from engine.hooks.probe import ProbeHook, probe
from engine.hooks.profiling import AutogradProfiler, TorchProfiler
from engine.hooks.progress import ProgressBar
from engine.hooks.refresh_data_loader import RefreshDataLoader
from engine.hooks.safetensors import SafetensorsHook
from engine.hooks.sampler_seed import SamplerSeedHook
from engine.hooks.stopping import StopOnSignal, TimeLimit
from engine.hooks.sync_buffers import SyncBuffersHook
from engine.hooks.timing import IterationTimer
from engine.hooks.visualization import VisualizationHook
from engine.hooks.watchdog import Watchdog
from engine.hooks.writing import PeriodicWriter

__all__ = [
    "AutogradProfiler",
    "Best",
    "BestCheckpointer",
    "CallbackHook",
    "EMAHook",
    "EarlyStopping",
    "EmptyCacheHook",
    "EvalHook",
    "FirstStepCheck",
    "FreezeGradients",
    "HookBase",
    "IterationTimer",
    "JointPeriod",
    "LRScheduler",
    "PeriodicCheckpointer",
    "PeriodicWriter",
    "PreciseBN",
    "Priority",
    "ProbeHook",
    "ProgressBar",
    "RefreshDataLoader",
    "SafetensorsHook",
    "SamplerSeedHook",
    "StopOnSignal",
    "SyncBuffersHook",
    "TimeLimit",
    "TorchMemoryStats",
    "TorchProfiler",
    "VisualizationHook",
    "Watchdog",
    "probe",
]
