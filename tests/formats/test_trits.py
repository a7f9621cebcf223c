"""Trits: the layout of the bits, by hand and by property."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.formats.trits import DIGITS, STATES, pack_trits, unpack_trits

ALL = np.array(list(itertools.product(range(3), repeat=DIGITS)), np.uint8)


def test_every_byte_comes_back() -> None:
    packed = pack_trits(ALL, lanes=1)
    assert (unpack_trits(packed) == ALL).all()
    assert len(np.unique(packed)) == STATES


def test_bytes_are_the_number_as_a_fraction_rounded_up() -> None:
    assert pack_trits(ALL[[0, 1, 121, 242]], lanes=1).ravel().tolist() == [0, 2, 128, 255]


@given(
    lanes=st.sampled_from([1, 16, 32, 64]),
    rows=st.integers(1, 3),
    k=st.integers(1, 700),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None)
def test_digits_come_back_and_padding_is_zero(lanes: int, rows: int, k: int, seed: int) -> None:
    digits = np.random.default_rng(seed).integers(0, 3, (rows, k), np.uint8)
    packed = pack_trits(digits, lanes)
    assert packed.shape == (rows, -(-k // (DIGITS * lanes)), lanes)
    unpacked = unpack_trits(packed)
    assert (unpacked[:, :k] == digits).all()
    assert not unpacked[:, k:].any()


@pytest.mark.parametrize("lanes", [2, 16])
def test_a_plane_of_digits_is_a_run_of_weights(lanes: int) -> None:
    weight = lanes * 2 + 1  # the second of the third plane
    digits = np.zeros(DIGITS * lanes, np.uint8)
    digits[weight] = 2
    packed = pack_trits(digits, lanes)[0]
    assert np.flatnonzero(packed).tolist() == [1]
    assert packed[1] == -(-2 * 9 * 256 // STATES)
