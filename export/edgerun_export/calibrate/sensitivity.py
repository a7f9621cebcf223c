"""What rounding a tensor does to the text, estimated from one pass over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun_export.calibrate.costs import stream_divergence
from edgerun_export.calibrate.observed import batches, products
from edgerun_export.calibrate.streams import Stream
from edgerun_export.calibrate.taps import parts
from edgerun_export.calibrate.text import predicting
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.quantize import block_layout, quantise_rows
from edgerun_export.quantize.method import Inputs
from edgerun_export.recipe import TensorRecipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.numpy_ends import embedded
from edgerun_export.verify.numpy_model import Layer

F32 = NDArray[np.float32]
# The first that loses something shows what losses do: integers of 4 bits lose nothing by their own.
_PROBES = tuple(
    TensorRecipe(weights, group, "mse")
    for weights, group in (("int4", 32), ("int4", 128), ("int2", 64))
)
_LEAST_LOSS = 1e-5  # of the outputs' squares; what is below it may be rounding of float32 alone
_ROWS = 64  # of a matrix, evenly spread, that are rounded in every way to see what that costs


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Estimated costs.

    Attributes:
        nats: a token, by module path (of any of those that are stored alike) and kind.
        members: module paths of what is stored alike with it.
    """

    nats: Mapping[str, Mapping[TensorRecipe, float]]
    members: Mapping[str, tuple[str, ...]]


@dataclass(slots=True)
class _Layer:
    """What is known of a layer until the last one is reached.

    Attributes:
        errors: squared error of the layer's output, by tensor and kind.
        squares: squared change of the output when all was probed.
    """

    errors: dict[str, dict[TensorRecipe, float]]
    squares: float


@dataclass(slots=True)
class _Tensor:
    """What is stored alike, of the source's inputs.

    Attributes:
        probes: the projections rounded in one of the ways ``_PROBES``, by module path.
        probe_error: squared error of their outputs then.
        errors: the same by kind, as far as some rows tell it.
    """

    probes: dict[str, PackedWeight] = field(default_factory=dict)
    probe_error: float = 0.0
    errors: dict[TensorRecipe, float] = field(default_factory=dict)

    def add(
        self, path: str, weights: LayerWeights, inputs: Inputs, kinds: Sequence[TensorRecipe]
    ) -> None:
        """Adds a projection."""
        rows = weights.matrix(f"{path}.weight")
        self.probes[path], error = _probed(rows, inputs)
        self.probe_error += error
        for kind in kinds:
            self.errors[kind] = self.errors.get(kind, 0.0) + _sampled_error(rows, kind, inputs)

    def put_into(self, weights: LayerWeights) -> None:
        """Puts what was probed in the place of the source's."""
        for path, probe in self.probes.items():
            weights.replace(f"{path}.weight", partial(_unpacked, probe))


