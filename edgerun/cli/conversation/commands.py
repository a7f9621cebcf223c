"""The slash commands of ``edgerun chat``: one function each, marked ``@command``."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from edgerun.cli.screen.messages import tell
from edgerun.cli.screen.thoughts import dim
from edgerun.cli.screen.visible import folded, shortened, visible
from edgerun.engine.chooser.params import text_options
from edgerun.engine.session_file import is_session
from edgerun.env import terminal_erases
from edgerun.errors import InputError
from edgerun.values import suggestion, whole_number

if TYPE_CHECKING:
    from edgerun.cli.conversation.state import Conversation
    from edgerun.engine.chooser.option import Option

Command: TypeAlias = Callable[["Conversation", str], None]
COMMANDS: dict[str, Command] = {}
ALONE: set[str] = set()  # commands that take nothing behind their names
NAME_AND_VALUE = re.compile(r"^([^\s=]*)\s*=?\s*(.*)$", re.DOTALL)  # with or without a "="
SHOWN = 40  # columns of a message in a line about it
ALIASES = {"?": "help", "bye": "quit", "exit": "quit", "q": "quit"}


def run_command(conversation: Conversation, line: str) -> None:
    """Runs a line that starts with a slash.

    Raises:
        InputError: there is no such command, or its argument is unusable.
    """
    typed, _, argument = line[1:].strip().partition(" ")
    try:
        name = command_name(typed)
    except InputError as error:
        if not argument and "/" not in typed:  # rather a command than the beginning of a message
            raise
        raise InputError(
            f"{error}; a message that begins with a slash goes into quotes, as in "
            f'"""{shortened(line, SHOWN)}"""'
        ) from error
    if argument.strip() and name in ALONE:
        raise InputError(f"/{typed} takes nothing behind it, and {argument.strip()!r} is there")
    COMMANDS[name](conversation, argument.strip())


def command_name(typed: str) -> str:
    """The name in ``COMMANDS`` of what was typed after the slash.

    Raises:
        InputError: there is no such command.
    """
    name = ALIASES.get(typed, typed)
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, (*COMMANDS, *ALIASES), 1)
        hint = f"did you mean /{close[0]}?" if close else "see /help"
        raise InputError(f"there is no command /{name}: {hint}")
    return name


def command(function: Command) -> Command:
    """Registers a command under its name, its docstring as help."""
    COMMANDS[function.__name__.removesuffix("_")] = function
    return function


def alone(function: Command) -> Command:
    """Registers a command that takes nothing behind its name."""
    ALONE.add(function.__name__.removesuffix("_"))
    return command(function)


@command
def help_(conversation: Conversation, argument: str) -> None:
    """Shows this list, or a line of it: /help NAME."""  # noqa: D401
    for name in [command_name(argument.removeprefix("/"))] if argument else COMMANDS:
        names = ", ".join(f"/{name}" for name in (name, *_spellings(name)))
        tell(f"  {names:<22} {COMMANDS[name].__doc__}", indent=" " * 25)
    if argument:
        return
    tell('  Enter sends; Alt-Enter, or \\ at the end, makes a line; """ surrounds a block.')
    tell("  Tab completes commands, Ctrl-C stops a reply, Ctrl-D quits.")


def _spellings(name: str) -> list[str]:
    return [alias for alias, command in ALIASES.items() if command == name]


@alone
def retry(conversation: Conversation, argument: str) -> None:
    """Answers the last message again."""  # noqa: D401
    if not conversation.exchanges():
        raise InputError("there is no message to answer again: nothing was said yet")
    if conversation.llm.chat_params(**conversation.settings).is_greedy:
        tell("the likeliest reply is the same each time: /set temperature 0.8 varies it")
    conversation.retry()


@alone
def undo(conversation: Conversation, argument: str) -> None:
    """Takes back the last message and its reply."""  # noqa: D401
    text = str(conversation.undo()["content"])
    conversation.keep()
    tell(f'took back "{shortened(text, SHOWN)}" and its reply ({conversation.fill()} tokens)')


@command
def forget(conversation: Conversation, argument: str) -> None:
    """Drops the N oldest messages and replies: /forget N."""  # noqa: D401
    count = whole_number(argument) or 0
    exchanges = len(conversation.exchanges())
    if not argument and exchanges:
        raise InputError(
            f"say how many messages to forget, 1 to {exchanges}, for example /forget 1"
        )
    if not 1 <= count <= exchanges:
        expected = f"expected 1 to {exchanges}" if exchanges else "nothing was said yet"
        raise InputError(f"cannot forget {argument or 'any'} messages: {expected}")
    conversation.forget(count)
    conversation.keep()
    tell(f"forgot {count} of {exchanges} messages and replies ({conversation.fill()} tokens)")


@alone
def show(conversation: Conversation, argument: str) -> None:
    """Shows what was said."""  # noqa: D401
    for message in conversation.session.messages:
        role, text = str(message["role"]), visible(str(message["content"]))
        begins = {"user": "> ", "assistant": ""}.get(role, f"[{role}] ")
        if thoughts := str(message.get("reasoning_content", "")):
            print(dim(_block(visible(thoughts)), sys.stderr), file=sys.stderr)
        block = _block(begins + text)
        print(bold(block) if role == "user" else block, file=sys.stderr)
    tell(f"{conversation.fill()} tokens")


