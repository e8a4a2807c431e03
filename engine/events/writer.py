"""EventWriter: what carries the storage's content to a file, a console or a tracker."""


class EventWriter:
    """Base class of writers. A writer finds its storage with `get_event_storage()`.

    A new writer needs only `write`; what it has not written yet is
    `get_event_storage().unwritten(self)`.
    """

    def write(self) -> None:
        """Write what came since the last call."""
        raise NotImplementedError

    def write_media(self) -> None:
        """Write the images and histograms that wait: a checkpoint is made, which holds none."""

    def rewind(self, iteration: int) -> None:
        """Take back what was written for `iteration` and later: the run goes on from there."""

    def close(self) -> None:
        """Finish the output. A later `write` opens it again."""


def without_written(
    records: dict[int, dict[str, float]], written: dict[str, int]
) -> dict[int, dict[str, float]]:
    """The records, by iteration and name, without values that an output has already.

    `written` is by name the last iteration there. After a rewind it may be one that the checkpoint
    calls unwritten: a value put before the checkpoint and written after it.
    """
    rest = {
        iteration: {name: v for name, v in record.items() if written.get(name) != iteration}
        for iteration, record in records.items()
    }
    return {iteration: record for iteration, record in rest.items() if record}
