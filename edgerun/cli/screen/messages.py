"""Lines for people, on stderr; stdout is for what was asked for."""

from __future__ import annotations

import logging
import sys

from edgerun.cli.screen.visible import folded, visible

MEMORY_FULL = "the reply ends here because the memory for keys and values is full"


def say(text: str) -> None:
    """Prints a line about what is going on."""
    tell(f"edgerun: {text}")


def tell(text: str, indent: str = "  ") -> None:
    """Prints a line of help or status in a conversation.

    Args:
        text: what is printed.
        indent: begins the lines after the first, where a terminal is too narrow for one.
    """
    print(folded(visible(text), sys.stderr, indent), file=sys.stderr, flush=True)


def show_warnings() -> None:
    """From now on warnings of all parts are said."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, handlers=[_Saying()])


class _Saying(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(self.format(record))
        except Exception:
            self.handleError(record)
