"""Run with the trackers themselves, on files: pip install -e ".[trackers]"."""

import logging
from pathlib import Path

import pytest
import torch

from engine.config import ConfigError, get_cfg
from engine.events import EventStorage, MLflowWriter, TrackioWriter, WandbWriter
from engine.hooks import PeriodicWriter
from engine.startup import WRITER_REGISTRY, build_writer
from engine.train_loop import TrainerBase


class Trainer(TrainerBase):
    def run_step(self) -> None:
        self.storage.put_scalar("loss", 10.0 - self.iter, smoothing_hint=False)
        self.storage.put_scalar("acc [metric]", float("nan"), smoothing_hint=False)
        if self.iter == 3:
            self.storage.put_image("picture", torch.zeros(3, 4, 5))
            self.storage.put_histogram("weights", torch.arange(8.0))


def train(writer, start_iter: int, max_iter: int, state: dict | None = None) -> dict:
    """Returns what a checkpoint of the finished run holds."""
    hook = PeriodicWriter([writer], period=1)
    if state:  # as if it had been saved where the run goes on
        hook.load_state_dict({k: {**v, "sent": start_iter - 1} for k, v in state.items()})
    trainer = Trainer()
    trainer.register_hooks([hook])
    trainer.train(start_iter, max_iter)
    return hook.state_dict()


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ImportError, match="WandbWriter needs wandb: pip install wandb"):
        WandbWriter("digits")
    with pytest.raises(ConfigError, match="WRITERS: WandbWriter needs wandb: pip install wandb"):
        build_writer(get_cfg(), {"NAME": "WandbWriter", "PROJECT": "digits"})


def test_a_config_names_writers_of_ones_own(tmp_path):
    cfg = get_cfg()
    cfg.OUTPUT_DIR = str(tmp_path)
    writer = build_writer(cfg, {"NAME": "engine.events:JSONWriter", "JSON_FILE": f"{tmp_path}/x"})
    assert Path(writer._json_file).exists()
    with pytest.raises(ConfigError, match="WandbWriter: missing a required argument: 'project'"):
        build_writer(cfg, {"NAME": "WandbWriter"})
    assert "WandbWriter" in WRITER_REGISTRY


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    return mlflow.MlflowClient(f"file:{tmp_path}/mlflow")


def test_mlflow_has_each_point_once_after_a_resume(mlflow, tmp_path):
    def writer() -> MLflowWriter:
        uri = f"file:{tmp_path}/mlflow"
        return MLflowWriter("digits", "first", tracking_uri=uri, config={"SOLVER": {"LR": 0.1}})

    state = train(writer(), 0, 5)
    assert train(writer(), 2, 8, state)["MLflowWriter"]["id"] == state["MLflowWriter"]["id"]
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("digits").experiment_id])
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"SOLVER.LR": "0.1"}
    history = mlflow.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(i, 10.0 - i) for i in range(8)]
    assert "acc _metric_" in run.data.metrics
    assert any("picture" in file.path for file in mlflow.list_artifacts(run.info.run_id, "images"))


def test_scalars_that_wait_at_a_stop_are_sent_though_an_image_was(mlflow, tmp_path):
    def storage_at_13() -> EventStorage:
        storage = EventStorage(13)
        storage.put_scalar("rare", 7.0)
        return storage

    first = MLflowWriter("digits", tracking_uri=f"file:{tmp_path}/mlflow")
    first.rewind(0)
    with storage_at_13() as storage:
        storage.put_image("picture", torch.zeros(3, 4, 5))
        first.write_media()
        first.close()
    second = MLflowWriter("digits", tracking_uri=f"file:{tmp_path}/mlflow")
    second.restore(first.state_dict(), 14)
    with storage_at_13():
        second.write()
        second.close()
    history = mlflow.get_metric_history(first.state_dict()["id"], "rare")
    assert [(one.step, one.value) for one in history] == [(13, 7.0)]


def test_trackio_has_each_point_once_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    options = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    state = train(TrackioWriter("digits", **options), 0, 5)
    again = train(TrackioWriter("digits", **options), 2, 8, state)
    assert again["TrackioWriter"]["id"] == state["TrackioWriter"]["id"]
    history = storage.get_logs("digits", state["TrackioWriter"]["id"])
    assert [row["step"] for row in history] == list(range(8))
    assert [row["loss"] for row in history] == [10.0 - i for i in range(8)]


def test_wandb_goes_on_in_the_same_run(tmp_path):
    wandb = pytest.importorskip("wandb")
    options = {"mode": "offline", "dir": str(tmp_path), "settings": wandb.Settings(silent=True)}
    state = train(WandbWriter("digits", config={"LR": 0.1}, **options), 0, 5)
    again = train(WandbWriter("digits", **options), 2, 8, state)
    assert again["WandbWriter"]["id"] == state["WandbWriter"]["id"]
    first, second = sorted(tmp_path.glob("wandb/offline-run-*"))
    run_id = state["WandbWriter"]["id"]
    assert first.name.endswith(run_id)
    assert second.name.endswith(run_id)
    assert list(first.glob("files/media/images/picture_*.png"))


def test_a_server_that_does_not_answer_ends_no_run(mlflow, tmp_path, caplog):
    writer = MLflowWriter("digits", tracking_uri=f"file:{tmp_path}/mlflow")
    writer.rewind(0)
    with EventStorage() as storage:
        mlflow.delete_run(writer.state_dict()["id"])
        storage.put_scalar("loss", 1.0)
        writer.write()
        writer._sender.shutdown()
    assert "MLflow has not taken some metrics" in caplog.text


def test_a_writer_by_hand_opens_its_run_with_the_first_value(mlflow, tmp_path):
    writer = MLflowWriter("by hand", tracking_uri=f"file:{tmp_path}/mlflow")
    with EventStorage() as storage:
        writer.write()
        assert mlflow.get_experiment_by_name("by hand") is None
        storage.put_scalar("loss", 1.0)
        writer.write()
        writer.close()
    (run,) = mlflow.search_runs([mlflow.get_experiment_by_name("by hand").experiment_id])
    assert run.data.metrics == {"loss": 1.0, "iteration": 0.0}
