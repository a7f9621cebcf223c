"""Runs single cases again, and keeps their files.

Run as::

    python -m tests.fuzz.replay KIND SEED [SEED ...] [--keep FOLDER] [--plant NAME]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.client import Servers
from tests.fuzz.files import write_files
from tests.fuzz.kinds import KINDS


def main(arguments: Sequence[str]) -> int:
    """Runs the cases; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.replay")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--keep", type=Path, help="write the files of each case below this folder")
    parser.add_argument("--plant", default="", help="a bug to put in, see plants.py")
    given = parser.parse_args(arguments)
    if given.keep:
        for seed in given.seeds:
            write_files(KINDS[given.kind].make(seed), given.keep / f"{given.kind}-{seed}")
    with Servers(1) as servers:
        summary = servers.run(given.kind, given.seeds, given.plant)
    for outcome in summary.outcomes:
        sys.stdout.write(f"{outcome}\n")
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
