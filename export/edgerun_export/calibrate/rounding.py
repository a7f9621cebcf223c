"""What runtimes round while they compute: inputs of projections, and keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.ops.linear import rounded_activations
from edgerun.state.codecs import codec_named
from edgerun_export.architectures import DecoderSpec, Projection
from edgerun_export.recipe import Recipe
from edgerun_export.verify.parts import Observer

F32 = NDArray[np.float32]
# By what ``edgerun.ops.linear`` calls them.
_ACTIVATIONS = {"fp32": "float", "int8": "int8_block", "int8_row": "int8_row"}


@dataclass(frozen=True, slots=True)
class Rounding:
    """Types that a runtime computes with.

    Attributes:
        activations: of the inputs of quantised projections: ``fp32``; ``int8``, with a scale for
            as many as share one among the weights; ``int8_row``, with one scale a token.
        kv_cache: codec of keys and values.
    """

    activations: str = "fp32"
    kv_cache: str = "fp32"

    @property
    def name(self) -> str:
        """What is rounded; empty where nothing is."""
        parts = (("activations", self.activations), ("KV", self.kv_cache))
        return ", ".join(f"{what} {kind}" for what, kind in parts if kind != "fp32")


def roundings(activations: Sequence[str], kv_caches: Sequence[str]) -> list[Rounding]:
    """All pairs of types.

    Raises:
        UnsupportedError: activations are not rounded so.
        InputError: there is no such codec.
    """
    for kind in activations:
        if kind not in _ACTIVATIONS:
            raise UnsupportedError(
                f"--activations {kind} is not supported; choose one of {', '.join(_ACTIVATIONS)}"
            )
    for kind in kv_caches:
        codec_named(kind)
    pairs = [Rounding(first, second) for first in activations for second in kv_caches]
    return list(dict.fromkeys(pairs))


class Rounder(Observer):
    """Rounds what comes by in a layer.

    Args:
        rounding: how.
        spec: the decoder.
        recipe: how its projections are stored; inputs of those in floats stay as they are.
        layer: number of the layer.
    """

    def __init__(self, rounding: Rounding, spec: DecoderSpec, recipe: Recipe, layer: int) -> None:
        kinds = {
            projection.path: recipe.tensor(f"model.layers.{layer}.{projection.path}")
            for projection in spec.projections(layer)
        }
        self._blocks = {
            path: kind.group_size for path, kind in kinds.items() if kind.weights != "fp32"
        }
        self._activations = _ACTIVATIONS[rounding.activations]
        self._codec = codec_named(rounding.kv_cache)

    def projection(self, projection: Projection, value: F32) -> F32:
        block = self._blocks.get(projection.path)
        return value if block is None else rounded_activations(value, self._activations, block)

    def cached(self, vectors: F32) -> F32:
        return self._codec.decode(self._codec.encode(vectors))
