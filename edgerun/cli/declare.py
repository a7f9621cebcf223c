"""Options as data: typer's when help or an error is to be shown, read directly where all is plain.

Typer and what it stands on take a fifth of a second to import, a quarter of the time to the first
word of a reply. A command line that names options in full, each once and with a value of its type,
means the same without it; ``read`` leaves everything else to typer, and with it every complaint.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

WHOLE = re.compile(r"[0-9]{1,18}")
REAL = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
STDIN = "-"


class Option(NamedTuple):
    """An option: its names, such as ``-n`` and ``--max-tokens``, and what it does."""

    names: tuple[str, ...]
    help: str


class Argument(NamedTuple):
    """What stands on the command line without a name."""

    help: str


class UnclearError(Exception):
    """A command line for typer."""


def option(*names: str, help: str) -> Option:
    """Declares an option, for use in ``Annotated``."""
    return Option(names, help)


def for_typer(command: Callable[..., None]) -> Callable[..., None]:
    """The same command, with typer's declarations in the place of those of this module."""
    import typer

    @functools.wraps(command)
    def declared_anew(**given: Any) -> None:
        command(**given)

    def translated(hint: Any) -> Any:
        if get_origin(hint) is not Annotated:
            return hint
        kind, declared = get_args(hint)[:2]
        if isinstance(declared, Option):
            return Annotated[kind, typer.Option(*declared.names, help=declared.help)]
        if isinstance(declared, Argument):
            return Annotated[kind, typer.Argument(help=declared.help)]
        return hint

    signature = inspect.signature(command, eval_str=True)
    parameters = [
        one.replace(annotation=translated(one.annotation)) for one in signature.parameters.values()
    ]
    declared_anew.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(declared_anew)["__signature__"] = signature.replace(parameters=parameters)
    return declared_anew


def read(command: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """What a plain command line gives a command, by parameter; None to let typer read it.

    Args:
        command: a function whose parameters are declared with this module.
        words: the command line behind the command's name.
    """
    options: dict[str, tuple[str, Any]] = {}
    arguments: list[tuple[str, Any]] = []
    for name, hint in _hints(command).items():
        kind, declared = get_args(hint)[:2]
        if isinstance(declared, Option):
            options |= {one: (name, kind) for one in declared.names}
        else:
            arguments.append((name, kind))
    try:
        return _read(list(words), options, arguments)
    except UnclearError:
        return None


def _hints(command: Callable[..., None]) -> dict[str, Any]:
    """The parameters' types; ``get_type_hints`` of Python 3.10 would wrap some in Optional."""
    parameters = inspect.signature(command, eval_str=True).parameters
    return {name: parameter.annotation for name, parameter in parameters.items()}


def _read(
    words: list[str],
    options: dict[str, tuple[str, Any]],
    arguments: list[tuple[str, Any]],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    words.reverse()
    while words:
        word = words.pop()
        if not word.startswith("-"):
            if not arguments:
                raise UnclearError
            name, kind = arguments.pop(0)
            found[name] = _value(word, kind)
            continue
        name, kind = options.get(word, ("", None))
        if not name or (name in found and not _is_list(kind)):
            raise UnclearError
        if kind is bool:
            found[name] = True
        elif not words:
            raise UnclearError
        elif _is_list(kind):
            found.setdefault(name, []).append(_value(words.pop(), str))
        else:
            found[name] = _value(words.pop(), kind)
    return found


def _is_list(kind: Any) -> bool:
    return any(get_origin(one) is list for one in (kind, *get_args(kind)))


def _value(word: str, kind: Any) -> Any:
    """A word as a value of a type or ``type | None``."""
    kinds = [one for one in (get_args(kind) or (kind,)) if one is not type(None)]
    (plain,) = kinds
    if word.startswith("-") and word != STDIN:
        raise UnclearError
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UnclearError from None
    if plain is int and WHOLE.fullmatch(word):
        return int(word)
    if plain is float and REAL.fullmatch(word):
        return float(word)
    if plain is str or (plain is Path and word):
        return plain(word)
    raise UnclearError
