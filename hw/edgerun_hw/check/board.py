"""What ``edgerun fpga doctor`` looks for on a board."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgerun_hw.build.boards import board_names, load_board
from edgerun_hw.check.findings import Finding, State, on_board, text_of
from edgerun_hw.deploy.broker.board import settings
from edgerun_hw.deploy.broker.board.boards import Board, identify
from edgerun_hw.deploy.broker.board.identity import compatible
from edgerun_hw.deploy.broker.board.loader import MANAGER, OVERLAYS, foreign_overlays
from edgerun_hw.deploy.broker.board.policy import SETTINGS, read_policy
from edgerun_hw.deploy.broker.board.system import System
from edgerun_hw.deploy.broker.errors import FailureError
from edgerun_hw.devices.native import memory
from edgerun_hw.devices.native.kernel import attribute

# Where XRT's library is on Ubuntu and on PYNQ's images (their `xrt` packages), and AMD's own.
XRT_LIBRARIES = ("usr/lib/libxrt_core.so.2", "opt/xilinx/xrt/lib/libxrt_core.so.2")
XRT_PATTERN = "usr/lib/*/libxrt_core.so.2"
ZOCL = ("sys/module/zocl", "sys/bus/platform/drivers/zocl-drm")
KIB_OF_MIB, MIB = 1024, 1 << 20
DEFAULT_BOARD = "kv260"  # that needs are computed for where there is none


def board(root: Path) -> Iterator[Finding]:
    """Whether this is a board that the overlay is built for."""
    if not on_board(root):
        advice = "not on a board: deploy to one with `edgerun fpga deploy`, or use --device cosim"
        yield Finding("board", "programmable logic", "not needed here", "", advice)
        return
    model = text_of(root / "proc/device-tree/model") or "unknown"
    try:
        match = _identified(root)
    except FailureError as error:
        match, advice = None, str(error)
    else:
        names = ", ".join(board_names())
        advice = (
            f'it names none of {names}: where it is one, say {{"board": NAME}} in /{SETTINGS}; '
            "hw/boards tells how to add others"
        )
    if match is None:
        yield Finding("board", "model", "missing", model, advice)
    else:
        yield Finding("board", "model", "ready", f"{model}: {match.name} ({match.part})")
        yield from _system(root, match)
    state = text_of(root / MANAGER / "state") or "unknown"
    works = state in ("operating", "unknown", "power up", "power off")
    advice = "" if works else "program it again: `edgerun fpga rollback`"
    yield Finding("board", "FPGA manager", "ready" if works else "broken", state, advice)
    firmware = root / "lib/firmware/xilinx"
    applications = sorted(f.name for f in firmware.iterdir()) if firmware.is_dir() else []
    text = ", ".join(applications) or "none"
    advice = "" if applications else "copy one with `edgerun fpga deploy`"
    yield Finding("board", "applications", "ready" if applications else "missing", text, advice)


def _system(root: Path, match: Board) -> Iterator[Finding]:
    """Which system the board runs, and whether its processors can run edgerun."""
    described = load_board(match.name)
    lines = text_of(root / "etc/os-release").splitlines()
    titles = [line.partition("=")[2] for line in lines if line.startswith("PRETTY_NAME=")]
    advice = f"docs/fpga-bringup.md is about {described.image}"
    yield Finding("board", "system", "ready", titles[0].strip('"') if titles else "unknown", advice)
    if described.remote_only:
        advice = (
            f"{described.remote_only}: run edgerun on another machine, with "
            "--device pynq-remote:HOST,BITSTREAM"
        )
        yield Finding("board", "processors", "missing", "", advice)


def logic(root: Path) -> Iterator[Finding]:
    """What is applied to the logic, and at which rate it runs."""
    if not on_board(root):
        return
    system = System(root)
    applied, others = system.names(OVERLAYS), foreign_overlays(system)
    advice = (
        f"{', '.join(others)} may hold the logic's region, which takes one overlay: "
        "take it away with `fpgautil -R` before you deploy"
        if others
        else ""
    )
    text = ", ".join(applied) or "none"
    yield Finding("board", "overlays", "broken" if others else "ready", text, advice)
    match = _identified_or_none(root)
    if match is None:
        return
    rate = system.read_text(settings.rate_file(match.family, settings.CLOCKS[0]))
    if rate.isdecimal():
        yield Finding("board", "clock pl0", "ready", settings.megahertz(int(rate)))
        return
    advice = (
        "deployment reads the clock's rate back: run as root, and mount debugfs (mount -t debugfs "
        "none /sys/kernel/debug)"
    )
    yield Finding("board", "clock pl0", "missing", "", advice)


def drivers(root: Path) -> Iterator[Finding]:
    """What pynq allocates memory through: XRT, and zocl in the kernel."""
    if not on_board(root):
        return
    loaded = any((root / path).exists() for path in ZOCL)
    advice = (
        ""
        if loaded
        else "pynq allocates through it: modprobe zocl, and have its device tree node applied "
        "(Kria-PYNQ's overlay `pynq` has one)"
    )
    yield Finding("board", "zocl", "ready" if loaded else "missing", "", advice)
    libraries = [root / path for path in XRT_LIBRARIES if (root / path).exists()]
    libraries += sorted(root.glob(XRT_PATTERN))
    advice = "" if libraries else "install it with the image's packages (xrt), or with Kria-PYNQ"
    text = f"/{libraries[0].relative_to(root)}" if libraries else ""
    yield Finding("board", "XRT", "ready" if libraries else "missing", text, advice)


def native_host(root: Path) -> Iterator[Finding]:
    """What ``--device board:host=native`` allocates memory through."""
    if not on_board(root):
        return
    names = memory.devices(root)
    if not names:
        advice = f"for host=native: {memory.NO_MODULE}"
        yield Finding("board", "u-dma-buf", "missing", "", advice)
    for name in names:
        folder = root / memory.CLASS / name
        mebibytes = (attribute(folder / "size") or 0) // MIB
        coherent = attribute(folder / "dma_coherent")
        advice = "its device sees caches and the overlay does not: make it without dma-coherent"
        state: State = "broken" if coherent else "ready"
        yield Finding("board", name, state, f"{mebibytes} MiB", advice if coherent else "")


def permissions(root: Path) -> Iterator[Finding]:
    """Whether this user may reach the overlay's registers."""
    if not on_board(root):
        return
    for name, needed_for in {
        "dev/mem": "registers are mapped through it",
        f"{MANAGER}/firmware": "programs the logic",
    }.items():
        path = root / name
        if os.access(path, os.W_OK):
            yield Finding("permissions", f"/{name}", "ready", "writable")
        elif not path.exists():
            advice = f"{needed_for}; see docs/fpga-bringup.md"
            yield Finding("permissions", f"/{name}", "missing", "", advice)
        else:
            advice = f"{needed_for}: run as root, or through the helper of `edgerun fpga deploy`"
            yield Finding("permissions", f"/{name}", "missing", "not writable", advice)


