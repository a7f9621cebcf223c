"""``edgerun fpga status``: shows what runs on a board."""

from __future__ import annotations

import json

import typer

from edgerun_hw.cli.target import Broker, Host, Json, SshOption, Sysroot, find_target


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("status", help="Show what runs on a board, and what was interrupted.")(
        status_command
    )


def status_command(
    host: Host = None,
    sysroot: Sysroot = None,
    as_json: Json = False,
    broker: Broker = None,
    ssh_option: SshOption = None,
) -> None:
    """Shows what runs on a board, what came before, and what was interrupted."""
    from edgerun_hw.deploy import client
    from edgerun_hw.deploy.screen import Screen, show_status

    target = find_target(host, sysroot, broker, ssh_option)
    with Screen().waiting(f"asking {target.name}"), client.Board(target) as board:
        status = {"target": target.name, **board.hello(), **board.ask("status")}
    status.pop("ok")
    if as_json:
        typer.echo(json.dumps(status))
    else:
        show_status(status)
