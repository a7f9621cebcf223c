"""Which formats and methods are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgerun.errors import UnsupportedError
from edgerun_export.quantize import method_for
from edgerun_export.quantize.method import Needs
from edgerun_export.recipe import Recipe, make_recipe, method_names

ALL = "all"


@dataclass(frozen=True, slots=True)
class Setting:
    """A way to store projections.

    Attributes:
        weights: their format.
        group_size: weights that share a scale.
        method: how they are quantised.
        scales: their type in the file.
    """

    weights: str
    group_size: int
    method: str
    scales: str = "fp32"

    @property
    def name(self) -> str:
        """As a rule has it: ``int4:32:gptq``, and how scales are stored if they are halves."""
        halves = "" if self.scales == "fp32" else f"/{self.scales}"
        return f"{self.weights}:{self.group_size}{halves}:{self.method}"

    def recipe(self, transforms: Sequence[str] = ()) -> Recipe:
        """What all projections are stored by."""
        return make_recipe(
            self.weights,
            self.group_size,
            method=self.method,
            transforms=transforms,
            scales=self.scales,
        )


def settings(
    formats: str, methods: str | None, scales: str = "fp32", *, calibrates: bool
) -> list[Setting]:
    """All formats with all methods that can make them.

    Args:
        formats: ``int4,int2:64``, the number being weights that share a scale.
        methods: ``mse,gptq``, or ``all``; the usual ones for ``None``.
        scales: type of scales in the file.
        calibrates: whether there is text to fit to.

    Raises:
        UnsupportedError: one is not offered, needs text and there is none, or none can be made.
    """
    usual = "mse,gptq,residual" if calibrates else "mse"
    names = _split(usual if methods is None else methods)
    chosen = method_names() if names == [ALL] else names
    settings: list[Setting] = []
    for text in _split(formats):
        weights, _, group = text.partition(":")
        if not (group or "0").isdecimal() or weights == "fp32":
            raise UnsupportedError(
                f"--formats {text}: expected FORMAT or FORMAT:GROUP, such as int4:32, and no fp32, "
                "which is always measured"
            )
        for method in chosen:
            recipe = make_recipe(
                weights, int(group) if group else None, method=method, scales=scales
            )
            if _is_possible(recipe.weights, method, names == [ALL], calibrates):
                settings.append(Setting(weights, recipe.group_size, method, scales))
    return list(dict.fromkeys(settings))


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


def _split(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UnsupportedError("--formats and --methods name at least one each")
    return parts
