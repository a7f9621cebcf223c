"""Which formats and methods are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgerun.errors import UnsupportedError
from edgerun.values import whole_number
from edgerun_export.calibrate.mixed import KINDS
from edgerun_export.quantize import method_for, usual_method
from edgerun_export.quantize.method import Needs
from edgerun_export.recipe import (
    GROUP_SIZES,
    Recipe,
    check_choice,
    make_recipe,
    method_names,
    usual_head,
    weight_names,
)
from edgerun_export.sizes import parse_size

ALL = "all"
_FITTING = ("gptq", "residual")  # compared without being asked for, where there is text


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to store projections.

    Attributes:
        weights: their format; the smallest of those that are mixed.
        group_size: weights that share a scale.
        method: how they are quantised.
        scales: their type in the file.
        budget: bytes of all weights, for which formats are chosen; None for one format.
    """

    weights: str
    group_size: int
    method: str
    scales: str = "fp32"
    budget: int | None = None

    @property
    def name(self) -> str:
        """As a rule has it: ``int4:32:gptq``, and how scales are stored if they are halves."""
        halves = "" if self.scales == "fp32" else f"/{self.scales}"
        if self.budget is not None:
            return f"{self.budget / 1e6:g}MB{halves}:mixed {self.method}"
        return f"{self.weights}:{self.group_size}{halves}:{self.method}"

    def recipe(self, width: int, transforms: Sequence[str] = ()) -> Recipe:
        """What all projections of a model are stored by whose embedding has rows of ``width``."""
        return make_recipe(
            self.weights,
            self.group_size,
            usual_head(width),
            method=self.method,
            transforms=transforms,
            scales=self.scales,
        )


def settings(
    formats: str,
    methods: str | None,
    scales: str = "fp32",
    budgets: str | None = None,
    *,
    calibrates: bool,
) -> list[Setting]:
    """All formats and sizes with all methods that can make them.

    Args:
        formats: ``int4,int2:64``, the number being weights that share a scale.
        methods: ``mse,gptq``, or ``all``; the usual ones for ``None``.
        scales: type of scales in the file.
        budgets: ``60MB,70MB``, for which formats are mixed.
        calibrates: whether there is text to fit to.

    Raises:
        UnsupportedError: one is not offered, needs text and there is none, or none can be made.
        InputError: a budget is no size.
    """
    names = None if methods is None else split(methods)
    for name in names if names and names != [ALL] else ():
        check_choice("methods", name, method_names())
    settings: list[Setting] = []
    for text in split(formats):
        weights, _, group = text.partition(":")
        said = text[:100]
        if whole_number(group or "0") is None or weights == "fp32":
            raise UnsupportedError(
                f"--formats {said}: expected FORMAT or FORMAT:GROUP, such as int4:32, and no "
                "fp32, which is always measured"
            )
        check_choice("formats", weights, [name for name in weight_names() if name != "fp32"])
        if group and int(group) not in GROUP_SIZES:
            groups = ", ".join(map(str, GROUP_SIZES))
            raise UnsupportedError(f"--formats {said}: expected a group of one of {groups} weights")
        for method in _able([weights], names, calibrates):
            recipe = make_recipe(
                weights, int(group) if group else None, method=method, scales=scales
            )
            settings.append(Setting(weights, recipe.group_size, method, scales))
    if budgets is not None:
        sizes = [parse_size("--budget", text) for text in split(budgets)]
        settings += _mixed(sizes, names, scales, calibrates)
    return list(dict.fromkeys(settings))


def _mixed(
    sizes: Sequence[int], names: Sequence[str] | None, scales: str, calibrates: bool
) -> list[Setting]:
    """All sizes with all methods that can make every format that is mixed."""
    if not calibrates:
        raise UnsupportedError(
            "--budget weighs formats by what they do to text; give some with --calibrate FILE"
        )
    formats = [weights for weights, _ in KINDS]
    able = _able(formats, names, calibrates)
    weights, group_size = formats[0], make_recipe(formats[0]).group_size
    return [Setting(weights, group_size, each, scales, size) for size in sizes for each in able]


def _able(formats: Sequence[str], names: Sequence[str] | None, calibrates: bool) -> list[str]:
    """Names of methods that can make all of some formats; the usual ones for ``None``.

    Raises:
        UnsupportedError: one that is asked for by name cannot.
    """
    is_any = names is None or names == [ALL]
    if names is None:
        names = [usual_method(formats[0]), *(_FITTING if calibrates else ())]
    elif names == [ALL]:
        names = method_names()
    return [
        name
        for name in names
        if all(_is_possible(weights, name, is_any, calibrates) for weights in formats)
    ]


def _is_possible(weights: str, name: str, is_any: bool, calibrates: bool) -> bool:
    """Whether a method can make a format; refused if it was asked for by name."""
    try:
        method = method_for(weights, name)
    except UnsupportedError:
        if is_any:
            return False
        raise
    if method.needs > Needs.ROWS and not calibrates:
        if is_any:
            return False
        raise UnsupportedError(
            f"--methods {name} fits weights to the inputs that they get in a text; give one with "
            "--calibrate FILE"
        )
    return True


def split(text: str) -> list[str]:
    """What commas divide.

    Raises:
        UnsupportedError: there is nothing.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UnsupportedError(
            "--formats, --methods, --budget, --activations and --kv-cache name at least one each"
        )
    return parts
