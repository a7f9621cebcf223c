"""The weights of one layer, in memory as long as somebody computes with them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_export.source.weights import SourceWeights

F32 = NDArray[np.float32]
Read: TypeAlias = Callable[[], F32]


class LayerWeights:
    """The tensors of a layer, by Hugging Face name; each is read when it is first asked for.

    Args:
        source: where they are read.
        layer: number of the layer.
    """

    def __init__(self, source: SourceWeights, layer: int) -> None:
        self._source, self._layer = source, layer
        shapes = source.spec.tensors()
        self._matrices = {
            name: len(shape) == 2
            for name, shape in shapes.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        self._others: dict[str, Read] = {}
        self._held: dict[str, F32] = {}
        self._lock = Lock()

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._matrices)

    def vector(self, name: str) -> F32:
        return self._tensor(name)

    def matrix(self, name: str) -> F32:
        return self._tensor(name)

    def head_name(self) -> str:
        raise KeyError("a layer has no head")

    def rows(self, name: str, rows: slice) -> F32:
        return self._tensor(name)[rows]

    def replace(self, name: str, read: Read) -> None:
        """Gives a tensor other values."""
        self._held.pop(name, None)
        self._others[name] = read

    def copy(self) -> LayerWeights:
        """Another of the same tensors, in which others can be put."""
        other = LayerWeights(self._source, self._layer)
        other._others, other._held = dict(self._others), dict(self._held)
        return other

    def release(self) -> None:
        """Lets go of what was read; it is read again when it is asked for."""
        self._held.clear()

    def read(self, name: str) -> F32:
        """Reads a tensor and does not hold it."""
        if name in self._others:
            return self._others[name]()
        is_matrix = self._matrices[name]
        return self._source.matrix(name) if is_matrix else self._source.vector(name)

    def _tensor(self, name: str) -> F32:
        with self._lock:
            if name not in self._held:
                self._held[name] = self.read(name)
            return self._held[name]
