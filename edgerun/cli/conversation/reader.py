"""Where ``edgerun chat`` gets its messages: an editor at a terminal, plain lines from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from edgerun.cli.conversation.keyboard import has_editor
from edgerun.cli.conversation.store import HISTORY
from edgerun.errors import PromptError

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

    from edgerun.cli.conversation.store import ChatStore

ReadLine: TypeAlias = Callable[[], str]
PROMPT = "> "
CONTINUED = "\\"
QUOTES = '"""'


def reader(fill: Callable[[], str], store: ChatStore) -> ReadLine:
    """Returns a function that reads one message; it raises EOFError at the end.

    Args:
        fill: says how full the context is, for the prompt.
        store: keeps what is typed.
    """
    if sys.stdin.isatty():
        return _editor(fill, store) if has_editor() else lambda: _plain(fill)
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    return lambda: read_message(sys.stdin)


def _plain(fill: Callable[[], str]) -> str:
    """Reads a message at a terminal that can only print."""
    print(f"{fill()} {PROMPT}", end="", file=sys.stderr, flush=True)
    return read_message(sys.stdin)


def read_message(lines: TextIO) -> str:
    """Reads one message: a line, more after a backslash at its end, or a block in quotes.

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
        goes_on = text.endswith(CONTINUED) and not is_open("\n".join(message))
        message.append(text.removesuffix(CONTINUED) if goes_on else text)
        if not line or not (goes_on or is_open("\n".join(message))):
            return "\n".join(message)


def is_open(text: str) -> bool:
    """Whether a message has begun with three quotes that are not closed yet."""
    return text.startswith(QUOTES) and QUOTES not in text[len(QUOTES) :]


def unquoted(text: str) -> str:
    """A message without the three quotes around it, and the line ends beside them."""
    if not text.startswith(QUOTES):
        return text
    inside, _, after = text[len(QUOTES) :].partition(QUOTES)
    return inside.removeprefix("\n").removesuffix("\n") + after


def _editor(fill: Callable[[], str], store: ChatStore) -> ReadLine:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output
    from prompt_toolkit.styles import Style

    # The editor draws on stderr, so that stdout holds the replies alone.
    session: PromptSession[str] = PromptSession(
        history=_history(store),
        key_bindings=_keys(),
        completer=_completer(),
        complete_while_typing=False,
        multiline=True,
        enable_suspend=True,
        prompt_continuation=lambda width, line, wrapped: " " * width,
        style=Style([("", "bold"), ("rprompt", "nobold"), ("completion-menu", "nobold")]),
        output=create_output(sys.stderr),
    )
    # Not the function itself, which would be asked at every key: it encodes the whole chat.
    return lambda: session.prompt(PROMPT, rprompt=fill())


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith(CONTINUED):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        elif is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _completer() -> Completer:
    """Completes commands, names of settings, and files."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    from edgerun.cli.conversation.commands import ALIASES, COMMANDS
    from edgerun.engine.chooser.params import text_options

    files = PathCompleter(expanduser=True)
    settings = [entry.name for entry in text_options()]
    words = {"set": settings, "history": ["on", "off", "clear"]}

    class OfCommands(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Completion]:
            text = document.text_before_cursor
            if not text.startswith("/") or "\n" in text:
                return
            name, space, argument = text[1:].partition(" ")
            if space and name in ("save", "load"):
                yield from files.get_completions(Document(argument), complete_event)
                return
            begun = argument if space else name
            for word in words.get(name, []) if space else (*COMMANDS, *ALIASES):
                if word.startswith(begun):
                    yield Completion(word, start_position=-len(begun))

    return OfCommands()


def _history(store: ChatStore) -> History:
    """Keeps messages between chats while the store is on."""
    from prompt_toolkit.history import FileHistory

    class KeptHistory(FileHistory):
        def load_history_strings(self) -> Iterable[str]:
            return super().load_history_strings() if store.has_history else ()

        def store_string(self, string: str) -> None:
            if store.is_on:
                with contextlib.suppress(OSError):  # a folder that cannot be written
                    store.make_history_file()
                    super().store_string(string)

    return KeptHistory(str(store.folder / HISTORY))
