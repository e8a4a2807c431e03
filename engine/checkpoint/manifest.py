"""The manifest of a folder: its checkpoints, with the size and the checksum of each."""

import json
import logging
import os
import threading
import time
from typing import Any

from engine.checkpoint.folder import find_damage, size_and_checksum
from engine.utils.files import atomic_write

logger = logging.getLogger(__name__)

_lock = threading.Lock()  # checkpointers of one process may share a folder


class Manifest:
    """`manifest.json`: for each checkpoint its size, SHA-256, iteration, run and time.

    A checkpoint is listed before it takes its name, beside the one that has the name until then
    (`before`). So whenever the process dies, what stands under a name is listed. For a folder of
    shards, which takes the name of another in two steps, it is also told where it was `written`.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "manifest.json")
        self._folder = folder

    def announce(self, name: str, written: str, **facts: Any) -> None:
        """List what is complete at `written` and is about to be renamed to `name`."""
        size, checksum = size_and_checksum(written)
        record = {
            "size": size,
            "sha256": checksum,
            "saved": time.strftime("%Y-%m-%d %H:%M:%S"),
            **facts,
        }
        if os.path.isdir(written):
            record["written"] = os.path.basename(written)
        with _lock:
            records = self._existing()
            if name in records:
                record["before"] = records[name]
            self._write({**records, name: record})

    def settle(self, name: str) -> None:
        """Forget what stood under `name` before the last one that was announced."""
        with _lock:
            records = self._existing()
            record = records.get(name, {})
            if record.keys() & {"before", "written"}:
                records[name] = {k: v for k, v in record.items() if k not in ("before", "written")}
                self._write(records)

    def records(self) -> dict[str, dict[str, Any]]:
        """What is known of each checkpoint, by file name."""
        try:
            with open(self.path, encoding="utf-8") as file:
                records = json.load(file)["checkpoints"]
            if all({"size", "sha256"} <= record.keys() for record in records.values()):
                return records
            error: Exception = KeyError("size or sha256")
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as caught:
            error = caught
        logger.warning("%s is damaged (%s): checksums are not known", self.path, error)
        return {}

    def locate(self, name: str) -> str:
        """The path of a checkpoint. It has another name if a process died while it renamed it."""
        path = os.path.join(self._folder, name)
        if not os.path.exists(path) and (written := self.records().get(name, {}).get("written")):
            other = os.path.join(self._folder, written)
            return other if os.path.isdir(other) else path
        return path

    def finish_renames(self) -> None:
        """Give checkpoints their names that a killed process has not; for the one that saves."""
        for name in self.records():
            path = os.path.join(self._folder, name)
            if (found := self.locate(name)) != path:
                os.rename(found, path)

    def damage(self, name: str, share: slice = slice(None)) -> str | None:
        """Why what is under this name is not what was saved; None if it is, or a file is unlisted.

        Torch notices a file that was cut, but not a bit that changed. With a `share`, each rank
        looks at some of the files.
        """
        record, path = self.records().get(name), self.locate(name)
        if os.path.isdir(path):
            if damage := find_damage(path, share):
                return damage
        elif not [path][share]:
            return None
        if record is None:
            return None
        found = size_and_checksum(path)
        expected = record["size"]
        while record is not None:
            if (record["size"], record["sha256"]) == found:
                return None
            record = record.get("before")
        if found[0] != expected:
            return f"it has {found[0]} bytes, and {expected} were saved"
        return "its checksum is not that of the file that was saved"

    def _existing(self) -> dict[str, dict[str, Any]]:
        return {
            name: record
            for name, record in self.records().items()
            if os.path.exists(self.locate(name))
        }

    def _write(self, records: dict[str, dict[str, Any]]) -> None:
        with atomic_write(self.path, "w") as file:
            json.dump({"checkpoints": records}, file, indent=2)
