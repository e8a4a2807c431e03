import pytest
import torch

from engine.events.scalar_log import ScalarLog


def test_tensors_become_numbers():
    log = ScalarLog(0)
    log.entries += "loss", 0.0, 0, "acc", 1.0, 0, "loss", torch.tensor(7.0), 1, "acc", 0.5, 1
    log.has_tensors = True
    names, (values, iterations) = log.take()
    assert names == ["loss", "acc", "loss", "acc"]
    assert values.tolist() == [0.0, 1.0, 7.0, 0.5]
    assert iterations.tolist() == [0, 0, 1, 1]
    assert (log.has_tensors, log.entries) == (False, [])


def test_a_name_keeps_its_first_hint():
    log = ScalarLog(0)
    log.check_hint("loss", True)
    log.check_hint("loss", True)
    with pytest.raises(ValueError, match="metric 'loss' was put with smoothing_hint=True before"):
        log.check_hint("loss", False)
    assert log.hints == {"loss": True}
