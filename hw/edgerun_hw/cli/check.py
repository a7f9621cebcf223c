"""``edgerun fpga check``: checks RTL, generated files, results and resources."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from edgerun.cli.screen.messages import say

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
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("check", help="Check RTL, generated files, results and resources.")(check)


def check(
    geometry: _Geometries = None,
    cases: _Cases = 60,
    seed: _Seed = 1,
    full: _Full = False,
    as_json: _Json = False,
) -> None:
    """Runs the checks; the exit status is 1 when one fails."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.check.checks import DEFAULT_GEOMETRIES, Plan, run_checks
    from edgerun_hw.devices.simulated import geometry_named

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
                    "figure": outcome.figure,
                    "s": f"{outcome.seconds:.1f}",
                }
                for outcome in outcomes
            ]
        )
    if failed:
        say(f"{len(failed)} of {len(outcomes)} checks failed")
        raise typer.Exit(1)
