"""Experts that were read are put into slots by native code as they are step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends.cpu.experts.filler import SlotFiller
from edgerun.backends.cpu.experts.layout import SlotLayout, form_of
from edgerun.backends.cpu.experts.source import Content, StoredExpert
from edgerun.errors import BundleError
from edgerun.formats.base import PackedWeight, pack_bits, pack_zero_points
from edgerun.formats.stack import Matrix
from edgerun.graph.mapped_file import ArrayReader
from edgerun.graph.slabs import arrays_of
from edgerun.kernels.isa import selected_isa

U8 = NDArray[np.uint8]
# Outputs, inputs and the size of a block: rows with 1, 3, 6 and 10 bytes of zero points of 4 bits.
SIZES = [(40, 48, 32), (33, 96, 16), (70, 384, 32), (20, 320, 16)]


def random_matrix(bits: int, size: tuple[int, int, int], seed: int, *, zeros: bool) -> PackedWeight:
    """Any codes, scales and zero points."""
    n, k, block = size
    rng, blocks = np.random.default_rng([bits, n, seed]), -(-k // block)
    codes = pack_bits(rng.integers(0, 1 << bits, (n, blocks, block), "u1"), bits)
    scales = rng.standard_normal((n, blocks)).astype(np.float32)
    points = rng.integers(0, 1 << bits, (n, blocks), "u1")
    stored = pack_zero_points(points, bits) if zeros else None
    return PackedWeight(f"int{bits}", (n, k), block, codes, scales, stored)


def filled(matrices: tuple[Matrix, ...], *, by_steps: bool) -> U8:
    """A slot, whose content was anything before."""
    isa = selected_isa()
    forms = [form_of(each, "int8_block", isa, row_scale=False, halves=False) for each in matrices]
    layout = SlotLayout(forms)
    memory = np.zeros(layout.nbytes + 64, np.uint8)
    slot = memory[-memory.ctypes.data % 64 :][: layout.nbytes]
    parts, places = [], []
    for matrix in matrices:
        for array in arrays_of(matrix):
            places.append(sum(map(len, parts)))
            parts.append(array.reshape(-1).view(np.uint8))
    content = Content(StoredExpert(matrices, None, tuple(places)), np.concatenate(parts))
    filler = SlotFiller(layout)
    if by_steps:
        filler.fill(slot, replace(content, memory=None), ArrayReader())
    else:
        assert content.memory is not None
        assert filler._is_filled(slot, content.memory, content.stored)
    return slot


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_native_code_fills_slots_as_the_steps_do(bits: int, size: tuple[int, int, int]) -> None:
    matrices = tuple(random_matrix(bits, size, e, zeros=e != 1) for e in range(3))
    slots = [filled(matrices, by_steps=by_steps) for by_steps in (False, True)]
    np.testing.assert_array_equal(*slots)
    # Each zero point has its place: another one changes the slot.
    altered = random_matrix(bits, size, 7, zeros=True).zeros
    others = (*matrices[:2], replace(matrices[2], zeros=altered))
    assert (filled(others, by_steps=False) != slots[0]).any()


def test_zero_points_raise_no_alarm_and_scales_beside_them_do() -> None:
    """Dwords of zero points may look like numbers that are none."""
    matrix = random_matrix(8, (40, 512, 32), 0, zeros=True)
    assert matrix.zeros is not None
    matrix.zeros[:] = 0xFF
    filled((matrix,), by_steps=False)
    matrix.scales[39, 15] = np.nan
    with pytest.raises(AssertionError):
        filled((matrix,), by_steps=False)
    with pytest.raises(BundleError, match="scales that are infinite or no numbers"):
        filled((matrix,), by_steps=True)
