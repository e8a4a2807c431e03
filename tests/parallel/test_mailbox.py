"""What rank 0 gets of two processes."""

from pathlib import Path

from engine.parallel import comm
from engine.parallel.mailbox import Mailbox

LENGTHS = [0, 3, 1, 5000, 3, 5000, 5001, 0]


def work(rank: int, folder: Path) -> dict:
    mailbox = Mailbox()
    got = []
    for at, length in enumerate(LENGTHS):
        mailbox.post(bytes([at]) * length)
        got.append(mailbox.collect())
    mailbox.finish()
    sent_ahead = Mailbox()
    if rank == 1:
        sent_ahead.post(b"early")  # does not wait
    comm.synchronize()
    if rank == 0:
        sent_ahead.post(b"")
    early = sent_ahead.collect()
    sent_ahead.finish()
    one, other = Mailbox(), Mailbox()
    one.post(b"one")
    other.post(b"the other")
    two = [*other.collect(), *one.collect()]
    one.finish()
    other.finish()
    return {
        "lengths": [[len(one) for one in messages] for messages in got],
        "is_right": all(set(one) <= {at} for at, (one, *_) in enumerate(got)) if got[0] else None,
        "early": [one.decode() for one in early],
        "two": [one.decode() for one in two],
    }


def test_rank_0_gets_messages_of_any_length_in_their_order(processes):
    assert processes[0]["lengths"] == [[length] for length in LENGTHS]
    assert processes[0]["is_right"]
    assert processes[1]["lengths"] == [[]] * len(LENGTHS)


def test_other_ranks_do_not_wait_for_rank_0(processes):
    assert processes[0]["early"] == ["early"]


def test_two_may_be_in_use_at_a_time(processes):
    assert processes[0]["two"] == ["the other", "one"]
