"""Weights of a source, multiplied from either side as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.checkpoint.base import Affine, Integers
from edgerun_export.source.weights import SourceWeights

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a matrix W ``[N, K]``; None leaves a side as it is.

    Many matrices are changed by the same one, which therefore is not made anew for each.

    Attributes:
        outputs: ``[D, D]`` times every D rows of W (all, if D is N), or a factor for every row
            ``[N]``.
        inputs: every D columns of W times ``[D, D]`` (all, if D is K), or a factor for every column
            ``[K]``.
        columns: a factor for every column ``[K]`` before ``inputs [K, K]``.
    """

    outputs: F32 | None = None
    inputs: F32 | None = None
    columns: F32 | None = None

    def of_inputs(self, rows: F32) -> F32:
        """Rows ``[n, K]`` of W with other columns."""
        if self.inputs is None:
            return rows
        if self.inputs.ndim == 1:
            return np.asarray(rows * self.inputs)
        inputs = self.inputs if self.columns is None else self.columns[:, None] * self.inputs
        return np.asarray((rows.reshape(-1, len(inputs)) @ inputs).reshape(rows.shape))

    def of_outputs(self, whole: F32) -> F32:
        """W with other rows, where ``outputs`` is a matrix."""
        assert self.outputs is not None
        blocks = whole.reshape(-1, len(self.outputs), whole.shape[1])
        return np.asarray((self.outputs @ blocks).reshape(whole.shape))


class TransformedWeights(SourceWeights):
    """A source in which some tensors are others.

    Args:
        source: where the weights come from.
        spec: the decoder that they belong to now.
        changes: of matrices, by name.
        vectors: norms and biases that are others, by name.
        origins: names in the source of matrices that have another name there.
    """

    def __init__(
        self,
        source: SourceWeights,
        spec: DecoderSpec,
        changes: Mapping[str, Change],
        vectors: Mapping[str, F32],
        origins: Mapping[str, str],
    ) -> None:
        self.spec = spec
        self._source = source
        self._changes, self._vectors, self._origins = changes, vectors, origins
        self._shapes = spec.tensors()
        self._latest: tuple[str, F32] | None = None

    def unread(self) -> list[str]:
        return self._source.unread()

    def count(self) -> int:
        return self._source.count()

    def natively_ternary(self) -> bool:
        return False

    def stores_ternary(self) -> bool:
        return False

    def is_ternary(self, name: str) -> bool:
        return False

    def stored_type(self, name: str) -> str:
        return self._source.stored_type(self._origin(name))

    def vector(self, name: str) -> F32:
        if name in self._vectors:
            return self._vectors[name]
        return self._source.vector(name)

    def rows(self, name: str, rows: slice) -> F32:
        change = self._changes.get(name, Change())
        if change.outputs is not None and change.outputs.ndim == 2:
            if self._latest is None or self._latest[0] != name:
                whole = change.of_inputs(self._source.matrix(self._origin(name)))
                self._latest = name, change.of_outputs(whole)
            return self._latest[1][rows]
        part = change.of_inputs(self._source.rows(self._origin(name), rows))
        return part if change.outputs is None else part * change.outputs[rows, None]

    def integers(self, name: str, rows: slice) -> tuple[Integers, F32] | None:
        changed = name in self._changes
        return None if changed else self._source.integers(self._origin(name), rows)

    def affine(self, name: str, rows: slice) -> Affine | None:
        changed = name in self._changes
        return None if changed else self._source.affine(self._origin(name), rows)

    def _origin(self, name: str) -> str:
        return self._origins.get(name, name)
