"""What views of layers of integers have in common: ``weight = (code - zero point) * scale``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import (
    F32,
    Array,
    Checkpoint,
    Integers,
    TensorInfo,
)
from edgerun_export.checkpoint.stored import check_finite
from edgerun_export.checkpoint.views.base import Replacing
from edgerun_export.checkpoint.views.integer_types import REORDERED, SYMMETRIC

_EXPERTS = ".experts."


@dataclass(frozen=True, slots=True)
class Layer:
    """What is known of a layer before its codes are read.

    Attributes:
        info: name, shape ``(N, K)`` and type of its weight.
        bits: of a code.
        groups: groups of inputs that share a scale.
        is_centred: whether all zero points are known to be the middle of the codes.
        in_order: whether groups are runs of inputs of one length, one behind the other.
    """

    info: TensorInfo
    bits: int
    groups: int
    is_centred: bool
    in_order: bool = True


class Codes(NamedTuple):
    """Rows of a layer as they are stored.

    Attributes:
        codes: relative to the middle, int16 ``[n, K]``.
        points: zero points relative to the middle, int16 ``[n, groups]``.
        scales: float32 ``[n, groups]``, of either sign: AutoRound writes those below 0 where the
            weight of largest magnitude is above it, since codes reach farther below the middle.
        groups: the group of each input, ``[K]``.
    """

    codes: NDArray[np.int16]
    points: NDArray[np.int16]
    scales: F32
    groups: NDArray[np.int64]


class IntegerLayers(Replacing, ABC):
    """A checkpoint, with one tensor in place of what a layer's weights are stored in."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Takes what lies behind; layers follow by ``_set_layers``."""
        super().__init__(checkpoint)
        self._layers: dict[str, Layer] = {}

    @abstractmethod
    def _codes(self, layer: Layer, first: int, end: int) -> Codes:
        """Reads rows [first, end) of a layer.

        Raises:
            CheckpointError: they are damaged.
        """

    def _set_layers(self, layers: Iterable[Layer]) -> None:
        """Takes the layers, and names the types of their weights.

        Experts of a layer are stored alike in a bundle, so what is not so of one of them is not
        so of all.
        """
        layers = list(layers)
        uncentred = {_alike(each) for each in layers if not each.is_centred}
        reordered = {_alike(each) for each in layers if not each.in_order}
        for layer in layers:
            is_centred, in_order = (_alike(layer) not in each for each in (uncentred, reordered))
            suffix = REORDERED if not in_order else SYMMETRIC if is_centred else ""
            info = replace(layer.info, dtype=f"{layer.info.dtype}{suffix}")
            self._own[info.name] = info
            self._layers[info.name] = replace(
                layer, info=info, is_centred=is_centred, in_order=in_order
            )

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._layers:
            return self._checkpoint.read(name, rows)
        first, end = self._bounds(name, rows)
        codes, points, scales, groups = self._codes(self._layers[name], first, end)
        weights = (codes - points[:, groups]).astype(np.float32)
        with np.errstate(over="ignore"):  # reported below
            weights *= scales[:, groups]
        check_finite(weights, name, first, end)
        return weights

    def integers(self, name: str, rows: slice | None = None) -> tuple[Integers, F32] | None:
        """Read codes less zero points, and scales; see ``Checkpoint.integers``.

        None for inputs whose groups are not one behind the other.
        """
        if name not in self._layers:
            return self._checkpoint.integers(name, rows)
        layer = self._layers[name]
        if not layer.in_order:
            return None
        codes, points, scales, groups = self._codes(layer, *self._bounds(name, rows))
        values = codes - points[:, groups]
        is_wide = layer.bits == 8 and not layer.is_centred
        return values if is_wide else values.astype(np.int8), scales


def input_groups(
    name: str, inputs: int, count: int, size: int, stored: Array | None
) -> NDArray[np.int64]:
    """The group of each input ``[K]``: as it is stored, or in runs of a size.

    Args:
        name: of the tensor that may be stored, for errors.
        inputs: K.
        count: groups that there are.
        size: inputs of a group that is not the last.
        stored: numbers of groups, ``[K]``.

    Raises:
        CheckpointError: an input belongs to a group that there is not.
    """
    if stored is None:
        return np.arange(inputs) // size
    groups = stored.astype(np.int64)
    beyond = groups[(groups < 0) | (groups >= count)]
    if beyond.size:
        raise CheckpointError(
            f"'{name}' has inputs of group {beyond[0]}, but there are {count} groups of scales; "
            "the checkpoint is damaged: download it again"
        )
    return groups


def are_runs(groups: NDArray[np.int64], count: int) -> bool:
    """Whether groups are runs of inputs of one length, one behind the other."""
    size, rest = divmod(len(groups), count)
    return rest == 0 and np.array_equal(groups, np.arange(len(groups)) // size)


def _alike(layer: Layer) -> str:
    """What layers have in common that a bundle stores alike."""
    module, is_expert, _ = layer.info.name.partition(_EXPERTS)
    return module if is_expert else layer.info.name
