"""``edgerun fpga broker``: writes the helper that runs as root on a board."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BROKER_HELP = """Write the helper that runs as root on a board, as one file.

It belongs in /usr/local/sbin, owned by root and of mode 755; a line in /etc/sudoers.d lets your \
user start it. docs/fpga-deploy.md has the commands.
"""


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("broker", help=BROKER_HELP)(broker_command)


def broker_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path(
        "edgerun-fpga-broker"
    ),
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is no such helper.")
    ] = False,
) -> None:
    """Writes the helper that runs as root on the board; an older one is replaced."""
    from edgerun.files.output import check_output, write_output
    from edgerun_hw.deploy.broker_file import broker_file, digest, is_broker_file
    from edgerun_hw.deploy.screen import Screen

    check_output(out, replace=force or is_broker_file(out))
    content = broker_file()
    write_output(out, content, mode=0o755)
    Screen().say(f"{out}: {len(content) / 1000:.1f} kB, sha256 {digest(content)}")
