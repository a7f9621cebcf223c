"""An expert on a GPU: its weights as kernels read them, and the order of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import cuda, float32, int32, int64
from numpy.typing import NDArray

from edgerun.errors import UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.offload.cuda.kernels import LANES, OUTPUTS, TILE, WORD_CODES, Kernels

F32: TypeAlias = NDArray[np.float32]
# Types of the arguments of each kernel, for who compiles them without calling them.
SIGNATURES = {
    "quantise": (
        float32[:, ::1],
        int32[:, ::1],
        float32[:, ::1],
        int32[:, ::1],
        int64,
        int64,
    ),
    "product": (
        int32[:, :, ::1],
        float32[:, ::1],
        int32[:, ::1],
        float32[:, ::1],
        int32[:, ::1],
        float32[:, ::1],
    ),
    "gate": (float32[:, ::1], float32[:, ::1]),
}


@dataclass(frozen=True)
class DeviceWeight:
    """A matrix as ``Kernels.product`` reads it, in the device's memory.

    Attributes:
        words: int32 ``[N, blocks, words]``.
        scales: float32 ``[N, blocks]``.
        block: weights that share a scale.
    """

    words: Any
    scales: Any
    block: int

    @classmethod
    def of(cls, weight: PackedWeight) -> DeviceWeight:
        """Copies a matrix to the device; nothing is rearranged.

        Raises:
            UnsupportedError: kernels cannot read it.
        """
        bits, block, (_, k) = weight.bits, weight.block, weight.shape
        if bits not in WORD_CODES or weight.zeros is not None or k % block or block % LANES:
            raise UnsupportedError(
                f"the GPU kernels have no product for {weight.format} of {weight.shape} in blocks "
                f"of {block}: expected 2 or 4 bits, no stored zero points, and whole blocks of a "
                f"multiple of {LANES}"
            )
        words = np.ascontiguousarray(weight.codes).view(np.int32)
        scales = np.ascontiguousarray(weight.scales, np.float32)
        return cls(cuda.to_device(words), cuda.to_device(scales), block)


class Multiplier:
    """Runs kernels on rows."""

    def __init__(self, kernels: Kernels) -> None:
        """Takes kernels, which are compiled when they are first called."""
        self._quantise = cuda.jit(kernels.quantise)
        self._product = cuda.jit(kernels.product)
        self._gate = cuda.jit(kernels.gate)

    def linear(self, x: Any, weight: DeviceWeight, activations: str) -> Any:
        """``round(x) @ weight.T`` on the device; see ``ops/linear.py``."""
        (rows, k), outputs = x.shape, weight.scales.shape[0]
        codes = cuda.device_array((rows, k // 4), np.int32)
        scales = cuda.device_array((rows, k // weight.block), np.float32)
        sums = cuda.device_array((rows, k // weight.block), np.int32)
        by_row = int(activations == "int8_row")
        self._quantise[rows, LANES](x, codes, scales, sums, weight.block, by_row)
        out = cuda.device_array((rows, outputs), np.float32)
        grid = -(-outputs // OUTPUTS), -(-rows // TILE)
        self._product[grid, (LANES, OUTPUTS)](weight.words, weight.scales, codes, scales, sums, out)
        return out

    def expert(
        self,
        x: F32,
        gate: DeviceWeight,
        up: DeviceWeight,
        down: DeviceWeight,
        activations: str,
    ) -> F32:
        """``down(silu(gate(x)) * up(x))``, float32 ``[rows, K]`` there and back."""
        rows = cuda.to_device(np.ascontiguousarray(x, np.float32))
        inner = self.linear(rows, gate, activations)
        self._gate[len(x), LANES](inner, self.linear(rows, up, activations))
        out: F32 = self.linear(inner, down, activations).copy_to_host()
        return out
