"""A recipe that fits a budget: formats per tensor, by what they cost in text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgerun.errors import InputError, UnsupportedError
from edgerun_export.calibrate.budget import Choice, allocate
from edgerun_export.calibrate.sensitivity import Sensitivity, SensitivityMeter
from edgerun_export.calibrate.text import CalibrationText, fewest_with_samples
from edgerun_export.recipe import Recipe, TensorRecipe
from edgerun_export.sizes import matrix_bytes, scale_bytes, weight_bytes
from edgerun_export.source.weights import SourceWeights

USUAL_METHOD = "residual"
# From the smallest on; a format is offered if it has no fewer bits than the one asked for.
KINDS = (("int2", 64), ("int2", 32), ("int4", 128), ("int4", 64), ("int4", 32), ("int8", 64))
_HESSIAN_WINDOWS, _PROBE_WINDOWS = 8, 3


def sensitivity_of(
    source: SourceWeights,
    recipe: Recipe,
    text: CalibrationText,
    folder: Path,
    progress: Callable[[float], None],
) -> Sensitivity:
    """Estimates what the formats cost that ``mixed_recipe`` chooses from; serves any budget.

    Args:
        source: the model.
        recipe: its format is the smallest that is chosen from.
        text: calibration text with a sample.
        folder: on a disk that takes a few windows of activations for every layer.
        progress: called with the fraction done.

    Raises:
        InputError: no window of the text was held out.
        StorageError: the folder takes no more.
    """
    check_held_out(text)
    return _meter(source, text, folder, progress).run(_kinds(recipe))


def check_held_out(text: CalibrationText) -> None:
    """Checks that there is text to weigh formats on, which costs nothing.

    Raises:
        InputError: no window of the text was held out.
    """
    if not text.samples:
        enough = fewest_with_samples(len(text.names))
        raise InputError(
            "--budget weighs formats on windows of text that are held out, and "
            f"{len(text.windows)} windows of {len(text.names)} texts leave none: raise "
            f"--calibration-windows to {enough}, or give longer texts"
        )


def mixed_recipe(
    source: SourceWeights,
    recipe: Recipe,
    text: CalibrationText,
    sensitivity: Sensitivity,
    budget: int,
    other_bytes: int = 0,
) -> tuple[Recipe, dict[str, Any]]:
    """Chooses a format for every projection, so that all weights fit.

    Args:
        source: the model.
        recipe: its format is the smallest that is chosen from; tensors that rules concern stay.
        text: calibration text with a sample.
        sensitivity: what formats cost there.
        budget: bytes of the bundle, which ``check_budget`` accepts.
        other_bytes: of it that are no weights.

    Returns:
        the recipe, and what the manifest says of it: of every projection what it was estimated
        to cost in bits per byte, and what the next larger choice would have saved.
    """
    fixed = _fixed_bytes(source, recipe, _free(source, recipe)) + other_bytes
    to_bits = _tokens_per_byte(text) / math.log(2)
    choices = {
        first: [
            Choice(kind, _bytes(source, recipe, sensitivity.members[first], kind), nats * to_bits)
            for kind, nats in costs.items()
        ]
        for first, costs in sensitivity.nats.items()
        if first not in recipe.ruled
    }
    chosen = allocate(choices, budget - fixed)
    tensors = dict(recipe.tensors)
    report: dict[str, Any] = {}
    for first, choice in chosen.items():
        tensors |= dict.fromkeys(sensitivity.members[first], choice.kind)
        report[first] = _reason(choice, choices[first])
    usual = recipe.tensor("")
    changed = {module: kind for module, kind in tensors.items() if kind != usual}
    mixed = replace(recipe, tensors=changed)
    return mixed, {
        "weight_bytes": weight_bytes(source.spec, mixed),
        "estimated_bits_per_byte": round(sum(each.cost for each in chosen.values()), 5),
        "tensors": report,
    }


def _meter(
    source: SourceWeights,
    text: CalibrationText,
    folder: Path,
    progress: Callable[[float], None],
) -> SensitivityMeter:
    """Measures on a few windows from all over the text."""
    fitted = text.windows[:: -(-len(text.windows) // _HESSIAN_WINDOWS)]
    probed = np.stack([sample.windows[0] for sample in text.samples[:_PROBE_WINDOWS]])
    return SensitivityMeter(source, fitted, probed, folder, progress, text.samples[0].begins)


def _tokens_per_byte(text: CalibrationText) -> float:
    tokens = sum(sample.tokens for sample in text.samples)
    return tokens / sum(sample.bytes for sample in text.samples)


def _reason(choice: Choice, choices: list[Choice]) -> dict[str, Any]:
    """What a tensor got, what that costs, and what it would have taken to save some of it."""
    reason: dict[str, Any] = {
        "stored": f"{choice.kind.weights}:{choice.kind.group_size}",
        "bytes": choice.bytes,
        "bits_per_byte": float(f"{choice.cost:.3g}"),
    }
    better = [each for each in choices if each.cost < choice.cost and each.bytes > choice.bytes]
    if better:
        step = max(better, key=lambda each: (choice.cost - each.cost) / (each.bytes - choice.bytes))
        reason["next"] = {
            "stored": f"{step.kind.weights}:{step.kind.group_size}",
            "bytes": step.bytes - choice.bytes,
            "bits_per_byte": float(f"{step.cost - choice.cost:.3g}"),
        }
    return reason


def _kinds(recipe: Recipe) -> list[TensorRecipe]:
    """What projections may be stored as: the smallest format or a larger one."""
    least = recipe.tensor("").bits
    method = recipe.method or USUAL_METHOD  # a format with offsets has none that calibrates
    kinds = [TensorRecipe(weights, group, method) for weights, group in KINDS]
    return [kind for kind in kinds if kind.bits >= least]


def _free(source: SourceWeights, recipe: Recipe) -> list[str]:
    """Module paths of projections that no rule concerns."""
    paths = [
        f"model.layers.{layer}.{projection.path}"
        for layer in range(source.spec.num_layers)
        for projection in source.spec.projections(layer)
    ]
    return [path for path in paths if path not in recipe.ruled]


def _bytes(
    source: SourceWeights, recipe: Recipe, members: Sequence[str], kind: TensorRecipe
) -> int:
    return sum(
        matrix_bytes(
            source.shape(f"{module}.weight"), kind, scale_bytes(source.spec, recipe, module)
        )
        for module in members
    )


def _fixed_bytes(source: SourceWeights, recipe: Recipe, free: Sequence[str]) -> int:
    """Bytes of all weights whose format is not chosen."""
    usual = recipe.tensor("")
    return weight_bytes(source.spec, recipe) - _bytes(source, recipe, free, usual)


def check_budget(source: SourceWeights, recipe: Recipe, budget: int, other_bytes: int = 0) -> None:
    """Checks that some recipe of ``mixed_recipe`` has so many bytes.

    Raises:
        UnsupportedError: there is nothing to choose.
        InputError: the budget is below the smallest recipe or above the largest.
    """
    free = _free(source, recipe)
    if not free:
        raise UnsupportedError("--budget: rules leave no projection to choose a format for")
    kinds = _kinds(recipe)
    if not kinds:
        raise UnsupportedError(
            f"--budget chooses from formats that are no smaller than --weights {recipe.weights}, "
            "and there is none; give a smaller one, such as --weights int2"
        )
    fixed = _fixed_bytes(source, recipe, free) + other_bytes
    sizes = [[_bytes(source, recipe, [module], kind) for kind in kinds] for module in free]
    least, most = fixed + sum(map(min, sizes)), fixed + sum(map(max, sizes))
    if budget < least:
        raise InputError(
            f"--budget is {budget:,} bytes, and the smallest bundle is reckoned with at most "
            f"{least:,}; give more, or choose smaller --weights or --head-weights"
        )
    if budget > most:
        raise InputError(
            f"--budget is {budget:,} bytes, more than the {most:,} that the largest bundle is "
            "reckoned with; leave it out and use --weights int8 or fp32"
        )
