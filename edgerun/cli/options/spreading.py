"""Gives commands options in the place of one parameter that takes a dictionary of their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from edgerun.cli.options.declared import CHATTING, LOADING
from edgerun.cli.options.loading import given

if TYPE_CHECKING:
    from edgerun.engine.chooser.option import Option

Command: TypeAlias = Callable[..., None]
NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})


def with_loading_of(*names: str) -> Callable[[Command], Command]:
    """Gives a command some of the options that say how a model is loaded, by their names.

    They stand in the place of its parameter ``loading``, which becomes a dictionary of those that
    were given, for ``load`` or ``LoadOptions``. A command may have one of them as a parameter of
    its own.
    """

    def give(command: Command) -> Command:
        declared, kind = inspect.signature(command).parameters, inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, kind, default=None, annotation=offered[name])
            for name in names
            if name not in declared
        ]
        return _spread(command, "loading", parameters, _loading)

    offered = {**LOADING, **CHATTING}
    return give


with_loading = with_loading_of(*LOADING)
with_chatting = with_loading_of(*LOADING, *CHATTING)


def _loading(values: dict[str, Any]) -> dict[str, Any]:
    """Those that were given, as ``load`` has them."""
    assignments = values.pop("template_values", None)
    return given(**values, template_values=_named(assignments) if assignments else None)


def _named(assignments: list[str]) -> dict[str, Any]:
    """Names and values of ``NAME=VALUE``; what is no JSON is text.

    Raises:
        InputError: one is something else, or a name is there twice.
    """
    import json

    from edgerun.errors import InputError

    named: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or name in named:
            problem = "is there twice" if equals else "has no value"
            raise InputError(
                f"--template-value {assignment}: the name {problem}; expected NAME=VALUE"
            )
        try:
            named[name] = json.loads(value)
        except ValueError:
            named[name] = value
        except RecursionError as error:
            raise InputError(f"--template-value {name}: lists in lists, too deep") from error
    return named


def with_sampling(command: Command) -> Command:
    """Gives a command an option for everything that can be asked of a reply's text.

    They stand in the place of its parameter ``sampling``, which becomes a dictionary of those that
    were given, all checked before a model is loaded. A command may have one of them as a parameter
    of its own.
    """
    from edgerun.engine.chooser.params import text_options

    return _with_sampling(command, text_options())


def with_all_sampling(**defaults: object) -> Callable[[Command], Command]:
    """Like ``with_sampling``, with what can be told of a reply beside its text.

    Args:
        defaults: what the command does where an option is left out, by its name, for the help.
    """
    from edgerun.engine.chooser.params import all_options

    def give(command: Command) -> Command:
        return _with_sampling(command, all_options(), defaults)

    return give


def _with_sampling(
    command: Command, entries: Sequence[Option], defaults: Mapping[str, object] = NO_DEFAULTS
) -> Command:
    from edgerun.engine.chooser.params import SamplingParams

    offered = {entry.name: entry for entry in entries}

    def collect(values: dict[str, Any]) -> dict[str, Any]:
        sampling = {
            name: offered[name].read(value) if isinstance(value, str) else value
            for name, value in values.items()
            if value is not None and value != []
        }
        SamplingParams(**sampling)
        return sampling

    declared = inspect.signature(command).parameters
    parameters = [
        _parameter(entry, defaults.get(name))
        for name, entry in offered.items()
        if name not in declared
    ]
    return _spread(command, "sampling", parameters, collect)


def _spread(
    command: Command,
    name: str,
    parameters: list[inspect.Parameter],
    collect: Callable[[dict[str, Any]], dict[str, Any]],
) -> Command:
    """Puts parameters in the place of one that takes a dictionary of their values."""
    own = inspect.signature(command, eval_str=True).parameters
    place = list(own).index(name)
    others = [parameter for key, parameter in own.items() if key != name]
    signature = inspect.Signature([*others[:place], *parameters, *others[place:]])

    @functools.wraps(command)
    def run(**values: Any) -> None:
        taken = {parameter.name: values.pop(parameter.name) for parameter in parameters}
        command(**values, **{name: collect(taken)})

    run.__dict__["__signature__"] = signature
    run.__annotations__ = {key: entry.annotation for key, entry in signature.parameters.items()}
    return run


def _parameter(entry: Option, default: object) -> inspect.Parameter:
    """An option of the command line."""
    long = f"--{entry.name.replace('_', '-')}"
    option = typer.Option(
        *filter(None, (entry.letter, long)),
        metavar=entry.kind.metavar or None,
        help=entry.help if default is None else f"{entry.help} [default: {default}]",
    )
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[entry.kind.flag | None, option],
    )
