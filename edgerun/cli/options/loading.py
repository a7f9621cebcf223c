"""What options of loading mean to ``edgerun.load``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgerun.cli.screen.messages import say
from edgerun.cli.screen.progress import first_run

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM

T = TypeVar("T")


def model_of(argument: Path | None, option: Path | None) -> Path | None:
    """The model, which may be named as an argument or with ``-m``.

    Raises:
        InputError: both name one, and not the same.
    """
    if argument is not None and option is not None and argument != option:
        from edgerun.errors import InputError

        raise InputError(f"two models are named, {argument} and {option}: leave one out")
    return argument if option is None else option


def given(**values: Any) -> dict[str, Any]:
    """Drops options that were left out, so that the model's recommendation holds."""
    return {name: value for name, value in values.items() if value is not None}


def load(model: Path | None, **options: Any) -> LLM:
    """Loads a model for a command; slow steps, warnings and forecasts are said on stderr."""
    from edgerun.llm import llm

    loaded = load_by(llm.load, model, **options)
    say_forecast(loaded)
    return loaded


def say_forecast(llm: LLM, *, corrected: bool = False) -> None:
    """Says what to expect of a model that reads experts while it runs, or only how that changed."""
    expected = llm.forecast()
    if expected and (not corrected or expected.calibrated_bytes_s is not None):
        say(expected.line())


def load_by(loader: Callable[..., T], model: Path | None, **options: Any) -> T:
    """Like ``load``, by another function than ``llm.load``."""
    with first_run() as progress:
        return loader(model, progress=progress, **given(**options))
