"""Cases of the kernels over trits: each against the definition of the bits or of the product."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun.formats.ternary import FORMAT
from edgerun.formats.trits import pack_trits
from edgerun.kernels.layouts.stream import StreamWeight, to_stream
from edgerun.kernels.layouts.trits import TritWeight, to_trits
from tests.conformance.kernels.cases.linear import (
    IN_TURNS,
    SHAPES,
    VECTORS,
    chunks,
    expectation,
    packed_weight,
    rounded_row,
    shared_chunks,
)
from tests.conformance.kernels.cases.lookup import table_entries
from tests.conformance.kernels.harness import UNTOUCHED, Call, cases_of, random

# One tile that is not full; four tiles and some; more tiles than sums of 16 bits can hold.
SIZES = [(9, 64), (6, 704), (5, 2880)]
TOKENS = 16


def matrices(n: int, k: int, lanes: int) -> tuple[PackedWeight, StreamWeight, TritWeight]:
    """A random ternary matrix: as packed, as codes of two bits, and by the definition of trits."""
    packed = packed_weight(("ternary", 32), n, k, row_scale=True)
    stream = to_stream(packed, lanes, row_scale=True)
    return packed, stream, TritWeight(_trits(packed, stream, lanes), stream.scales, (n, k), lanes)


def _trits(packed: PackedWeight, stream: StreamWeight, lanes: int) -> NDArray[np.uint8]:
    panel = lanes // 4
    digits = np.zeros((len(stream.codes) * panel, packed.shape[1]), np.uint8)
    digits[: packed.shape[0]] = FORMAT.integers(packed) + 1
    digits[packed.shape[0] :] = digits[packed.shape[0] - 1]
    trits = pack_trits(digits, 4).reshape(len(stream.codes), panel, -1, 4)
    return np.ascontiguousarray(trits.swapaxes(1, 2)).reshape(len(stream.codes), -1, lanes)


def without_padding(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two-bit codes 0, which stand for padding, as code 1, which trits make of them."""
    return codes + np.uint8(0x55) - ((codes | codes >> 1) & np.uint8(0x55))


@cases_of("linear_trits", variant=VECTORS, shape=[*SHAPES, (5, 2880, 5, True)])
def linear_trits(variant: tuple[str, int], shape: tuple[int, int, int, bool]) -> Call:
    isa, lanes = variant
    n, k, rows, extras = shape
    packed, _, weight = matrices(n, k, lanes)
    x = random((rows, packed.shape[1]))
    fields, check = expectation(x, packed, extras, "int8_row")
    panels = len(weight.codes)
    fields |= {"codes": weight.codes, "scales": weight.scales, "panels": panels}
    fields |= {"tiles": weight.codes.shape[1]} | IN_TURNS | rounded_row(x, weight.padded_k)
    return Call({"lanes": lanes, "isa": isa}, fields, rows, check, shared_chunks(weight))


@cases_of("trit_pack", lanes=[16, 32, 64], size=SIZES)
def trit_pack(lanes: int, size: tuple[int, int]) -> Call:
    _, stream, weight = matrices(*size, lanes)
    trits = np.full_like(weight.codes, UNTOUCHED)

    def check() -> None:
        assert (trits == weight.codes).all()
        assert (to_trits(stream).codes == weight.codes).all()

    panels, code_tiles = stream.codes.shape[:2]
    fields = {"codes": stream.codes, "trits": trits, "panels": panels, "code_tiles": code_tiles}
    fields |= {"tiles": trits.shape[1], "step": 2}
    return Call({"lanes": lanes}, fields, 0, check, chunks(weight, 2))


@cases_of("trit_codes", variant=VECTORS, size=SIZES)
def trit_codes(variant: tuple[str, int], size: tuple[int, int]) -> Call:
    isa, lanes = variant
    _, stream, weight = matrices(*size, lanes)
    codes = np.zeros((len(stream.codes), weight.code_tiles, lanes), np.uint8)
    present = min(weight.code_tiles, stream.codes.shape[1])

    def check() -> None:
        assert (codes[:, :present] == without_padding(stream.codes[:, :present])).all()

    fields = _expansion(weight) | {"codes": codes}
    params = {"lanes": lanes, "tokens": TOKENS, "isa": isa}
    return Call(params, fields, TOKENS, check, chunks(weight, 2))


@cases_of("trit_entries", variant=VECTORS, size=SIZES)
def trit_entries(variant: tuple[str, int], size: tuple[int, int]) -> Call:
    isa, lanes = variant
    _, stream, weight = matrices(*size, lanes)
    expected = table_entries(stream)
    entries = np.zeros((weight.code_tiles // 2, *expected.shape[1:]), np.uint8)
    present = min(len(expected), len(entries))

    def check() -> None:
        assert (entries[:present] == expected[:present]).all()
        assert entries.max() < 3**4

    fields = _expansion(weight) | {"entries": entries}
    params = {"lanes": lanes, "tokens": TOKENS, "isa": isa}
    return Call(params, fields, TOKENS, check, chunks(weight, 2))


@cases_of("trit_entries", rows=[TOKENS // 2 - 1])
def too_small_a_batch(rows: int) -> Call:
    _, _, weight = matrices(9, 64, 32)
    entries = np.full((weight.code_tiles // 2, len(weight.codes) * 8, 8), UNTOUCHED, np.uint8)

    def check() -> None:
        assert (entries == UNTOUCHED).all()

    params = {"lanes": 32, "tokens": TOKENS, "isa": "portable"}
    return Call(params, _expansion(weight) | {"entries": entries}, rows, check, 2)


def _expansion(weight: TritWeight) -> dict[str, object]:
    fields = {"trits": weight.codes, "panels": len(weight.codes), "step": 2, "least": 0}
    return fields | {"code_tiles": weight.code_tiles, "tiles": weight.codes.shape[1]}
