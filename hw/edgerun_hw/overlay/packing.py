"""Lookup codes: weights and activations as the table-lookup overlay reads them; the bit layout.

The overlay multiplies by reading tables. A weight code is an integer ``v`` from -13 to 13 in sign
and magnitude: bits 3..0 hold ``|v|`` and bit 4 the sign. Two modes differ in what ``v`` stands for:

* ``TERNARY``: three weights of one row, ``v = 9 * w0 + 3 * w1 + w2`` with each in -1, 0, 1
  (balanced ternary), for three consecutive activations: 1.71 bits a weight with the padding;
* ``MULTIPLES``: one weight, for one activation. Weights of eight bits are split into two such
  digits in two rows (``split_int8``).

A beat of a weight port is 16 bytes, little endian: the code of row r (0 to 4) and group t (0 to 4)
stands in bits ``5 * (5 * r + t)`` and up; bits 125 to 127 are zero. The five groups of a beat are a
tile: 15 activations in ``TERNARY`` mode, 5 in ``MULTIPLES`` mode. With P ports, R = 5 * P rows pass
per beat: port p of row beat b holds matrix rows ``b * R + 5 * p`` to ``b * R + 5 * p + 4``. What a
matrix lacks to whole tiles and row beats is zero.

Bundles never hold this layout: it is made from their codes while a model is loaded.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.register_map import (
    BEAT_BYTES,
    CODE_BITS,
    GROUP,
    MAX_MAGNITUDE,
    PORT_ROWS,
    SPLIT_RADIX,
    TABLES,
)

RESULTS_PER_BEAT = BEAT_BYTES // 4

_SIGN = 1 << (CODE_BITS - 1)
_DIGIT_WEIGHTS = np.array([9, 3, 1], np.int8)
_WORD_BITS = CODE_BITS * TABLES  # the codes of one row and beat


class LookupMode(IntEnum):
    """What a code stands for; the numbers are those of the command's mode field."""

    TERNARY = 0
    MULTIPLES = 1

    @property
    def activations_per_code(self) -> int:
        """Activations that one code multiplies: 3 or 1."""
        return GROUP if self is LookupMode.TERNARY else 1

    @property
    def activations_per_tile(self) -> int:
        """Activations that a beat's codes multiply: 15 or 5."""
        return TABLES * self.activations_per_code

    def tiles(self, K: int) -> int:
        """Tiles of a row of ``K`` weights."""
        return -(-K // self.activations_per_tile)


def row_beats(rows: int, ports: int) -> int:
    """Beats in which ``rows`` rows of a matrix pass ``ports`` weight ports."""
    return -(-rows // (PORT_ROWS * ports))


def pack_ternary(weights: NDArray[np.int8], ports: int) -> NDArray[np.uint8]:
    """Packs ternary weights ``[N, K]`` into beats ``[ports, tiles, row_beats, 16]``.

    Raises:
        ValueError: a weight is not -1, 0 or 1.

    Example:
        >>> pack_ternary(np.array([[-1, 0, 1]], np.int8), ports=1)[0, 0, 0, :2]  # v = -8
        array([24,  0], dtype=uint8)
    """
    _check_range("ternary weight", weights, 1)
    N, K = weights.shape
    groups = LookupMode.TERNARY.tiles(K) * TABLES
    whole = np.zeros((N, groups, GROUP), np.int8)
    whole.reshape(N, -1)[:, :K] = weights
    values = whole[..., 0] * _DIGIT_WEIGHTS[0] + whole[..., 1] * _DIGIT_WEIGHTS[1] + whole[..., 2]
    return _pack_values(values, ports)


def pack_multiples(weights: NDArray[np.int8], ports: int) -> NDArray[np.uint8]:
    """Packs weights ``[N, K]`` from -13 to 13 into beats ``[ports, tiles, row_beats, 16]``.

    Raises:
        ValueError: a weight is outside -13..13; wider ones go through ``split_int8`` first.

    Example:
        >>> pack_multiples(np.array([[-8, 7]], np.int8), ports=1)[0, 0, 0, :2]
        array([248,   0], dtype=uint8)
    """
    _check_range("weight", weights, MAX_MAGNITUDE)
    missing = -weights.shape[1] % TABLES
    return _pack_values(np.pad(weights, [(0, 0), (0, missing)]), ports)


def unpack_ternary(packed: NDArray[np.uint8], N: int, K: int) -> NDArray[np.int8]:
    """Inverse of ``pack_ternary``: beats ``[ports, tiles, row_beats, 16]`` to weights ``[N, K]``.

    Raises:
        ValueError: a code's magnitude is above 13.
    """
    quotient = _unpack_values(packed, N)
    digits = []
    for _ in range(GROUP):  # from the least significant, in balanced ternary
        digit = (quotient + 1) % 3 - 1
        digits.append(digit)
        quotient = (quotient - digit) // 3
    return np.stack(digits[::-1], axis=-1).reshape(N, -1)[:, :K]


def unpack_multiples(packed: NDArray[np.uint8], N: int, K: int) -> NDArray[np.int8]:
    """Inverse of ``pack_multiples``: beats ``[ports, tiles, row_beats, 16]`` to weights ``[N, K]``.

    Raises:
        ValueError: a code's magnitude is above 13.
    """
    return _unpack_values(packed, N)[:, :K]


def split_int8(weights: NDArray[np.int8]) -> NDArray[np.int8]:
    """Splits weights ``[N, K]`` into digit rows ``[2 * N, K]`` for ``MULTIPLES`` mode.

    Rows ``2 * n`` hold the low digits, -13 to 13, and rows ``2 * n + 1`` the high ones, -5 to 5:
    a weight is ``27 * high + low``.
    """
    wide = weights.astype(np.int16)
    low = (wide + MAX_MAGNITUDE) % SPLIT_RADIX - MAX_MAGNITUDE
    high = (wide - low) // SPLIT_RADIX
    return np.stack([low, high], axis=1).reshape(-1, weights.shape[1]).astype(np.int8)


def join_int8(results: NDArray[np.int32]) -> NDArray[np.int32]:
    """Joins results ``[M, 2 * N]`` of the rows of ``split_int8`` into those of the whole weights.

    Returns:
        int32 ``[M, N]``.
    """
    low, high = results[:, 0::2], results[:, 1::2]
    joined: NDArray[np.int32] = np.int32(SPLIT_RADIX) * high + low
    return joined


def pack_activations(activations: NDArray[np.int8], mode: LookupMode) -> NDArray[np.int8]:
    """Packs activations ``[M, K]`` into beats ``[tiles, M, 16]``, zero where there is none."""
    M, K = activations.shape
    per_tile, tiles = mode.activations_per_tile, mode.tiles(K)
    whole = np.zeros((M, tiles * per_tile), np.int8)
    whole[:, :K] = activations
    packed = np.zeros((tiles, M, BEAT_BYTES), np.int8)
    packed[:, :, :per_tile] = whole.reshape(M, tiles, per_tile).transpose(1, 0, 2)
    return packed


def pack_scales(scales: NDArray[np.float32], ports: int) -> NDArray[np.float32]:
    """Packs row scales ``[N]`` for whole row beats and whole beats of four, zero at the end."""
    rows = row_beats(len(scales), ports) * PORT_ROWS * ports
    return np.pad(scales, (0, rows - len(scales) + -rows % RESULTS_PER_BEAT))


def result_words(rows: int, columns: int, ports: int) -> int:
    """32-bit words that a command of ``columns`` activation columns writes, padding included."""
    words = row_beats(rows, ports) * columns * PORT_ROWS * ports
    return words + -words % RESULTS_PER_BEAT


def unpack_results(
    words: NDArray[np.int32], rows: int, columns: int, ports: int
) -> NDArray[np.int32]:
    """Brings results in the order of the overlay into that of a matrix product.

    Args:
        words: 32-bit words ``[row_beats * columns * 5 * ports]`` and padding; any 32-bit dtype.
        rows: rows N of the matrix.
        columns: activation columns M of the command.
        ports: weight ports of the overlay.

    Returns:
        ``[M, N]``, of the dtype of ``words``.
    """
    beat_rows = PORT_ROWS * ports
    beats = row_beats(rows, ports)
    used = words[: beats * columns * beat_rows].reshape(beats, columns, beat_rows)
    return used.transpose(1, 0, 2).reshape(columns, -1)[:, :rows]


def _check_range(what: str, values: NDArray[np.int8], limit: int) -> None:
    if values.size and (values.min() < -limit or values.max() > limit):
        worst = values.flat[np.abs(values.astype(np.int16)).argmax()]
        raise ValueError(f"a {what} must be from {-limit} to {limit}, not {worst}")


def _pack_values(values: NDArray[np.int8], ports: int) -> NDArray[np.uint8]:
    """Packs code values ``[N, tiles * 5]`` into beats ``[ports, tiles, row_beats, 16]``."""
    N, tiles = values.shape[0], values.shape[1] // TABLES
    codes = np.abs(values).view(np.uint8)
    codes |= np.where(values < 0, np.uint8(_SIGN), np.uint8(0))
    by_table = codes.reshape(N, tiles, TABLES)
    beats = row_beats(N, ports)
    words = np.zeros((beats * PORT_ROWS * ports, tiles), np.uint64)
    for table in range(TABLES):
        words[:N] |= by_table[..., table].astype(np.uint64) << np.uint64(CODE_BITS * table)
    # Rows of a beat to the front: the halves below are then made of whole planes.
    rows = np.ascontiguousarray(words.reshape(beats, ports, PORT_ROWS, tiles).transpose(2, 1, 3, 0))
    halves = np.empty((ports, tiles, beats, 2), "<u8")
    bits = np.uint64(_WORD_BITS)
    halves[..., 0] = rows[0] | rows[1] << bits | rows[2] << bits * np.uint64(2)
    spilt = np.uint64(64 - 2 * _WORD_BITS)  # bits of the middle row that are in the lower half
    halves[..., 1] = (
        rows[2] >> spilt | rows[3] << bits - spilt | rows[4] << bits * np.uint64(2) - spilt
    )
    return halves.view(np.uint8)


def _unpack_values(packed: NDArray[np.uint8], N: int) -> NDArray[np.int8]:
    """Unpacks beats ``[ports, tiles, row_beats, 16]`` to code values ``[N, tiles * 5]``."""
    ports, tiles, beats, _ = packed.shape
    bits = np.unpackbits(packed, axis=-1, bitorder="little")[..., : PORT_ROWS * _WORD_BITS]
    weights = (1 << np.arange(CODE_BITS)).astype(np.uint8)
    codes = bits.reshape(ports, tiles, beats, PORT_ROWS, TABLES, CODE_BITS) @ weights
    magnitudes = (codes & (_SIGN - 1)).astype(np.int8)
    _check_range("code's magnitude", magnitudes, MAX_MAGNITUDE)
    values = np.where(codes & _SIGN, -magnitudes, magnitudes)
    # [ports, tiles, beats, rows, tables] -> [beats, ports, rows, tiles, tables]
    return values.transpose(2, 0, 3, 1, 4).reshape(-1, tiles * TABLES)[:N]
