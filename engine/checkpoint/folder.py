"""A checkpoint that is a folder: the list of its files, and how it takes its name and goes."""

import hashlib
import json
import os
import secrets
import shutil
from typing import Any

from engine.utils.files import atomic_write, sync_folder

LISTING = "files.json"


def temporary_name(path: str) -> str:
    """A new name beside `path` for what is not complete; a killed process may leave it behind."""
    return f"{path}.{secrets.token_hex(4)}.tmp"


def secure_file(path: str) -> dict[str, Any]:
    """Bring a file to the disk; returns its entry in the list."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
    return {"size": os.path.getsize(path), "sha256": sha256_of(path)}


def write_listing(folder: str, files: dict[str, dict[str, Any]]) -> None:
    """List the files of the folder, which are all there is in it: from now on it is complete."""
    missing = [name for name in files if not os.path.exists(os.path.join(folder, name))]
    if missing:
        raise OSError(
            f"{folder} has no {missing[0]}, which another rank has written: sharded checkpoints "
            "need a folder that all machines share"
        )
    with atomic_write(os.path.join(folder, LISTING), "w") as file:
        json.dump({"files": files}, file, indent=2)


def is_listed(folder: str) -> bool:
    """Whether a folder has a list of its files, as checkpoints do."""
    return os.path.isfile(os.path.join(folder, LISTING))


def find_damage(folder: str, share: slice = slice(None)) -> str | None:
    """Why the folder is not as it was written; None if it is. Of its files a share is looked at."""
    try:
        listed = _read_listing(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {LISTING} cannot be read ({error}); a folder without one is no checkpoint"
    for name, entry in sorted(listed.items())[share]:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            return f"{name} is missing"
        if (size := os.path.getsize(path)) != entry["size"]:
            return f"{name} has {size} bytes, and {entry['size']} were saved"
        if sha256_of(path) != entry["sha256"]:
            return f"the checksum of {name} is not that of the file that was saved"
    return None


def size_and_checksum(path: str) -> tuple[int, str]:
    """Size and SHA-256 of a file; of a folder, its bytes in all and the SHA-256 of its list."""
    if not os.path.isdir(path):
        return os.path.getsize(path), sha256_of(path)
    size = sum(entry["size"] for entry in _read_listing(path).values())
    return size, sha256_of(os.path.join(path, LISTING))


def rename_folder(written: str, path: str) -> str | None:
    """Give a complete folder its name; returns where the one is now that had it before, if any.

    No system renames over a folder, so for a moment nothing has the name: see `Manifest.locate`.
    """
    old = temporary_name(path) if os.path.isdir(path) else None
    if old:
        os.rename(path, old)
    try:
        os.rename(written, path)
    except OSError:
        if old:
            os.rename(old, path)
        raise
    sync_folder(os.path.dirname(path))
    return old


def delete_checkpoint(path: str) -> None:
    """Delete a file, or a folder such that no half of it is ever left under its name."""
    if not os.path.isdir(path):
        os.remove(path)
        return
    if not path.endswith(".tmp"):
        whole, path = path, temporary_name(path)
        os.rename(whole, path)
    shutil.rmtree(path)


def sha256_of(path: str) -> str:
    """The checksum of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read_listing(folder: str) -> dict[str, dict[str, Any]]:
    with open(os.path.join(folder, LISTING), encoding="utf-8") as file:
        return json.load(file)["files"]
