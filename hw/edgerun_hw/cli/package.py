"""``edgerun fpga package``: turns a bitstream into an application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun_hw.cli.target import Json

if TYPE_CHECKING:
    from edgerun_hw.deploy.package import Package

_Bitstream = Annotated[
    Path, typer.Argument(metavar="BIT|XSA", help="What Vivado wrote: a .bit or .xsa file.")
]
_Board = Annotated[str, typer.Option("--board", "-b", help="A folder in hw/boards, such as kv260.")]
_Overlay = Annotated[
    Path | None,
    typer.Option(
        "--overlay",
        help="Device tree overlay: a .dtbo, or a .dtso to compile with dtc. Default: the file "
        "of that name beside the bitstream, or one that is written from the .hwh.",
    ),
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder to write. Default: the name.")
]
_Name = Annotated[str, typer.Option("--name", help="Name of the application on the board.")]
_Hwh = Annotated[
    Path | None,
    typer.Option(
        "--hwh",
        help="Hardware description: clocks, port widths, addresses. Default: the one in the "
        ".xsa or beside the .bit.",
    ),
]
_Shell = Annotated[
    Path | None,
    typer.Option("--shell", help="A shell.json. Default: one for a design without slots."),
]
_Base = Annotated[
    str | None,
    typer.Option(
        "--base", help="Address of the overlay's registers, if no .hwh says it: 0xA0000000."
    ),
]
_Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Ed25519 private key (PEM) to sign the package with."),
]
_Release = Annotated[
    int,
    typer.Option(
        "--release",
        min=0,
        max=(1 << 31) - 1,
        help="Counts up; a board that trusts keys does not go back to a lower one.",
    ),
]
_Force = Annotated[
    bool,
    typer.Option("--force", help="Replace an existing package; other files in its folder stay."),
]


def register(app: typer.Typer) -> None:
    """Adds the command to the group."""
    app.command("package", help="Turn a bitstream into an application for a board.")(
        package_command
    )


def package_command(
    bitstream: _Bitstream,
    board: _Board,
    overlay: _Overlay = None,
    out: _Out = None,
    name: _Name = "edgerun-tlmm",
    hwh: _Hwh = None,
    shell: _Shell = None,
    base: _Base = None,
    sign: _Sign = None,
    release: _Release = 0,
    force: _Force = False,
    as_json: Json = False,
) -> None:
    """Turns a bitstream into an application that xmutil and this tool can load."""
    from edgerun_hw.deploy.package import Sources, make_package, write_package

    sources = Sources(
        bitstream,
        board,
        overlay or _overlay(bitstream),
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


def _overlay(bitstream: Path) -> Path | None:
    """The overlay beside the bitstream, if there is one."""
    from edgerun_hw.deploy.errors import PackageError

    if not bitstream.is_file():
        raise PackageError(f"{bitstream} is no file: name the .bit or .xsa that Vivado wrote")
    beside = [bitstream.with_suffix(suffix) for suffix in (".dtbo", ".dtso", ".dts")]
    return next((file for file in beside if file.is_file()), None)


def _address(text: str | None) -> int | None:
    from edgerun_hw.deploy.errors import PackageError

    try:
        return None if text is None else int(text, 0)
    except ValueError:
        raise PackageError(f"--base {text!r} is no address: write it as 0xA0000000") from None


def _described(package: Package) -> dict[str, Any]:
    from edgerun_hw.deploy.broker.application.manifest import MANIFEST

    manifest: dict[str, Any] = json.loads(package.files[MANIFEST])
    digest = package.manifest.digest
    built = dict(package.overlay)
    return {**manifest, "digest": digest, "signed": package.is_signed, "overlay": built}
