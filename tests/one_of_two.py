"""The program of the two processes that the fixture `processes` starts: FILE RANK FOLDER."""

import json
import os
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

if __name__ == "__main__":
    file, rank, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    sys.path.insert(0, str(file.parent))
    print(json.dumps(import_module(file.stem).work(rank, folder)), flush=True)
    os._exit(0)  # a group that has lost a rank is not taken down in order
