"""A packed weight on the device, and what the results of its commands mean.

How it is cut into commands is told in ``overlay/cut.py``. The device returns int32 sums, and the
host scales them in float32. ``DeviceMatrix.check`` compares every result with the column sums of
its weights (Huang and Abraham 1984, algorithm-based fault tolerance), so that a wrong sum is
noticed and not believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight, unpack_bits, zero_points
from edgerun_hw.overlay.command import Capabilities, Command
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.packing import (
    LookupMode,
    join_int8,
    pack_multiples,
    pack_ternary,
    row_beats,
    split_int8,
    unpack_results,
)
from edgerun_hw.overlay.port import Buffer, Overlay
from edgerun_hw.overlay.register_map import BEAT_BYTES

I8: TypeAlias = NDArray[np.int8]
I32: TypeAlias = NDArray[np.int32]
F32: TypeAlias = NDArray[np.float32]
# Where the ports' weights begin decides whether they meet in one bank of the memory: rows of 8 KiB
# over 8 banks come round every 64 KiB, so the ports start two banks apart.
BANKS_BYTES = 64 << 10
PORT_STEP = 16 << 10


@dataclass(frozen=True)
class Piece:
    """One command's weights.

    Attributes:
        block: which block of K.
        first: first row of the matrix.
        rows: rows of the matrix.
        row_beats: beats of the device's rows.
        tiles: groups of activations.
        weights: device address for each port.
        sums: int32 ``[K of the block]``, sums of the device's rows, for the check.
    """

    block: int
    first: int
    rows: int
    row_beats: int
    tiles: int
    weights: tuple[int, ...]
    sums: I32


class DeviceMatrix:
    """A weight in the device's memory.

    Attributes:
        cut: how it is cut into commands.
        pieces: its commands' weights, block by block, each block's rows in order.
        scales: float32 ``[N, 1]``, or ``[N, blocks]`` with scales per block.
        nbytes: of weights on the device.
    """

    def __init__(
        self, weight: PackedWeight, overlay: Overlay, *, by_block: bool = False, largest: int = 0
    ) -> None:
        """Packs the weight and writes it to the device.

        Args:
            weight: to multiply by.
            overlay: the device.
            by_block: the activations have a scale for each of its blocks.
            largest: magnitude of its largest integer, if it is less than its format's.

        Raises:
            MemoryError: the device has no room for it.
            OverlayError: the device failed.
        """
        n, k = weight.shape
        one_scale = has_row_scales(weight) and not by_block
        scales = weight.scales.astype(np.float32, copy=False)
        self.scales: F32 = scales[:, :1] if one_scale else scales
        self._ports = overlay.capabilities.ports
        largest = largest or largest_integer(weight)
        self.cut = cut_matrix(
            weight.shape, largest, k if one_scale else weight.block, overlay.capabilities
        )
        self._buffers: list[Buffer] = []
        self.nbytes = 0
        try:
            pieces = self.cut.pieces()
            by_rows = [self._place(weight, first, last, overlay) for first, last in pieces]
        except BaseException:
            self.free()
            raise
        # Block by block, so that a row's sums are added up in the order of K.
        self.pieces = [piece for same_block in zip(*by_rows, strict=True) for piece in same_block]

    def command(self, piece: Piece, columns: int, x: int, y: int) -> Command:
        """The command that multiplies ``columns`` packed activation columns by a piece."""
        return Command(
            x=x,
            y=y,
            weights=piece.weights,
            row_beats=piece.row_beats,
            tiles=piece.tiles,
            columns=columns,
            multiples=self.cut.mode is LookupMode.MULTIPLES,
        )

    def results(self, piece: Piece, words: I32, columns: int) -> I32:
        """The device's rows of a piece, int32 ``[columns, rows * digits]``."""
        return unpack_results(words, piece.rows * self.cut.digits, columns, self._ports)

    def check(self, piece: Piece, results: I32, activations: I32) -> bool:
        """Whether results add up to what the weights' column sums say, modulo 2**32.

        Args:
            piece: what was multiplied.
            results: as ``results`` gives them.
            activations: int32 ``[columns, K of the block]``.
        """
        expected = activations @ piece.sums
        return bool((results.sum(axis=1, dtype=np.int32) == expected).all())

    def joined(self, results: I32) -> I32:
        """Sums of whole weights, int32 ``[columns, rows]``."""
        return join_int8(results) if self.cut.digits == 2 else results

    def free(self) -> None:
        """Gives the device's memory back."""
        while self._buffers:
            self._buffers.pop().free()

    def _place(self, weight: PackedWeight, first: int, last: int, overlay: Overlay) -> list[Piece]:
        """Writes some rows, in one buffer, and returns their pieces by block."""
        cut, integers = self.cut, integers_of(weight, first, last)
        pack = pack_ternary if cut.mode is LookupMode.TERNARY else pack_multiples
        device_rows = split_int8(integers) if cut.digits == 2 else integers
        spans = [cut.columns(block) for block in range(cut.blocks)]
        parts = [np.ascontiguousarray(device_rows[:, start:stop]) for start, stop in spans]
        packed = [pack(part, self._ports) for part in parts]
        offsets, nbytes = _layout([beats.nbytes // self._ports for beats in packed], self._ports)
        buffer = overlay.allocate(nbytes + BANKS_BYTES)
        self._buffers.append(buffer)
        self.nbytes += nbytes + BANKS_BYTES
        base = -buffer.address % BANKS_BYTES
        pieces = []
        for block, (beats, part) in enumerate(zip(packed, parts, strict=True)):
            starts = [base + offset for offset in offsets[block]]
            for start, port in zip(starts, beats, strict=True):
                buffer.array[start : start + port.nbytes] = port.reshape(-1)
            pieces.append(
                Piece(
                    block=block,
                    first=first,
                    rows=last - first,
                    row_beats=row_beats(len(part), self._ports),
                    tiles=beats.shape[1],
                    weights=tuple(buffer.address + start for start in starts),
                    sums=part.sum(axis=0, dtype=np.int32),
                )
            )
        buffer.hand_over()
        return pieces


def device_bytes(weight: PackedWeight, can: Capabilities, by_block: bool = False) -> int:
    """Bytes that ``DeviceMatrix`` would take of the device's memory, without writing any."""
    one_scale = has_row_scales(weight) and not by_block
    block = weight.shape[1] if one_scale else weight.block
    return matrix_bytes(weight.shape, largest_integer(weight), block, can)


def matrix_bytes(shape: tuple[int, int], largest: int, block: int, can: Capabilities) -> int:
    """The same for a matrix that nobody has made yet.

    Args:
        shape: its ``(N, K)``.
        largest: magnitude of its weights.
        block: of K that shares scales.
        can: what the overlay can do.
    """
    cut = cut_matrix(shape, largest, block, can)
    spans = [cut.columns(number) for number in range(cut.blocks)]
    tiles = [cut.mode.tiles(stop - start) for start, stop in spans]
    total = 0
    for first, last in cut.pieces():
        beats = row_beats((last - first) * cut.digits, can.ports)
        nbytes = _layout([beats * count * BEAT_BYTES for count in tiles], can.ports)[1]
        total += nbytes + BANKS_BYTES
    return total


def _layout(port_bytes: Sequence[int], ports: int) -> tuple[list[list[int]], int]:
    """Offsets of each block's ports' weights from a multiple of ``BANKS_BYTES``, and the end.

    Weights too short for it to matter follow one another.
    """
    offsets: list[list[int]] = []
    end = 0
    for nbytes in port_bytes:
        starts = []
        for port in range(ports):
            if nbytes >= PORT_STEP:
                end += (port * PORT_STEP - end) % BANKS_BYTES
            starts.append(end)
            end += nbytes
        offsets.append(starts)
    return offsets, end


def stack_key(weight: PackedWeight) -> tuple[int, int, int, bool]:
    """What weights must have in common to be one matrix on the device."""
    return weight.shape[1], weight.bits, weight.block, has_row_scales(weight)


def stack(weights: Sequence[PackedWeight]) -> PackedWeight:
    """One weight of all the rows; the weights have the same ``stack_key``."""
    if len(weights) == 1:
        return weights[0]
    first = weights[0]
    codes = np.concatenate([weight.codes for weight in weights])
    scales = np.concatenate([weight.scales for weight in weights])
    return PackedWeight(first.format, (len(codes), first.shape[1]), first.block, codes, scales)


def has_row_scales(weight: PackedWeight) -> bool:
    """Whether all blocks of each row share one scale."""
    return bool((weight.scales == weight.scales[:, :1]).all())


def integers_of(weight: PackedWeight, first: int, last: int) -> I8:
    """Codes minus zero points of some rows, int8 ``[last - first, K]``."""
    codes = unpack_bits(weight.codes[first:last], weight.bits)
    if weight.bits == 8:  # -128 to 127, whatever the type in between
        return (codes ^ np.uint8(128)).view(np.int8).reshape(len(codes), -1)[:, : weight.shape[1]]
    integers = codes.view(np.int8) - zero_points(weight).astype(np.int8)[..., None]
    return integers.reshape(len(codes), -1)[:, : weight.shape[1]]


def largest_integer(weight: PackedWeight) -> int:
    """Magnitude of the largest integer weight that occurs, or may occur where only width tells."""
    if weight.bits > 2:
        return 1 << (weight.bits - 1)
    if weight.shape[1] % weight.block:  # the last block's padding does not count
        return max(1, int(-integers_of(weight, 0, weight.shape[0]).min(initial=0)))
    # Of two-bit codes only 0 is not ternary, and few matrices have it.
    pairs = np.array([any(byte >> bit & 3 == 0 for bit in range(0, 8, 2)) for byte in range(256)])
    return 2 if pairs[weight.codes].any() else 1
