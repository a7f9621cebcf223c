"""``edgerun plan``: which part of a model runs where, and why."""

from __future__ import annotations

import json
from typing import Annotated

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
    from edgerun.loading import chosen_backends, resolve
    from edgerun.model.bundle import open_bundle
    from edgerun.plan import make_plan

    graph = open_bundle(resolve(model)).graph
    rows = make_plan(graph, chosen_backends(backend)).explain()
    if not explain:
        rows = [row for row in rows if not row["backend"].startswith("not ")]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    from edgerun.cli.tables import print_rows

    print_rows(rows)