def _block(text: str) -> str:
    return "\n".join(folded(line, sys.stderr, "") for line in text.split("\n"))


@alone
def copy(conversation: Conversation, argument: str) -> None:
    """Copies the last reply to the clipboard."""  # noqa: D401
    from edgerun.cli.conversation.clipboard import copy as put

    replies = [item for item in conversation.session.messages if item["role"] == "assistant"]
    if not replies:
        raise InputError("there is no reply yet")
    how = put(str(replies[-1]["content"]))
    if how is None:
        raise InputError("there is no clipboard here: /save FILE keeps the chat in a file")
    tell(how)


@command
def place(conversation: Conversation, argument: str) -> None:
    """Shows or sets who computes: /place prefill=openvino:NPU."""  # noqa: D401
    from edgerun.plan.places import Places

    if argument:
        conversation.llm.place(argument)
    model = conversation.llm.model
    places = Places.read(model.options.place) if model.options.place else None
    if places is None or places.prefill == places.decode:
        tell(f"computed by {', '.join(backend.name for backend in model.backends)}")
    else:
        tell(f"prompts are computed by {places.prefill}, replies by {places.decode}")


@command
def system(conversation: Conversation, argument: str) -> None:
    """Shows or sets the system message; - removes it."""  # noqa: D401
    if argument:
        conversation.session.system = "" if argument == "-" else argument
        conversation.keep()
    tell(f"system message: {conversation.session.system or 'none'}")


@command
def set_(conversation: Conversation, argument: str) -> None:
    """Shows or sets sampling: /set NAME VALUE, /set NAME default."""  # noqa: D401
    name, value = NAME_AND_VALUE.findall(argument)[0]
    entries = (setting(name),) if name else text_options()
    if name and value:
        changed = {**conversation.settings, name: parsed(entries[0], value)}
        changed = {key: item for key, item in changed.items() if item is not None}
        conversation.check(changed)
        conversation.settings = changed
    values = conversation.llm.chat_params(**conversation.settings).values()
    for entry in entries:
        tell(f"  {entry.name:<21} {entry.kind.write(values[entry.name])}", indent=" " * 24)


@command
def save(conversation: Conversation, argument: str) -> None:
    """Saves the chat: /save FILE."""  # noqa: D401
    path = file_named(argument, "save")
    if path.is_file() and not is_session(path):
        raise InputError(f"{argument} is there and is no saved chat: name another file")
    conversation.session.save(path)
    tell(f"saved to {argument}")


@command
def load(conversation: Conversation, argument: str) -> None:
    """Goes on with a saved chat: /load FILE."""  # noqa: D401
    conversation.session.load(file_named(argument, "load"))
    conversation.keep()
    count = len(conversation.session.messages)
    tell(f"loaded {count} messages from {argument} ({conversation.fill()} tokens)")


@alone
def clear(conversation: Conversation, argument: str) -> None:
    """Forgets what was said, but for the system message."""  # noqa: D401
    conversation.session.clear()
    conversation.keep()
    tell(f"cleared ({conversation.fill()} tokens)")


@command
def history(conversation: Conversation, argument: str) -> None:
    """What is kept on disk: /history off, on or clear."""  # noqa: D401
    store = conversation.store
    if store is None:
        raise InputError("nothing of this chat is kept: it is not at a terminal")
    if argument not in ("", "on", "off", "clear"):
        raise InputError(f"/history {argument}: expected on, off or clear")
    if argument in ("on", "off"):
        store.switch(on=argument == "on")
    if argument == "clear":
        count = store.clear()
        tell(f"deleted {count} file{'' if count == 1 else 's'}")
    if store.is_on:
        tell(f"messages and the last chat are kept in {store.folder}")
    elif store.files():
        tell(f"nothing more is kept; what is in {store.folder} stays until /history clear")
    else:
        tell(f"nothing is kept in {store.folder}")


@alone
def stats(conversation: Conversation, argument: str) -> None:
    """Shows speed and memory of the last reply."""  # noqa: D401
    from edgerun.cli.screen.report import show_stats

    if conversation.last is None:
        raise InputError("there is no reply yet")
    show_stats(conversation.llm, conversation.last)


@alone
def quit_(conversation: Conversation, argument: str) -> None:
    """Ends the chat."""  # noqa: D401
    conversation.done = True


def bold(text: str) -> str:
    """A text as a terminal shows it in bold; as it is where there is none."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stderr.isatty() and terminal_erases() else text


def file_named(argument: str, command: str) -> Path:
    """The file that a command was given; ~ is the home folder, as in a shell.

    Raises:
        InputError: it was given none.
    """
    if not argument:
        raise InputError(f"name a file, for example /{command} story.chat")
    return Path(os.path.expanduser(argument))


def setting(name: str) -> Option:
    """What /set knows by a name.

    Raises:
        InputError: there is no such setting.
    """
    settings = {entry.name: entry for entry in text_options()}
    if name not in settings:
        raise InputError(f"there is no setting {name!r}{suggestion(name, list(settings))}")
    return settings[name]


def parsed(entry: Option, text: str) -> Any:
    """Reads a value of /set; None goes back to the default.

    Raises:
        InputError: the text is no value of the setting.
    """
    if text == "none" and entry.kind.write(entry.default) != "none":  # it always has a value
        raise InputError(f"{entry.name} cannot be none: /set {entry.name} default sets it back")
    return None if text in ("default", "none") else entry.read(text)
