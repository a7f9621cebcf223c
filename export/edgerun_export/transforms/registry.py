"""Applies transforms by their names, and checks that they change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgerun.discovery import entries
from edgerun.errors import UnsupportedError
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.calibrate.workers import single_threaded
from edgerun_export.recipe import Recipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.transforms.transform import Transform
from edgerun_export.verify.compare import VerificationError, relative_error
from edgerun_export.verify.numpy_model import forward

BOUND = 1e-4  # of the range of the logits


def transformed(
    names: Sequence[str], source: SourceWeights, recipe: Recipe, text: CalibrationText | None
) -> SourceWeights:
    """Applies transforms one after the other.

    Raises:
        UnsupportedError: the decoder cannot be transformed so, or there is no text for one.
    """
    if source.natively_ternary():
        raise UnsupportedError(
            f"--transform {names[0]}: the projections of this model are ternary already, and kept "
            "as they are; leave it out"
        )
    transforms: dict[str, Transform] = entries("edgerun_export.transforms", "TRANSFORM")
    for name in names:
        transform = transforms[name]
        if transform.needs_text and text is None:
            raise UnsupportedError(
                f"--transform {name} looks at activations; give text with --calibrate FILE"
            )
        with single_threaded():
            source = transform.apply(source, recipe, text)
    return source


def check_unchanged(before: SourceWeights, after: SourceWeights, ids: NDArray[np.int64]) -> None:
    """Compares the logits of a text ``[tokens]``.

    Raises:
        VerificationError: they differ by more than float32 makes them.
    """
    error = relative_error(forward(after.spec, after, ids), forward(before.spec, before, ids))
    if not error <= BOUND:
        raise VerificationError(
            f"transformed weights change the logits by {error:.2g} of their range, more than "
            f"{BOUND:g}; please report this model, and leave out --transform"
        )
