"""EventWriter: what carries the storage's content to a file, a console or a tracker."""


class EventWriter:
    """Base class of writers. A writer finds its storage with `get_event_storage()`.

    A new writer needs only `write`; what it has not written yet is
    `get_event_storage().unwritten(self)`.
    """

    def write(self) -> None:
        """Write what came since the last call."""
        raise NotImplementedError

    def rewind(self, iteration: int) -> None:
        """Take back what was written for `iteration` and later: the run goes on from there."""

    def close(self) -> None:
        """Finish the output. A later `write` opens it again."""
