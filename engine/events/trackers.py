"""Writers to trackers of experiments: W&B, MLflow and Trackio, each imported when it is used."""

import logging
import math
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import torch

from engine.events.current import get_event_storage
from engine.events.writer import EventWriter, WindowSize
from engine.utils.flatten import flatten

logger = logging.getLogger(__name__)

MAX_BUCKETS = 512  # of a histogram of W&B


class TrackerWriter(EventWriter):
    """What the writers to trackers have in common.

    The tracker's run begins where training does. A checkpoint holds its id, so that a resumed run
    goes on in it, and sends only what it has not got. `iteration` is among what is sent: the
    tracker's own counter of steps may be another.
    """

    goes_back = False
    _window_size = WindowSize()
    _package: str
    _run: Any = None
    _id: str | None = None  # of the run to go on with
    _last = -1  # iteration that the run had when it was opened
    _sent = _sent_before = -1  # iterations sent: now, and when the checkpoint was made

    def __init__(self, config: Mapping[str, Any] | None, window_size: int | None) -> None:
        self.config = dict(config or {})
        self._window_size = window_size
        try:
            self._tracker = import_module(self._package)
        except ImportError as error:
            raise ImportError(
                f"{type(self).__name__} needs {self._package}: pip install {self._package}"
            ) from error

    def write(self) -> None:
        self._send_all(get_event_storage().unwritten(self, self._window_size))

    def write_media(self) -> None:
        self._send_all({})

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id, "sent": self._sent} if self._id else {}

    def restore(self, state: dict[str, Any], iteration: int) -> bool:
        self._begin(state["id"], state["sent"])
        return True

    def rewind(self, iteration: int) -> None:
        """Begin a run, or go on with it: what the tracker has cannot be taken back."""
        self._begin(self._id if iteration else None, self._sent if iteration else -1)

    def close(self) -> None:
        if self._run is not None:
            self._end()
            self._run = None

    def _begin(self, run_id: str | None, sent: int) -> None:
        self.close()
        self._id, self._sent, self._sent_before = run_id, sent, sent
        self._open()

    def _open(self) -> None:
        self._run, self._id, self._last = self._start()

    def _send_all(self, records: dict[int, dict[str, Any]]) -> None:
        storage = get_event_storage()
        for name, image, iteration in storage.unwritten_images(self):
            records.setdefault(iteration, {})[name] = image
        for histogram in storage.unwritten_histograms(self):
            records.setdefault(histogram["global_step"], {})[histogram["tag"]] = histogram
        if records and self._run is None:
            self._open()
        for iteration in sorted(records):
            # What was sent after the checkpoint is there already.
            if not self._sent_before < iteration <= self._last:
                self._send(iteration, records[iteration])
                self._sent = max(iteration, self._sent)

    def _start(self) -> tuple[Any, str, int]:
        """Begin a run, or go on with `_id`: the run, its id, and the last iteration it has."""
        raise NotImplementedError

    def _send(self, iteration: int, record: dict[str, Any]) -> None:
        """Send numbers, images (uint8, CHW) and histograms (dicts) of an iteration."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class WandbWriter(TrackerWriter):
    """Sends scalars, images and histograms to Weights & Biases.

    The options are those of `wandb.init`: `WandbWriter("digits", mode="offline")`.
    """

    _package = "wandb"

    def __init__(
        self,
        project: str,
        *,
        config: Mapping[str, Any] | None = None,
        window_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(config, window_size)
        self._options = {"project": project, **options}

    def _start(self) -> tuple[Any, str, int]:
        resumed = {"id": self._id, "resume": "allow"} if self._id else {}
        run = self._tracker.init(config=self.config, **{**self._options, **resumed})
        run.define_metric("*", step_metric="iteration")
        return run, run.id, int(run.summary.get("iteration", -1)) if resumed else -1

    def _send(self, iteration: int, record: dict[str, Any]) -> None:
        values = {name: self._as_media(value) for name, value in record.items()}
        self._run.log({**values, "iteration": iteration})

    def _end(self) -> None:
        self._run.finish()

    def _as_media(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tracker.Image(_as_hwc(value))
        if isinstance(value, dict):
            return self._tracker.Histogram(np_histogram=_coarse_histogram(value))
        return value


class TrackioWriter(WandbWriter):
    """Sends scalars, images and histograms to Trackio. The options are those of `trackio.init`."""

    _package = "trackio"

    def _start(self) -> tuple[Any, str, int]:
        resumed = {"name": self._id, "resume": "must"} if self._id else {}
        run = self._tracker.init(config=self.config, **{**self._options, **resumed})
        return run, run.name, getattr(run, "_next_step", 0) - 1

    def _send(self, iteration: int, record: dict[str, Any]) -> None:
        values = {name: self._as_media(value) for name, value in record.items()}
        self._run.log(values, step=iteration)


class MLflowWriter(TrackerWriter):
    """Sends scalars and images to MLflow; it has no histograms.

    Without `tracking_uri` it is the one of MLflow's environment: MLFLOW_TRACKING_URI. A thread of
    its own sends, and what the server does not take is a warning.
    """

    _package = "mlflow"

    def __init__(
        self,
        experiment: str,
        run_name: str | None = None,
        *,
        tracking_uri: str | None = None,
        config: Mapping[str, Any] | None = None,
        window_size: int | None = None,
    ) -> None:
        super().__init__(config, window_size)
        self._experiment = experiment
        self._run_name = run_name
        self._tracking_uri = tracking_uri

    def _start(self) -> tuple[Any, str, int]:
        client = self._tracker.MlflowClient(self._tracking_uri)
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="MLflowWriter")
        if self._id is not None:
            client.update_run(self._id, status="RUNNING")
            last = client.get_run(self._id).data.metrics.get("iteration", -1)
            return client, self._id, int(last)
        experiment = client.get_experiment_by_name(self._experiment)
        experiment_id = (
            experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        )
        run_id = client.create_run(experiment_id, run_name=self._run_name).info.run_id
        for name, value in flatten(self.config).items():
            client.log_param(run_id, _as_mlflow_name(name), str(value)[:500])
        return client, run_id, -1

    def _send(self, iteration: int, record: dict[str, Any]) -> None:
        now = int(time.time() * 1000)
        metrics = []
        for name, value in {**record, "iteration": iteration}.items():
            key = _as_mlflow_name(name)
            if isinstance(value, torch.Tensor):
                self._submit("log_image", _as_hwc(value), key=key, step=iteration, timestamp=now)
            elif not isinstance(value, dict):
                metrics.append(self._tracker.entities.Metric(key, value, now, iteration))
        self._submit("log_batch", metrics)

    def _submit(self, method: str, *args: Any, **kwargs: Any) -> None:
        future = self._sender.submit(getattr(self._run, method), self._id, *args, **kwargs)
        future.add_done_callback(_warn_of_failure)

    def _end(self) -> None:
        self._sender.shutdown()
        self._run.set_terminated(self._id)


def _warn_of_failure(future: Future[Any]) -> None:
    if error := future.exception():
        logger.warning("MLflow has not taken some metrics: %s", error)


def _as_hwc(image: torch.Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


def _coarse_histogram(histogram: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Counts and edges, in no more buckets than W&B takes."""
    counts, limits = np.array(histogram["bucket_counts"]), histogram["bucket_limits"]
    firsts = np.arange(0, len(counts), math.ceil(len(counts) / MAX_BUCKETS))
    edges = np.array([histogram["min"], *limits])
    return np.add.reduceat(counts, firsts), np.append(edges[firsts], edges[-1])


def _as_mlflow_name(name: str) -> str:
    return re.sub(r"[^\w\-. /:]", "_", name)
