#!/usr/bin/env python3
"""Turn a checkpoint, a folder of shards or a .pth, into one file, in one process.

python tools/consolidate_checkpoint.py output/model_0004999 model.safetensors
python tools/consolidate_checkpoint.py output/model_final model.pth --weights-only
python tools/consolidate_checkpoint.py output/model_final.pth average.pth --average
"""

import argparse
import sys
from pickle import UnpicklingError

from engine.checkpoint import CheckpointError
from engine.checkpoint.consolidate import consolidate_checkpoint

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", help="a folder of shards, or a .pth")
    parser.add_argument("output", help="the file to write, .pth or .safetensors")
    parser.add_argument(
        "--weights-only", action="store_true", help="leave out optimizer, hooks and all else"
    )
    parser.add_argument(
        "--average", action="store_true", help="the weights that EMAHook has averaged, alone"
    )
    args = parser.parse_args()
    try:
        consolidate_checkpoint(
            args.checkpoint, args.output, weights_only=args.weights_only, average=args.average
        )
    except (CheckpointError, ImportError, OSError, ValueError, UnpicklingError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(f"Wrote {args.output}")
