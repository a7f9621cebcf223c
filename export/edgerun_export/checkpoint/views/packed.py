"""Linear layers that GPTQ or AWQ checkpoints store packed: codes, zero points and scales.

Of a layer ``[N, K]`` with groups of inputs there are

- ``qweight``, int32: of GPTQ ``[K * bits / 32, N]``, codes of consecutive inputs in an element; of
  AWQ ``[K, N * bits / 32]``, those of consecutive outputs, in the order ``_AWQ_ORDER``;
- ``qzeros``, int32 ``[groups, N * bits / 32]``: in GPTQ's first version one less than the zero
  points, in AWQ in the order of its codes;
- ``scales``, float16 ``[groups, N]``, and of GPTQ ``g_idx``, int32 ``[K]``, the group of an input.

Sources: AutoGPTQ 0.7 (``qlinear_cuda_old.py``), AutoAWQ 0.2 (``gemm.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint.base import F32, I8, Affine, Array, Checkpoint, TensorInfo
from edgerun_export.checkpoint.codecs import INT32, PACKED_FORMATS, SYMMETRIC
from edgerun_export.checkpoint.stored import Stored, row_bounds
from edgerun_export.checkpoint.views.base import View

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which output a nibble belongs to, of eight
_WORD_BITS = 32
_CODES, _ZEROS, _SCALES, _GROUPS = "qweight", "qzeros", "scales", "g_idx"
_WORDS = (_CODES, _ZEROS, _GROUPS)
_FLOATS = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class Packing:
    """How a checkpoint packs its layers.

    Attributes:
        method: ``awq`` or ``gptq``.
        bits: of a code.
        less: what stored zero points are less than those meant.
        symmetric: whether all zero points are said to be the middle of the codes.
    """

    method: str
    bits: int
    less: int
    symmetric: bool = False

    @property
    def name(self) -> str:
        """What the type of a layer's weights is called."""
        return f"{self.method.upper()}{self.bits}"

    @property
    def per_word(self) -> int:
        """Codes of an int32."""
        return _WORD_BITS // self.bits


def packing_of(config: Mapping[str, Any]) -> Packing | None:
    """What ``config.json`` says of packed layers; None if there are none.

    Raises:
        UnsupportedError: they are packed in a way that is not known.
    """
    settings = config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or method not in ("awq", "gptq"):
        return None
    bits = settings.get("bits", 4)
    key = "version" if method == "awq" else "checkpoint_format"
    version = str(settings.get(key) or method).lower()
    symmetric = settings.get("sym") is True or settings.get("zero_point") is False
    packing = Packing(method, bits if type(bits) is int else 0, int(version == "gptq"), symmetric)
    versions = ("awq", "gemm") if method == "awq" else ("gptq", "gptq_v2")
    if packing.name not in PACKED_FORMATS or version not in versions:
        raise UnsupportedError(
            f"config.json has {method} weights of {str(bits)[:20]} bits in the form "
            f"'{version[:40]}'; supported are "
            f"{', '.join(name for name in PACKED_FORMATS if SYMMETRIC not in name)} in the forms "
            f"{', '.join(versions)}"
        )
    return packing


