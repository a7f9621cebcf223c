"""What comes to the projections of a part of a layer, summed over a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.calibrate.moments import Moments, Tokens
from edgerun_export.calibrate.streams import Stream
from edgerun_export.calibrate.taps import Group, Run, Seen, observe
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.calibrate.workers import Workers
from edgerun_export.quantize.method import Inputs, Needs

F32 = NDArray[np.float32]
_MOMENTS_BYTES = 1 << 29  # of sums that are made in one pass over the windows


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


class Observation:
    """Sums over windows what comes to groups of projections.

    Args:
        spec: the decoder.
        work: the part of a layer.
        needs: what is summed for each group, by the path of its first projection.
        groups: projections that read the same.
        hidden: what comes to the part by quantised layers.
        source_hidden: the same by those of the source; read where something needs it.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        work: Work,
        needs: Mapping[str, Needs],
        groups: Sequence[Group],
        hidden: Stream,
        source_hidden: Stream,
    ) -> None:
        self._spec, self._work, self._needs = spec, work, needs
        self._groups = {group[0].path: group for group in groups}
        self._hidden, self._source_hidden = hidden, source_hidden
        # Other tokens may come to an expert than in the source.
        is_expert = spec.is_expert(f"model.layers.{work.layer}.{groups[0][0].path}")
        self._has_source = max(needs.values()) >= Needs.SOURCE and not is_expert

    def sums(self, windows: Sequence[int], workers: Workers) -> dict[str, Moments]:
        """Sums over windows, by the path of the first projection of each group.

        Raises:
            CheckpointError: a layer computes what is no number.
        """
        sums = {
            path: Moments(self._needs[path], group[0].in_features)
            for path, group in self._groups.items()
        }
        for start in range(0, len(windows), workers.threads):
            some = windows[start : start + workers.threads]
            seen = list(workers.in_order(self._tokens, some))
            came = {path: [each[path] for each in seen if path in each] for path in sums}
            strips = [(path, strip) for path in sums for strip in sums[path].begin(came[path])]

            def add(job: tuple[str, slice], came: dict[str, list[Tokens]] = came) -> None:
                path, strip = job
                sums[path].add_strip(strip, came[path])

            workers.each(add, strips)
        return sums

    def _tokens(self, window: int) -> dict[str, Tokens]:
        work, groups = self._work, list(self._groups.values())
        seen = observe(
            self._spec, work.quantised, work.layer, self._hidden[window], groups, work.run
        )
        beside = None
        if self._has_source:
            hidden = self._source_hidden[window]
            beside = observe(self._spec, work.source, work.layer, hidden, groups, work.run)
        for path, value in seen.inputs.items():
            check_finite(value, work.layer, f"before {path}", window)
        return {path: self._of(path, seen, beside) for path in seen.inputs}

    def _of(self, path: str, seen: Seen, beside: Seen | None) -> Tokens:
        value, group = seen.inputs[path], self._groups[path]
        if beside is None or self._needs[path] < Needs.SOURCE:
            return Tokens(value)
        drift = beside.inputs[path] - value
        if len(group) > 1:
            return Tokens(value, drift)
        # Of one matrix [N, K] products with its outputs are fewer than with its inputs.
        name = f"model.layers.{self._work.layer}.{path}.weight"
        weight = self._work.source.matrix(name)
        change = np.asarray(drift @ weight.T, np.float32)
        if self._needs[path] >= Needs.RESIDUAL and path in seen.residuals:
            change += beside.residuals[path] - seen.residuals[path]
        return Tokens(value, change=change)


def products(
    spec: DecoderSpec,
    weights: LayerWeights,
    layer: int,
    stream: Iterable[F32],
    groups: Sequence[Group],
) -> dict[str, Inputs]:
    """Mean products of what comes to groups, by the path of the first projection of each.

    Args:
        spec: the decoder.
        weights: of the layer.
        layer: its number.
        stream: what comes to the layer, ``[tokens, width]`` of each window.
        groups: projections that read the same, of one of ``batches``.
    """
    sums = {group[0].path: Moments(Needs.HESSIAN, group[0].in_features) for group in groups}
    for hidden in stream:
        for path, value in observe(spec, weights, layer, hidden, groups).inputs.items():
            sums[path].add([Tokens(value)])
    return {path: moments.means() for path, moments in sums.items()}


def batches(stages: Sequence[Sequence[Group]]) -> Iterator[list[Group]]:
    """Groups of a stage whose sums fit into memory together."""
    for stage in stages:
        batch: list[Group] = []
        used = 0
        for group in stage:
            size = 8 * group[0].in_features ** 2 * (1 if len(group) == 1 else 2)
            if batch and used + size > _MOMENTS_BYTES:
                yield batch
                batch, used = [], 0
            batch.append(group)
            used += size
        if batch:
            yield batch


def check_finite(values: F32, layer: int, where: str, window: int) -> None:
    """Looks for what is no number.

    Raises:
        CheckpointError: there is some.
    """
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"layer {layer} {where} computes NaN or infinity on window {window} of the "
            "calibration text; check the checkpoint, or calibrate with other text"
        )
