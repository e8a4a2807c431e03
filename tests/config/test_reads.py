import pytest

from engine.config import CfgNode, get_cfg, track_reads, unread_keys


def tracked(*overrides):
    cfg = get_cfg()
    cfg.merge_from_list(overrides)
    cfg.freeze()
    track_reads(cfg)
    return cfg


def test_keys_that_were_set_and_never_read_are_listed():
    cfg = tracked("SEED=7", "EMA.DECAY=0.5", "TEST.PRECISE_BN.NUM_ITER=9", "LOG_PERIOD=2 epoch")
    assert cfg.SEED == 7
    assert not cfg.EMA.ENABLED
    assert not cfg.TEST["PRECISE_BN"].get("ENABLED")
    assert unread_keys(cfg) == ["LOG_PERIOD", "TEST.PRECISE_BN.NUM_ITER", "EMA.DECAY"]


def test_a_key_set_to_its_default_is_not_listed():
    cfg = tracked("SEED=-1")
    assert unread_keys(cfg) == []


def test_a_section_taken_as_a_whole_was_read():
    cfg = tracked("PARALLEL.DDP.STATIC_GRAPH=True")
    assert unread_keys(cfg) == ["PARALLEL.DDP.STATIC_GRAPH"]
    assert dict(**cfg.PARALLEL.DDP)["STATIC_GRAPH"]
    assert unread_keys(cfg) == []


def test_a_free_form_section_is_read_when_it_is_looked_at():
    cfg = tracked("SOLVER.OPTIMIZER.NAME=AdamW", "SOLVER.OPTIMIZER.eps=1e-8")
    assert unread_keys(cfg) == ["SOLVER.OPTIMIZER.NAME", "SOLVER.OPTIMIZER.eps"]
    assert cfg.SOLVER.OPTIMIZER.NAME == "AdamW"
    assert unread_keys(cfg) == []


def test_reading_a_clone_counts():
    cfg = tracked("SEED=7")
    assert cfg.clone().SEED == 7
    assert unread_keys(cfg) == []


def test_writing_the_config_down_is_not_reading():
    cfg = tracked("SEED=7")
    cfg.dump()
    str(cfg)
    cfg.clone().defrost()
    assert unread_keys(cfg) == ["SEED"]


def test_without_tracking_the_question_has_no_answer():
    with pytest.raises(ValueError, match="call track_reads"):
        unread_keys(CfgNode())
