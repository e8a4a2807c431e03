"""The manifest of a folder: its checkpoints, with the size and the checksum of each."""

import hashlib
import json
import logging
import os
import threading
import time
from typing import Any

from engine.utils.files import atomic_write

logger = logging.getLogger(__name__)

_lock = threading.Lock()  # checkpointers of one process may share a folder


class Manifest:
    """`manifest.json`: for each checkpoint its size, SHA-256, iteration, run and time.

    A file is listed before it takes its name, beside the one that has the name until then
    (`before`). So whenever the process dies, what stands under a name is listed.
    """

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "manifest.json")
        self._folder = folder

    def announce(self, name: str, written: str, **facts: Any) -> None:
        """List the file that is complete at `written` and is about to be renamed to `name`."""
        record = {
            "size": os.path.getsize(written),
            "sha256": _sha256(written),
            "saved": time.strftime("%Y-%m-%d %H:%M:%S"),
            **facts,
        }
        with _lock:
            records = self._existing()
            if name in records:
                record["before"] = records[name]
            self._write({**records, name: record})

    def settle(self, name: str) -> None:
        """Forget what stood under `name` before the last file that was announced."""
        with _lock:
            records = self._existing()
            if records.get(name, {}).pop("before", None):
                self._write(records)

    def records(self) -> dict[str, dict[str, Any]]:
        """What is known of each checkpoint, by file name."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return json.load(file)["checkpoints"]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s is damaged (%s): checksums are not known", self.path, error)
            return {}

    def damage(self, name: str) -> str | None:
        """Why the file under this name is not the one that was saved; None if it is or is unlisted.

        Torch notices a file that was cut, but not a bit that changed.
        """
        record, path = self.records().get(name), os.path.join(self._folder, name)
        if record is None:
            return None
        size = os.path.getsize(path)
        expected = record["size"]
        while record is not None:
            if record["size"] == size and record["sha256"] == _sha256(path):
                return None
            record = record.get("before")
        if size != expected:
            return f"it has {size} bytes, and {expected} were saved"
        return "its checksum is not that of the file that was saved"

    def _existing(self) -> dict[str, dict[str, Any]]:
        return {
            name: record
            for name, record in self.records().items()
            if os.path.exists(os.path.join(self._folder, name))
        }

    def _write(self, records: dict[str, dict[str, Any]]) -> None:
        with atomic_write(self.path, "w") as file:
            json.dump({"checkpoints": records}, file, indent=2)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
