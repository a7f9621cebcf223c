"""``edgerun fpga deploy``: puts an application on a board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from edgerun_hw.cli.target import Broker, DryRun, Host, Json, SshOption, Sysroot, find_target

_Package = Annotated[
    Path, typer.Argument(metavar="PACKAGE", help="Folder that `edgerun fpga package` wrote.")
]
_Trust = Annotated[
    Path | None,
    typer.Option("--trust", help="Public keys (PEM); the package must be signed by one of them."),
]
_Force = Annotated[bool, typer.Option("--force", help="Load it again even if it is running.")]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command(
        "deploy", help="Put an application on a board; on any failure the old one runs on."
    )(deploy_command)


def deploy_command(
    folder: _Package,
    host: Host = None,
    sysroot: Sysroot = None,
    trust: _Trust = None,
    dry_run: DryRun = False,
    force: _Force = False,
    as_json: Json = False,
    broker: Broker = None,
    ssh_option: SshOption = None,
) -> None:
    """Puts an application on a board; whatever goes wrong, the old one runs again."""
    from edgerun_hw.deploy import client, plan, steps
    from edgerun_hw.deploy.package import read_package
    from edgerun_hw.deploy.screen import Screen

    target = find_target(host, sysroot, broker, ssh_option)
    screen = Screen()
    with screen.waiting(f"checking {folder}"):
        package = read_package(folder, trust)
    with client.Board(target) as board:
        with screen.waiting(f"connecting to {target.name}"):
            outcome = plan.Outcome(board.hello())
        todo = plan.deploy_steps(package, folder, board, outcome, screen.progress)
        if dry_run:
            screen.dry_run(todo)
        else:
            plan.check_board(package, outcome.board)
            if not force and plan.is_running(package, board):
                screen.say(f"{package.manifest.application} runs on {target.name} already")
                outcome.done = True
            else:
                with screen:
                    steps.run(todo, screen.show)
    if as_json:
        typer.echo(json.dumps(vars(outcome)))
