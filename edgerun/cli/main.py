"""The command line: finds the command, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong use or unusable input, 130 interrupted, 141 the reader of
our output went away. Tokens and reports go to stdout, everything else to stderr.

What commands there are is in ``commands.py``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from edgerun.cli.commands import (
    COMMANDS,
    OPTION_ALIASES,
    OPTION_FIELDS,
    application,
    command_names,
    option_name,
    overview,
    why_not,
)
from edgerun.cli.screen.help import use_plain_pages
from edgerun.cli.screen.messages import show_warnings
from edgerun.cli.screen.nearest import nearest
from edgerun.cli.screen.visible import folded, visible
from edgerun.errors import EdgerunError, InputError

INTERRUPTED = 130
READER_GONE = 141
AND = " and "
ABOUT_ARGUMENTS = re.compile(r"(?P<names>[^\W\d]\w*( and [^\W\d]\w*)?) (is|are both|has|names) ")
EXPECTED = {  # by what a validator of typer's calls the finding
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: without the program's name; None takes those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _replace_closed_streams()
    _use_utf8()
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("edgerun: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return READER_GONE
    except Exception as error:
        code = _report(error, words)
        try:
            sys.stdout.flush()
        except OSError:  # the disk is full, which may be what was reported
            _drop_output()
        return code


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--help"
    if first in ("--version", "-V", "-v", "version"):
        from edgerun import __version__

        print(f"edgerun {__version__}")
    elif first in ("--help", "-h") or arguments == ["help"]:
        print(overview())
    elif first == "help":
        return _dispatch([*arguments[1:], "--help"])
    elif first.startswith("-"):
        raise InputError(f"there is no option {first} before a command; see 'edgerun --help'")
    elif first not in COMMANDS and first not in command_names():
        raise InputError(why_not(first))
    else:
        from typer.main import get_command

        show_warnings()
        # Not `application(...)()`: that turns interrupts and broken pipes into errors of its own.
        group = get_command(application([first]))
        use_plain_pages(group)
        with group.make_context("edgerun", arguments) as context:
            group.invoke(context)
    return 0


def _report(error: Exception, words: Sequence[str] = ()) -> int:
    """Prints an error as one sentence; the traceback only for ourselves.

    Args:
        error: what ended the command.
        words: the command line.
    """
    if type(error).__name__ == "NoArgsIsHelpError":  # the page is its message
        print(getattr(error, "format_message", lambda: error)(), file=sys.stderr)
        return 2
    if _debugging() and type(error).__name__ not in ("Exit", "Abort"):
        import traceback

        traceback.print_exc()
    message, code = _described(error, words[:1])
    if isinstance(error, InputError):
        message = _with_flag(message, words)
    if message:
        print(folded(f"edgerun: {visible(message)}", sys.stderr), file=sys.stderr)
    return code


def _with_flag(message: str, words: Sequence[str]) -> str:
    """A message about arguments of the library, which are named by the flags that were typed."""
    said = ABOUT_ARGUMENTS.match(message)
    if said is None or not words or words[0] not in command_names():
        return message
    from typer.main import get_command

    group: Any = get_command(application(words[:1]))
    options = [
        entry for entry in group.commands[words[0]].params if entry.param_type_name == "option"
    ]
    named = [_flag_of(name, options, words[1:]) for name in said["names"].split(AND)]
    return f"{AND.join(named)}{message[said.end('names') :]}"


def _flag_of(name: str, options: Sequence[Any], words: Sequence[str]) -> str:
    """The flag among the words that sets an argument of the library; its name if there is none."""
    field = OPTION_FIELDS.get(name, name)
    flags = [flag for entry in options if entry.name == field for flag in entry.opts]
    typed = (word.partition("=")[0] if word.startswith("--") else word[:2] for word in words)
    return next((word for word in typed if _normal(word) in flags), name)


def _normal(flag: str) -> str:
    """Our spelling of a flag."""
    return f"--{option_name(flag[2:])}" if flag.startswith("--") else flag


def _described(error: Exception, command: Sequence[str] = ()) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, EdgerunError):
        return str(error), 2 if isinstance(error, InputError) else 1
    if type(error).__module__.startswith(("typer", "click")):
        return _usage_error(error, command)
    if isinstance(error, MemoryError):
        return "there is not enough memory", 1
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}", 1
    return (
        f"unexpected {type(error).__name__}: {error}; this is a defect, "
        "please report it with the traceback that EDGERUN_DEBUG=1 shows"
    ), 1


def _usage_error(error: Exception, words: Sequence[str]) -> tuple[str, int]:
    """Errors of typer: wrong options (which have a context) and Ctrl-C at one of its prompts."""
    if type(error).__name__ == "Exit":
        return "", int(getattr(error, "exit_code", 1))
    if type(error).__name__ == "Abort":
        return "", INTERRUPTED
    context = getattr(error, "ctx", None)
    command = context.command_path if context else " ".join(["edgerun", *words])
    return f"{_usage_message(error)}; see '{command} --help'", 2


def _usage_message(error: Exception) -> str:
    """What typer says, in one form whatever its version: the value named, the nearest option."""
    if type(error).__name__ == "NoSuchOption":
        name = getattr(error, "option_name", "")
        near = nearest(name, _options(getattr(error, "ctx", None)))
        is_text = not name.startswith("--") and "text" in _names(getattr(error, "ctx", None))
        hint = ": a text that begins so goes behind -p" if is_text else ""
        return f"there is no option {name}" + (f": did you mean {near}?" if near else hint)
    parameter: Any = getattr(error, "param", None)
    is_argument = getattr(parameter, "param_type_name", "") == "argument"
    if type(error).__name__ == "MissingParameter" and is_argument:  # as its page calls it
        return f"missing argument {parameter.metavar or parameter.name.upper()}"
    message: str = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    if "unexpected extra argument" in message and "text" in _names(getattr(error, "ctx", None)):
        message += ": a text of several words goes in quotes"
    if message.startswith("No such command "):
        return _unknown_member(message.split("'")[1], getattr(error, "ctx", None))
    details = getattr(error.__cause__, "errors", None)  # of a validator, which has the value
    if details:
        return _invalid_value(message, details()[0])
    return message[:1].lower() + message[1:]


def _unknown_member(name: str, context: Any) -> str:
    """What to say of a command that a group does not have."""
    near = nearest(name, getattr(getattr(context, "command", None), "commands", ()))
    return f"there is no command {name!r}" + (f": did you mean {near!r}?" if near else "")


def _invalid_value(message: str, detail: dict[str, Any]) -> str:
    """What a validator found, said as we say it ourselves; unknown findings in its own words."""
    option = message.partition(": ")[0].removeprefix("Invalid value for ").replace("'", "")
    expected = EXPECTED.get(detail["type"])
    if expected is None:
        return f"{message[:1].lower()}{message[1:]}, got {detail['input']!r}"
    return f"{option} is {detail['input']!r}; expected {expected.format(**detail.get('ctx', {}))}"


def _names(context: Any) -> list[str]:
    """Of the arguments and options of the command at hand."""
    return [entry.name for entry in getattr(getattr(context, "command", None), "params", ())]


def _options(context: Any) -> list[str]:
    """Long options of the command at hand, and how others spell them."""
    command = getattr(context, "command", None)
    names = [name for entry in getattr(command, "params", ()) for name in entry.opts]
    aliases = [f"--{alias}" for alias, name in OPTION_ALIASES.items() if f"--{name}" in names]
    return [name for name in (*names, *aliases, "--help") if name.startswith("--")]


def _debugging() -> bool:
    from edgerun import env

    try:
        return env.settings().debug >= 1
    except InputError:
        return False


def _replace_closed_streams() -> None:
    """Gives those that the caller closed the null device, before a file gets their numbers.

    Opened in this order, each has the lowest number that is free, which is its own.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8", closefd=False))


def _drop_output() -> None:
    """Lets go of what is buffered and cannot be written; Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _use_utf8() -> None:
    """Text of models is Unicode, whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
