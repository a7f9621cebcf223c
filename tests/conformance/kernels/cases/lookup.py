"""Cases of the lookup kernels: each stage by itself, and the whole against the definition."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import format_named
from edgerun.kernels.layouts.stream import StreamWeight, to_stream
from tests.conformance.kernels.cases.linear import expectation, packed_weight, rounded_row
from tests.conformance.kernels.harness import Call, cases_of, random

FORM = ("ternary", 32)
BYTES = 8
# Outputs, inputs, batch rows, bias and residual: whole blocks, a part of one, too few rows.
SHAPES = [(9, 320, 32, False), (70, 704, 57, True), (4, 64, 20, False), (6, 64, 5, False)]
SHAPES.append((9, 64, 19, False))  # a whole block, but of too small a batch
LEAST = 20  # rows of a batch
LARGE_SUMS = 24  # outputs of the shape whose sums exceed int16
SHAPES.append((LARGE_SUMS, 1216, 32, False))


def by_lookup(rows: int, tokens: int) -> int:
    """Rows that the kernels take on: whole blocks and one that is at least half full."""
    if rows < LEAST:
        return 0
    whole, rest = divmod(rows, tokens)
    return rows if 2 * rest >= tokens else whole * tokens


def table_entries(weight: StreamWeight) -> NDArray[np.uint8]:
    """Definition of the entries: a byte's codes, less one, are digits of base 3."""
    digits = [
        np.maximum((weight.codes >> 2 * plane & 3).astype(np.int8) - 1, 0) for plane in range(4)
    ]
    entries = np.stack([digit * 3**plane for plane, digit in enumerate(digits)]).sum(axis=0)
    panels, tiles, lanes = entries.shape
    by_pass = entries.reshape(panels, tiles // 2, 2, lanes // 4, 4).transpose(1, 0, 3, 2, 4)
    return np.ascontiguousarray(by_pass).astype(np.uint8).reshape(-1, panels * lanes // 4, BYTES)


def token_columns(x: NDArray[np.int8], tokens: int) -> NDArray[np.int16]:
    """Definition of the columns: blocks of tokens, transposed."""
    blocks = -(-len(x) // tokens)
    padded = np.zeros((blocks * tokens, x.shape[1]), np.int16)
    padded[: len(x)] = x
    return np.ascontiguousarray(padded.reshape(blocks, tokens, -1).transpose(0, 2, 1))


def ternary(n: int, k: int, lanes: int = 32) -> StreamWeight:
    return to_stream(packed_weight(FORM, n, k, row_scale=True), lanes, row_scale=True)


@cases_of("lookup_entries", lanes=[16, 32])
def lookup_entries(lanes: int) -> Call:
    weight = ternary(9, 320, lanes)
    panels, tiles = weight.codes.shape[:2]
    expected = table_entries(weight)
    entries = np.zeros_like(expected)

    def check() -> None:
        assert (entries == expected).all()

    fields = {"codes": weight.codes, "entries": entries, "panels": panels, "tiles": tiles}
    return Call(
        {"lanes": lanes, "tokens": 16},
        fields | {"step": 2, "least": 40},
        40,
        check,
        -(-panels // 2),
    )


@cases_of("lookup_columns", tokens=[16, 32], rows=[64, 57, 48, 19, 5])
def lookup_columns(tokens: int, rows: int) -> Call:
    x = np.random.default_rng(rows).integers(-127, 128, (rows, 256), np.int8)
    expected = token_columns(x, tokens)
    columns = np.zeros_like(expected)
    taken = -(-by_lookup(rows, tokens) // tokens)

    def check() -> None:
        assert (columns[:taken] == expected[:taken]).all()
        assert not columns[taken:].any()

    fields = {"x": x, "x_stride": 256, "columns": columns, "padded_k": 256, "least": LEAST}
    return Call({"tokens": tokens}, fields, rows, check, -(-rows // 16))


@cases_of("lookup_row", tokens=[16, 32], lanes=[16, 32], shape=SHAPES)
def lookup_row(tokens: int, lanes: int, shape: tuple[int, int, int, bool]) -> Call:
    n, k, rows, extras = shape
    packed = packed_weight(FORM, n, k, row_scale=True)
    weight = to_stream(packed, lanes, row_scale=True)
    x = random((rows, packed.shape[1]))
    if n == LARGE_SUMS:  # row after row, activations that add up to the largest sums
        x = np.sign(format_named(packed.format).unpack(packed)[np.arange(rows) % n])
        assert np.abs(x).sum(axis=1).min() * 127 > 2**15
    taken = by_lookup(rows, tokens)
    fields, check_all = expectation(x, packed, extras, "int8_row")
    out, untouched = fields["out"], fields["out"].copy()

    def check() -> None:
        assert (out[taken:] == untouched[taken:]).all()
        if taken == rows:
            check_all()

    rounded = rounded_row(x, weight.padded_k)
    panels, step = len(weight.codes), 2
    fields |= {"codes": table_entries(weight), "scales": weight.scales, "panels": panels}
    fields |= {"step": step, "tiles": weight.codes.shape[1], "padded_k": weight.padded_k}
    fields |= {"columns": token_columns(rounded["x"], tokens), "x_scale": rounded["x_scale"]}
    fields |= {"coarse_step": 5, "late_blocks": 2, "least": LEAST}
    chunks = -(-rows // tokens) * -(-panels // step)
    return Call({"lanes": lanes, "tokens": tokens, "cells": 1024}, fields, rows, check, chunks)
