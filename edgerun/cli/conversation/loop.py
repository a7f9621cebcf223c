"""The loop of ``edgerun chat``: reads messages and commands until the input ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgerun.cli.conversation.commands import run_command
from edgerun.cli.conversation.keyboard import has_editor, pastes_unmarked_at_last, typing_waits
from edgerun.cli.conversation.reader import ReadLine, unquoted
from edgerun.cli.screen.messages import say
from edgerun.errors import EdgerunError, InputError

if TYPE_CHECKING:
    from edgerun.cli.conversation.state import Conversation


def hold(conversation: Conversation, read: ReadLine) -> None:
    """Reads and answers until the input ends."""
    with pastes_unmarked_at_last():
        _hold(conversation, read)


def _hold(conversation: Conversation, read: ReadLine) -> None:
    while not conversation.done:
        try:
            text = read()
        except EOFError:
            _end_plain_line()
            return
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            _end_plain_line()
            continue  # clears the line, as in a shell
        if text.strip():
            with typing_waits():
                _handle(conversation, text)


def _end_plain_line() -> None:
    """Ends the line of the prompt at a terminal that can only print."""
    if sys.stdin.isatty() and not has_editor():
        print(file=sys.stderr, flush=True)


def _handle(conversation: Conversation, text: str) -> None:
    """Runs a command or answers a message; the caller's mistakes become one line."""
    try:
        if text.startswith("/"):
            run_command(conversation, text)
        else:
            conversation.answer(unquoted(text))
    except EdgerunError as error:
        say(str(error))
        conversation.failures += 1
        conversation.has_failed |= not isinstance(error, InputError)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        print(" [stopped]", file=sys.stderr, flush=True)
