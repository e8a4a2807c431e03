"""What rank 0 gets of two processes."""

from pathlib import Path

from engine.parallel import comm
from engine.parallel.mailbox import Mailbox

LENGTHS = [0, 3, 1, 5000, 3, 5000, 5001, 0]


def work(rank: int, folder: Path) -> dict:
    mailbox = Mailbox()
    got = [mailbox.collect(bytes([at]) * length) for at, length in enumerate(LENGTHS)]
    mailbox.finish()
    sent_ahead = Mailbox()
    if rank == 1:
        sent_ahead.collect(b"early")  # does not wait
    comm.synchronize()
    early = [] if rank == 1 else sent_ahead.collect(b"")
    sent_ahead.finish()
    return {
        "lengths": [[len(one) for one in messages] for messages in got],
        "is_right": all(set(one) <= {at} for at, (one, *_) in enumerate(got)) if got[0] else None,
        "early": [one.decode() for one in early],
    }


def test_rank_0_gets_messages_of_any_length_in_their_order(processes):
    assert processes[0]["lengths"] == [[length] for length in LENGTHS]
    assert processes[0]["is_right"]
    assert processes[1]["lengths"] == [[]] * len(LENGTHS)


def test_other_ranks_do_not_wait_for_rank_0(processes):
    assert processes[0]["early"] == ["early"]
