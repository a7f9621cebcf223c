"""``edgerun fpga doctor``: shows what is here for the overlay, and what is missing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("doctor", help="Show what is here for the overlay, and what is missing.")(doctor)


def doctor(as_json: _Json = False) -> None:
    """Prints what was found, one row each."""
    from edgerun.cli.screen.tables import print_rows
    from edgerun_hw.check.diagnosis import diagnose

    findings = [asdict(finding) for finding in diagnose()]
    if as_json:
        print(json.dumps(findings, ensure_ascii=False))
        return
    print_rows(findings)
