"""EventWriter: what carries the storage's content to a file, a console or a tracker."""

from typing import Any

from engine.events.current import get_event_storage, has_event_storage

WINDOW = 20  # iterations that a value is smoothed over, unless a storage or a writer says otherwise


class EventWriter:
    """Base class of writers. A writer finds its storage with `get_event_storage()`.

    A new writer needs only `write`; what it has not written yet is
    `get_event_storage().unwritten(self)`.
    """

    goes_back = True
    """Whether `restore` and `rewind` take back what was written."""

    def write(self) -> None:
        """Write what came since the last call."""
        raise NotImplementedError

    def write_media(self) -> None:
        """Write the images and histograms that wait: a checkpoint is made, which holds none."""

    def state_dict(self) -> dict[str, Any]:
        """Where the output stands, for `restore`; {} where it cannot be put back."""
        return {}

    def restore(self, state: dict[str, Any], iteration: int) -> bool:
        """Put the output back to where it stood when the state was taken: the run goes on with
        `iteration`. Returns False if that cannot be done; then it is rewound."""
        return False

    def rewind(self, iteration: int) -> None:
        """Take back what was written for `iteration` and later: the run goes on from there."""

    def close(self) -> None:
        """Finish the output. A later `write` opens it again."""


class WindowSize:
    """An attribute of writers: the iterations to smooth over; that of the storage if it is None."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{name}_given"

    def __get__(self, writer: Any, owner: type | None = None) -> Any:
        if writer is None:  # asked of the class
            return self
        if given := vars(writer).get(self._name):
            return given
        return get_event_storage().smoothing_window if has_event_storage() else WINDOW

    def __set__(self, writer: Any, size: int | None) -> None:
        vars(writer)[self._name] = size


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
