"""The ``edgerun fpga`` group: collects the commands of the modules beside this one."""

from __future__ import annotations

from importlib import import_module

import typer

SUMMARY = "Build, check and deploy the table-lookup overlay for FPGA boards."
MODULES = ("edgerun_hw.cli_check", "edgerun_hw.cli_deploy")


def register(app: typer.Typer) -> None:
    """Adds ``fpga`` and its commands to the command line."""
    group = typer.Typer(
        help=SUMMARY,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in MODULES:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:  # something that the module needs
                raise
            continue
        module.register(group)
    app.add_typer(group, name="fpga")
