"""``edgerun fpga bench``: simulated cycles of matrices, modelled tokens per second."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli.screen.messages import say

if TYPE_CHECKING:
    from edgerun_hw.overlay.geometry import Geometry

# Of BitNet-2B-4T: attention's output, and down; one that no geometry divides evenly.
MATRICES = ((2560, 2560), (2560, 6912), (1000, 1001))

_Geometry = Annotated[str, typer.Option("--geometry", help="Geometry of the overlay.")]
_Context = Annotated[int, typer.Option("--context", min=1, help="Tokens attended to.")]
_Clock = Annotated[
    float | None,
    typer.Option(
        "--clock",
        min=1,
        max=10_000,
        help="Assumed clock in MHz. Default: what board.toml asks for.",
    ),
]
_Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        help="Rates measured on a board: a profile's name, or a file that ends in .json.",
    ),
]
_Simulate = Annotated[
    bool, typer.Option("--simulate/--no-simulate", help="Count cycles in the simulated RTL.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("bench", help="Simulated cycles of matrices, modelled tokens per second.")(bench)


def bench(
    geometry: _Geometry = "decode-300",
    context: _Context = 1024,
    clock: _Clock = None,
    profile: _Profile = "kv260",
    simulate: _Simulate = True,
    as_json: _Json = False,
) -> None:
    """Prints cycles that were simulated and tokens per second that are modelled."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.build.boards import load_board
    from edgerun_hw.devices.simulated import geometry_named
    from edgerun_hw.model import measured, tokens
    from edgerun_hw.model.cycles import Assumptions
    from edgerun_hw.model.profile import load_profile

    chosen, rates = geometry_named(geometry), load_profile(profile)
    board = load_board(rates.board)
    mhz = clock or float(board.pl_clock_mhz)
    assumptions = Assumptions(clock_mhz=mhz)
    simulated = _measure(chosen) if simulate else []
    bound = tokens.comparison(chosen, assumptions, context=context)
    rows = measured.measured_comparison(chosen, rates, mhz)
    terms = {
        model: tokens.term_table(
            measured.measured_terms(shape, chosen, rates, mhz, context=context), measured.LABEL
        )
        for model, shape in tokens.SHAPES.items()
    }
    if as_json:
        report = {
            "geometry": geometry,
            "simulated": simulated,
            "bound": bound,
            "bound_terms": {
                model: tokens.term_table(
                    tokens.token_terms(shape, chosen, assumptions, context=context)
                )
                for model, shape in tokens.SHAPES.items()
            },
            "modelled": rows,
            "terms": terms,
            "profile": asdict(rates),
            "assumptions": asdict(assumptions),
            "context": context,
        }
        print(json.dumps(report, ensure_ascii=False))
        return
    if simulated:
        print(f"geometry {geometry}, cycles simulated by Verilator")
        print_rows(simulated)
    print(
        f"geometry {geometry}, {context} tokens of context, a bound; {tokens.LABEL}: {assumptions}"
    )
    print_rows(bound)
    print(f"geometry {geometry}, {mhz:g} MHz, rates of {rates.title} ({rates.source})")
    print_rows(rows)
    for model, table in terms.items():
        print(f"{model}: every term of a token at {context} tokens ({measured.LABEL})")
        print_rows(table)


def _measure(geometry: Geometry) -> list[dict[str, Any]]:
    """Cycles of representative matrices on the simulated RTL, ideal memory and a KV260's."""
    from edgerun_hw.simulate.measure import measure_matrix
    from edgerun_hw.simulate.memory import DDR_PRESETS

    rows = []
    for name, memory in (("ideal", None), ("kv260", DDR_PRESETS["kv260"])):
        for n, k in MATRICES:
            measurement = measure_matrix(geometry, n, k, memory, progress=say)
            rows.append(
                {
                    "matrix": f"{n} x {k}",
                    "columns": measurement.columns,
                    "memory": name,
                    "cycles": measurement.cycles,
                    "of peak": f"{measurement.efficiency:.3f}",
                    "waits for weights": measurement.stall_weights,
                    "tables": measurement.stall_tables,
                    "output": measurement.stall_output,
                    "of DDR": "" if memory is None else f"{measurement.ddr_efficiency:.3f}",
                    "bit-exact": measurement.exact,
                }
            )
    return rows
