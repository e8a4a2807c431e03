import torch
from torch import nn

from engine.checkpoint import Checkpointer
from engine.config import get_cfg, track_reads
from engine.hooks import BestCheckpointer
from engine.run_report import list_unread_keys, log_analysis, log_end


def test_the_last_lines_say_what_is_left_and_what_to_do(tmp_path, log):
    checkpointer = Checkpointer(nn.Linear(1, 1), tmp_path)
    best = BestCheckpointer(1, checkpointer, "+accuracy")
    log_end([best], checkpointer, requeue=False)
    assert log.messages == ["There is no best checkpoint: no evaluation had 'accuracy'"]
    checkpointer.save("model_0000009")
    log.clear()
    log_end([], checkpointer, requeue=True)
    assert log.messages == [
        f"The last checkpoint is {tmp_path}/model_0000009.pth",
        "The run is not complete: start it again with --resume",
    ]


def test_settings_that_nothing_reads_are_listed_but_for_those_of_evaluations(log):
    cfg = get_cfg()
    cfg.merge_from_list(["SOLVER.POWER=2.0", "TEST.BATCH_SIZE=3", "SEED=4"])
    track_reads(cfg)
    assert cfg.SEED == 4
    list_unread_keys(cfg)
    assert log.messages == ["Settings that nothing has read so far: SOLVER.POWER"]


def test_the_size_of_a_model_and_what_trains_are_told(log):
    log_analysis(nn.Linear(3, 2), torch.zeros(1, 3))
    assert "parameters 8 | FLOPs 6" in log.text
    assert "8 (100.0%)" in log.text
