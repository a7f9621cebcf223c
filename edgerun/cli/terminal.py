"""Where ``edgerun chat`` gets its messages: an editor at a terminal, plain lines from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from edgerun.env import terminal_erases
from edgerun.errors import PromptError

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

ReadLine: TypeAlias = Callable[[], str]
PROMPT = "> "
CONTINUED = "\\"


def reader() -> ReadLine:
    """Returns a function that reads one message; it raises EOFError at the end."""
    if sys.stdin.isatty():
        return _editor() if terminal_erases() else _plain
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    return lambda: read_message(sys.stdin)


def _plain() -> str:
    """Reads a message at a terminal that can only print."""
    print(PROMPT, end="", file=sys.stderr, flush=True)
    return read_message(sys.stdin)


def read_message(lines: TextIO) -> str:
    """Reads one line; a backslash at its end goes on in the next one.

    Raises:
        EOFError: there are no more lines.
        PromptError: the input is not UTF-8.
    """
    message: list[str] = []
    while True:
        try:
            line = lines.readline()
        except UnicodeDecodeError as error:
            raise PromptError(
                "stdin is not UTF-8 text: convert it, for example with iconv"
            ) from error
        if not line and not message:
            raise EOFError
        text = line.rstrip("\r\n")
        if not line or not text.endswith(CONTINUED):
            return "\n".join([*message, text])
        message.append(text.removesuffix(CONTINUED))


def _editor() -> ReadLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    # The editor draws on stderr, so that stdout holds the replies alone.
    session: PromptSession[str] = PromptSession(
        history=_history(),
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation=lambda width, line, wrapped: " " * width,
        output=create_output(sys.stderr),
    )
    print("/help shows the commands, Ctrl-D quits.", file=sys.stderr)
    return lambda: session.prompt(PROMPT)


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(CONTINUED):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history() -> History:
    """Keeps messages between chats, unless the folder cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from edgerun import env

    file = env.settings().cache_dir / "chat_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
