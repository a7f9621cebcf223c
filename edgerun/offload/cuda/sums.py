"""Sums of products of a panel of weights and a tile of rows, scaled to float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32

from edgerun.kernels.layouts.zero_kinds import WORD_BITS, vectors_a_word
from edgerun.offload.cuda.arithmetic import dot4, float_of_bits, fma, multiply
from edgerun.offload.cuda.forms import BLOCKS, CODES, SCALES, STAGE, WORDS, Form

# Words of weights that a thread asks for before it needs the first, where nothing else hides how
# late they come: with tiles of one row.
AHEAD = 4


def scaled_sums(form: Form, tile: int) -> Any:
    """The function that makes the sums of tiles of at most so many rows.

    A thread gets those of its row of the panel and of every n-th row of the tile, in ``results``;
    ``totals`` and ``factors`` are shared memory. With tiles of one row loops over rows end at a
    constant, and what a thread has of it stays in registers; with more of them that is slower.
    """
    return _by_row(form, tile) if form.row_scale else _by_block(form, tile)


def _by_block(form: Form, tile: int) -> Any:
    """Blocks with scales, added up in their order."""
    add_words, height, zero_of = _add_words(form, tile), form.height, _zero_points(form)
    panel_vectors, scale_of = scales_of(form)
    stage, is_single = STAGE[tile], tile == 1

    @cuda.jit(device=True, inline="always")
    def by_block(  # type: ignore[no-untyped-def]
        words, floats, base, matrix, rounded, first, count, totals, factors, results
    ):
        r, group, groups = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockDim.y
        codes, scales, sums = rounded
        blocks, panel = matrix[BLOCKS], cuda.blockIdx.x
        in_block = matrix[WORDS] // blocks
        at = base + matrix[CODES] + panel * matrix[WORDS] * height + r
        scale_at = base + matrix[SCALES] + panel * panel_vectors(blocks) * height
        local = cuda.local.array(tile, int32)
        last = 1 if is_single else count
        for row in range(tile):
            results[row] = float32(0)
        for start in range(0, blocks, stage):
            end = min(start + stage, blocks)
            for block in range(start + group, end, groups):
                zero = zero_of(words, scale_at, block, r)
                for row in range(last):
                    local[row] = int32(-zero * sums[first + row, block])
                begin = block * in_block
                add_words(words, at, codes, begin, begin + in_block, 1, first, count, local)
                scale = scale_of(words, floats, scale_at, block, r)
                for row in range(last):
                    totals[row, block - start, r] = local[row]
                    factors[row, block - start, r] = multiply(scale, scales[first + row, block])
            cuda.syncthreads()
            for row in range(group, last, groups):
                total = results[row]
                for block in range(end - start):
                    value = float32(totals[row, block, r])
                    total = fma(value, factors[row, block, r], total)
                results[row] = total
            cuda.syncthreads()

    return by_block


def _by_row(form: Form, tile: int) -> Any:
    """Rows with one scale: one integer sum."""
    add_words, height, zero = _add_words(form, tile), form.height, _zero_point(form)
    is_single = tile == 1

    @cuda.jit(device=True, inline="always")
    def by_row(  # type: ignore[no-untyped-def]
        words, floats, base, matrix, rounded, first, count, totals, factors, results
    ):
        r, group, groups = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockDim.y
        codes, scales, sums = rounded
        panel = cuda.blockIdx.x
        at = base + matrix[CODES] + panel * matrix[WORDS] * height + r
        local = cuda.local.array(tile, int32)
        last = 1 if is_single else count
        for row in range(last):
            codes_sum = int32(0)
            for block in range(group, matrix[BLOCKS], groups):
                codes_sum += sums[first + row, block]
            local[row] = int32(-zero * codes_sum)
        add_words(words, at, codes, group, matrix[WORDS], groups, first, count, local)
        for row in range(last):
            totals[row, group, r] = local[row]
        cuda.syncthreads()
        scale = floats[base + matrix[SCALES] + panel * height + r]
        for row in range(group, last, groups):
            total = int32(0)
            for other in range(groups):
                total += totals[row, other, r]
            results[row] = multiply(multiply(float32(total), scales[first + row, 0]), scale)
        cuda.syncthreads()

    return by_row


def _zero_point(form: Form) -> int:
    """What codes as they are multiplied are above the weights they stand for."""
    return 0 if form.bits == 8 else 1 << (form.bits - 1)


def _zero_points(form: Form) -> Any:
    """The function that says the same of a block and a row, from a panel's scales."""
    middle, bits, height = int32(_zero_point(form)), form.bits, form.height
    group, apart = WORD_BITS // bits, vectors_a_word(bits, form.halves)
    mask, raised = int32((1 << bits) - 1), int32((1 << (bits - 1)) - _zero_point(form))

    @cuda.jit(device=True, inline="always")
    def middle_of(words, at, block, r):  # type: ignore[no-untyped-def]
        return middle

    @cuda.jit(device=True, inline="always")
    def own_of(words, at, block, r):  # type: ignore[no-untyped-def]
        word = words[at + block // group * apart * height + r]
        return ((word >> int32(block % group * bits)) & mask) - raised

    return own_of if form.zeros else middle_of


def scales_of(form: Form) -> tuple[Any, Any]:
    """Functions for how many vectors a panel's scales take, and for the scale of a block and row.

    Zero points are among them, which are no scales.
    """
    height, halves, zeros = form.height, form.halves, form.zeros
    group, a_vector = WORD_BITS // form.bits, 2 if halves else 1
    # Of float16 in the bits of float32 the exponent is less by 112.
    widened = np.float32(2.0**112)

    @cuda.jit(device=True, inline="always")
    def vectors(blocks):  # type: ignore[no-untyped-def]
        count = (blocks + a_vector - 1) // a_vector
        return count + (blocks + group - 1) // group if zeros else count

    @cuda.jit(device=True, inline="always")
    def vector_of(block):  # type: ignore[no-untyped-def]
        vector = block // a_vector
        return vector + block // group + 1 if zeros else vector

    @cuda.jit(device=True, inline="always")
    def float_scale(words, floats, at, block, r):  # type: ignore[no-untyped-def]
        return floats[at + vector_of(block) * height + r]

    @cuda.jit(device=True, inline="always")
    def half_scale(words, floats, at, block, r):  # type: ignore[no-untyped-def]
        place = block % 2 * height + r
        word = words[at + vector_of(block) * height + place // 2]
        bits = word >> int32(place % 2 * 16)
        sign, rest = (bits & int32(0x8000)) << int32(16), (bits & int32(0x7FFF)) << int32(13)
        return multiply(float_of_bits(sign | rest), widened)

    return vectors, half_scale if halves else float_scale


def _add_words(form: Form, tile: int) -> Any:
    """The function that adds products of some words of a row to integer sums of a tile."""
    height, planes, is_single = form.height, 8 // form.bits, tile == 1
    shift, mask = (
        np.int32(form.bits % 8),
        np.uint32(0x01010101 * ((1 << form.bits) - 1)).view(np.int32),
    )
    # Codes of 8 bits are multiplied as signed bytes.
    signs = np.uint32(0x80808080 if form.bits == 8 else 0).view(np.int32)

    @cuda.jit(device=True, inline="always")
    def add_word(word, stored, codes, first, count, sums):  # type: ignore[no-untyped-def]
        left = stored ^ signs
        for place in range(word * planes, (word + 1) * planes):
            four = left & mask
            for row in range(1 if is_single else count):
                sums[row] = dot4(four, codes[first + row, place], sums[row])
            left = left >> shift

    @cuda.jit(device=True, inline="always")
    def add_words(  # type: ignore[no-untyped-def]
        words, at, codes, begin, end, step, first, count, sums
    ):
        ahead = cuda.local.array(AHEAD, int32)
        together = begin
        while is_single and together + (AHEAD - 1) * step < end:
            for n in range(AHEAD):
                ahead[n] = words[at + (together + n * step) * height]
            for n in range(AHEAD):
                add_word(together + n * step, ahead[n], codes, first, count, sums)
            together += AHEAD * step
        for word in range(together, end, step):
            add_word(word, words[at + word * height], codes, first, count, sums)

    return add_words
