"""Fits the projections of a decoder, layer by layer, to the inputs that they will get."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError, MissingDependencyError
from edgerun.formats.base import PackedWeight
from edgerun_export.architectures import Projection
from edgerun_export.calibrate.fitted import FittedLayers, digest
from edgerun_export.calibrate.moments import Moments
from edgerun_export.calibrate.rounding import Rounder, Rounding
from edgerun_export.calibrate.taps import (
    Group,
    LayerWeights,
    Run,
    layer_tensors,
    observe,
    parts,
)
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.quantize import block_layout, encode_affine, fits, method_for, quantise_rows
from edgerun_export.quantize.blocks import halved
from edgerun_export.quantize.method import Inputs, Needs
from edgerun_export.recipe import Recipe
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.numpy_model import Layer, embedded, predicted

F32 = NDArray[np.float32]
Item = TypeVar("Item")
Result = TypeVar("Result")
_CHUNKS = 8  # of windows, whatever the number of threads, so that sums are the same
_FEW_TOKENS = 64  # an expert that saw fewer is mentioned
_MOMENTS_BYTES = 1 << 29  # of sums that are made in one pass over the windows


@dataclass(frozen=True, slots=True)
class Cost:
    """How well a text is predicted that weights were not fitted to.

    Attributes:
        name: of the text.
        tokens: that were predicted.
        bytes: UTF-8 bytes that they spell.
        source_nats: sum of ``-ln p`` by the source's weights.
        nats: by quantised ones, with the source's embedding and head.
    """

    name: str
    tokens: int
    bytes: int
    source_nats: float
    nats: float

    @property
    def source_bits_per_byte(self) -> float:
        """Bits per byte with the source's weights."""
        return self.source_nats / math.log(2) / self.bytes

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte with quantised weights."""
        return self.nats / math.log(2) / self.bytes


@dataclass(frozen=True, slots=True)
class Work:
    """A part of a layer that is being fitted.

    Attributes:
        layer: number of the layer.
        run: computes the part.
        source: the source's weights of the layer.
        quantised: those, but for the projections that are quantised already.
    """

    layer: int
    run: Run
    source: LayerWeights
    quantised: LayerWeights


class LayerFitter:
    """Quantises projections with the methods of a recipe.

    Activations go through the layers that are quantised already, and beside them through those of
    the source where a method needs that. One layer's weights are in memory.

    Args:
        source: the weights.
        recipe: formats and methods.
        text: what calibrates.
        store: where fitted layers go to.
        threads: how many work; results do not depend on it.
        progress: called with the fraction done.

    Attributes:
        starved: projections to which hardly any token came.
        silent: how many inputs were zero in all of the text, of projections that have such.
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
        self._threads = threads
        self._progress = progress
        self.starved: list[str] = []
        self.silent: dict[str, int] = {}

    def run(self) -> list[Cost]:
        """Fits all layers; results are in the store.

        Returns:
            what that cost, for each sample of the text.

        Raises:
            CheckpointError: a layer computes what is no number.
            StorageError: the store cannot be written.
        """
        with single_threaded(), ThreadPoolExecutor(self._threads) as pool:
            self._pool = pool
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
        self._fitted_windows = len(self._text.windows)
        used = np.unique(np.concatenate(windows))
        rows = embedded(self._spec, self._source, used)
        self._hidden = [rows[np.searchsorted(used, window)] for window in windows]
        needs = [
            self._needs(layer, projection)
            for layer in range(self._spec.num_layers)
            for projection in self._spec.projections(layer)
        ]
        first = 0 if max(needs) >= Needs.SOURCE else self._fitted_windows
        self._source_hidden = dict(enumerate(self._hidden[first:], first))

    def _needs(self, layer: int, projection: Projection) -> Needs:
        kind = self._recipe.tensor(f"model.layers.{layer}.{projection.path}")
        if kind.weights == "fp32":
            return Needs.ROWS
        return method_for(kind.weights, kind.method).needs

    def _layer(self, layer: int) -> None:
        tensors = layer_tensors(self._source, layer)
        own = digest(tensors)
        source = LayerWeights(tensors)
        del tensors
        quantised = source.copy()
        weights = self._store.load(layer, own)
        fitted = {} if weights is None else weights
        for name, packed in fitted.items():
            quantised.replace(name, block_layout(packed.format).unpack(packed))
        for part in parts(self._spec, layer):
            work = Work(layer, part.run, source, quantised)
            for groups in self._batches(part.stages) if weights is None else ():
                fitted |= self._fit(work, groups)
            self._advance(work)
        if weights is None:
            self._store.save(layer, own, fitted)

    def _batches(self, stages: Sequence[Sequence[Group]]) -> Iterator[list[Group]]:
        """Groups of a stage whose sums fit into memory together."""
        for stage in stages:
            batch: list[Group] = []
            used = 0
            for group in stage:
                size = 8 * group[0].in_features ** 2 * (_CHUNKS if len(stage) == 1 else 2)
                if batch and used + size > _MOMENTS_BYTES:
                    yield batch
                    batch, used = [], 0
                batch.append(group)
                used += size
            yield batch

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
        moments = self._moments(work, groups)
        inputs = {
            projection: (moments[group[0].path], names[projection])
            for group in groups
            for projection in group
            if projection in fitted
        }
        source, quantised = work.source, work.quantised
        packed = self._in_order(lambda item: self._quantised(*item, source), list(inputs.values()))
        weights = {names[projection]: each for projection, each in zip(inputs, packed, strict=True)}
        for name, each in weights.items():
            quantised.replace(name, block_layout(each.format).unpack(each))
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

    def _quantised(self, inputs: Inputs, name: str, source: LayerWeights) -> PackedWeight:
        kind = self._recipe.tensor(name.removesuffix(".weight"))
        rows = source.matrix(name)
        packed = quantise_rows(rows, kind.weights, kind.group_size, kind.method, inputs)
        return halved(packed) if self._recipe.scales == "fp16" else packed

    def _moments(self, work: Work, groups: Sequence[Group]) -> dict[str, Inputs]:
        """What comes to groups, by the path of the first projection of each."""
        layer = work.layer
        needs = {group[0].path: max(self._needs(layer, each) for each in group) for group in groups}

        def over(windows: Iterable[int]) -> dict[str, Moments]:
            sums = {path: Moments(need) for path, need in needs.items()}
            for window in windows:
                self._observe(work, window, groups, sums)
            return sums

        total = {path: Moments(need) for path, need in needs.items()}
        chunks = np.array_split(np.arange(self._fitted_windows), _CHUNKS)
        windows = [chunk.tolist() for chunk in chunks if len(chunk)]
        for sums in self._in_order(over, windows, _at_once(groups)):
            while sums:  # none of them stays while the next are made
                path, moments = sums.popitem()
                total[path].merge(moments)
                del moments
        for path, moments in total.items():
            if moments.tokens < _FEW_TOKENS:
                self.starved.append(f"layers.{layer}.{path}")
        means = {
            group[0].path: total[group[0].path].means(group[0].in_features) for group in groups
        }
        for path, inputs in means.items():
            silent = int(np.count_nonzero(inputs.importance == 0))
            if silent and total[path].tokens >= _FEW_TOKENS:
                self.silent[f"layers.{layer}.{path}"] = silent
        return means

    def _observe(
        self, work: Work, window: int, groups: Sequence[Group], sums: dict[str, Moments]
    ) -> None:
        spec, layer, run = self._spec, work.layer, work.run
        seen = observe(spec, work.quantised, layer, self._hidden[window], groups, run)
        needs = max(self._needs(layer, each) for group in groups for each in group)
        beside = None
        # Other tokens may come to an expert than in the source.
        is_expert = spec.is_expert(f"model.layers.{layer}.{groups[0][0].path}")
        if needs >= Needs.SOURCE and not is_expert:
            beside = observe(spec, work.source, layer, self._source_hidden[window], groups, run)
        for path, value in seen.inputs.items():
            _check_finite(value, layer, f"before {path}", window)
            if beside is None:
                sums[path].add(value)
                continue
            strayed = None
            if path in seen.residuals:
                strayed = beside.residuals[path] - seen.residuals[path]
            sums[path].add(value, beside.inputs[path], strayed)

    def _advance(self, work: Work) -> None:
        """Takes all windows through a part of a layer."""
        layer = work.layer

        def source(window: int) -> F32:
            hidden = self._source_hidden[window]
            after = work.run(Layer(self._spec, work.source, layer), hidden)
            _check_finite(after, layer, "of the source", window)
            return after

        def quantised(window: int) -> F32:
            hidden = self._hidden[window]
            rounder = Rounder(self._roundings[window], self._spec, self._recipe, layer)
            after = work.run(Layer(self._spec, work.quantised, layer, rounder), hidden)
            _check_finite(after, layer, "with quantised weights", window)
            return after

        windows = list(self._source_hidden)
        for window, after in zip(windows, self._in_order(source, windows), strict=True):
            self._source_hidden[window] = after
        windows = list(range(len(self._hidden)))
        for window, after in zip(windows, self._in_order(quantised, windows), strict=True):
            self._hidden[window] = after

    def _costs(self) -> list[Cost]:
        costs = []
        at = self._fitted_windows
        for sample in self._text.samples:
            count = len(sample.windows)
            nats = [
                sum(self._in_order(self._surprise, list(zip(hidden, sample.windows, strict=True))))
                for hidden in (
                    [self._source_hidden[window] for window in range(at, at + count)],
                    self._hidden[at : at + count],
                )
            ]
            tokens = count * (sample.windows.shape[1] - 1)
            costs.append(Cost(sample.name, tokens, sample.bytes, nats[0], nats[1]))
            at += count
        return costs

    def _surprise(self, item: tuple[F32, NDArray[np.int64]]) -> float:
        hidden, ids = item
        return surprise(predicted(self._spec, self._source, hidden), ids)

    def _in_order(
        self, function: Callable[[Item], Result], items: Sequence[Item], at_once: int | None = None
    ) -> Iterator[Result]:
        """Results in the order of the items, as many at work as there are threads.

        ``at_once`` says how many are at work at most, if memory sets a limit.
        """
        waiting: deque[Future[Result]] = deque()
        for item in items:
            if len(waiting) == min(self._threads, at_once or self._threads):
                yield waiting.popleft().result()
            waiting.append(self._pool.submit(_quietly, function, item))
        while waiting:
            yield waiting.popleft().result()


