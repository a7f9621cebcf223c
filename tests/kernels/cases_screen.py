"""Cases of the kernel that computes chosen rows of a head."""

from __future__ import annotations

import numpy as np

from edgerun.kernels import reference
from edgerun.kernels.layout import to_stream
from tests.kernels.cases_linear import BOUND, VECTORS, packed_weight, rounded_block
from tests.kernels.harness import UNTOUCHED, Call, assert_near, cases_of, random, untouched

CHOSEN = [3, 17, 16, 0, 40]


@cases_of("linear_chosen", vector=VECTORS, block=[32, 128], count=[0, 5])
def linear_chosen(vector: tuple[str, int], block: int, count: int) -> Call:
    isa, lanes = vector
    packed = packed_weight(("int8", block), 41, 384, row_scale=False)
    weight = to_stream(packed, min(lanes, block), row_scale=False)
    x = random((1, packed.shape[1]))
    rows = np.array(CHOSEN[:count], np.int32)
    out = untouched((41,))
    expected = reference.linear(x, packed, activations="int8_block")[0]
    others = np.setdiff1d(np.arange(41), rows)

    def check() -> None:
        assert_near(out[rows], expected[rows], BOUND)
        assert (out[others] == UNTOUCHED).all()

    rounded = rounded_block(x, weight.padded_k, block)
    fields = {name: rounded[name] for name in ("x", "x_scale", "x_sum", "blocks")}
    fields |= {"codes": weight.codes, "scales": weight.scales, "tiles": weight.codes.shape[1]}
    fields |= {"count": np.array([count]), "index": rows, "out": out, "step": 2}
    params = {"bits": 8, "lanes": weight.lanes, "block": block, "isa": isa}
    return Call(params, fields, 0, check, 3)
