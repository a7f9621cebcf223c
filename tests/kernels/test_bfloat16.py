"""Products of bfloat16: instructions here, or emulated, and their models, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.kernels.attention.pair_products import products_of
from edgerun.kernels.jit.compiler import compile_object
from edgerun.kernels.jit.loader import load_object
from edgerun.kernels.lang.bfloat16 import from_bfloat16 as widened
from edgerun.kernels.lang.bfloat16 import to_bfloat16 as rounded
from edgerun.kernels.lang.simd import load, store
from edgerun.kernels.lang.tile_registers import TILES
from edgerun.kernels.lang.vectormath import exp2_roughly, tanh_roughly
from edgerun.kernels.lang.word import word
from edgerun.kernels.run.instructions import Instruction, Loaded
from edgerun.kernels.run.program import Program, ThreadTeam
from tests.conformance.kernels.harness import BFLOAT16_MODELS, BFLOAT16_MULTIPLIERS
from tests.kernels.bfloat16 import (
    F32,
    flushed,
    from_bfloat16,
    tdpbf16ps,
    to_bfloat16,
    vdpbf16ps,
)

MULTIPLIERS = sorted({*BFLOAT16_MULTIPLIERS, *BFLOAT16_MODELS})
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


def products(multiplier: str, sums: F32, x: Any, codes: Any) -> F32:
    """``sums`` plus products of two tiles, in the order in which a multiplier adds them up."""
    if multiplier in TILES:
        return tdpbf16ps(sums, x, codes)
    for step, line in enumerate(codes):
        left = np.broadcast_to(x[:, None, 2 * step : 2 * step + 2], (*sums.shape, 2))
        sums = vdpbf16ps(sums, left, np.broadcast_to(line, (*sums.shape, 2)))
    return sums


def numbers(shape: tuple[int, ...], spread: int, seed: int) -> F32:
    """Of very different size; some subnormal, some zero."""
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-spread, spread + 1, shape)
    values = rng.standard_normal(shape) * 2.0**exponents
    values[rng.random(shape) < 0.02] = 0
    values[rng.random(shape) < 0.02] = 2.0**-130
    return values.astype(np.float32)


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
@pytest.mark.parametrize("spread", [3, 40, 62])
def test_products_have_the_bits_of_the_instruction(multiplier: str, spread: int) -> None:
    keys = to_bfloat16(numbers((TOKENS, HEAD_DIM), spread, 1))
    queries = to_bfloat16(numbers((2, HEAD_DIM // 32, 16, 16, 2), spread, 2))
    scores = np.full((TOKENS, 32), np.nan, np.float32)
    begin, score, _, end = products_of(multiplier, HEAD_DIM)

    def body(a: int, chunk: int) -> None:
        begin()
        score(word(a, 0), word(a, 1), word(a, 2), TOKENS)
        end()

    call(body, keys, queries, scores)
    for group in range(2):
        for first in range(0, TOKENS, 16):
            sums = np.zeros((16, 16), np.float32)
            for step in range(HEAD_DIM // 32):
                x = keys[first : first + 16, 32 * step : 32 * step + 32]
                sums = products(multiplier, sums, x, queries[group, step])
            computed = scores[first : first + 16, 16 * group : 16 * group + 16]
            np.testing.assert_array_equal(computed, sums)


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
@pytest.mark.parametrize("tokens", [64, 32])
def test_values_are_added_to_what_was_there(multiplier: str, tokens: int) -> None:
    values = to_bfloat16(numbers((HEAD_DIM // 16, 2, 16, 32), 20, 1))
    weights = to_bfloat16(numbers((2, 2, 16, 16, 2), 20, 2))
    out = numbers((2, HEAD_DIM, 16), 20, 3)
    expected = out.copy()
    begin, _, weigh, end = products_of(multiplier, HEAD_DIM)
    for group in range(2):
        for part in range(HEAD_DIM // 16):
            for step in range(tokens // 32):
                rows = slice(16 * part, 16 * part + 16)
                tiles = values[part, step], weights[group, step]
                expected[group, rows] = products(multiplier, expected[group, rows], *tiles)

    def body(a: int, chunk: int) -> None:
        begin()
        weigh(word(a, 0), word(a, 1), word(a, 2), tokens)
        end()

    call(body, values, weights, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("multiplier", MULTIPLIERS)
def test_rounding_is_to_nearest_even_and_no_number_stays_none(multiplier: str) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, np.uint64).astype(np.uint32)
    bits[:64] = (bits[:64] & 0xFFFF0000) | 0x8000  # half-way
    bits[64:96] = 0x7F800001 + np.arange(32)
    bits[96:98] = 0x7F800000, 0xFF800000
    bits[98:100] = 0x7FFFFFFF, 0xFFFFFFFF
    x = bits.view(np.float32)
    out = np.zeros_like(x)

    def body(a: int, chunk: int) -> None:
        for index in range(0, 4096 * 4, 64):
            store(
                word(a, 1) + index,
                widened(rounded(load(word(a, 0) + index, "f32", 16), multiplier)),
            )

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


def test_hyperbolic_tangents_are_as_near_as_they_say() -> None:
    x = np.concatenate([np.linspace(-12, 12, 4000), 10.0 ** np.linspace(-30, 38, 96)])
    x = x.astype(np.float32)
    x[0], x[1], x[2] = np.nan, -3e38, np.inf
    out = np.zeros_like(x)

    def body(a: int, chunk: int) -> None:
        for index in range(0, 4096 * 4, 64):
            store(word(a, 1) + index, tanh_roughly(load(word(a, 0) + index, "f32", 16)))

    call(body, x, out)
    assert np.isnan(out[0])
    assert np.abs(out[1:] - np.tanh(x[1:].astype(np.float64))).max() <= 4e-5
