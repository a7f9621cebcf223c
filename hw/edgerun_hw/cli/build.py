"""``edgerun fpga build``: writes a Vivado project for a board, and builds it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from edgerun.cli.screen.messages import say
from edgerun.errors import BackendError

_Board = Annotated[str, typer.Option("--board", help="A folder in hw/boards, such as kv260.")]
_Geometry = Annotated[
    str | None, typer.Option("--geometry", help="Geometry; the board's own if left out.")
]
_Output = Annotated[
    Path | None,
    typer.Option("--out", "--output", "-o", help="Folder to write; build-BOARD if left out."),
]
_Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Processes Vivado may start.")]
_Run = Annotated[
    bool, typer.Option("--run/--no-run", help="Run Vivado if it is on the search path.")
]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("build", help="Write a Vivado project for a board, and build it.")(build)


def build(
    board: _Board,
    geometry: _Geometry = None,
    output: _Output = None,
    jobs: _Jobs = 4,
    run: _Run = True,
) -> None:
    """Writes the folder that Vivado builds from, and runs Vivado where it is installed."""
    from edgerun_hw.build.boards import load_board
    from edgerun_hw.build.project import find_vivado, write_project
    from edgerun_hw.devices.simulated import geometry_named

    chosen = load_board(board)
    name = geometry or chosen.geometry
    folder = output or Path(f"build-{board}")
    script = write_project(chosen, geometry_named(name), folder, jobs=jobs)
    say(f"wrote {folder}: {chosen.title}, geometry {name}, {chosen.pl_clock_mhz} MHz asked for")
    vivado = find_vivado() if run else None
    command = ["vivado", "-mode", "batch", "-nojournal", "-source", str(script)]
    if vivado is None:
        why = "Vivado is not on the search path" if run else "not run, as you asked"
        say(f"{why}; to build, run where Vivado is installed: {shlex.join(command)}")
        design = str(folder / "out" / f"{board}.xsa")
        say(f"then: {shlex.join(['edgerun', 'fpga', 'package', design, '--board', board])}")
        return
    process = subprocess.run([str(vivado), *command[1:]], check=False)
    if process.returncode != 0:
        raise BackendError(
            f"Vivado ended with code {process.returncode}: its last messages above say why, "
            "vivado.log has all of them"
        )
