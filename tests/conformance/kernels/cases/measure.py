"""Cases of the kernels that are only there to be timed."""

from __future__ import annotations

import numpy as np

from edgerun.kernels.lang.dot import DOTS
from edgerun.kernels.lang.isa import isa_of
from tests.conformance.kernels.harness import ISAS, Call, cases_of

CODES, PLACES = 4, 2
NARROW = {"i16": np.int16, "i32": np.int32}


@cases_of("multiply_peak", isa=ISAS)
def multiply_peak(isa: str) -> Call:
    lanes, steps, repeats, chunks = isa_of(isa).vector_bytes, 3, 2, 2
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (CODES, lanes)).astype(np.uint8)
    x = rng.integers(-100, 101, (steps, PLACES, lanes)).astype(np.int8)
    partial = DOTS[isa_of(isa).dots].partial(lanes)
    sums = np.zeros((chunks, PLACES * CODES, partial.lanes), NARROW[partial.element])

    def check() -> None:
        products = codes[None, None].astype(np.int64) * x[:, :, None]
        total = repeats * products.sum(axis=(0, 3)).reshape(-1)
        np.testing.assert_array_equal(sums.sum(axis=2, dtype=np.int64), [total] * chunks)

    fields = {"codes": codes, "x": x, "steps": steps, "repeats": repeats, "out": sums}
    return Call({"lanes": lanes, "isa": isa}, fields, 0, check, chunks)


@cases_of("lookup_peak", tokens=[16, 32])
def lookup_peak(tokens: int) -> Call:
    count, repeats, chunks = 6, 3, 2
    rng = np.random.default_rng(0)
    entries = rng.integers(0, 81, (count, 8)).astype(np.uint8)
    table = rng.integers(-100, 101, (81, 8, tokens)).astype(np.int16)
    sums = np.zeros((chunks, count, tokens), np.int16)

    def check() -> None:
        total = repeats * table[entries, np.arange(8)].sum(axis=1)
        np.testing.assert_array_equal(sums, [total] * chunks)

    fields = {"entries": entries, "sums": sums, "table": table, "count": count}
    return Call({"tokens": tokens}, fields | {"repeats": repeats}, 0, check, chunks)


@cases_of("amx_peak", isa=["amx_model", *({"amx"} & set(ISAS))])
def amx_peak(isa: str) -> Call:
    repeats, chunks = 3, 2
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (2, 16, 16, 4)).astype(np.uint8)
    x = rng.integers(-127, 128, (32, 64)).astype(np.int8)
    out = np.zeros((chunks, 32, 32), np.int32)

    def check() -> None:
        weights = codes.transpose(1, 3, 0, 2).reshape(64, 32).astype(np.int64)
        np.testing.assert_array_equal(out, [repeats * (x @ weights)] * chunks)

    fields = {"codes": codes, "x": x, "out": out, "repeats": repeats}
    return Call({"isa": isa}, fields, 0, check, chunks)
