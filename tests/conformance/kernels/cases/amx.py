"""Cases of the products by AMX: on the processor where it has that, everywhere on a model of it.

``python -m tools.emulate_isa x86 --cpu sapphirerapids`` runs them on an emulated processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.backends.cpu.emit.gemm import AMX_ROWS, gemm_tokens
from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.layouts.stream import to_stream
from tests.conformance.kernels.cases.gemm import MANY, STEP, exact_outputs
from tests.conformance.kernels.cases.linear import (
    BOUND,
    HALF_FORMS,
    ZERO_FORMS,
    block_params,
    in_blocks,
    packed_weight,
    rounded_block,
    rounded_row,
    stream_fields,
)
from tests.conformance.kernels.harness import (
    F32,
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    random,
    untouched,
)

LANES = 64
UNITS = ["amx_model", *({"amx"} & set(ISAS))]
# Outputs, inputs, batch rows, and whether there are a bias and a residual: too few rows, less
# than a tile, part of a second one, more than two, and what the matrix products are tried with.
SHAPES = [
    (4, 64, AMX_ROWS - 1, False),
    (9, 320, AMX_ROWS, True),
    (70, 704, 21, False),
    (33, 128, 48, True),
    MANY[1],
]
LONG = MANY[0]  # several pieces; a model of them would take seconds
ROW_FORMS = [("ternary", 32), ("int8", 32), ("int4", 32)]
BLOCK_FORMS = [("int4", 16), ("int8", 32), ("int4", 128), ("int2", 128)]


def variants(forms: list[tuple[str, int]]) -> list[Any]:
    """All forms and shapes with AMX, and fewer with its model: compiling takes the time."""
    made = [(unit, form, shape) for unit in UNITS for form in forms for shape in SHAPES]
    made = [one for one in made if one[0] == "amx" or one[1] == forms[0]]
    return made + [("amx", form, LONG) for form in forms if "amx" in UNITS]


def exact_rows(packed: PackedWeight, fields: dict[str, Any], *added: F32) -> F32:
    """What rows with one scale come to, with the roundings of ``linear_row`` one by one."""
    scales = packed.scales[:, :1]
    codes = np.rint(dense(packed) / scales).astype(np.int64)
    total = fields["x"].astype(np.int64)[:, : codes.shape[1]] @ codes.T
    value = total.astype(np.float32) * fields["x_scale"].reshape(-1, 1) * scales.T
    for one in added:
        value = value + one
    return value


def call_of(
    fields: dict[str, Any], params: dict[str, Any], packed: PackedWeight, extras: bool
) -> Call:
    """A call with its check; ``fields`` describe weight and activations."""
    rows, n = len(fields["x"]), packed.shape[0]
    taken = rows if rows >= AMX_ROWS else 0
    bias, residual, out = random((n,), 5), random((rows, n), 6), untouched((rows, n + 3))
    out[:, :n] = residual
    added = (bias, residual) if extras else ()
    rounded = {name: fields[name] for name in ("x", "x_scale")}
    expected = exact_outputs(packed, rounded) + sum(added)

    def check() -> None:
        assert_near(out[:taken, :n], expected[:taken].astype(np.float32), BOUND)
        if "block" not in params:
            assert (out[:taken, :n] == exact_rows(packed, rounded, *added)[:taken]).all()
        assert (out[taken:, :n] == residual[taken:]).all()
        assert (out[:, n:] == UNTOUCHED).all()

    fields = fields | {"bias": bias if extras else 0, "accumulate": int(extras)}
    fields |= {"out": out, "out_stride": n + 3, "n": n}
    return Call(params, fields, rows, check, -(-fields["panels"] // STEP))


@cases_of("amx_row", variant=variants(ROW_FORMS))
def amx_row(variant: tuple[str, tuple[str, int], tuple[int, int, int, bool]]) -> Call:
    isa, form, (n, k, rows, extras) = variant
    packed = packed_weight(form, n, k, row_scale=True)
    weight = to_stream(packed, LANES, row_scale=True)
    rounded = rounded_row(random((rows, packed.shape[1])), weight.padded_k)
    params = {"bits": weight.bits, "lanes": weight.lanes}
    params |= {"isa": isa, "tokens": gemm_tokens(isa_of(isa))}
    return call_of(stream_fields(weight, STEP) | rounded, params, packed, extras)


@cases_of("amx_block", variant=variants(BLOCK_FORMS) + variants(ZERO_FORMS) + variants(HALF_FORMS))
def amx_block(variant: tuple[str, tuple[str, int], tuple[int, int, int, bool]]) -> Call:
    isa, form, (n, k, rows, extras) = variant
    packed = packed_weight(form, n, k, row_scale=False)
    weight = in_blocks(packed, LANES)
    rounded = rounded_block(random((rows, packed.shape[1])), weight.padded_k, packed.block)
    params = block_params(weight, packed.block)
    params |= {"isa": isa, "tokens": gemm_tokens(isa_of(isa))}
    return call_of(stream_fields(weight, STEP) | rounded, params, packed, extras)
