"""Things that are no regular files, under a file's name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# Kind, and what a refusal says of it.
ODDITIES = {
    "link": "a symbolic link",
    "dangling link": "a symbolic link",
    "link to a device": "a symbolic link",
    "folder": "a folder",
    "pipe": "a pipe",
    "socket": "a socket",
}


def make_oddity(path: Path, kind: str) -> Path:
    """Makes one; a file that was there is what a link leads to."""
    aside = path.with_name(f"{path.name}.aside")
    if path.exists():
        os.replace(path, aside)
    else:
        aside.write_bytes(b"elsewhere")
    if kind == "link":
        path.symlink_to(aside)
    elif kind == "dangling link":
        path.symlink_to(path.with_name("nowhere"))
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        _make_socket(path)
    return path


def _make_socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:  # a socket's path has at most 107 bytes
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)
