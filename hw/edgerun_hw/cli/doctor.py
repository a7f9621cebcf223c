"""``edgerun fpga doctor``: shows what is here for the overlay, and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

_Model = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="BUNDLE",
        help="Compute how much contiguous memory this model needs. Default: the default model.",
    ),
]
_Context = Annotated[
    int | None,
    typer.Option(
        "--context",
        min=1,
        help="Tokens whose keys and values shall have room. Default: what the model was made for.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("doctor", help="Show what is here for the overlay, and what is missing.")(doctor)


def doctor(model: _Model = None, context: _Context = None, as_json: _Json = False) -> None:
    """Prints what was found, one row each."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.check.diagnosis import diagnose

    findings = [asdict(finding) for finding in diagnose(model=model, context=context)]
    if as_json:
        print(json.dumps(findings, ensure_ascii=False))
        return
    print_rows(findings)
