"""``edgerun fpga build``, ``check``, ``bench`` and ``doctor``."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli.options import say
from edgerun.errors import BackendError

if TYPE_CHECKING:
    from edgerun_hw.geometry import Geometry

# Of BitNet-2B-4T: attention's output, and down; one that no geometry divides evenly.
MATRICES = ((2560, 2560), (2560, 6912), (1000, 1001))

_Board = Annotated[str, typer.Option("--board", help="Board: kv260, ultra96v2 or pynq-z2.")]
_Geometry = Annotated[
    str | None, typer.Option("--geometry", help="Geometry; the board's own if left out.")
]
_Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder to write; build-BOARD if left out.")
]
_Jobs = Annotated[int, typer.Option("--jobs", min=1, max=64, help="Processes Vivado may start.")]
_Run = Annotated[
    bool, typer.Option("--run/--no-run", help="Run Vivado if it is on the search path.")
]
_Geometries = Annotated[
    list[str] | None,
    typer.Option("--geometry", help="Geometry to lint and synthesise; can be repeated."),
]
_Cases = Annotated[
    int, typer.Option("--cases", min=0, help="Random commands to compare with the definition.")
]
_Seed = Annotated[int, typer.Option("--seed", help="Of the random commands.")]
_Full = Annotated[
    bool,
    typer.Option(
        "--full", help="Also synthesise the whole overlay and place and route; takes minutes."
    ),
]
_Context = Annotated[int, typer.Option("--context", min=1, help="Tokens attended to.")]
_Clock = Annotated[float, typer.Option("--clock", min=1, max=10_000, help="Assumed clock in MHz.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
_Simulate = Annotated[
    bool, typer.Option("--simulate/--no-simulate", help="Count cycles in the simulated RTL.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands to the group ``edgerun fpga``."""
    app.command("build", help="Write a Vivado project for a board, and build it.")(build)
    app.command("check", help="Check RTL, generated files, results and resources.")(check)
    app.command("bench", help="Simulated cycles of matrices, modelled tokens per second.")(bench)
    app.command("doctor", help="Show what is here for the overlay, and what is missing.")(doctor)


def build(
    board: _Board,
    geometry: _Geometry = None,
    output: _Output = None,
    jobs: _Jobs = 4,
    run: _Run = True,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun_hw.boards import load_board
    from edgerun_hw.devices import geometry_named
    from edgerun_hw.project import find_vivado, write_project

    chosen = load_board(board)
    name = geometry or chosen.geometry
    folder = output or Path(f"build-{board}")
    script = write_project(chosen, geometry_named(name), folder, jobs=jobs)
    say(f"wrote {folder}: {chosen.title}, geometry {name}, {chosen.pl_clock_mhz} MHz asked for")
    vivado = find_vivado() if run else None
    command = ["vivado", "-mode", "batch", "-nojournal", "-source", str(script)]
    if vivado is None:
        why = "Vivado is not on the search path" if run else "not run, as you asked"
        say(f"{why}; to build, run where Vivado is installed: {' '.join(command)}")
        say(f"then: edgerun fpga package {folder / 'out' / board}.xsa --board {board}")
        return
    done = subprocess.run([str(vivado), *command[1:]], check=False)
    if done.returncode != 0:
        raise BackendError(
            f"Vivado ended with code {done.returncode}: its last messages above say why, "
            "vivado.log has all of them"
        )


def check(
    geometry: _Geometries = None,
    cases: _Cases = 60,
    seed: _Seed = 1,
    full: _Full = False,
    as_json: _Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.checks import DEFAULT_GEOMETRIES, Plan, run_checks
    from edgerun_hw.devices import geometry_named

    names = tuple(geometry or DEFAULT_GEOMETRIES)
    for name in names:
        geometry_named(name)  # refuse first, then work for minutes
    plan = Plan(names, cases, seed, full, say)
    outcomes = list(run_checks(plan))
    failed = [outcome for outcome in outcomes if outcome.result == "failed"]
    if as_json:
        rows = [asdict(outcome) for outcome in outcomes]
        print(json.dumps({"passed": not failed, "checks": rows}, ensure_ascii=False))
    else:
        print_rows(
            [
                {
                    "check": outcome.check,
                    "of": outcome.subject,
                    "result": outcome.result,
                    "found": outcome.figure,
                    "s": f"{outcome.seconds:.1f}",
                }
                for outcome in outcomes
            ]
        )
    if failed:
        say(f"{len(failed)} of {len(outcomes)} checks failed")
        raise typer.Exit(1)


def bench(
    geometry: _Geometry = None,
    context: _Context = 1024,
    clock: _Clock = 250.0,
    simulate: _Simulate = True,
    as_json: _Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.devices import geometry_named
    from edgerun_hw.model import LABEL, SHAPES, Assumptions, comparison, token_table

    name = geometry or "decode-300"
    chosen = geometry_named(name)
    assumptions = Assumptions(clock_mhz=clock)
    measured = _measure(chosen) if simulate else []
    modelled = comparison(chosen, assumptions, context=context)
    terms = {
        model: token_table(shape, chosen, assumptions, context=context)
        for model, shape in SHAPES.items()
    }
    if as_json:
        found = {
            "geometry": name,
            "simulated": measured,
            "modelled": modelled,
            "terms": terms,
            "assumptions": asdict(assumptions),
            "context": context,
        }
        print(json.dumps(found, ensure_ascii=False))
        return
    if measured:
        print(f"geometry {name}, cycles simulated by Verilator")
        print_rows(measured)
    print(f"geometry {name}, {context} tokens of context; {LABEL}: {assumptions}")
    print_rows(modelled)
    for model, rows in terms.items():
        print(f"{model}: every term of a token ({LABEL})")
        print_rows(rows)


def doctor(as_json: _Json = False) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.diagnosis import diagnose

    findings = [asdict(finding) for finding in diagnose()]
    if as_json:
        print(json.dumps(findings, ensure_ascii=False))
        return
    print_rows(findings)


def _measure(geometry: Geometry) -> list[dict[str, Any]]:
    """Cycles of representative matrices on the simulated RTL, ideal memory and a KV260's."""
    from edgerun_hw.simulate.measure import measure_matrix
    from edgerun_hw.simulate.memory import DDR_PRESETS

    rows = []
    for name, memory in (("ideal", None), ("kv260", DDR_PRESETS["kv260"])):
        for n, k in MATRICES:
            found = measure_matrix(geometry, n, k, memory, progress=say)
            rows.append(
                {
                    "matrix": f"{n} x {k}",
                    "columns": found.columns,
                    "memory": name,
                    "cycles": found.cycles,
                    "of peak": f"{found.efficiency:.3f}",
                    "waits for weights": found.stall_weights,
                    "tables": found.stall_tables,
                    "output": found.stall_output,
                    "of DDR": "" if memory is None else f"{found.ddr_efficiency:.3f}",
                    "bit-exact": found.exact,
                }
            )
    return rows
