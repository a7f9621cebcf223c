"""Starts the helper: a conversation on stdin and stdout, or what a start of the board needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import PROTOCOL
from .board.system import System
from .errors import BrokerError
from .protocol import Channel
from .session import Session, boot

USAGE = "usage: edgerun-fpga-broker [boot | version]"


def main(arguments: Sequence[str]) -> int:
    """Runs the helper; returns the exit code."""
    if list(arguments) == ["version"]:
        print(f"protocol {PROTOCOL}")  # noqa: T201
        return 0
    if list(arguments) not in ([], ["boot"]):
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 2
    if os.geteuid() != 0:
        print("edgerun-fpga-broker: must run as root, through sudo", file=sys.stderr)  # noqa: T201
        return 2
    os.umask(0o022)
    system = System()
    if not arguments:
        Session(system, Channel(0, 1)).serve()
        return 0
    try:
        print(boot(system))  # noqa: T201
    except (BrokerError, OSError) as error:
        print(f"edgerun-fpga-broker: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
