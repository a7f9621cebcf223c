"""``edgerun fpga bench``: simulated cycles of matrices, modelled tokens per second."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli.screen.messages import say
from edgerun.errors import InputError

if TYPE_CHECKING:
    from edgerun_hw.model.profile import Profile
    from edgerun_hw.overlay.geometry import Geometry

# Of BitNet-2B-4T: attention's output, and down; one that no geometry divides evenly.
MATRICES = ((2560, 2560), (2560, 6912), (1000, 1001))
GEOMETRY = "decode-300"

_Board = Annotated[
    str | None,
    typer.Option("--board", help="Board whose geometry, clock and measured rates are taken."),
]
_Geometry = Annotated[
    str | None,
    typer.Option(
        "--geometry", help=f"Geometry of the overlay. Default: the board's, or {GEOMETRY}."
    ),
]
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
    str | None,
    typer.Option(
        "--profile",
        help="Rates measured on a board: a profile's name, or a file that ends in .json. Default: "
        "those of the board, or of a KV260.",
    ),
]
_Storage = Annotated[
    str, typer.Option("--kv-cache", help="How keys and values are stored: int8 or fp16.")
]
_Simulate = Annotated[
    bool, typer.Option("--simulate/--no-simulate", help="Count cycles in the simulated RTL.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("bench", help="Simulate cycles of matrices, and model tokens per second.")(bench)


def bench(
    board: _Board = None,
    geometry: _Geometry = None,
    context: _Context = 1024,
    clock: _Clock = None,
    profile: _Profile = None,
    kv_cache: _Storage = "int8",
    simulate: _Simulate = True,
    as_json: _Json = False,
) -> None:
    """Prints cycles that were simulated and tokens per second that are modelled."""
    from edgerun_hw.build.boards import load_board
    from edgerun_hw.devices.simulated import geometry_named
    from edgerun_hw.model.measured import STORAGE
    from edgerun_hw.model.profile import DEFAULT, load_profile, profile_for

    described = load_board(board) if board else None
    geometry = geometry or (described.geometry if described else GEOMETRY)
    chosen = geometry_named(geometry)
    rates = load_profile(profile or (profile_for(board) if board else DEFAULT))
    mhz = clock or float((described or load_board(rates.board)).pl_clock_mhz)
    if kv_cache not in STORAGE:
        raise InputError(f"--kv-cache {kv_cache!r} is not modelled: there are {', '.join(STORAGE)}")
    report = {
        "board": board,
        "geometry": geometry,
        "context": context,
        "kv_cache": kv_cache,
        "simulated": _measure(chosen) if simulate else [],
        **_modelled(chosen, rates, mhz, context, kv_cache),
    }
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)


def _modelled(
    geometry: Geometry, rates: Profile, mhz: float, context: int, storage: str
) -> dict[str, Any]:
    """Tokens per second and terms, with measured rates and as a bound."""
    from edgerun_hw.model import measured, prompts, tokens
    from edgerun_hw.model.cycles import Assumptions

    assumptions = Assumptions(clock_mhz=mhz)
    terms, bound_terms = {}, {}
    for model, shape in tokens.SHAPES.items():
        of_token = measured.measured_terms(
            shape, geometry, rates, mhz, context=context, storage=storage
        )
        terms[model] = tokens.term_table(of_token, measured.LABEL)
        bound_terms[model] = tokens.term_table(
            tokens.token_terms(shape, geometry, assumptions, context=context)
        )
    return {
        "assumptions": asdict(assumptions),
        "bound": tokens.comparison(geometry, assumptions, context=context),
        "bound_basis": f"{tokens.LABEL}: {assumptions}",
        "bound_terms": bound_terms,
        "profile": asdict(rates),
        "modelled": measured.measured_comparison(geometry, rates, mhz, storage=storage),
        "modelled_basis": measured.LABEL,
        "prompts": {
            model: tokens.term_table(
                prompts.prompt_terms(shape, geometry, rates, mhz), prompts.BESIDE, prompts.TOKENS
            )
            for model, shape in tokens.SHAPES.items()
        },
        "terms": terms,
    }


def _show(report: dict[str, Any]) -> None:
    from edgerun.cli.screen.tables import print_rows

    geometry, context, profile = report["geometry"], report["context"], report["profile"]
    if report["simulated"]:
        print(f"geometry {geometry}, cycles simulated by Verilator")
        print_rows(report["simulated"])
    print(f"geometry {geometry}, {context} tokens of context, a bound; {report['bound_basis']}")
    print_rows(report["bound"])
    print(
        f"geometry {geometry}, {report['assumptions']['clock_mhz']:g} MHz, {report['kv_cache']} "
        f"keys and values, rates of {profile['title']} ({profile['source']})"
    )
    print_rows(report["modelled"])
    for model, table in report["terms"].items():
        print(f"{model}: every term of a token at {context} tokens ({report['modelled_basis']})")
        print_rows(table)
    for model, table in report["prompts"].items():
        print(f"{model}: every term of a prompt of 128 tokens ({report['modelled_basis']})")
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