def contiguous_memory(
    root: Path, model: Path | None, context: int | None = None
) -> Iterator[Finding]:
    """Whether a model has room in memory of one piece.

    Args:
        root: of the machine's file system.
        model: a bundle; None for the default model. On a machine that is no board it is only
            computed what a board would need.
        context: tokens of a sequence; None for what the model was made for.
    """
    from edgerun.llm.loading import resolve
    from edgerun.model.bundle import open_bundle
    from edgerun_hw.backend.memory import contiguous_needs
    from edgerun_hw.overlay.geometry import capabilities_of

    if model is None and not on_board(root):
        return
    match = _identified_or_none(root)
    name = match.name if match else DEFAULT_BOARD
    described = load_board(name)
    bundle = open_bundle(resolve(model))
    can = capabilities_of(described.overlay)
    needs = contiguous_needs(bundle.graph, can, context or bundle.config.context_length)
    asked = f"cma={needs.cma_mib}M for {bundle.path.name} with {described.geometry}: {needs}"
    if not on_board(root):
        yield Finding("board", "contiguous memory", "not needed here", asked)
        return
    lines = text_of(root / "proc/meminfo").splitlines()
    total = next((line.split()[1] for line in lines if "CmaTotal" in line), "0")
    enough = int(total) >= needs.cma_mib * KIB_OF_MIB
    advice = "" if enough else f"boot with {asked}; all of it lies in memory of one piece"
    state: State = "ready" if enough else "missing"
    size = f"{int(total) // KIB_OF_MIB} MiB"
    yield Finding("board", "contiguous memory", state, size, advice)


def _identified(root: Path) -> Board | None:
    system = System(root)
    return identify(compatible(system), read_policy(system).board)


def _identified_or_none(root: Path) -> Board | None:
    try:
        return _identified(root)
    except FailureError:
        return None