def as_words(stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """Tensors of a checkpoint, packed ones among them readable."""
    return {
        name: replace(each, codec=INT32)
        if name.rpartition(".")[2] in _WORDS and each.codec.name == "I32"
        else each
        for name, each in stored.items()
    }


class PackedLayers(View):
    """A checkpoint, with one tensor in place of what a layer's weights are packed in."""

    def __init__(self, checkpoint: Checkpoint, packing: Packing) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: parts of a layer are missing or do not fit together.
        """
        super().__init__(checkpoint)
        self._packing = packing
        self._others = dict(checkpoint.tensors())
        self._layers: dict[str, TensorInfo] = {}
        for name in checkpoint.tensors():
            module, _, part = name.rpartition(".")
            if part == _CODES:
                self._add(module)
        self._held: tuple[str, dict[str, Array]] = ("", {})
        self._rows_read: dict[str, int] = {}
        # Experts of a layer are stored alike, so that all have zero points or none.
        if packing.symmetric and all(map(self._is_symmetric, self._layers)):
            self._layers = {name: _symmetric(info) for name, info in self._layers.items()}

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Describe every tensor; see ``Checkpoint.tensors``."""
        return self._others | self._layers

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        if name not in self._layers:
            return self._checkpoint.read(name, rows)
        values, scales, groups = self._unpacked(name, rows)
        return values.astype(np.float32) * scales[:, groups]

    def integers(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read codes less zero points, and scales; see ``Checkpoint.integers``.

        None for inputs whose groups are not one behind the other, and for codes of eight bits
        whose zero point is not the middle.
        """
        if name not in self._layers:
            return self._checkpoint.integers(name, rows)
        values, scales, groups = self._unpacked(name, rows)
        columns, count = values.shape[1], scales.shape[1]
        in_order = np.array_equal(groups, np.arange(columns) // (columns // count))
        if not in_order or (self._packing.bits == 8 and not self._is_symmetric(name)):
            return None
        return values.astype(np.int8), scales

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read stored integers and minima, which no packed layer has; see ``Checkpoint.affine``."""
        return None if name in self._layers else self._checkpoint.affine(name, rows)

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read stored ternary values, which no packed layer has; see ``Checkpoint.ternary``."""
        return None if name in self._layers else self._checkpoint.ternary(name, rows)

    def read_to_the_end(self) -> frozenset[str]:
        """Names of the tensors that were read; see ``Checkpoint.read_to_the_end``."""
        read = {n for n, end in self._rows_read.items() if end == self._layers[n].shape[0]}
        return frozenset(read | (self._checkpoint.read_to_the_end() & self._others.keys()))

    def close(self) -> None:
        """Close every file."""
        self._held = ("", {})
        super().close()

    def _add(self, module: str) -> None:
        """Takes the parts of a layer, after comparing their shapes."""
        name = f"{module}.weight"
        if name in self._others:
            raise CheckpointError(f"layer '{module}' has its weights twice, packed and as '{name}'")
        parts = {
            part: self._others.pop(f"{module}.{part}")
            for part in (_CODES, _ZEROS, _SCALES, _GROUPS)
            if f"{module}.{part}" in self._others
        }
        shapes = {part: info.shape for part, info in parts.items()}
        types = {part: info.dtype for part, info in parts.items()}
        per_word, is_awq = self._packing.per_word, self._packing.method == "awq"
        codes, scales = shapes[_CODES], shapes.get(_SCALES, ())
        if len(codes) == 2 and len(scales) == 2:
            k = codes[0] * (1 if is_awq else per_word)
            n = codes[1] * (per_word if is_awq else 1)
            groups = scales[0]
            expected: dict[str, tuple[int, ...]] = {_CODES: codes}
            expected |= {_ZEROS: (groups, n // per_word), _SCALES: (groups, n)}
            expected |= {_GROUPS: (k,)} if _GROUPS in shapes else {}
            typed = types[_SCALES] in _FLOATS and all(
                types[part] == INT32.name for part in _WORDS if part in types
            )
            if shapes == expected and typed and k % groups == 0 and n % per_word == 0:
                self._layers[name] = TensorInfo(name, (n, k), self._packing.name)
                return
        sizes = ", ".join(f"{part} {types[part]} {list(shape)}" for part, shape in shapes.items())
        raise CheckpointError(
            f"layer '{module}' is packed as {sizes}; expected {self._packing.name}: int32 qweight "
            "and qzeros of whole words, and float scales of whole groups, that fit together"
        )

    def _parts(self, name: str) -> dict[str, Array]:
        """The packed tensors of a layer, which are kept until another is asked for."""
        if self._held[0] != name:
            module, parts = name.removesuffix(".weight"), {}
            for part in (_CODES, _ZEROS, _SCALES, _GROUPS):
                if f"{module}.{part}" in self._checkpoint.tensors():
                    parts[part] = self._checkpoint.read(f"{module}.{part}")
            self._held = name, parts
        return self._held[1]

    def _points(self, name: str) -> NDArray[np.int16]:
        """Zero points of a layer, ``[N, groups]``."""
        whole = f"{name.removesuffix('.weight')}.{_ZEROS}"
        is_held = self._held[0] == name
        stored = self._of_outputs(
            self._held[1][_ZEROS] if is_held else self._checkpoint.read(whole)
        )
        # AutoGPTQ cuts the sum to its bits as well: of four, 15 stands for 0 and not for 16.
        return ((stored + self._packing.less) & ((1 << self._packing.bits) - 1)).T

    def _is_symmetric(self, name: str) -> bool:
        return bool((self._points(name) == 1 << (self._packing.bits - 1)).all())

    def _of_outputs(self, words: Array) -> NDArray[np.int16]:
        """Numbers that are packed along the outputs, ``[rows, N]``."""
        numbers = _digits(words, self._packing.bits)
        if self._packing.method == "awq":
            numbers = numbers[..., np.argsort(_AWQ_ORDER)]
        return numbers.reshape(len(words), -1)

    def _unpacked(
        self, name: str, rows: slice | None
    ) -> tuple[NDArray[np.int16], F32, NDArray[np.int64]]:
        """Codes less zero points ``[n, K]``, scales ``[n, groups]``, and the group of each input.

        Raises:
            CheckpointError: an input belongs to a group that there is not.
        """
        info, parts = self._layers[name], self._parts(name)
        first, end = row_bounds(rows, info.shape[0])
        self._rows_read[name] = max(end, self._rows_read.get(name, 0))
        if self._packing.method == "awq":
            per_word = self._packing.per_word
            skipped = first // per_word * per_word
            words = parts[_CODES][:, first // per_word : -(-end // per_word)]
            codes = self._of_outputs(words).T[first - skipped : end - skipped]
        else:
            words = np.ascontiguousarray(parts[_CODES][:, first:end].T)
            codes = _digits(words, self._packing.bits).reshape(end - first, -1)
        scales = np.ascontiguousarray(parts[_SCALES][:, first:end].T)
        columns, count = info.shape[1], scales.shape[1]
        groups = np.arange(columns) // (columns // count)
        if _GROUPS in parts:
            groups = parts[_GROUPS].astype(np.int64)
            if (beyond := groups[(groups < 0) | (groups >= count)]).size:
                raise CheckpointError(
                    f"layer '{name}' has inputs of group {beyond[0]} in g_idx, but {count} "
                    "groups of scales; it is damaged"
                )
        points = self._points(name)[first:end]
        return codes - points[:, groups], scales, groups


def _symmetric(info: TensorInfo) -> TensorInfo:
    """A layer's description where all zero points are the middle; of 8 bits they have to be."""
    name = f"{info.dtype}{SYMMETRIC}"
    return replace(info, dtype=name) if name in PACKED_FORMATS else info


def _digits(words: Array, bits: int) -> NDArray[np.int16]:
    """Numbers of so many bits from int32 ``[..., n]``, lowest first, ``[..., n, 32 / bits]``."""
    shifts = np.arange(0, _WORD_BITS, bits, dtype=np.uint32)
    digits = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return digits.astype(np.int16)
