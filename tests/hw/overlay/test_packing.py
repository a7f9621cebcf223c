"""Lookup codes: the layout of the bits, by hand and by property."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun_hw.overlay.packing import (
    LookupMode,
    join_int8,
    pack_activations,
    pack_multiples,
    pack_scales,
    pack_ternary,
    result_words,
    split_int8,
    unpack_multiples,
    unpack_results,
    unpack_ternary,
)

SHAPES = {
    "N": st.integers(1, 60),
    "K": st.integers(1, 100),
    "ports": st.integers(1, 4),
    "seed": st.integers(0, 2**32 - 1),
}


def beat_as_number(beat: np.ndarray) -> int:
    return int.from_bytes(beat.tobytes(), "little")


@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("table", range(5))
def test_code_of_a_row_and_table_is_at_its_bits(row: int, table: int) -> None:
    weights = np.zeros((5, 15), np.int8)
    weights[row, 3 * table : 3 * table + 3] = [-1, 1, -1]  # -9 + 3 - 1 = -7
    packed = pack_ternary(weights, ports=1)
    assert packed.shape == (1, 1, 1, 16)
    assert beat_as_number(packed) == (16 + 7) << 5 * (5 * row + table)


@pytest.mark.parametrize(("port", "beat"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_port_and_beat_of_a_row(port: int, beat: int) -> None:
    weights = np.zeros((60, 10), np.int8)
    weights[beat * 20 + port * 5 + 2, 6] = 13  # second of the two tiles, its second table
    packed = pack_multiples(weights, ports=4)
    assert packed.shape == (4, 2, 3, 16)
    assert beat_as_number(packed[port, 1, beat]) == 13 << 5 * (5 * 2 + 1)
    packed[port, 1, beat] = 0
    assert not packed.any()


@given(**SHAPES)
@settings(deadline=None)
def test_ternary_weights_come_back(N: int, K: int, ports: int, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(-1, 2, (N, K), np.int8)
    packed = pack_ternary(weights, ports)
    assert packed.shape == (ports, -(-K // 15), -(-N // (5 * ports)), 16)
    assert not (packed[..., 15] & 0xE0).any()
    assert (unpack_ternary(packed, N, K) == weights).all()


@given(**SHAPES)
@settings(deadline=None)
def test_multiples_come_back_and_padding_is_zero(N: int, K: int, ports: int, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(-13, 14, (N, K), np.int8)
    packed = pack_multiples(weights, ports)
    tiles, beats = packed.shape[1:3]
    unpacked = unpack_multiples(packed, beats * 5 * ports, tiles * 5)
    assert (unpacked[:N, :K] == weights).all()
    assert not unpacked[N:].any()
    assert not unpacked[:, K:].any()


def test_every_int8_is_two_digits() -> None:
    weights = np.arange(-128, 128).astype(np.int8).reshape(4, 64)
    digits = split_int8(weights)
    assert digits.shape == (8, 64)
    assert np.abs(digits[0::2]).max() == 13
    assert np.abs(digits[1::2]).max() == 5
    joined = join_int8(digits.astype(np.int32).T).T
    assert (joined == weights).all()


@pytest.mark.parametrize(("pack", "bad"), [(pack_ternary, 2), (pack_multiples, -14)])
def test_weights_out_of_range_are_refused(pack: object, bad: int) -> None:
    with pytest.raises(ValueError, match=f"not {bad}"):
        pack(np.array([[0, bad]], np.int8), ports=1)  # type: ignore[operator]


def test_code_that_stands_for_nothing_is_refused() -> None:
    packed = np.zeros((1, 1, 1, 16), np.uint8)
    packed[..., 0] = 14
    with pytest.raises(ValueError, match="magnitude"):
        unpack_ternary(packed, 5, 15)


def test_activations_of_a_tile_and_column() -> None:
    activations = np.arange(1, 35).astype(np.int8).reshape(2, 17)
    ternary = pack_activations(activations, LookupMode.TERNARY)
    assert ternary.shape == (2, 2, 16)
    assert ternary[0, 1].tolist() == [*range(18, 33), 0]
    assert ternary[1, 0].tolist() == [16, 17, *[0] * 14]
    multiples = pack_activations(activations, LookupMode.MULTIPLES)
    assert multiples.shape == (4, 2, 16)
    assert multiples[1, 1].tolist() == [23, 24, 25, 26, 27, *[0] * 11]


def test_results_of_every_column_in_order_of_rows() -> None:
    rows, columns, ports = 23, 3, 2
    words = np.zeros(result_words(rows, columns, ports), np.int32)
    assert words.size == 92  # 3 beats of 3 columns of 10 rows, to whole fours
    for n in range(30):
        for m in range(columns):
            words[(n // 10 * columns + m) * 10 + n % 10] = 100 * m + n
    results = unpack_results(words, rows, columns, ports)
    assert (results == 100 * np.arange(columns)[:, None] + np.arange(rows)).all()


def test_scales_fill_whole_beats() -> None:
    packed = pack_scales(np.ones(11, np.float32), ports=3)
    assert packed.dtype == np.float32
    assert packed.tolist() == [1.0] * 11 + [0.0] * 5
