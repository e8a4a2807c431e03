import pytest
import torch
from torch import nn

from engine.utils.disk import check_free_space, readable_size, state_size


def test_enough_space_is_not_worth_a_word(small_disk, log):
    check_free_space(str(small_disk), size=30_000, count=10)
    assert log.records == []


def test_where_not_all_will_fit_a_warning_says_how_much_is_missing_and_what_to_do(small_disk, log):
    check_free_space(str(small_disk), size=100_000, count=12)
    (warning,) = [record.getMessage() for record in log.records]
    assert warning.startswith(f"{small_disk}: 307 kB are free, but the 12 checkpoints to come will")
    assert "take about 1.2 MB" in warning
    assert "CHECKPOINT.KEEP_LAST" in warning


def test_where_not_even_two_fit_the_run_does_not_start(small_disk):
    with pytest.raises(OSError, match=r"2 of about 200 kB must fit.* 307 kB are free") as caught:
        check_free_space(str(small_disk), size=200_000, count=12)
    assert caught.value.filename == str(small_disk)
    check_free_space(str(small_disk), size=200_000, count=1, least=1)


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 1),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 2),
        (lambda parameters: torch.optim.AdamW(parameters), 3),
    ],
    ids=["SGD", "SGD with momentum", "AdamW"],
)
def test_the_size_is_known_before_the_optimizer_has_a_state(make, copies, tmp_path):
    model = nn.Sequential(nn.Linear(100, 200), nn.BatchNorm1d(200))
    optimizer = make(model.parameters())
    estimate = state_size(model, optimizer)
    parameters = 4 * (100 * 200 + 200 + 2 * 200)
    assert estimate == parameters * copies + 2 * 4 * 200 + 8  # mean, variance and their count
    model(torch.randn(4, 100)).sum().backward()
    optimizer.step()
    assert state_size(model, optimizer) == pytest.approx(estimate, rel=0.01)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "saved")
    assert (tmp_path / "saved").stat().st_size == pytest.approx(estimate, rel=0.1)
    assert state_size(model, optimizer, averages=True) == state_size(model, optimizer) + parameters


def test_sparse_buffers_are_not_counted():
    model = nn.Linear(2, 2)
    model.register_buffer("adjacency", torch.eye(2).to_sparse())
    assert state_size(model, torch.optim.SGD(model.parameters(), lr=0.1)) == 4 * 6


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.23 kB"), (2.5e9, "2.5 GB"), (7e15, "7e+03 TB")],
)
def test_a_size_is_given_in_a_unit_that_reads_well(size, text):
    assert readable_size(size) == text
