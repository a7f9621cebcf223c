"""Linear layers that GPTQ or AWQ checkpoints store packed: codes, zero points and scales.

Of a layer ``[N, K]`` with groups of inputs there are

- ``qweight``, int32: of GPTQ ``[K * bits / 32, N]``, codes of consecutive inputs in an element; of
  AWQ ``[K, N * bits / 32]``, those of consecutive outputs, in the order ``_AWQ_ORDER``;
- ``qzeros``, int32 ``[groups, N * bits / 32]``: in GPTQ's first version one less than the zero
  points, in AWQ in the order of its codes;
- ``scales``, float16 ``[groups, N]``, and of GPTQ ``g_idx``, int32 ``[K]``, the group of an input:
  with ``desc_act`` and without ``static_groups`` any, otherwise those of runs of inputs.

Sources: AutoGPTQ 0.7 (``qlinear_cuda_old.py``), GPTQModel (``utils/model_dequant.py``), AutoAWQ 0.2
(``gemm.py``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import Array, Checkpoint, TensorInfo
from edgerun_export.checkpoint.views.integer_types import I32, READABLE, WORD_BITS, digits
from edgerun_export.checkpoint.views.integers import (
    Codes,
    IntegerLayers,
    Layer,
    are_runs,
    input_groups,
)
from edgerun_export.checkpoint.views.packed_config import Packing

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which output a nibble belongs to, of eight
_CODES, _ZEROS, _SCALES, _GROUPS = "qweight", "qzeros", "scales", "g_idx"
_WORDS = (_CODES, _ZEROS, _GROUPS)
_FLOATS = ("F16", "BF16", "F32")
PARTS = dict.fromkeys(_WORDS, I32)


class PackedLayers(IntegerLayers):
    """A checkpoint, with one tensor in place of what a layer's weights are packed in."""

    def __init__(self, checkpoint: Checkpoint, packing: Packing) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: parts of a layer are missing or do not fit together.
        """
        super().__init__(checkpoint)
        self._packing = packing
        self._held: tuple[str, dict[str, Array]] = ("", {})
        ending = f".{_CODES}"
        modules = [name.removesuffix(ending) for name in self._stored if name.endswith(ending)]
        self._set_layers([self._taken(module) for module in modules])

    def close(self) -> None:
        """Close every file."""
        self._held = ("", {})
        super().close()

    def _taken(self, module: str) -> Layer:
        """Takes the parts of a layer, after comparing their shapes."""
        name = f"{module}.weight"
        if name in self._others:
            raise CheckpointError(f"layer '{module}' has its weights twice, packed and as '{name}'")
        parts = {
            part: self._others.pop(f"{module}.{part}")
            for part in (_CODES, _ZEROS, _SCALES, _GROUPS)
            if f"{module}.{part}" in self._others
        }
        layer = self._fitting(name, parts)
        if layer is None:
            sizes = ", ".join(
                f"{part} {info.dtype} {list(info.shape)}" for part, info in parts.items()
            )
            packing = self._packing
            size = packing.group_size
            raise CheckpointError(
                f"layer '{module}' is packed as {sizes}; expected {packing.method}{packing.bits}: "
                "int32 qweight and qzeros of whole words, and float scales of whole groups"
                f"{'' if size is None else f' (group_size {size})'}, that fit together"
            )
        is_centred = self._is_centred(layer)
        return Layer(layer.info, layer.bits, layer.groups, is_centred, self._in_order(layer))

    def _fitting(self, name: str, parts: dict[str, TensorInfo]) -> Layer | None:
        """The layer that tensors are parts of; None if they do not fit together."""
        packing, shapes = self._packing, {part: info.shape for part, info in parts.items()}
        codes, zeros, scales = (shapes.get(part, ()) for part in (_CODES, _ZEROS, _SCALES))
        if not len(codes) == len(zeros) == len(scales) == 2:
            return None
        (groups, n), bits = scales, packing.bits
        if packing.is_mixed:
            bits = zeros[1] * WORD_BITS // n
        kind = f"{packing.method}{bits}"
        if kind not in READABLE[packing.method] or n % (WORD_BITS // bits):
            return None
        per_word = WORD_BITS // bits
        k = codes[0] * (1 if packing.is_awq else per_word)
        expected: dict[str, tuple[int, ...]] = {_ZEROS: (groups, n // per_word)}
        expected[_CODES] = (k, n // per_word) if packing.is_awq else (k // per_word, n)
        expected |= {_SCALES: (groups, n)} | ({_GROUPS: (k,)} if _GROUPS in shapes else {})
        typed = parts[_SCALES].dtype in _FLOATS and all(
            parts[part].dtype == I32.name for part in _WORDS if part in parts
        )
        if shapes != expected or not typed or not self._are_whole(k, groups):
            return None
        return Layer(TensorInfo(name, (n, k), kind), bits, groups, False)

    def _are_whole(self, inputs: int, groups: int) -> bool:
        """Whether a layer with so many inputs may have so many groups."""
        size = self._packing.group_size
        if size is not None and groups == -(-inputs // (inputs if size == -1 else size)):
            return True
        return inputs % groups == 0 and (size is None or self._packing.is_mixed)

    def _is_centred(self, layer: Layer) -> bool:
        """Whether zero points are all the middle of the codes: as far as it makes a difference."""
        if not (self._packing.symmetric or layer.bits == 8):
            return False
        return not self._points(layer, self._part(layer, _ZEROS)).any()

    def _in_order(self, layer: Layer) -> bool:
        return are_runs(self._inputs(layer), layer.groups)

    def _inputs(self, layer: Layer) -> NDArray[np.int64]:
        """The group of each input of a layer."""
        inputs, size = layer.info.shape[1], self._packing.group_size
        if size in (None, -1) or -(-inputs // size) != layer.groups:
            size = inputs // layer.groups
        name = f"{layer.info.name.removesuffix('.weight')}.{_GROUPS}"
        stored = self._checkpoint.read(name) if name in self._stored else None
        return input_groups(name, inputs, layer.groups, size, stored)

    def _part(self, layer: Layer, part: str) -> Array:
        return self._checkpoint.read(f"{layer.info.name.removesuffix('.weight')}.{part}")

    def _parts(self, layer: Layer) -> dict[str, Array]:
        """The packed tensors of a layer, which are kept until another is asked for."""
        if self._held[0] != layer.info.name:
            parts = {part: self._part(layer, part) for part in (_CODES, _ZEROS, _SCALES)}
            self._held = layer.info.name, parts | {_GROUPS: self._inputs(layer)}
        return self._held[1]

    def _points(self, layer: Layer, words: Array) -> NDArray[np.int16]:
        """Zero points of a layer relative to the middle, ``[N, groups]``."""
        stored = self._of_outputs(layer, words)
        # AutoGPTQ cuts the sum to its bits as well: of four, 15 stands for 0 and not for 16.
        points = (stored + self._packing.less) & ((1 << layer.bits) - 1)
        return (points - (1 << layer.bits - 1)).T

    def _of_outputs(self, layer: Layer, words: Array) -> NDArray[np.int16]:
        """Numbers that are packed along the outputs, ``[rows, N]``."""
        numbers = digits(words, layer.bits)
        if self._packing.is_awq:
            numbers = numbers[..., np.argsort(_AWQ_ORDER)]
        return numbers.reshape(len(words), -1)

    def _codes(self, layer: Layer, first: int, end: int) -> Codes:
        """Reads rows [first, end) of a layer; see ``IntegerLayers``."""
        parts = self._parts(layer)
        if self._packing.is_awq:
            per_word = WORD_BITS // layer.bits
            skipped = first // per_word * per_word
            words = parts[_CODES][:, first // per_word : -(-end // per_word)]
            codes = self._of_outputs(layer, words).T[first - skipped : end - skipped]
        else:
            words = np.ascontiguousarray(parts[_CODES][:, first:end].T)
            codes = digits(words, layer.bits).reshape(end - first, layer.info.shape[1])
        return Codes(
            codes - np.int16(1 << layer.bits - 1),
            self._points(layer, parts[_ZEROS])[first:end],
            np.ascontiguousarray(parts[_SCALES][:, first:end].T),
            parts[_GROUPS],
        )
