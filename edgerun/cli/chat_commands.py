"""The slash commands of ``edgerun chat``: one function each, marked ``@command``."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from edgerun.errors import InputError

if TYPE_CHECKING:
    from edgerun.cli.chat import Conversation

Command: TypeAlias = Callable[["Conversation", str], None]
COMMANDS: dict[str, Command] = {}
WHOLE = ("top_k", "seed", "max_tokens")
SETTINGS = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
)


def run_command(conversation: Conversation, line: str) -> None:
    """Runs a line that starts with a slash.

    Raises:
        InputError: there is no such command, or its argument is unusable.
    """
    name, _, argument = line[1:].strip().partition(" ")
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{close[0]}?" if close else "see /help"
        raise InputError(f"there is no command /{name}: {hint}")
    COMMANDS[name](conversation, argument.strip())


def command(function: Command) -> Command:
    """Registers a command under its name, its docstring as help."""
    COMMANDS[function.__name__.removesuffix("_")] = function
    return function


def tell(text: str) -> None:
    """Prints a line of help or status; stdout is for tokens."""
    print(text, file=sys.stderr, flush=True)


@command
def help_(conversation: Conversation, argument: str) -> None:
    """Shows this list."""  # noqa: D401
    for name, function in COMMANDS.items():
        tell(f"  /{name:<8} {function.__doc__}")
    tell("  Enter sends; Alt-Enter, or a backslash at the end, starts a new line.")
    tell("  Ctrl-C stops a reply, Ctrl-D quits.")


@command
def system(conversation: Conversation, argument: str) -> None:
    """Shows or sets the system message; /system - removes it."""  # noqa: D401
    if argument:
        conversation.session.system = "" if argument == "-" else argument
    tell(f"system message: {conversation.session.system or 'none'}")


@command
def set_(conversation: Conversation, argument: str) -> None:
    """Shows or sets sampling, as in /set temperature 0.5 (or default)."""  # noqa: D401
    if argument:
        name, _, value = argument.replace("=", " ", 1).partition(" ")
        changed = {**conversation.settings, name: parsed(name, value.strip())}
        changed = {key: item for key, item in changed.items() if item is not None}
        conversation.llm.chat_params(**changed)
        conversation.settings = changed
    params = conversation.llm.chat_params(**conversation.settings)
    for name in SETTINGS:
        tell(f"  {name:<18} {getattr(params, name)}")


@command
def save(conversation: Conversation, argument: str) -> None:
    """Saves the chat: /save FILE."""  # noqa: D401
    conversation.session.save(file_named(argument))
    tell(f"saved to {argument}")


@command
def load(conversation: Conversation, argument: str) -> None:
    """Goes on with a saved chat: /load FILE."""  # noqa: D401
    conversation.session.load(file_named(argument))
    tell(f"loaded {len(conversation.session.messages)} messages from {argument}")


@command
def clear(conversation: Conversation, argument: str) -> None:
    """Forgets what was said, but for the system message."""  # noqa: D401
    conversation.session.clear()
    tell("cleared")


@command
def stats(conversation: Conversation, argument: str) -> None:
    """Shows speed and memory of the last reply."""  # noqa: D401
    from edgerun.cli.report import show_stats

    if conversation.last is None:
        raise InputError("there is no reply yet")
    show_stats(conversation.llm, conversation.last)


@command
def quit_(conversation: Conversation, argument: str) -> None:
    """Ends the chat."""  # noqa: D401
    conversation.done = True


def file_named(argument: str) -> str:
    """Checks that a command was given a file."""
    if not argument:
        raise InputError("name a file, for example /save story.chat")
    return argument


def parsed(name: str, text: str) -> Any:
    """Reads a value of /set; None goes back to the default.

    Raises:
        InputError: there is no such setting, or the text is no number.
    """
    if name not in SETTINGS:
        close = difflib.get_close_matches(name, SETTINGS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SETTINGS)}"
        raise InputError(f"there is no setting {name!r}: {hint}")
    if text in ("", "default", "none"):
        return None
    if name == "stop":
        return (text,)
    try:
        return int(text) if name in WHOLE else float(text)
    except ValueError:
        kind = "a whole number" if name in WHOLE else "a number"
        raise InputError(f"{name} is {text!r}; expected {kind} or 'default'") from None
