#!/usr/bin/env python3
"""One HTML page of a run, or of several side by side: curves, last and best values, configs.

python tools/report.py output/digits
python tools/report.py output/first output/second -o comparison.html

The page is one file that needs no network. A run may still be going on.
"""

import argparse
import sys
from pathlib import Path

from engine.report import build_page, read_runs
from engine.utils import atomic_write

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="RUN_FOLDER", help="OUTPUT_DIR of a run"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default="report.html", metavar="FILE", help="the page to write"
    )
    args = parser.parse_args()
    try:
        page = build_page(read_runs(args.folders))
    except (OSError, ValueError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    try:
        with atomic_write(args.output, "w") as file:
            file.write(page)
    except OSError as error:
        sys.exit(
            f"{args.output} cannot be written ({error.strerror}): give -o a file in a folder that "
            "is there and may be written to"
        )
    print(f"Wrote {args.output} ({len(page.encode()) / 1e6:.2f} MB)")
