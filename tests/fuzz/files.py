"""A folder as a value: what the mutators change and what a case is written from."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Special:
    """Something that is no plain file.

    Attributes:
        kind: ``"symlink"``, ``"hardlink"``, ``"fifo"`` or ``"folder"``.
        target: what a link points to, seen from the folder.
    """

    kind: str
    target: str = ""


Content: TypeAlias = "bytes | Special"
Files: TypeAlias = dict[str, Content]
Mutate: TypeAlias = Callable[[Files, random.Random], Files]
Change: TypeAlias = Callable[[bytes, random.Random], bytes]


def read_files(folder: Path) -> Files:
    """The plain files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def write_files(files: Files, folder: Path) -> int:
    """Makes the folder; returns the bytes of its plain files."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: content for name, content in files.items() if isinstance(content, bytes)}
    for name, content in plain.items():
        (folder / name).write_bytes(content)
    for name, content in files.items():
        if isinstance(content, Special):
            _make_special(folder / name, content)
    return sum(map(len, plain.values()))


def _make_special(path: Path, special: Special) -> None:
    if special.kind == "symlink":
        path.symlink_to(special.target)
    elif special.kind == "hardlink":
        os.link(path.parent / special.target, path)
    elif special.kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()


def seal(files: Files) -> Files:
    """Sizes and digests of the manifest made right again, so that a change passes the outer shell.

    A manifest that is no manifest any more stays as it is.
    """
    try:
        manifest = json.loads(files[MANIFEST])
        entries = manifest["files"]
        for name, entry in entries.items():
            content = files.get(name)
            if isinstance(content, bytes):
                entry["sha256"] = hashlib.sha256(content).hexdigest()
                entry["size"] = len(content)
        return {**files, MANIFEST: json.dumps(manifest).encode("utf-8", "surrogatepass")}
    except (ValueError, TypeError, KeyError, AttributeError):
        return files


def on_file(name: str, change: Change) -> Mutate:
    """A change of the bytes of one file."""

    def mutate(files: Files, draw: random.Random) -> Files:
        content = files[name]
        assert isinstance(content, bytes)
        return {**files, name: change(content, draw)}

    return mutate
