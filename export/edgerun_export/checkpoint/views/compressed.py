"""Linear layers that compressed-tensors stores as integers: codes, zero points and scales.

Of a layer ``[N, K]`` there are

- ``weight_packed``, int32 ``[N, ceil(K * bits / 32)]``, codes of consecutive inputs in an element,
  the middle code for 0, with ``weight_shape``, int64 ``[2]``; or ``weight``, int8 ``[N, K]``;
- ``weight_scale``, of any float: one number, ``[N, 1]`` or ``[N, groups]``;
- where layers are not symmetric ``weight_zero_point``, int8 of the shape of the scales, or, beside
  packed codes, int32 ``[ceil(N * bits / 32), groups]``, those of consecutive outputs in an element;
- with ``actorder`` of groups ``weight_g_idx``, int32 ``[K]``, the group of an input; -1 in all if
  they are runs of inputs after all.

Source: compressed-tensors 0.20, ``compressors/pack_quantized``, ``compressors/naive_quantized``,
``quantization/lifecycle/forward_helpers.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import Array, Checkpoint, TensorInfo
from edgerun_export.checkpoint.views.compressed_config import IntegerWeights
from edgerun_export.checkpoint.views.integer_types import (
    COMPRESSED,
    I32,
    I64,
    WORD_BITS,
    digits,
)
from edgerun_export.checkpoint.views.integers import (
    Codes,
    IntegerLayers,
    Layer,
    are_runs,
    input_groups,
)

_PACKED, _SCALE, _ZEROS = ".weight_packed", ".weight_scale", ".weight_zero_point"
_SHAPE, _GROUPS, _WEIGHT = ".weight_shape", ".weight_g_idx", ".weight"
_FLOATS = ("F16", "BF16", "F32")
PARTS = {
    "weight_packed": I32,
    "weight_zero_point": I32,
    "weight_g_idx": I32,
    "weight_shape": I64,
}


class CompressedLayers(IntegerLayers):
    """A checkpoint, with one tensor in place of what a layer's weights are stored in."""

    def __init__(self, checkpoint: Checkpoint, weights: IntegerWeights) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: parts of a layer are missing or do not fit together.
        """
        super().__init__(checkpoint)
        self._weights = weights
        packed = [name.removesuffix(_PACKED) for name in self._stored if name.endswith(_PACKED)]
        plain = [
            info.name.removesuffix(_WEIGHT)
            for info in self._stored.values()
            if info.dtype == "I8" and info.name.endswith(_WEIGHT)
        ]
        layers = [self._taken(module, _PACKED) for module in packed]
        self._set_layers([*layers, *(self._taken(module, _WEIGHT) for module in plain)])

    def _taken(self, module: str, ending: str) -> Layer:
        """Takes the parts of a layer, after comparing their shapes.

        Raises:
            CheckpointError: one is missing or does not fit the others.
        """
        name = f"{module}{_WEIGHT}"
        parts = {
            part: self._others.pop(f"{module}{part}")
            for part in (ending, _SCALE, _ZEROS, _GROUPS, _SHAPE)
            if f"{module}{part}" in self._others
        }
        if name in self._others:
            raise CheckpointError(
                f"layer '{module}' has its weights twice, as '{module}{ending}' and as '{name}'"
            )
        layer = self._fitting(name, parts)
        if layer is None:
            sizes = ", ".join(
                f"{part[1:]} {info.dtype} {list(info.shape)}" for part, info in parts.items()
            )
            raise CheckpointError(
                f"layer '{module}' is stored as {sizes}; expected {self._expected(ending)}, that "
                "fit together, so download the checkpoint again"
            )
        return replace(layer, is_centred=self._is_centred(layer), in_order=self._in_order(layer))

    def _expected(self, ending: str) -> str:
        """What a layer is to be stored as, for an error message."""
        bits = " or ".join(map(str, sorted(self._weights.bits)))
        sizes = " or ".join(map(str, sorted(self._weights.group_sizes)))
        packed = f"int32 weight_packed of {bits} bits, int64 weight_shape"
        codes = packed if ending == _PACKED else "int8 weight"
        groups = f" or group of {sizes} inputs" if sizes else ""
        return (
            f"{codes} and float weight_scale of the tensor, each output{groups}, and such zero "
            "points where there are any"
        )

    def _fitting(self, name: str, parts: Mapping[str, TensorInfo]) -> Layer | None:
        """The layer that tensors are parts of; None if they do not fit together."""
        codes, bits = parts.get(_PACKED, parts.get(_WEIGHT)), max(self._weights.bits)
        if codes is None or len(codes.shape) != 2 or (_PACKED in parts) != (_SHAPE in parts):
            return None
        n, k = codes.shape
        if _PACKED in parts:
            if (codes.dtype, parts[_SHAPE].dtype, parts[_SHAPE].shape) != ("I32", "I64", (2,)):
                return None
            rows, k = map(int, self._checkpoint.read(parts[_SHAPE].name))
            fitting = [each for each in self._weights.bits if _words(k, each) == codes.shape[1]]
            # More than one only where all codes of a row take a single word.
            if rows != n or len(fitting) != 1:
                return None
            bits = fitting[0]
        layer = Layer(TensorInfo(name, (n, k), f"{COMPRESSED}{bits}"), bits, 1, False)
        return self._with_groups(layer, parts)

    def _with_groups(self, layer: Layer, parts: Mapping[str, TensorInfo]) -> Layer | None:
        """A layer with the groups of its scales; None if these, or others, do not fit."""
        (n, k), scales = layer.info.shape, parts.get(_SCALE)
        if scales is None or scales.dtype not in _FLOATS:
            return None
        groups = 1 if scales.shape == (n,) or math.prod(scales.shape) == 1 else scales.shape[-1]
        sizes = {k // groups if k % groups == 0 else 0} & self._weights.group_sizes
        if scales.shape not in _shapes_of(n, groups) or not (groups == 1 or sizes):
            return None
        zeros = parts.get(_ZEROS)
        if zeros is not None and (zeros.dtype, zeros.shape) not in (
            ("I8", scales.shape),
            ("I32", (_words(n, layer.bits), groups)),
        ):
            return None
        order = parts.get(_GROUPS)
        if order is not None and (order.dtype, order.shape) != ("I32", (k,)):
            return None
        return replace(layer, groups=groups)

    def _is_centred(self, layer: Layer) -> bool:
        """Whether zero points are all the middle of the codes: as far as it makes a difference."""
        if self._name(layer, _ZEROS) not in self._stored:
            return True
        if not (self._weights.symmetric or layer.bits == 8):
            return False
        return not self._points(layer, 0, layer.info.shape[0]).any()

    def _in_order(self, layer: Layer) -> bool:
        return are_runs(self._inputs(layer), layer.groups)

    def _inputs(self, layer: Layer) -> NDArray[np.int64]:
        """The group of each input of a layer."""
        inputs, name = layer.info.shape[1], self._name(layer, _GROUPS)
        stored = self._checkpoint.read(name) if name in self._stored else None
        if stored is not None and (stored == -1).all():
            stored = None
        return input_groups(name, inputs, layer.groups, inputs // layer.groups, stored)

    def _name(self, layer: Layer, part: str) -> str:
        return layer.info.name.removesuffix(_WEIGHT) + part

    def _codes(self, layer: Layer, first: int, end: int) -> Codes:
        """Reads rows [first, end) of a layer; see ``IntegerLayers``."""
        packed, middle = self._name(layer, _PACKED), np.int16(1 << layer.bits - 1)
        if packed in self._stored:
            words = self._checkpoint.read(packed, slice(first, end))
            width = words.shape[1] * (WORD_BITS // layer.bits)
            numbers = digits(words, layer.bits).reshape(end - first, width)
            codes = numbers[:, : layer.info.shape[1]] - middle
        else:
            codes = self._checkpoint.read(layer.info.name, slice(first, end)).astype(np.int16)
            _check_range(codes, layer, layer.info.name)
        return Codes(
            codes,
            self._points(layer, first, end),
            self._of_rows(layer, _SCALE, first, end).astype(np.float32, copy=False),
            self._inputs(layer),
        )

    def _points(self, layer: Layer, first: int, end: int) -> NDArray[np.int16]:
        """Zero points of rows [first, end) relative to the middle, ``[n, groups]``."""
        name, bits = self._name(layer, _ZEROS), layer.bits
        zeros = self._stored.get(name)
        if zeros is None:
            return np.zeros((end - first, layer.groups), np.int16)
        if zeros.dtype == "I8":
            points = self._of_rows(layer, _ZEROS, first, end).astype(np.int16)
            _check_range(points, layer, name)
            return points
        per_word = WORD_BITS // bits
        words = self._checkpoint.read(name, slice(first // per_word, _words(end, bits)))
        skipped = first // per_word * per_word
        numbers = digits(np.ascontiguousarray(words.T), bits).reshape(layer.groups, -1)
        return numbers.T[first - skipped : end - skipped] - np.int16(1 << bits - 1)

    def _of_rows(self, layer: Layer, part: str, first: int, end: int) -> Array:
        """What rows [first, end) have of a part with a number for each group, ``[n, groups]``."""
        info = self._stored[self._name(layer, part)]
        if info.shape and info.shape[0] == layer.info.shape[0]:
            rows = self._checkpoint.read(info.name, slice(first, end))
            return rows.reshape(end - first, layer.groups)
        numbers = self._checkpoint.read(info.name).reshape(1, -1)
        return np.broadcast_to(numbers, (end - first, layer.groups))


def _words(count: int, bits: int) -> int:
    """Words that so many codes take."""
    return -(-count * bits // WORD_BITS)


def _shapes_of(outputs: int, groups: int) -> tuple[tuple[int, ...], ...]:
    """Shapes that scales may have: of a tensor, of outputs, or of groups."""
    if groups > 1:
        return ((outputs, groups),)
    return (), (1,), (1, 1), (outputs,), (outputs, 1)


def _check_range(codes: NDArray[np.int16], layer: Layer, name: str) -> None:
    """Checks that bytes hold nothing but codes of a layer's bits.

    Raises:
        CheckpointError: one is beyond them.
    """
    least, greatest = -(1 << layer.bits - 1), (1 << layer.bits - 1) - 1
    if codes.size and (codes.min() < least or codes.max() > greatest):
        beyond = codes.min() if codes.min() < least else codes.max()
        raise CheckpointError(
            f"tensor '{name}' holds {beyond}; expected {least} to {greatest}, as config.json has "
            f"{layer.bits} bits, so the checkpoint is damaged: download it again"
        )
