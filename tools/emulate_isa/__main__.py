"""Runs edgerun on a processor that is not at hand: in an emulator.

    python -m tools.emulate_isa x86 [--cpu icelake-client] [--only TEXT] [--verbose]
    python -m tools.emulate_isa aarch64 [--cpu cortex-a53] [--suite replies] [-- -k gemm]
    python -m tools.emulate_isa tiles -- -m pytest -q tests/conformance/kernels -k amx

Run it in the repository's root. Exits with 1 when something fails.
"""

from __future__ import annotations

import argparse
import sys

from . import aarch64, tiles, x86
from .aarch64 import command as aarch64_command
from .tiles import command as tiles_command
from .x86 import command as x86_command

TARGETS = {
    "x86": (x86, x86_command),
    "aarch64": (aarch64, aarch64_command),
    "tiles": (tiles, tiles_command),
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.emulate_isa", description=__doc__)
    targets = parser.add_subparsers(dest="target", required=True)
    for name, (package, command) in TARGETS.items():
        command.add_arguments(targets.add_parser(name, help=package.__doc__))
    options = parser.parse_args()
    try:
        return TARGETS[options.target][1].run(options)
    except RuntimeError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
