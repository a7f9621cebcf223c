"""Tiles of bfloat16: the instructions here, or emulated, and their model, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.kernels.attention.tile_products import DEPTH, score_tiles, weigh_tiles
from edgerun.kernels.isa import available_isas
from edgerun.kernels.jit.compiler import compile_object
from edgerun.kernels.jit.loader import load_object
from edgerun.kernels.lang.bfloat16 import from_bfloat16 as widened
from edgerun.kernels.lang.bfloat16 import to_bfloat16 as rounded
from edgerun.kernels.lang.simd import load, store
from edgerun.kernels.lang.tile_registers import configure_tiles, release_tiles
from edgerun.kernels.lang.vectormath import exp2_roughly
from edgerun.kernels.lang.word import word
from edgerun.kernels.run.instructions import Instruction, Loaded
from edgerun.kernels.run.program import Program, ThreadTeam
from tests.kernels.bfloat16 import F32, flushed, from_bfloat16, tdpbf16ps, to_bfloat16

UNITS = ["amx_model", *({"amx"} & set(available_isas()))]
HEAD_DIM, TOKENS = 64, 64


def call(body: Any, *arrays: Any) -> None:
    """Runs ``body(arguments, chunk)`` once; its arguments are the arrays' addresses."""
    arguments: Any = np.array([array.ctypes.data for array in arrays], np.int64)
    loaded = Loaded(load_object(compile_object(body)))
    names = tuple(str(index) for index in range(len(arrays)))
    step = Instruction(loaded, arguments, names, 0, 1, 1, frozenset(), frozenset(), "test")
    program, team = Program([step], [arguments, *arrays]), ThreadTeam(1)
    program.frame[0] = 1
    try:
        team.run(program)
        team.settle()
    finally:
        team.close()


def numbers(shape: tuple[int, ...], spread: int, seed: int) -> F32:
    """Of very different size; some subnormal, some zero."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-spread, spread + 1, shape)
    values = rng.standard_normal(shape) * 2.0**exponents
    values[rng.random(shape) < 0.02] = 0
    values[rng.random(shape) < 0.02] = 2.0**-130
    return values.astype(np.float32)


@pytest.mark.parametrize("isa", UNITS)
@pytest.mark.parametrize("spread", [3, 40, 62])
def test_products_have_the_bits_of_the_instruction(isa: str, spread: int) -> None:
    keys = to_bfloat16(numbers((TOKENS, HEAD_DIM), spread, 1))
    queries = to_bfloat16(numbers((2, HEAD_DIM // 32, 16, 16, 2), spread, 2))
    scores = np.full((TOKENS, 32), np.nan, np.float32)

    def body(a: int, chunk: int) -> None:
        configure_tiles(DEPTH, isa)
        score_tiles(word(a, 0), word(a, 1), word(a, 2), TOKENS, HEAD_DIM, isa)
        release_tiles(DEPTH, isa)

    call(body, keys, queries, scores)
    for group in range(2):
        for first in range(0, TOKENS, 16):
            sums = np.zeros((16, 16), np.float32)
            for step in range(HEAD_DIM // 32):
                x = keys[first : first + 16, 32 * step : 32 * step + 32]
                sums = tdpbf16ps(sums, x, queries[group, step])
            computed = scores[first : first + 16, 16 * group : 16 * group + 16]
            np.testing.assert_array_equal(computed, sums)


@pytest.mark.parametrize("isa", UNITS)
@pytest.mark.parametrize("tokens", [64, 32])
def test_values_are_added_to_what_was_there(isa: str, tokens: int) -> None:
    values = to_bfloat16(numbers((HEAD_DIM // 16, 2, 16, 32), 20, 1))
    weights = to_bfloat16(numbers((2, 2, 16, 16, 2), 20, 2))
    out = numbers((2, HEAD_DIM, 16), 20, 3)
    expected = out.copy()
    for group in range(2):
        for part in range(HEAD_DIM // 16):
            for step in range(tokens // 32):
                rows = slice(16 * part, 16 * part + 16)
                sums = tdpbf16ps(expected[group, rows], values[part, step], weights[group, step])
                expected[group, rows] = sums

    def body(a: int, chunk: int) -> None:
        configure_tiles(DEPTH, isa)
        weigh_tiles(word(a, 0), word(a, 1), word(a, 2), tokens, HEAD_DIM, isa)
        release_tiles(DEPTH, isa)

    call(body, values, weights, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("isa", UNITS)
def test_rounding_is_to_nearest_even_and_no_number_stays_none(isa: str) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, np.uint64).astype(np.uint32)
    bits[:64] = (bits[:64] & 0xFFFF0000) | 0x8000  # half-way
    bits[64:96] = 0x7F800001 + np.arange(32)
    bits[96:98] = 0x7F800000, 0xFF800000
    bits[98:100] = 0x7FFFFFFF, 0xFFFFFFFF
    x = bits.view(np.float32)
    out = np.zeros_like(x)

    def body(a: int, chunk: int) -> None:
        for index in range(0, 4096 * 4, 64):
            store(word(a, 1) + index, widened(rounded(load(word(a, 0) + index, "f32", 16), isa)))

    call(body, x, out)
    np.testing.assert_array_equal(flushed(out), flushed(from_bfloat16(to_bfloat16(x))))
    is_usual = np.isfinite(x) & (np.abs(x) < 3e38) & (np.abs(x) > 1e-37)
    exact = x[is_usual].astype(np.float64)
    assert (np.abs(out[is_usual] / exact - 1) <= 2.0**-8).all()


def test_powers_of_two_are_as_near_as_they_say() -> None:
    x = np.concatenate([np.linspace(-126, 8, 4080), np.arange(-16, 0)]).astype(np.float32)
    x[0], x[1] = np.nan, -1e38
    out = np.zeros_like(x)

    def body(a: int, chunk: int) -> None:
        for index in range(0, 4096 * 4, 64):
            store(word(a, 1) + index, exp2_roughly(load(word(a, 0) + index, "f32", 16)))

    call(body, x, out)
    assert np.isnan(out[0]) and 0 <= out[1] < 2e-38
    expected = 2.0 ** x[2:].astype(np.float64)
    assert np.abs(out[2:] / expected - 1).max() <= 8e-5