def _at_once(groups: Sequence[Group]) -> int:
    """How many chunks of windows are summed at a time, so that their sums fit into memory."""
    nbytes = sum(2 * 8 * group[0].in_features ** 2 for group in groups)
    return max(1, _MOMENTS_BYTES // nbytes)


def single_threaded() -> AbstractContextManager[Any]:
    """While it lasts, matrix products of NumPy are the same on any number of cores.

    Raises:
        MissingDependencyError: threadpoolctl is not installed.
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(
            "running a checkpoint's layers needs threadpoolctl: pip install 'edgerun[export]'"
        ) from error
    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits


def _quietly(function: Callable[[Item], Result], item: Item) -> Result:
    """Calls without NumPy's warnings; what is no number is looked for."""
    with np.errstate(all="ignore"):
        return function(item)


def _check_finite(values: F32, layer: int, where: str, window: int) -> None:
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"layer {layer} {where} computes NaN or infinity on window {window} of the "
            "calibration text; check the checkpoint, or calibrate with other text"
        )


def surprise(logits: F32, ids: NDArray[np.int64]) -> float:
    """Sum of ``-ln p`` of ids ``[tokens]`` but the first, from logits ``[tokens, vocab]``."""
    rows = logits[:-1]
    highest = rows.max(axis=-1)
    totals = np.log(np.exp(rows - highest[:, None]).sum(axis=-1, dtype=np.float64))
    chosen = rows[np.arange(len(rows)), ids[1:]]
    return float((totals + highest - chosen).sum())
