"""Lines for people, on stderr; stdout is for what was asked for."""

from __future__ import annotations

import sys

from edgerun.cli.screen.visible import folded, visible


def say(text: str) -> None:
    """Prints a line about what is going on."""
    tell(f"edgerun: {text}")


def tell(text: str) -> None:
    """Prints a line of help or status in a conversation."""
    print(folded(visible(text), sys.stderr), file=sys.stderr, flush=True)
