"""Copies text: by the desktop's own program where there is one, else by asking the terminal."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys

from edgerun.env import terminal_erases

PROGRAMS = (
    ("wl-copy",),
    ("xclip", "-selection", "clipboard"),
    ("xsel", "--clipboard", "--input"),
    ("pbcopy",),
    ("clip.exe",),
)
PATIENCE_S = 2.0
MOST_BYTES = 74_994  # what terminals take in one sequence, before it is written in base64


def copy(text: str) -> str | None:
    """Puts a text on the clipboard.

    Returns:
        How it was done, for a person; None if there is no way.
    """
    data = text.encode("utf-8", "replace")
    for command in PROGRAMS:
        if shutil.which(command[0]) and _runs(command, data):
            return f"copied with {command[0]}"
    if sys.stderr.isatty() and terminal_erases() and len(data) <= MOST_BYTES:
        # OSC 52; a terminal that does not know it shows nothing.
        sys.stderr.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
        sys.stderr.flush()
        return "sent to the terminal's clipboard, if it lets programs use that"
    return None


def _runs(command: tuple[str, ...], data: bytes) -> bool:
    try:
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
