"""``edgerun fpga rollback``: goes back to the application before."""

from __future__ import annotations

import json

import typer

from edgerun_hw.cli.target import Broker, DryRun, Host, Json, SshOption, Sysroot, find_target


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("rollback", help="Go back to the application before.")(rollback_command)


def rollback_command(
    host: Host = None,
    sysroot: Sysroot = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    broker: Broker = None,
    ssh_option: SshOption = None,
) -> None:
    """Goes back to the previous application, or finishes what was interrupted."""
    from edgerun_hw.deploy import client, plan, steps
    from edgerun_hw.deploy.screen import Screen

    target = find_target(host, sysroot, broker, ssh_option)
    screen = Screen()
    with client.Board(target) as board:
        with screen.waiting(f"connecting to {target.name}"):
            outcome = plan.Outcome(board.hello())
        todo = plan.rollback_steps(board, outcome)
        if dry_run:
            screen.dry_run(todo)
        else:
            with screen:
                steps.run(todo, screen.show, lambda: outcome.done)
    if as_json:
        typer.echo(json.dumps(vars(outcome)))
