"""What a caller of the exporter may choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgerun.errors import UnsupportedError
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.checkpoint.base import Provenance
from edgerun_export.recipe import Recipe


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to make of a checkpoint; ``None`` stands for the default that suits the model.

    Attributes:
        weights: weight format of the projections; ``source`` keeps what the checkpoint has.
        group_size: weights that share a scale.
        method: how projections are quantised.
        rules: ``PATTERN=FORMAT[:GROUP[:METHOD]]``; the last that matches a projection counts.
        scales: type of scales in the file, ``fp32`` or ``fp16``.
        head_weights: weight format of the head.
        embedding_weights: weight format of the embedding.
        activations: ``int8`` or ``fp32``.
        profile: which runtimes the graph is written for.
        pack: how edgerun should keep ternary weights in memory; a hint, which alters no weights.
        tokenizer: a llama2.c tokenizer file, for checkpoints that carry none.
        revision: commit of a hub checkpoint.
        provenance: licence and location for the manifest, in the place of what the checkpoint says.
        verify: compare the bundle with the source before it appears.
        force: replace an existing bundle; other files in its folder stay.
        calibration: text that weights are fitted to.
        transforms: what is done to weights before they are rounded, in this order.
    """

    weights: str | None = None
    group_size: int | None = None
    method: str | None = None
    rules: tuple[str, ...] = ()
    scales: str = "fp32"
    head_weights: str | None = None
    embedding_weights: str | None = None
    activations: str | None = None
    profile: str = "portable"
    pack: str = "two_bits"
    tokenizer: Path | None = None
    revision: str | None = None
    provenance: Provenance = Provenance()
    verify: bool = False
    force: bool = False
    calibration: CalibrationOptions = CalibrationOptions()
    transforms: tuple[str, ...] = ()


def check_effects(options: ExportOptions, recipe: Recipe) -> None:
    """Refuses what says how weights are rounded where none are that it concerns.

    Raises:
        UnsupportedError: there is such an option.
    """
    if recipe.weights != "fp32":
        return
    is_exact = recipe.head_weights == recipe.embedding_weights == "fp32"
    rounds_some = any(kind.weights != "fp32" for kind in recipe.tensors.values())
    useless = {
        "--group-size": options.group_size is not None and is_exact,
        "--method": recipe.method is not None,
        "--scales": options.scales != "fp32" and is_exact and not rounds_some,
    }
    for option, is_useless in useless.items():
        if is_useless:
            raise UnsupportedError(
                f"{option} has no effect: the weights that it is for are fp32, which are not "
                "rounded; leave it out"
            )
