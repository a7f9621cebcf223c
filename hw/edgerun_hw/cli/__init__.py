"""The ``edgerun fpga`` group: one module a command."""

from __future__ import annotations

from importlib import import_module

import typer

SUMMARY = "Build, check and deploy the table-lookup overlay for FPGA boards."
# Modules of this package, in the order of the help.
COMMANDS = (
    "build",
    "check",
    "bench",
    "doctor",
    "package",
    "deploy",
    "status",
    "rollback",
    "broker",
)


def register(app: typer.Typer) -> None:
    """Adds ``fpga`` and its commands to the command line."""
    app.add_typer(command_group(), name="fpga")


def command_group() -> typer.Typer:
    """Returns the group with its commands."""
    group = typer.Typer(
        help=SUMMARY,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in COMMANDS:
        import_module(f"{__name__}.{name}").register(group)
    return group
