"""Fits the projections of a decoder, layer by layer, to the inputs that they will get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun.formats.base import PackedWeight
from edgerun_export.architectures import Projection
from edgerun_export.calibrate.costs import Cost, surprise
from edgerun_export.calibrate.fitted import FittedLayers, Gaps, digest
from edgerun_export.calibrate.observed import Observation, Work, batches, check_finite
from edgerun_export.calibrate.rounding import Rounder, Rounding
from edgerun_export.calibrate.streams import Stream
from edgerun_export.calibrate.taps import Group, parts
from edgerun_export.calibrate.text import CalibrationText, predicting
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.calibrate.workers import Workers
from edgerun_export.quantize import block_layout, encode_affine, fits, method_for, quantise_rows
from edgerun_export.quantize.blocks import halved, joined
from edgerun_export.quantize.method import Inputs, Needs
from edgerun_export.recipe import Recipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.numpy_ends import embedded
from edgerun_export.verify.numpy_model import Layer

F32 = NDArray[np.float32]
Job: TypeAlias = tuple[str, slice, Inputs]
_FEW_TOKENS = 64  # an expert that saw fewer is mentioned
_SLAB_WEIGHTS = 1 << 21  # that are fitted at a time, for which there are some copies in float64


class LayerFitter:
    """Quantises projections with the methods of a recipe.

    Activations go through the layers that are quantised already, and beside them through those of
    the source where a method needs that; what lies between layers is on disk. Of one layer's
    weights those are in memory that are computed with.

    Args:
        source: the weights.
        recipe: formats and methods.
        text: what calibrates.
        store: where fitted layers go to.
        threads: how many work; results do not depend on it.
        progress: called with the fraction done.

    Attributes:
        gaps: what the text does not tell, of all layers that are done.
    """

    def __init__(
        self,
        source: SourceWeights,
        recipe: Recipe,
        text: CalibrationText,
        store: FittedLayers,
        threads: int,
        progress: Callable[[float], None] = lambda fraction: None,
    ) -> None:
        self._source, self._recipe, self._text, self._store = source, recipe, text, store
        self._spec = source.spec
        self._workers = Workers(threads)
        self._progress = progress
        self.gaps = Gaps()

    def run(self) -> list[Cost]:
        """Fits all layers; results are in the store.

        Returns:
            what that cost, for each sample of the text.

        Raises:
            CheckpointError: a layer computes what is no number.
            StorageError: the store cannot be written.
        """
        with ExitStack() as stack:
            self._hidden, self._source_hidden = (
                stack.enter_context(Stream(self._store.folder)) for _ in range(2)
            )
            stack.enter_context(self._workers)  # who write to streams, and so end before them
            self._begin()
            for layer in range(self._spec.num_layers):
                self._layer(layer)
                self._progress((layer + 1) / self._spec.num_layers)
            return self._costs()

    def _begin(self) -> None:
        windows = [*self._text.windows]
        self._roundings = [Rounding() for _ in windows]
        for sample in self._text.samples:
            windows += [*sample.windows]
            self._roundings += [sample.rounding for _ in sample.windows]
        self._fitted_windows = list(range(len(self._text.windows)))
        used = np.unique(np.concatenate(windows))
        rows = embedded(self._spec, self._source, used)
        self._digest = digest([("embedded", rows)])
        needs = [
            self._needs(layer, projection)
            for layer in range(self._spec.num_layers)
            for projection in self._spec.projections(layer)
        ]
        first = 0 if max(needs) >= Needs.SOURCE else len(self._fitted_windows)
        for number, window in enumerate(windows):
            self._hidden[number] = hidden = rows[np.searchsorted(used, window)]
            if number >= first:
                self._source_hidden[number] = hidden

    def _needs(self, layer: int, projection: Projection) -> Needs:
        kind = self._recipe.tensor(f"model.layers.{layer}.{projection.path}")
        if kind.weights == "fp32":
            return Needs.ROWS
        return method_for(kind.weights, kind.method).needs

    def _layer(self, layer: int) -> None:
        source = LayerWeights(self._source, layer)
        # What comes before a layer makes its inputs, so its digest goes into the layer's.
        names = sorted(source.names)
        own = self._digest = digest((self._digest + name, source.read(name)) for name in names)
        quantised = source.copy()
        stored = self._store.load(layer, own)
        fitted, self._gaps = ({}, Gaps()) if stored is None else stored
        _replace(quantised, fitted)
        for part in parts(self._spec, layer):
            work = Work(layer, part.run, source, quantised)
            for groups in batches(part.stages) if stored is None else ():
                fitted |= self._fit(work, groups)
            self._advance(work)
        if stored is None:
            self._store.save(layer, own, fitted, self._gaps)
        self.gaps.add(self._gaps)

    def _fit(self, work: Work, groups: Sequence[Group]) -> dict[str, PackedWeight]:
        names = {
            projection: f"model.layers.{work.layer}.{projection.path}.weight"
            for group in groups
            for projection in group
        }
        fitted = [projection for projection, name in names.items() if self._is_fitted(name)]
        groups = [group for group in groups if any(each in fitted for each in group)]
        if not groups:
            return {}
        inputs = self._inputs(work, groups)
        jobs: list[Job] = [
            (names[projection], rows, inputs[group[0].path])
            for group in groups
            for projection in group
            if projection in fitted
            for rows in _slabs(projection)
        ]
        parts: dict[str, list[PackedWeight]] = {}
        quantised = self._workers.in_order(partial(self._quantised, work.source), jobs)
        for (name, *_), packed in zip(jobs, quantised, strict=True):
            parts.setdefault(name, []).append(packed)
        work.source.release()
        weights = {name: self._finished(each) for name, each in parts.items()}
        _replace(work.quantised, weights)
        return weights

    def _is_fitted(self, name: str) -> bool:
        """Whether a projection has a block format, and integers of the source do not fit it."""
        kind = self._recipe.tensor(name.removesuffix(".weight"))
        if kind.weights == "fp32":
            return False
        layout = block_layout(kind.weights)
        affine = self._source.affine(name, slice(0, 1)) if layout.has_offsets else None
        if affine and encode_affine(affine, layout, kind.group_size):
            return False
        stored = self._source.integers(name, slice(None))
        return stored is None or not fits(*stored, layout, kind.group_size)

    def _quantised(self, source: LayerWeights, job: Job) -> PackedWeight:
        name, rows, inputs = job
        kind = self._recipe.tensor(name.removesuffix(".weight"))
        weights = source.rows(name, rows)
        return quantise_rows(weights, kind.weights, kind.group_size, kind.method, inputs.of(rows))

    def _finished(self, slabs: Sequence[PackedWeight]) -> PackedWeight:
        packed = joined(slabs)
        return halved(packed) if self._recipe.scales == "fp16" else packed

    def _inputs(self, work: Work, groups: Sequence[Group]) -> dict[str, Inputs]:
        """What comes to groups, by the path of the first projection of each."""
        layer = work.layer
        needs = {group[0].path: max(self._needs(layer, each) for each in group) for group in groups}
        observation = Observation(
            self._spec, work, needs, groups, self._hidden, self._source_hidden
        )
        sums = observation.sums(self._fitted_windows, self._workers)
        for weights in (work.source, work.quantised):
            weights.release()  # what is fitted next needs the memory
        inputs = {path: moments.means() for path, moments in sums.items()}
        self._workers.each(_factor, inputs.values())
        for path, each in inputs.items():
            if each.hessian is not None and not np.isfinite(each.hessian.diagonal).all():
                raise CheckpointError(
                    f"layer {layer} before {path} computes numbers whose products exceed float32; "
                    "check the checkpoint, or calibrate with other text"
                )
            if sums[path].tokens < _FEW_TOKENS:
                self._gaps.starved.append(f"layers.{layer}.{path}")
            elif silent := int(np.count_nonzero(each.importance == 0)):
                self._gaps.silent[f"layers.{layer}.{path}"] = silent
            if each.hessian is not None and each.hessian.was_singular:
                self._gaps.singular.append(f"layers.{layer}.{path}")
        return inputs

    def _advance(self, work: Work) -> None:
        """Takes all windows through a part of a layer."""
        layer = work.layer

        def source(window: int) -> None:
            after = work.run(Layer(self._spec, work.source, layer), self._source_hidden[window])
            check_finite(after, layer, "of the source", window)
            self._source_hidden[window] = after

        def quantised(window: int) -> None:
            rounder = Rounder(self._roundings[window], self._spec, self._recipe, layer)
            after = work.run(
                Layer(self._spec, work.quantised, layer, rounder), self._hidden[window]
            )
            check_finite(after, layer, "with quantised weights", window)
            self._hidden[window] = after

        self._workers.each(source, self._source_hidden.windows())
        work.source.release()
        self._workers.each(quantised, self._hidden.windows())
        work.quantised.release()

    def _costs(self) -> list[Cost]:
        costs = []
        first = len(self._fitted_windows)
        for sample in self._text.samples:
            count = len(sample.windows)

            def cost(item: tuple[Stream, int], at: int = first) -> float:
                stream, number = item
                ids = sample.windows[number]  # noqa: B023 - called before the next sample
                places = predicting(ids, sample.begins)  # noqa: B023
                hidden = stream[at + number][places]
                return surprise(self._spec, self._source, hidden, ids[places + 1])

            nats = [
                sum(self._workers.in_order(cost, [(stream, each) for each in range(count)]))
                for stream in (self._source_hidden, self._hidden)
            ]
            costs.append(Cost(sample.name, sample.tokens, sample.bytes, nats[0], nats[1]))
            first += count
        return costs


def _replace(weights: LayerWeights, fitted: dict[str, PackedWeight]) -> None:
    for name, packed in fitted.items():
        weights.replace(name, partial(block_layout(packed.format).unpack, packed))


def _factor(inputs: Inputs) -> None:
    if inputs.hessian is not None and np.isfinite(inputs.hessian.diagonal).all():
        inputs.hessian.factor()


def _slabs(projection: Projection) -> Iterable[slice]:
    """Rows that are fitted at a time."""
    step = max(1, _SLAB_WEIGHTS // projection.in_features)
    for start in range(0, projection.out_features, step):
        yield slice(start, min(start + step, projection.out_features))
