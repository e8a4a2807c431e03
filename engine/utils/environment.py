"""What a run depends on besides its config: machine, versions, seeds, code.

`python -m engine.utils.environment` prints it: put that into a bug report.
"""

import logging
import os
import platform
import random
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from tabulate import tabulate

TORCH_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

_PACKAGES = ("numpy", "fvcore", "iopath", "yacs", "omegaconf", "tensorboard")
_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|CUDA|NCCL|GLOO|TORCH|PYTORCH|MASTER)_\w+|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE"
)

_CODE = re.compile(r"\.(py|ya?ml|toml|cfg|ini|sh|ipynb|cu|cpp|h)$")
_COPY = re.compile(r"(^|/)code_\d{8}_\d{6}/")  # of this function
MOST_FILES = 2_000

logger = logging.getLogger(__name__)


def collect_env_info() -> str:
    """`environment_table`, and how torch was built."""
    return f"{environment_table()}\n{torch.__config__.show()}"


def environment_table() -> str:
    """A table of platform, versions, devices, threads and the environment variables that matter."""
    rows = [
        ("platform", platform.platform()),
        ("Python", f"{sys.version.split()[0]} ({sys.executable})"),
        ("engine", f"{_version('train-engine')} ({Path(__file__).parents[1]})"),
        ("torch", f"{torch.__version__} ({Path(torch.__file__).parent})"),
        *((package, _version(package)) for package in _PACKAGES),
        ("CUDA of this torch", torch.version.cuda or "none"),
        *_devices(),
        ("CPUs", f"{os.cpu_count()}, usable by this process: {usable_cpus()}"),
        ("threads of torch", torch.get_num_threads()),
        *(
            (name, value)
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name)
        ),
    ]
    return tabulate(rows)


def seed_all_rng(seed: int | None = None) -> int:
    """Seed torch, NumPy and `random`, and return the seed; None or a negative one means any."""
    if seed is None or seed < 0:
        seed = random.SystemRandom().randrange(2**31)
        logger.info("Using a random seed: %d", seed)
    else:
        logger.info("Using seed %d", seed)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    return seed


def git_state(folder: str | os.PathLike[str] = ".") -> dict[str, str]:
    """The state of the code around `folder`: commit, branch, status (changed files), diff.

    Without git or outside a repository there is one key, "error". Untracked files are in the
    status, but not in the diff; before the first commit, commit and diff are ''.
    """
    try:
        top = _git(folder, "rev-parse", "--show-toplevel")
        if top.returncode != 0:
            return {"error": top.stderr.strip()}
        root = top.stdout.strip()
        return {
            "commit": _git(root, "rev-parse", "--verify", "HEAD").stdout.strip(),
            "branch": _git(root, "branch", "--show-current").stdout.strip(),
            "status": _git(root, "status", "--porcelain").stdout,
            "diff": _git(root, "diff", "--no-ext-diff", "--no-color", "HEAD").stdout,
        }
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}


def copy_code(target: str, folder: str | os.PathLike[str] = ".", *, whole: bool = False) -> None:
    """Copy the code around `folder` that git neither knows nor ignores, and that is in no diff, to
    `target/untracked`; with `whole` all that git does not ignore, to `target/all`.

    Outside of git only what is in `folder` can be copied, and only as a `whole`.
    """
    kinds = ["--cached", "--others"] if whole else ["--others"]
    try:
        root = _git(folder, "rev-parse", "--show-toplevel").stdout.strip()
        listed = _git(root or folder, "ls-files", *kinds, "--exclude-standard", "-z").stdout
    except (OSError, subprocess.TimeoutExpired):
        root = listed = ""
    names = listed.split("\0")
    if whole and not root:
        names = _list_files(folder)
    names = [name for name in names if _CODE.search(name) and not _COPY.search(name)]
    if len(names) > MOST_FILES:
        logger.warning("Of %d files of code the first %d are copied", len(names), MOST_FILES)
    for name in names[:MOST_FILES]:
        copy = os.path.join(target, "all" if whole else "untracked", name)
        with suppress(OSError):  # it may be gone by now
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(os.path.join(root or folder, name), copy)


def _list_files(folder: str | os.PathLike[str]) -> list[str]:
    """Those in the folder and below, but for what is hidden or installed there."""
    names = []
    for path, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and one != "site-packages"]
        names += [os.path.relpath(os.path.join(path, name), folder) for name in files]
    return names


def _git(folder: str | os.PathLike[str], *command: str) -> subprocess.CompletedProcess[str]:
    # Without optional locks: asking must not disturb a git command that runs beside us.
    return subprocess.run(
        ["git", "--no-optional-locks", *command],
        cwd=folder,
        capture_output=True,
        timeout=60,
        encoding="utf-8",
        errors="replace",
    )


def _devices() -> list[tuple[str, str]]:
    rows = [("CUDA", "available" if torch.cuda.is_available() else "not available")]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        memory = f"{device.total_memory / 2**30:.1f} GiB"
        rows.append((f"cuda:{index}", f"{device.name}, {memory}, sm_{device.major}{device.minor}"))
    rows.append(("MPS", "available" if torch.backends.mps.is_available() else "not available"))
    rows.append(("XPU", "available" if torch.xpu.is_available() else "not available"))
    for index in range(torch.xpu.device_count()):
        rows.append((f"xpu:{index}", torch.xpu.get_device_name(index)))
    return rows


def usable_cpus() -> int:
    """How many CPUs this process may use: containers and schedulers pin it to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS cannot say


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    print(collect_env_info())