class SensitivityMeter:
    """Measures, layer by layer, what formats do to the logits.

    A tensor's error is ``tr(E H ET)`` of what the method of a kind makes of some of its rows from
    the source's inputs alone. How much of that comes out of its layer, and what comes of that in
    the end, is measured once for each tensor and once for each layer with 4-bit rounding, or a
    coarser one where that loses nothing, and taken to be proportional.

    Args:
        source: the model.
        fitted: ids ``[windows, tokens]`` that give the Hessians.
        probed: ids ``[windows, tokens]`` on which changes are measured.
        folder: on the disk that takes what changes make of these, once for every layer.
        progress: called with the fraction done.
        begins: ids that a document begins with, which are not predicted.
    """

    def __init__(
        self,
        source: SourceWeights,
        fitted: NDArray[np.int64],
        probed: NDArray[np.int64],
        folder: Path,
        progress: Callable[[float], None],
        begins: Sequence[int] = (),
    ) -> None:
        self._source, self._spec = source, source.spec
        self._fitted, self._probed = (
            [embedded(self._spec, source, window) for window in windows]
            for windows in (fitted, probed)
        )
        self._folder = folder
        self._places = [predicting(window, begins) for window in probed]
        self._progress = progress
        self._members: dict[str, tuple[str, ...]] = {}

    def run(self, kinds: Sequence[TensorRecipe]) -> Sensitivity:
        """Estimates costs of all kinds, for every projection.

        Raises:
            StorageError: the folder takes no more.
        """
        layers: list[_Layer] = []
        with Stream(self._folder) as changed:
            for layer in range(self._spec.num_layers):
                weights = LayerWeights(self._source, layer)
                for window in changed.windows():
                    (changed[window],) = self._through(layer, weights, [changed[window]])
                layers.append(self._layer(layer, weights, kinds, changed))
                self._fitted = self._through(layer, weights, self._fitted)
                self._probed = self._through(layer, weights, self._probed)
                self._progress((layer + 1) / self._spec.num_layers)
            return Sensitivity(self._costs(layers, changed), self._members)

    def _through(self, layer: int, weights: LayerWeights, stream: Sequence[F32]) -> list[F32]:
        return [Layer(self._spec, weights, layer).run(hidden) for hidden in stream]

    def _layer(
        self, layer: int, weights: LayerWeights, kinds: Sequence[TensorRecipe], changed: Stream
    ) -> _Layer:
        """Measures a layer; what comes out of it is ``changed`` when all of it is rounded."""
        before = self._through(layer, weights, self._probed)
        everything = weights.copy()
        # Experts are stored alike; a network beside them has their projections' names as well.
        networks = self._spec.feed_forward(layer)
        names = {each.path: each.name for network in networks for each in network.values()}
        tensors: dict[str, _Tensor] = {}
        stages = [stage for part in parts(self._spec, layer) for stage in part.stages]
        for groups in batches(stages):  # whose Hessians are in memory together
            inputs = products(self._spec, weights, layer, self._fitted, groups)
            for group in groups:
                for projection in group:
                    key = names.get(projection.path, projection.path)
                    path = f"model.layers.{layer}.{projection.path}"
                    tensor = tensors.setdefault(key, _Tensor())
                    tensor.add(path, weights, inputs[group[0].path], kinds)
        errors: dict[str, dict[TensorRecipe, float]] = {}
        for tensor in tensors.values():
            alone = weights.copy()
            for each in (alone, everything):
                tensor.put_into(each)
            out = _squares(self._through(layer, alone, self._probed), before)
            passed = out / tensor.probe_error if tensor.probe_error else 0.0
            paths = tuple(tensor.probes)
            self._members[paths[0]] = paths
            errors[paths[0]] = {kind: passed * error for kind, error in tensor.errors.items()}
        after = self._through(layer, everything, self._probed)
        for number, hidden in enumerate(after):
            changed[layer * len(after) + number] = hidden
        return _Layer(errors, _squares(after, before))

    def _costs(
        self, layers: Sequence[_Layer], changed: Stream
    ) -> dict[str, dict[TensorRecipe, float]]:
        costs: dict[str, dict[TensorRecipe, float]] = {}
        count = len(self._probed)
        for number, layer in enumerate(layers):
            nats = 0.0
            for window, places in enumerate(self._places):
                first, second = self._probed[window], changed[number * count + window]
                nats += stream_divergence(self._spec, self._source, first[places], second[places])
            nats = max(0.0, nats / count)  # below 0 only by rounding
            factor = nats / layer.squares if layer.squares else 0.0
            for name, errors in layer.errors.items():
                costs[name] = {kind: factor * error for kind, error in errors.items()}
        return costs


def _probed(rows: F32, inputs: Inputs) -> tuple[PackedWeight, float]:
    """Rounds a matrix such that it loses something; returns it and the error of its outputs.

    Rows that no input comes to, or that every way holds, lose nothing.
    """
    least = _LEAST_LOSS * _error(rows, inputs)
    for kind in _PROBES:
        probe = _packed(rows, kind, None)
        error = _error(_unpacked(probe) - rows, inputs)
        if error > least or least == 0:
            break
    return probe, error


def _packed(rows: F32, kind: TensorRecipe, inputs: Inputs | None) -> PackedWeight:
    return quantise_rows(rows, kind.weights, kind.group_size, kind.method, inputs)


def _unpacked(packed: PackedWeight) -> F32:
    return block_layout(packed.format).unpack(packed)


def _error(difference: F32, inputs: Inputs) -> float:
    """Mean squared error of the outputs."""
    assert inputs.hessian is not None
    return inputs.hessian.error(difference)


def _sampled_error(rows: F32, kind: TensorRecipe, inputs: Inputs) -> float:
    """The same of a kind, from some rows."""
    some = rows[:: max(1, len(rows) // _ROWS)]
    rounded = _unpacked(_packed(some, kind, inputs))
    return _error(rounded - some, inputs) * len(rows) / len(some)


def _squares(stream: Sequence[F32], before: Sequence[F32]) -> float:
    return float(sum(np.square(a - b).sum() for a, b in zip(stream, before, strict=True)))
