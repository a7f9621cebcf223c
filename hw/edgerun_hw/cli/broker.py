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
) -> None:
    """Writes the helper that runs as root on the board."""
    from edgerun.errors import StorageError
    from edgerun_hw.deploy.broker_file import broker_file, digest
    from edgerun_hw.deploy.screen import Screen

    content = broker_file()
    try:
        out.write_bytes(content)
        out.chmod(0o755)
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}") from None
    Screen().say(f"{out}: {len(content) / 1000:.1f} kB, sha256 {digest(content)}")
