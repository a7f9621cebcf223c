"""The command line: finds the command, runs it, and turns errors into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong use or unusable input, 130 interrupted, 141 the reader of
our output went away. Tokens and reports go to stdout, everything else to stderr.

A command is a function in the module named in ``COMMANDS``, imported only when asked for, so that
``edgerun run`` does not pay for the others. Other packages add commands through the entry point
group ``edgerun.commands``: a function that takes the typer application.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from edgerun.cli.visible import visible

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import typer

ENTRY_POINTS = "edgerun.commands"
COMMANDS = ("run", "chat", "bench", "plan", "inspect", "perplexity", "doctor")
INTERRUPTED = 130
READER_GONE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: without the program's name; None takes those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _replace_closed_streams()
    _use_utf8()
    try:
        code = _dispatch(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("edgerun: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return READER_GONE
    except Exception as error:
        code = _report(error)
        try:
            sys.stdout.flush()
        except OSError:  # the disk is full, which may be what was reported
            _drop_output()
        return code


def application(names: Sequence[str]) -> typer.Typer:
    """Builds a typer application that knows the named commands."""
    import typer

    app = typer.Typer(
        name="edgerun",
        help="Run language models from one ONNX bundle.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    option = typer.Option(False, "--version", "-V", help="Print the version.")
    _global_options.__defaults__ = (option,)
    app.callback()(_global_options)
    added = {point.name: point for point in _added_commands()} if set(names) - {*COMMANDS} else {}
    for name in names:
        if name in COMMANDS:
            import_module(f"edgerun.cli.{name}").register(app)
        elif name in added:
            added[name].load()(app)
    return app


def _global_options(version: bool = False) -> None:
    """Holds the options before a command; ``_dispatch`` has dealt with them already."""


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] in (["--version"], ["-V"]):
        from edgerun import __version__

        print(f"edgerun {__version__}")
        return 0
    command = arguments[0] if arguments else "--help"
    if command.startswith("-"):
        names = _command_names()
    elif command in COMMANDS or command in _command_names():
        names = [command]
    else:
        return _unknown(command)
    from typer.main import get_command

    # Not `application(...)()`: that turns interrupts and broken pipes into errors of its own.
    group = get_command(application(names))
    with group.make_context("edgerun", arguments or ["--help"]) as context:
        group.invoke(context)
    return 0


def entry_points(group: str) -> Iterable[EntryPoint]:
    """What other packages announce; imported when needed, for that takes 30 ms."""
    from importlib import metadata

    return metadata.entry_points(group=group)


def _added_commands() -> list[EntryPoint]:
    return sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def _command_names() -> list[str]:
    return list(dict.fromkeys([*COMMANDS, *(point.name for point in _added_commands())]))


def _unknown(command: str) -> int:
    names = _command_names()
    close = difflib.get_close_matches(command, names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
    print(f"edgerun: there is no command {command!r}: {hint}", file=sys.stderr)
    return 2


def _report(error: Exception) -> int:
    """Prints an error as one line; the traceback only for ourselves."""
    from edgerun.errors import EdgerunError, InputError

    if _debugging():
        import traceback

        traceback.print_exc()
    if isinstance(error, EdgerunError):
        print(f"edgerun: {visible(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    if type(error).__module__.startswith(("typer", "click")):
        return _report_usage(error)
    if isinstance(error, MemoryError):
        print("edgerun: there is not enough memory", file=sys.stderr)
        return 1
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        print(f"edgerun: {visible(f'{error.strerror or error}{where}')}", file=sys.stderr)
        return 1
    print(
        f"edgerun: unexpected {type(error).__name__}: {visible(str(error))}; this is a defect, "
        "please report it with the traceback that EDGERUN_DEBUG=1 shows",
        file=sys.stderr,
    )
    return 1


def _report_usage(error: Exception) -> int:
    """Errors of typer: wrong options (which have a context) and Ctrl-C at one of its prompts."""
    if type(error).__name__ == "Exit":
        return int(getattr(error, "exit_code", 1))
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "edgerun"
    print(f"edgerun: {visible(_usage_message(error))}; see '{command} --help'", file=sys.stderr)
    return 2


def _usage_message(error: Exception) -> str:
    """What typer says, in one form whatever its version: the value named, the nearest option."""
    if type(error).__name__ == "NoSuchOption":
        name = getattr(error, "option_name", "")
        close = getattr(error, "possibilities", None)
        return f"there is no option {name}" + (f": did you mean {close[0]}?" if close else "")
    message: str = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    details = getattr(error.__cause__, "errors", None)  # of a validator, which has the value
    value = f", got {details()[0]['input']!r}" if details else ""
    return message[:1].lower() + message[1:] + value


def _debugging() -> bool:
    from edgerun import env
    from edgerun.errors import InputError

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
