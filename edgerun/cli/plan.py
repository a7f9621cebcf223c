"""``edgerun plan``: which part of a model runs where, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from edgerun.cli import options


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("plan", help="Show which part of a model runs where.")(plan)


def plan(
    model: options.Model = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what was turned down too, and why.")
    ] = False,
    backend: options.BackendName = None,
    as_json: options.Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    from edgerun.loading import LoadOptions, chosen_backends, packing_of, resolve
    from edgerun.model.bundle import open_bundle
    from edgerun.plan import make_plan

    bundle = open_bundle(resolve(model))
    rows = make_plan(bundle.graph, chosen_backends(backend)).explain()
    shown = [asdict(row) for row in rows if explain or row.chosen]
    if as_json:
        print(json.dumps(shown, ensure_ascii=False))
        return
    from edgerun.cli.tables import print_pairs, print_rows

    print_rows([_line(row) for row in shown])
    if explain:
        bases = {row["backend"]: row["basis"] for row in shown if row["basis"]}
        print_pairs("estimates stand on", bases)
        packing = packing_of(bundle, LoadOptions())
        print_pairs("ternary weights in memory", {packing.name: packing.reason})


def _line(row: Mapping[str, Any]) -> dict[str, str]:
    """A placement as a person reads it."""
    ops = ", ".join(f"{count} {op}" for op, count in row["ops"].items())
    return {
        "phase": row["phase"],
        "back-end": row["backend"] if row["chosen"] else f"not {row['backend']}",
        "estimate": "" if row["seconds"] is None else f"{row['seconds'] * 1e3:.2f} ms",
        "what, or why not": ops if row["chosen"] else row["reason"],
    }
