"""The step of an export in which weights are fitted to a text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgerun._version import __version__
from edgerun.errors import UnsupportedError
from edgerun.kernels.host.cores import worker_threads
from edgerun_export.architectures import DecoderSpec
from edgerun_export.calibrate.costs import Cost
from edgerun_export.calibrate.fitted import FittedLayers, Gaps
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.mixed import USUAL_METHOD, check_budget, mixed_recipe, sensitivity_of
from edgerun_export.calibrate.text import (
    WINDOW_TOKENS,
    WINDOWS,
    CalibrationText,
    read_calibration,
    tokenizer_of,
)
from edgerun_export.calibrate.workers import single_threaded
from edgerun_export.quantize import block_layout, method_for
from edgerun_export.quantize.method import Needs
from edgerun_export.recipe import Recipe, TensorRecipe
from edgerun_export.rules import check_offsets
from edgerun_export.sizes import overhead_bytes
from edgerun_export.source.weights import SourceWeights

AUTO = "auto"
_CHOICE_SHARE = 0.3  # of the time, that goes by before formats are chosen


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What weights are fitted to.

    Attributes:
        texts: UTF-8 files; none for an export without calibration.
        windows: pieces of text, of all files together.
        tokens: length of each.
        threads: how many work; None for one a core.
        budget: bytes of the whole bundle, for which formats are chosen; None to take the
            recipe's.
    """

    texts: tuple[Path, ...] = ()
    windows: int = WINDOWS
    tokens: int = WINDOW_TOKENS
    threads: int | None = None
    budget: int | None = None


@dataclass(slots=True)
class Calibrated:
    """What came of it.

    Attributes:
        recipe: formats and methods.
        fitted: the projections.
        quality: for the manifest.
        warnings: what a user should know.
    """

    recipe: Recipe
    fitted: FittedLayers
    quality: dict[str, Any]
    warnings: list[str] = field(default_factory=list)


def with_methods(recipe: Recipe, source: SourceWeights, *, calibrates: bool) -> Recipe:
    """The recipe with the methods that it is made by, and checks of them.

    Raises:
        UnsupportedError: a method needs a text and there is none, cannot make its format, or
            would round what needs no rounding.
    """
    kinds = list(_kinds(recipe, source.spec))
    check_offsets(recipe, source.spec)
    for kind in kinds:
        _check_method(kind, source, calibrates=calibrates)
    if not calibrates:
        return recipe
    if all(kind.weights == "fp32" for kind in kinds):
        raise UnsupportedError("--calibrate: nothing is rounded with --weights fp32; leave it out")
    _check_rounds(source, "--calibrate")

    def filled(kind: TensorRecipe) -> TensorRecipe:
        named = kind.method or kind.weights == "fp32" or block_layout(kind.weights).has_offsets
        return kind if named else replace(kind, method=USUAL_METHOD)

    tensors = {module: filled(kind) for module, kind in recipe.tensors.items()}
    return replace(recipe, method=filled(recipe.tensor("")).method, tensors=tensors)


def checked_budget(method: str | None, options: CalibrationOptions, profile: str) -> str | None:
    """The method that weights are fitted by; ``auto`` chooses formats for a budget.

    Raises:
        UnsupportedError: there is no budget for ``auto``, no text for a budget, or a profile that
            adds files of sizes that cannot be foreseen.
    """
    if method == AUTO and options.budget is None:
        raise UnsupportedError(
            f"--method {AUTO} chooses formats that fit a size; give one, such as --budget 60MB"
        )
    if options.budget is not None and not options.texts:
        raise UnsupportedError(
            "--budget weighs formats by what they do to text; give some with --calibrate FILE"
        )
    if options.budget is not None and profile != "portable":
        raise UnsupportedError(
            f"--budget is for --profile portable; what {profile} adds has no size yet"
        )
    return None if method == AUTO else method


def read_text(
    options: CalibrationOptions, files: Mapping[str, bytes], spec: DecoderSpec
) -> CalibrationText | None:
    """Cuts windows, at most as long as the context; None if there is no text.

    Args:
        options: text, and how much of it.
        files: those of the tokenizer.
        spec: the decoder.

    Raises:
        InputError: a text cannot be used.
    """
    if not options.texts:
        return None
    tokens = min(options.tokens, spec.context_length)
    return read_calibration(options.texts, tokenizer_of(files), options.windows, tokens)


