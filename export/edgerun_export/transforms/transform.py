"""What a file in this folder says of its transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.recipe import Recipe
from edgerun_export.source.weights import SourceWeights


@dataclass(frozen=True, slots=True)
class Transform:
    """A way to other weights whose model computes the same.

    Attributes:
        apply: takes the source, the recipe that its weights will be rounded by, and text, or None
            where there is none. Raises UnsupportedError for decoders that it cannot transform.
        needs_text: whether it looks at activations.
    """

    apply: Callable[[SourceWeights, Recipe, CalibrationText | None], SourceWeights]
    needs_text: bool = False
