"""``edgerun cache``: what edgerun keeps on this machine and can make again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgerun.cli import options

# Names in the cache folder, and what they are; nothing else there is ours to delete.
CONTENTS = {
    "kernels-*": "compiled CPU kernels",
    "machine.json": "measured speed of this machine",
    "sharing": "what sharing layers of experts with devices costs",
    "verified": "which weights were found whole",
    "simulators": "compiled simulators of the FPGA overlay",
    "fpga": "results of synthesis",
    "openvino": "networks compiled for devices of OpenVINO",
    "ssh": "connections to boards",
}
EXAMPLES = options.examples("edgerun cache show", "edgerun cache clear")


@dataclass(frozen=True, slots=True)
class Item:
    """A file or folder of the cache.

    Attributes:
        name: in the cache folder.
        what: it is.
        bytes: of its files together.
    """

    name: str
    what: str
    bytes: int


def cache(
    action: Annotated[
        str, typer.Argument(help="'show', or 'clear' to delete what is there.")
    ] = "show",
    as_json: options.Json = False,
) -> None:
    from edgerun import env
    from edgerun.errors import InputError

    if action not in ("show", "clear"):
        raise InputError(f"there is no action {action!r}: expected show or clear")
    folder = env.settings().cache_dir
    items = list(contents(folder))
    if action == "clear":
        clear(folder, items)
    if as_json:
        print(json.dumps({"folder": str(folder), "items": [asdict(item) for item in items]}))
        return
    _print(folder, items, cleared=action == "clear")


def contents(folder: Path) -> Iterator[Item]:
    """What there is of ours in a cache folder; links are not followed."""
    for pattern, description in CONTENTS.items():
        for path in sorted(folder.glob(pattern)):
            yield Item(path.name, description, _bytes(path))


def clear(folder: Path, items: list[Item]) -> None:
    """Deletes items of a cache folder.

    Raises:
        StorageError: one cannot be deleted.
    """
    from edgerun.errors import StorageError

    for item in items:
        path = folder / item.name
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete {error.filename}: {error.strerror}") from error


def _bytes(path: Path) -> int:
    files = [path] if path.is_symlink() or not path.is_dir() else path.rglob("*")
    return sum(file.lstat().st_size for file in files if file.is_symlink() or not file.is_dir())


def _print(folder: Path, items: list[Item], *, cleared: bool) -> None:
    from edgerun.cli.screen.tables import print_pairs, size

    if not items:
        print(f"{folder}: nothing is kept")
        return
    total = size(sum(item.bytes for item in items))
    title = f"{folder}: deleted {total}" if cleared else f"{folder}: {total}"
    print_pairs(title, {item.name: f"{size(item.bytes):>9}  {item.what}" for item in items})
    if cleared:
        print(
            "The next run compiles its kernels again; `edgerun doctor --calibrate` measures again."
        )
    else:
        print("`edgerun cache clear` deletes it; everything there can be made again.")
