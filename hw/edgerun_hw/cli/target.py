"""The board that a command is about: its options, and how it is reached."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from edgerun_hw.deploy.client import Target

Host = Annotated[
    str | None,
    typer.Option("--host", help="Board to reach with ssh, as user@board. Default: this machine."),
]
Sysroot = Annotated[
    Path | None, typer.Option("--sysroot", help="Folder of an emulated board, to try things out.")
]
Broker = Annotated[
    str | None,
    typer.Option("--broker", help="Command that starts the helper on the board.", hidden=True),
]
SshOption = Annotated[
    list[str] | None,
    typer.Option("--ssh-option", metavar="NAME=VALUE", help="Option for ssh, as after its -o."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check what can be checked, print the steps, and stop.")
]


def find_target(
    host: str | None, sysroot: Path | None, broker: str | None, ssh_option: list[str] | None
) -> Target:
    """Returns the board that the options name.

    Raises:
        InputError: they contradict each other.
    """
    from edgerun.errors import InputError
    from edgerun_hw.deploy import client

    if host is not None and sysroot is not None:
        raise InputError("--host and --sysroot exclude each other")
    if sysroot is not None:
        return client.sysroot_target(sysroot)
    if broker is not None and not broker.strip():
        raise InputError("--broker names no command")
    command = broker or client.BROKER
    if host is not None:  # an empty one is a mistake, not this machine
        return client.ssh_target(host, command, ssh_option or ())
    return client.local_target(command)
