"""Runs a layer as far as some projections, to see what comes to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec, Projection
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.verify.numpy_model import Layer
from edgerun_export.verify.parts import Observer

F32 = NDArray[np.float32]
# Projections that read the same values.
Group: TypeAlias = tuple[Projection, ...]
Run: TypeAlias = Callable[[Layer, F32], F32]
_TO_RESIDUAL = ("o_proj", "down_proj")


@dataclass(slots=True)
class Seen:
    """What came to projections.

    Attributes:
        inputs: float32 ``[tokens, K]`` by the path of the projection.
        residuals: what the output of a projection is added to, ``[tokens, N]``, where it is.
    """

    inputs: dict[str, F32] = field(default_factory=dict)
    residuals: dict[str, F32] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a layer, which begins and ends with the residual stream.

    Attributes:
        run: computes it.
        stages: its projections, in the order in which each depends on those before only.
    """

    run: Run
    stages: list[list[Group]]


def parts(spec: DecoderSpec, layer: int) -> list[Part]:
    """The parts of a layer, one after the other."""
    networks = [*spec.feed_forward(layer), *filter(None, [spec.shared_projections(layer)])]
    inner = [tuple(network.values())[:-1] for network in networks]
    outer = [(network["down_proj"],) for network in networks]
    halves = [Part(Layer.attention, spec.mixer_groups(layer))] if spec.mixer(layer) else []
    if networks:
        halves.append(Part(Layer.feed_forward, [[*inner], [*outer]]))
    if spec.per_layer is not None:
        each = spec.per_layer.projections(spec.hidden_size).values()
        halves.append(Part(Layer.per_layer_input, [[(projection,)] for projection in each]))
    return halves


def all_groups(spec: DecoderSpec, layer: int) -> list[Group]:
    """The projections of a layer."""
    return [group for part in parts(spec, layer) for stage in part.stages for group in stage]


def observe(
    spec: DecoderSpec,
    weights: LayerWeights,
    layer: int,
    hidden: F32,
    groups: Sequence[Group],
    run: Run = Layer.run,
) -> Seen:
    """Runs a layer on one sequence ``[tokens, width]`` until all groups had their input.

    Experts that no token goes to see nothing.

    Args:
        spec: the decoder.
        weights: of the layer.
        layer: its number.
        hidden: what it gets, or what the part gets that is run (``verify/stream.py``).
        groups: projections that are waited for.
        run: the part.
    """
    tap = _Tap([group[0].path for group in groups])
    with suppress(_AllSeen):
        run(Layer(spec, weights, layer, tap), hidden)
    return tap.seen


class _AllSeen(Exception):  # noqa: N818 - what ends a run, and not a defect
    """Everything that was waited for came by."""


class _Tap(Observer):
    def __init__(self, paths: Sequence[str]) -> None:
        self.seen = Seen()
        self._awaited = set(paths)
        self._residual: F32 | None = None

    def residual(self, hidden: F32 | None) -> None:
        self._residual = hidden

    def projection(self, projection: Projection, value: F32) -> F32:
        if projection.path not in self._awaited:
            return value
        self._awaited.remove(projection.path)
        self.seen.inputs[projection.path] = value
        if projection.name in _TO_RESIDUAL and self._residual is not None:
            self.seen.residuals[projection.path] = self._residual
        if not self._awaited:
            raise _AllSeen
        return value