def calibrate(
    source: SourceWeights,
    recipe: Recipe,
    text: CalibrationText,
    options: CalibrationOptions,
    folder: Path,
    progress: Callable[[float], None],
    other_bytes: int = 0,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> Calibrated:
    """Fits all projections to a text; what a stopped export left in ``folder`` is used.

    Args:
        source: the weights.
        recipe: formats and methods.
        text: what is fitted to.
        options: threads and budget.
        folder: where layers that are done are kept.
        progress: called with the fraction done.
        other_bytes: of the bundle's files besides graph, weights and configuration.
        config: the model's, of which layers that are done have to be.

    Raises:
        InputError: no bundle has the size that is asked for.
        CheckpointError: the model computes what is no number.
        StorageError: the folder cannot be written.
    """
    chosen: dict[str, Any] = {}
    done, warnings = 0.0, _unused(recipe) if options.budget is not None else []
    if options.budget is not None:
        stored_config = json.dumps(dict(config), indent=2, default=str)  # or, of parts, less
        others = other_bytes + len(stored_config) + overhead_bytes(source.spec)

        def show(part: float) -> None:
            progress(part * _CHOICE_SHARE)

        check_budget(source, recipe, options.budget, others)
        with single_threaded():
            sensitivity = sensitivity_of(source, recipe, text, folder, show)
        recipe, report = mixed_recipe(source, recipe, text, sensitivity, options.budget, others)
        chosen, done = {"budget": {"bytes": options.budget, **report}}, _CHOICE_SHARE
    key = {"version": __version__, "config": dict(config)}
    key |= {"recipe": recipe.as_dict(), "text": text.as_dict()}
    fitted = FittedLayers(folder, key)
    threads = worker_threads(options.threads)
    fitter = LayerFitter(
        source, recipe, text, fitted, threads, lambda part: progress(done + part * (1 - done))
    )
    costs = fitter.run()
    quality: dict[str, Any] = text.as_dict()
    if costs:
        quality["held_out"] = _rounded(costs)
    return Calibrated(
        recipe,
        fitted,
        {"calibration": quality, **chosen},
        warnings + _warnings(fitter.gaps, options, len(text.windows)) + _needless(fitted),
    )


def _unused(recipe: Recipe) -> list[str]:
    """What a budget leaves of a format, and of groups, that it does not choose."""
    if recipe.weights == "fp32":
        return []
    if recipe.group_size == block_layout(recipe.weights).group:
        return _unused_form(recipe)
    return [
        *_unused_form(recipe),
        f"--budget chooses groups as well, so --group-size {recipe.group_size} concerns the "
        "embedding and the head at most",
    ]


def _unused_form(recipe: Recipe) -> list[str]:
    if recipe.weights == "ternary":
        return [
            "--budget does not choose ternary weights, so --weights ternary says no more than "
            "int2 does: the fewest bits"
        ]
    layout = block_layout(recipe.weights)
    if not (layout.has_zeros or layout.has_offsets):
        return []
    return [
        f"--budget chooses from formats without zero points and offsets, so --weights "
        f"{recipe.weights} says no more than int{layout.bits} does: the fewest bits"
    ]


def _rounded(costs: Sequence[Cost]) -> dict[str, Any]:
    """What the manifest says of all held-out text together."""
    bits = math.log(2) * sum(cost.bytes for cost in costs)
    return {
        "tokens": sum(cost.tokens for cost in costs),
        "bits_per_byte": round(sum(cost.nats for cost in costs) / bits, 4),
        "source_bits_per_byte": round(sum(cost.source_nats for cost in costs) / bits, 4),
    }


def _warnings(gaps: Gaps, options: CalibrationOptions, windows: int) -> list[str]:
    warnings = []
    if windows < options.windows:
        warnings.append(
            f"the calibration text has {windows} of the {options.windows} windows of text that "
            "were asked for; more text makes better weights"
        )
    if gaps.starved:
        warnings.append(
            f"hardly any token of the calibration text came to {len(gaps.starved)} projections, "
            f"first {gaps.starved[0]}; these are rounded much as without calibration"
        )
    if gaps.silent:
        warnings.append(
            f"{sum(gaps.silent.values())} inputs of {len(gaps.silent)} projections, first "
            f"{next(iter(gaps.silent))}, were zero in all of the calibration text; the weights "
            "that read them are rounded one by one"
        )
    if gaps.singular:
        warnings.append(
            f"inputs of {len(gaps.singular)} projections, first {gaps.singular[0]}, hang "
            "together so that more than a hundredth was added to their mean square; more text "
            "makes better weights"
        )
    return warnings


def _needless(fitted: FittedLayers) -> list[str]:
    """What to say of text that nothing was fitted to."""
    if not fitted.is_empty:
        return []
    return [
        "nothing is fitted to the calibration text: projections keep the integers of the "
        "checkpoint, or are floats; leave --calibrate out, or choose other --weights or another "
        "--group-size"
    ]


def _kinds(recipe: Recipe, spec: DecoderSpec) -> Iterator[TensorRecipe]:
    """How the projections are stored."""
    for layer in range(spec.num_layers):
        for projection in spec.projections(layer):
            yield recipe.tensor(f"model.layers.{layer}.{projection.path}")


def _check_method(kind: TensorRecipe, source: SourceWeights, *, calibrates: bool) -> None:
    if kind.weights == "fp32":
        return
    method = method_for(kind.weights, kind.method)
    if method.needs > Needs.ROWS:
        _check_rounds(source, f"--method {kind.method}")
        if not calibrates:
            raise UnsupportedError(
                f"--method {kind.method} fits weights to the inputs that they get in a text; give "
                "one with --calibrate FILE"
            )


def _check_rounds(source: SourceWeights, option: str) -> None:
    if source.natively_ternary():
        raise UnsupportedError(
            f"{option}: the projections of this model are ternary already, and kept as they are; "
            "there is nothing to fit, so leave it out"
        )
