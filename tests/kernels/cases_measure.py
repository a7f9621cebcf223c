"""Cases of the kernel that is only there to be timed."""

from __future__ import annotations

import numpy as np

from edgerun.kernels.dot import DOTS
from edgerun.kernels.isa import VECTOR_BYTES
from tests.kernels.harness import ISAS, Call, cases_of

CODES, PLACES = 4, 2
NARROW = {"i16": np.int16, "i32": np.int32}


@cases_of("multiply_peak", isa=ISAS)
def multiply_peak(isa: str) -> Call:
    lanes, steps, repeats, chunks = VECTOR_BYTES[isa], 3, 2, 2
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (CODES, lanes)).astype(np.uint8)
    x = rng.integers(-100, 101, (steps, PLACES, lanes)).astype(np.int8)
    partial = DOTS[isa].partial(lanes)
    sums = np.zeros((chunks, PLACES * CODES, partial.lanes), NARROW[partial.element])

    def check() -> None:
        products = codes[None, None].astype(np.int64) * x[:, :, None]
        total = repeats * products.sum(axis=(0, 3)).reshape(-1)
        np.testing.assert_array_equal(sums.sum(axis=2, dtype=np.int64), [total] * chunks)

    fields = {"codes": codes, "x": x, "steps": steps, "repeats": repeats, "out": sums}
    return Call({"lanes": lanes, "isa": isa}, fields, 0, check, chunks)
