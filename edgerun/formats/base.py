"""Packed weights and the bit layout that ONNX ``MatMulNBits`` defines.

All block-wise formats share that layout: a matrix ``[N, K]`` (output by input features) is cut
along K into blocks; a block stores unsigned codes of ``bits`` bits, the first weight in the
lowest bits of the first byte, and one float32 scale; the weight is ``(code - zero) * scale``.
Scales may be negative: the code range has one value more below zero than above, and a block is
best served if its largest magnitude falls there. A block may have a zero point of its own among the
codes, or an offset that is added to all of its weights: ``(code - zero) * scale + offset``.
Source: onnxruntime contrib operators, ``com.microsoft.MatMulNBits``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FLOAT_BYTES = 4
SCALES_AT_ONCE = 1 << 16  # that are looked at; most matrices need a few only to be told


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A quantised matrix in the MatMulNBits layout.

    Attributes:
        format: name of the weight format.
        shape: ``(N, K)``, output and input features.
        block: weights that share a scale; a power of two, at least 16.
        codes: uint8 ``[N, ceil(K / block), block * bits / 8]``.
        scales: float32 ``[N, ceil(K / block)]``; float16 where they lie so in a file, as which they
            stay until somebody prepares the weight.
        zeros: zero points packed like the codes, uint8 ``[N, ceil(blocks * bits / 8)]``;
            ``None`` means ``2 ** (bits - 1)`` for every block.
        offsets: what is added to every weight of a block, float16 ``[ceil(K / block), N]``; scales
            then are numbers of half precision, too. ``None`` where nothing is, and where there are
            zero points.
    """

    format: str
    shape: tuple[int, int]
    block: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.floating[Any]]
    zeros: NDArray[np.uint8] | None = None
    offsets: NDArray[np.float16] | None = None

    @property
    def is_centred(self) -> bool:
        """Whether the middle of the codes stands for 0 in every block."""
        return self.zeros is None and self.offsets is None

    @property
    def blocks(self) -> int:
        """Blocks along K."""
        return -(-self.shape[1] // self.block)

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return int(self.codes.shape[-1]) * 8 // self.block

    @property
    def nbytes(self) -> int:
        """Bytes of codes, zero points, and scales as float32, or as halves beside the offsets."""
        zeros = 0 if self.zeros is None else self.zeros.nbytes
        return self.codes.nbytes + self.scale_bytes + zeros

    @property
    def scale_bytes(self) -> int:
        """Bytes of scales as float32, however they lie in a file."""
        return self.scales.size * FLOAT_BYTES


class WeightFormat(Protocol):
    """How float weights become codes and back."""

    name: str
    bits: int
    group: int

    def pack(self, weight: NDArray[np.float32], block: int) -> PackedWeight:
        """Quantises float32 ``[N, K]`` by round-to-nearest; K must be a multiple of ``block``."""
        ...

    def unpack(self, packed: PackedWeight) -> NDArray[np.float32]:
        """Returns the float32 weights ``[N, K]`` that the codes stand for."""
        ...


def has_half_scales(packed: PackedWeight) -> bool:
    """Whether half precision holds all scales exactly, beside which there are no offsets."""
    step = max(1, SCALES_AT_ONCE // max(1, packed.blocks))
    with np.errstate(over="ignore"):
        return packed.offsets is None and all(
            (rows.astype(np.float16) == rows).all()
            for rows in (packed.scales[at : at + step] for at in range(0, packed.shape[0], step))
        )


def pack_bits(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Packs codes ``[..., n]`` into bytes ``[..., n * bits / 8]``, lowest bits first."""
    per_byte = 8 // bits
    grouped = codes.reshape(*codes.shape[:-1], -1, per_byte)
    packed = grouped[..., 0].copy()
    for index in range(1, per_byte):
        packed |= grouped[..., index] << np.uint8(index * bits)
    return packed


def unpack_bits(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Inverse of ``pack_bits``: bytes ``[..., m]`` to codes ``[..., m * 8 / bits]``."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def pack_zero_points(points: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Packs zero points ``[N, blocks]`` into ``[N, ceil(blocks * bits / 8)]``."""
    return pack_bits(np.pad(points, ((0, 0), (0, -points.shape[1] % (8 // bits)))), bits)


def zero_points(packed: PackedWeight) -> NDArray[np.uint8]:
    """Zero point of every block, uint8 broadcastable to ``[N, blocks]``."""
    if packed.zeros is None:
        return np.full((1, 1), 2 ** (packed.bits - 1), np.uint8)
    return unpack_bits(packed.zeros, packed.bits)[:, : packed.blocks]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block-wise format: codes ``low..high`` around the middle zero point.

    ``pack`` scales each block so that its largest magnitude meets the end of the code range.

    Attributes:
        name: that of its file.
        bits: of a code: 2, 4 or 8.
        low: the least code, relative to the middle.
        high: the greatest.
        group: weights that share a scale, unless an export is asked for another number.
        has_zeros: whether every block has a zero point of its own.
        has_offsets: whether every block has an offset.
        lowest: the least that a code may stand for, where that is below ``low``: integers that a
            checkpoint stores may have it.
    """

    name: str
    bits: int
    low: int
    high: int
    group: int = 32
    has_zeros: bool = False
    has_offsets: bool = False
    lowest: int | None = None

    @property
    def stored_as(self) -> str:
        """What bundles call it: codes are the same with and without zero points and offsets."""
        return f"int{self.bits}" if self.has_zeros or self.has_offsets else self.name

    def pack(self, weight: NDArray[np.float32], block: int) -> PackedWeight:
        """Quantises float32 ``[N, K]`` by round-to-nearest; K must be a multiple of ``block``.

        Raises:
            ValueError: K is not a multiple of ``block``.
        """
        blocks = weight.reshape(len(weight), -1, block)
        if self.has_offsets:
            return self._pack_with_offsets(blocks)
        if not self.has_zeros:
            scales = np.abs(blocks).max(axis=-1) / np.float32(self.high)
            return self.encode(weight, scales, block)
        least, greatest = blocks.min(axis=-1, initial=0), blocks.max(axis=-1, initial=0)
        # Halves, since the difference may be larger than the largest number.
        scales = (greatest / 2 - least / 2) / np.float32(self.high - self.low) * 2
        points = np.rint(-least / np.where(scales != 0, scales, np.float32(1)))
        return self.encode(weight, scales, block, points.astype(np.uint8))

    def _pack_with_offsets(self, blocks: NDArray[np.float32]) -> PackedWeight:
        """Quantises ``[N, blocks, block]`` such that codes reach from the least to the greatest."""
        least, greatest = blocks.min(axis=-1), blocks.max(axis=-1)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity where halves are too narrow
            scales = ((greatest - least) / np.float32(self.high - self.low)).astype(np.float16)
            # The code ``low`` stands for the least.
            offsets = (least - np.float32(self.low) * scales).astype(np.float16)
            centred = (blocks - offsets[..., None]).reshape(len(blocks), -1)
            packed = self.encode(centred, scales.astype(np.float32), blocks.shape[-1])
        return replace(packed, offsets=np.ascontiguousarray(offsets.T))

    def encode(
        self,
        weight: NDArray[np.float32],
        scales: NDArray[np.float32],
        block: int,
        points: NDArray[np.uint8] | None = None,
    ) -> PackedWeight:
        """Quantises with given scales of either sign, float32 ``[N, K / block]``.

        ``points`` are zero points, uint8 ``[N, K / block]``; the middle where they are left out.
        """
        blocks = weight.reshape(len(weight), -1, block)
        safe = np.where(scales != 0, scales, np.float32(1))[..., None]
        middle = 2 ** (self.bits - 1)
        zero = middle if points is None else points[..., None].astype(np.float32)
        codes = np.clip(np.rint(blocks / safe) + zero, self.low + middle, self.high + middle)
        shape = (weight.shape[0], weight.shape[1])
        return PackedWeight(
            self.stored_as,
            shape,
            block,
            pack_bits(codes.astype(np.uint8), self.bits),
            scales.astype(np.float32),
            None if points is None else pack_zero_points(points, self.bits),
        )

    def integers(self, packed: PackedWeight) -> NDArray[np.int8]:
        """Returns codes minus zero points as int8 ``[N, K]``, which hold no others of 8 bits."""
        codes = unpack_bits(packed.codes, packed.bits).astype(np.int16)
        values = codes - zero_points(packed).astype(np.int16)[..., None]
        n, k = packed.shape
        return values.reshape(n, -1)[:, :k].astype(np.int8)

    def unpack(self, packed: PackedWeight) -> NDArray[np.float32]:
        """Returns the float32 weights ``[N, K]`` that the codes stand for."""
        codes = unpack_bits(packed.codes, packed.bits).astype(np.float32)
        values = (codes - zero_points(packed).astype(np.float32)[..., None]) * packed.scales[
            ..., None
        ]
        if packed.offsets is not None:
            values = values + packed.offsets.T[..., None].astype(np.float32)
        n, k = packed.shape
        return values.reshape(n, -1)[:, :k]
