"""8-bit floats that are multiplied by scales, as the weights that both stand for.

Beside a tensor ``x`` of E4M3 (``F8_E4M3``, also E5M2), ``[N, K]`` or a stack ``[experts, N, K]``,
lie its scales under its name and ``_scale_inv`` or ``_scale``; a weight is the float times its
scale, whatever the name. Of a matrix they are

- one number, ``[]``, ``[1]`` or ``[1, 1]``;
- one of each output, ``[N]`` or ``[N, 1]``;
- one of each block, ``[ceil(N / outputs), ceil(K / inputs)]``: the last blocks may be cut off;

and of a stack these of each expert, or one number for all. They are float32, float16 or bfloat16,
or powers of two: E8M0, or its codes as uint8.

Sources: transformers 5, ``integrations/finegrained/conversions.py``, ``FineGrainedDequantize``
(Qwen3 and Mistral have ``weight_scale_inv`` in bfloat16, DeepSeek in float32); vLLM,
``quantization/fp8.py`` (``weight_scale``); compressed-tensors,
``quantization/lifecycle/initialize.py`` and ``compressors/mxfp8/base.py``; TensorRT Model
Optimizer, ``export/quant_utils.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint.base import (
    F32,
    I8,
    Affine,
    Array,
    Checkpoint,
    Integers,
    TensorInfo,
)
from edgerun_export.checkpoint.codecs import FP8, powers_of_two
from edgerun_export.checkpoint.stored import check_finite, row_bounds
from edgerun_export.checkpoint.views.base import View
from edgerun_export.checkpoint.views.fp8_config import Scaling

_SUFFIXES = ("_scale_inv", "_scale")
_WEIGHT_SCALES = re.compile(r"(.+\.(?:weight|(?:gate_up|up|down)_proj))(?:_scale_inv|_scale)")
_TYPES = ("F32", "F16", "BF16", "F8_E8M0", "U8")
# Of activations (``input_scale`` of compressed-tensors and vLLM, ``activation_scale`` of
# transformers), and of keys and values (compressed-tensors, ``quantization/quant_metadata.py``;
# vLLM, ``model_loader/weight_utils.py``), and zero points that go with them.
_OTHER_SCALES = re.compile(
    r".+\.(?:(?:gate_up|up|down)_proj_)?(?:input|activation)_scale"
    r"|.+\.(?:output|prob_output|prob|[qkv]|kv)_scale|.+\.(?:input|output|[qkv])_zero_point"
)


@dataclass(frozen=True, slots=True)
class _Scales:
    """The scales of a tensor.

    Attributes:
        name: of the tensor that holds them.
        block: outputs and inputs of a matrix that share one.
        is_single: whether one number is for the whole tensor.
    """

    name: str
    block: tuple[int, int]
    is_single: bool


class Fp8Weights(View):
    """A checkpoint, with weights in place of 8-bit floats and their scales."""

    def __init__(self, checkpoint: Checkpoint, scaling: Scaling) -> None:
        """Looks at the names and shapes of a checkpoint's tensors.

        Raises:
            CheckpointError: scales are missing, do not fit, or belong to other types.
        """
        super().__init__(checkpoint)
        self._scaling = scaling
        self._infos = dict(checkpoint.tensors())
        self._scales: dict[str, _Scales] = {}
        floats = [info for info in checkpoint.tensors().values() if info.dtype in FP8]
        has_scales = scaling.method is not None or any(map(self._names_beside, floats))
        for info in floats if has_scales else ():
            self._scales[info.name] = self._take_scales(info)
        self._leave_out()

    def tensors(self) -> Mapping[str, TensorInfo]:
        """Describe every tensor; see ``Checkpoint.tensors``."""
        return self._infos

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Read rows as float32; see ``Checkpoint.read``."""
        values = self._checkpoint.read(name, rows)
        if name in self._scales:
            first, end = row_bounds(rows, self._infos[name].shape[0])
            self._multiply(name, values, first, end)
            check_finite(values, name, first, end)
        return values

    def integers(self, name: str, rows: slice | None = None) -> tuple[Integers, F32] | None:
        """Read stored integers, which no 8-bit floats are; see ``Checkpoint.integers``."""
        return self._checkpoint.integers(name, rows)

    def affine(self, name: str, rows: slice | None = None) -> Affine | None:
        """Read stored integers and minima; see ``Checkpoint.affine``."""
        return self._checkpoint.affine(name, rows)

    def ternary(self, name: str, rows: slice | None = None) -> tuple[I8, F32] | None:
        """Read stored ternary values; see ``Checkpoint.ternary``."""
        return self._checkpoint.ternary(name, rows)

    def read_to_the_end(self) -> frozenset[str]:
        """Names of the tensors that were read; see ``Checkpoint.read_to_the_end``."""
        return self._checkpoint.read_to_the_end() & self._infos.keys()

    def _names_beside(self, info: TensorInfo) -> list[str]:
        """Names of the scales of a tensor."""
        names = [f"{info.name}{suffix}" for suffix in _SUFFIXES]
        return [name for name in names if name in self._infos]

    def _take_scales(self, info: TensorInfo) -> _Scales:
        """Takes the scales of a tensor, after comparing their shapes."""
        names = self._names_beside(info)
        if len(names) != 1:
            expected = " or ".join(f"'{info.name}{suffix}'" for suffix in _SUFFIXES)
            raise CheckpointError(
                f"tensor '{info.name}' is {info.dtype} and has {len(names) or 'no'} scales beside "
                f"it; expected either {expected}, without which its weights are not known, so "
                "download the checkpoint again"
            )
        scales = self._infos.pop(names[0])
        block = _block_of(info.shape, scales.shape, self._scaling.block)
        if block is None or scales.dtype not in _TYPES:
            raise CheckpointError(
                f"scales '{scales.name}' are {scales.dtype} {list(scales.shape)}, which do not fit "
                f"'{info.name}' {list(info.shape)}; expected {', '.join(_TYPES)}: "
                f"{_expected(info.shape, self._scaling)}"
            )
        return _Scales(scales.name, block, math.prod(scales.shape) == 1)

    def _leave_out(self) -> None:
        """Drops what says how others round activations, keys and values, and notes it.

        Raises:
            CheckpointError: scales of weights are left that belong to no 8-bit floats.
        """
        for name in self._infos:
            match = _WEIGHT_SCALES.fullmatch(name)
            base = self._infos.get(match[1]) if match else None
            if base is not None:
                raise CheckpointError(
                    f"'{name}' are scales of '{base.name}', which is {base.dtype}; expected "
                    f"{' or '.join(FP8)}, since scales change no other weights, so download the "
                    "checkpoint again"
                )
        others = [name for name in self._infos if _OTHER_SCALES.fullmatch(name)]
        for name in others:
            del self._infos[name]
        if others:
            self.notes += (
                f"scales of activations, keys and values are left out ({len(others)}, such as "
                f"'{others[0]}'): they tell other runtimes how to round what they compute, and no "
                "weight depends on them",
            )

    def _multiply(self, name: str, values: F32, first: int, end: int) -> None:
        """Multiplies rows [first, end) of a tensor by their scales, in place."""
        scales, shape = self._scales[name], self._infos[name].shape
        outputs, inputs = scales.block
        if len(shape) == 2:
            skipped = first % outputs
            part = slice(first // outputs, -(-end // outputs))
            factors = self._factors(scales, part).reshape(-1, -(-shape[1] // inputs))
            _scale(values, factors, scales.block, skipped)
            return
        factors = self._factors(scales, slice(first, end))
        grid = -(-shape[1] // outputs), -(-shape[2] // inputs)
        stacked = np.broadcast_to(factors.reshape(-1, *grid), (end - first, *grid))
        for matrix, own in zip(values, stacked, strict=True):
            _scale(matrix, own, scales.block, 0)

    def _factors(self, scales: _Scales, part: slice) -> F32:
        """Scales of a part of the first axis, or the one that there is.

        Raises:
            CheckpointError: one is not above 0.
        """
        stored = self._checkpoint.read(scales.name, None if scales.is_single else part)
        factors: F32 = powers_of_two(stored) if stored.dtype == np.uint8 else stored
        check_finite(factors, scales.name, part.start, part.stop)
        if factors.size and factors.min() <= 0:
            raise CheckpointError(
                f"scales '{scales.name}' hold {factors.min():g}; expected numbers above 0, so the "
                "checkpoint is damaged or was saved unfinished: download it again"
            )
        return factors


def has_fp8(checkpoint: Checkpoint) -> bool:
    """Whether any tensor of a checkpoint is stored as 8-bit floats."""
    return any(info.dtype in FP8 for info in checkpoint.tensors().values())


def _block_of(
    shape: tuple[int, ...], scales: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Outputs and inputs of a matrix that share a scale; None where the shapes do not fit."""
    if len(shape) not in (2, 3):
        return None
    *experts, n, k = shape
    if math.prod(scales) == 1:
        return n, k
    if list(scales[: len(experts)]) != experts:
        return None
    of_matrix = scales[len(experts) :]
    if math.prod(of_matrix) == 1:
        return n, k
    if of_matrix in ((n,), (n, 1)):
        return 1, k
    if block is not None and of_matrix == (-(-n // block[0]), -(-k // block[1])):
        return block
    return None


def _expected(shape: tuple[int, ...], scaling: Scaling) -> str:
    """The shapes of scales that fit a tensor, for an error message."""
    if len(shape) not in (2, 3):
        return "none, since scales are read of matrices and stacks of them alone"
    *experts, n, k = shape
    shapes = ["one number", f"{[*experts, n, 1]} with one for each output"]
    if scaling.block is None:
        return f"{' or '.join(shapes)}; config.json names no size of blocks"
    outputs, inputs = scaling.block
    blocks = [*experts, -(-n // outputs), -(-k // inputs)]
    return f"{', '.join(shapes)}, or {blocks} with one for each {outputs} x {inputs} weights"


def _scale(matrix: F32, factors: F32, block: tuple[int, int], skipped: int) -> None:
    """Multiplies a matrix in place by the factors of its blocks.

    Args:
        matrix: rows ``[n, K]``, of which the first is so many behind the beginning of a block.
        factors: ``[blocks of rows, blocks of columns]``.
        block: rows and columns of a block.
        skipped: rows of the first block that are not in the matrix.
    """
    rows, columns = block
    # Products beyond float32 are reported by the caller, not by a warning.
    with np.errstate(over="ignore"):
        if factors.shape[1] == 1:
            each = np.repeat(factors, rows, axis=0)[skipped : skipped + len(matrix)]
            matrix *= each
            return
        for at, own in enumerate(factors):
            part = matrix[max(0, at * rows - skipped) : (at + 1) * rows - skipped]
            part *= np.repeat(own, columns)[: matrix.shape[1]]
