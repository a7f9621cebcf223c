"""``edgerun fpga package|deploy|status|rollback|broker``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from edgerun_hw.deploy.client import Target
    from edgerun_hw.deploy.package import Package

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

BROKER_HELP = """Write the helper that runs as root on a board, as one file.

It belongs in /usr/local/sbin, owned by root and of mode 755; a line in /etc/sudoers.d lets your \
user start it. docs/fpga-deploy.md has the commands.
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for name, command, text in (
        ("package", package_command, "Turn a bitstream into an application for a board."),
        ("deploy", deploy_command, "Put an application on a board; on any failure the old runs."),
        ("status", status_command, "Show what runs on a board, and what was interrupted."),
        ("rollback", rollback_command, "Go back to the application before."),
        ("broker", broker_command, BROKER_HELP),
    ):
        app.command(name, help=text)(command)


def package_command(
    bitstream: Annotated[
        Path, typer.Argument(metavar="BIT|XSA", help="What Vivado wrote: a .bit or .xsa file.")
    ],
    board: Annotated[str, typer.Option("--board", "-b", help="kv260, ultra96v2 or pynq-z2.")],
    overlay: Annotated[
        Path | None,
        typer.Option(
            help="Device tree overlay: a .dtbo, or a .dtso to compile with dtc. Default: the file "
            "of that name beside the bitstream, or the one in hw/boards."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write. Default: the name.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Name of the application on the board.")
    ] = "edgerun-tlmm",
    hwh: Annotated[
        Path | None,
        typer.Option(
            help="Hardware description: clocks, port widths, addresses. Default: the one in the "
            ".xsa or beside the .bit."
        ),
    ] = None,
    shell: Annotated[
        Path | None, typer.Option(help="A shell.json. Default: one for a design without slots.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Address of the overlay's registers, if no .hwh says it: 0xA0000000."),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(help="Ed25519 private key (PEM) to sign the package with.")
    ] = None,
    release: Annotated[
        int,
        typer.Option(
            min=0,
            max=(1 << 31) - 1,
            help="Counts up; a board that trusts keys does not go back to a lower one.",
        ),
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    as_json: Json = False,
) -> None:
    """Turns a bitstream into an application that xmutil and this tool can load."""
    from edgerun_hw.deploy.package import Sources, make_package, write_package

    sources = Sources(
        bitstream,
        board,
        overlay or _overlay(bitstream, board),
        name,
        hwh,
        shell,
        _address(base),
        sign,
        release,
    )
    package, folder = make_package(sources), out or Path(name)
    write_package(package, folder, force)
    if as_json:
        typer.echo(json.dumps({"path": str(folder), **_described(package)}))
        return
    from edgerun_hw.deploy.screen import show_package

    show_package(folder, package)


def deploy_command(
    folder: Annotated[
        Path, typer.Argument(metavar="PACKAGE", help="Folder that `edgerun fpga package` wrote.")
    ],
    host: Host = None,
    sysroot: Sysroot = None,
    trust: Annotated[
        Path | None,
        typer.Option(help="Public keys (PEM); the package must be signed by one of them."),
    ] = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Load it again even if it is running.")
    ] = False,
    as_json: Json = False,
    broker: Broker = None,
    ssh_option: SshOption = None,
) -> None:
    """Puts an application on a board; whatever goes wrong, the old one runs again."""
    from edgerun_hw.deploy import client, plan, steps
    from edgerun_hw.deploy.package import read_package
    from edgerun_hw.deploy.screen import Screen

    target = _target(host, sysroot, broker, ssh_option)
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

    target = _target(host, sysroot, broker, ssh_option)
    with Screen().waiting(f"asking {target.name}"), client.Board(target) as board:
        found = {"target": target.name, **board.hello(), **board.ask("status")}
    found.pop("ok")
    if as_json:
        typer.echo(json.dumps(found))
    else:
        show_status(found)


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

    target = _target(host, sysroot, broker, ssh_option)
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


def _target(
    host: str | None, sysroot: Path | None, broker: str | None, ssh_option: list[str] | None
) -> Target:
    from edgerun.errors import InputError
    from edgerun_hw.deploy import client

    if host is not None and sysroot is not None:
        raise InputError("--host and --sysroot exclude each other")
    if sysroot is not None:
        return client.sysroot_target(sysroot)
    command = broker or client.BROKER
    if host is not None:  # an empty one is a mistake, not this machine
        return client.ssh_target(host, command, ssh_option or ())
    return client.local_target(command)


def _overlay(bitstream: Path, board: str) -> Path:
    from edgerun_hw.deploy.errors import PackageError
    from edgerun_hw.sources import hardware_folder

    if not bitstream.is_file():
        raise PackageError(f"{bitstream} is no file: name the .bit or .xsa that Vivado wrote")
    beside = [bitstream.with_suffix(suffix) for suffix in (".dtbo", ".dtso", ".dts")]
    for file in (*beside, hardware_folder("boards") / board / "edgerun-tlmm.dtso"):
        if file.is_file():
            return file
    raise PackageError(
        f"there is no device tree overlay beside {bitstream}: pass --overlay FILE.dtbo or FILE.dtso"
    )


def _address(text: str | None) -> int | None:
    from edgerun_hw.deploy.errors import PackageError

    try:
        return None if text is None else int(text, 0)
    except ValueError:
        raise PackageError(f"--base {text!r} is no address: write it as 0xA0000000") from None


def _described(package: Package) -> dict[str, Any]:
    from edgerun_hw.deploy.broker.manifest import MANIFEST

    manifest: dict[str, Any] = json.loads(package.files[MANIFEST])
    digest = package.manifest.digest
    return {**manifest, "digest": digest, "signed": package.is_signed}
