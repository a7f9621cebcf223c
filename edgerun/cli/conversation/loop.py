"""The loop of ``edgerun chat``: reads messages and commands until the input ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgerun.cli.conversation.commands import run_command
from edgerun.cli.conversation.keyboard import typing_waits
from edgerun.cli.conversation.reader import ReadLine, unquoted
from edgerun.cli.screen.messages import say
from edgerun.errors import EdgerunError, InputError

if TYPE_CHECKING:
    from edgerun.cli.conversation.state import Conversation


def hold(conversation: Conversation, read: ReadLine) -> None:
    """Reads and answers until the input ends."""
    while not conversation.done:
        try:
            text = read()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            continue  # clears the line, as in a shell
        if text.strip():
            with typing_waits():
                _handle(conversation, text)


def _handle(conversation: Conversation, text: str) -> None:
    """Runs a command or answers a message; the caller's mistakes become one line."""
    try:
        if text.startswith("/"):
            run_command(conversation, text)
        else:
            conversation.answer(unquoted(text))
    except EdgerunError as error:
        say(str(error))
        if not text.startswith("/"):
            conversation.unanswered += 1
            conversation.has_failed |= not isinstance(error, InputError)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        print(" [stopped]", file=sys.stderr, flush=True)
