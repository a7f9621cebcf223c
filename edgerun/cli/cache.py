"""``edgerun cache``: what edgerun keeps on this machine and can make again."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgerun.cli import options

# Places in the cache folder, and what is there. Names of ours have a digest, except this file's:
# whoever names a folder of other things as the cache loses none of them.
MACHINE, MAX_PROFILE_BYTES = "machine.json", 1 << 24
CONTENTS = {
    "kernels-*": "compiled CPU kernels",
    MACHINE: "measured speed of this machine",
    "sharing/*": "what sharing layers of experts with devices costs",
    "models/*": "bundles of checkpoints that were loaded directly",
    "verified/*": "which weights were found whole",
    "simulators/*": "compiled simulators of the FPGA overlay",
    "fpga/synthesis/*": "results of synthesis",
    "openvino/*": "networks compiled for devices of OpenVINO",
    "ssh/*": "connections to boards",
}
DIGEST = re.compile(r"(?<![0-9a-z])(kernels-[0-9a-f]{16}$|[0-9a-f]{32})")
EXAMPLES = options.examples("edgerun cache show", "edgerun cache clear")


@dataclass(frozen=True, slots=True)
class Item:
    """What there is of a kind in the cache.

    Attributes:
        name: the folder or file in the cache folder.
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
        clear(folder)
    if as_json:
        print(json.dumps({"folder": str(folder), "items": [asdict(item) for item in items]}))
        return
    _print(folder, items, cleared=action == "clear")


def contents(folder: Path) -> Iterator[Item]:
    """What there is of ours in a cache folder; links are not followed."""
    for pattern, description in CONTENTS.items():
        sizes: dict[str, int] = {}
        for path in _own(folder, pattern):
            place = path if path.parent == folder else path.parent
            name = place.relative_to(folder).as_posix()
            sizes[name] = sizes.get(name, 0) + _bytes(path)
        yield from (Item(name, description, size) for name, size in sizes.items())


def clear(folder: Path) -> None:
    """Deletes what there is of ours in a cache folder, and folders that are empty then.

    Raises:
        StorageError: something cannot be deleted.
    """
    from edgerun.errors import StorageError

    for pattern in CONTENTS:
        for path in list(_own(folder, pattern)):
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(f"cannot delete all of {path}: {error.strerror}") from error
        for parent in _folders(folder, pattern):
            with contextlib.suppress(OSError):  # somebody else's files are there
                parent.rmdir()


def _own(folder: Path, pattern: str) -> Iterator[Path]:
    """Files and folders of a kind that edgerun has written."""
    if any(parent.is_symlink() for parent in _folders(folder, pattern)):
        return
    for path in sorted(folder.glob(pattern)):
        if DIGEST.search(path.name) or (pattern == MACHINE and _is_profile(path)):
            yield path


def _folders(folder: Path, pattern: str) -> list[Path]:
    """Those in the cache folder that hold a kind, the innermost first."""
    return [folder / parent for parent in Path(pattern).parents if parent.name]


def _is_profile(path: Path) -> bool:
    """Whether a file holds speeds of machines, of whatever version."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_PROFILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "profiles" in content


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
