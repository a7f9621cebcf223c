"""What ``edgerun fpga doctor`` reports: one row for each thing that was looked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ready", "missing", "not needed here", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        part: group of the report: tools, board, permissions, pynq or devices.
        what: what was looked for.
        state: whether it is there.
        observed: what is there, e.g. a version.
        advice: what to do, or "".
    """

    part: str
    what: str
    state: State
    observed: str = ""
    advice: str = ""


def on_board(root: Path = Path("/")) -> bool:
    """Whether this machine has programmable logic that Linux manages."""
    return (root / "sys/class/fpga_manager/fpga0").exists()


def text_of(path: Path) -> str:
    """A file's text without what surrounds it; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""
