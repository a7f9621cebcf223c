"""Runs the bench as a child, so that even one that is killed leaves a word about its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

FLAG = "--unsupervised"


def supervised(arguments: Sequence[str]) -> int:
    """Runs a program with ``FLAG`` and returns its exit code, having said how it ended.

    Args:
        arguments: of the interpreter: ``-m`` and a module, or a script, and what follows.

    Signals that ask to end are passed on, so that the child can say what it was doing.
    """
    child = subprocess.Popen([sys.executable, *arguments, FLAG])

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    status = child.wait()
    if status:
        print(f"bench: {ending(status)}", file=sys.stderr, flush=True)
    return status if status >= 0 else 128 - status


def ending(status: int) -> str:
    """Says what an exit status means."""
    if status >= 0:
        return f"the run ended with exit code {status}; what was measured is in the results file"
    name = signal.Signals(-status).name
    hint = " (out of memory, or somebody's time limit)" if -status == signal.SIGKILL else ""
    return f"the run was killed by {name}{hint}; what was measured is in the results file"
