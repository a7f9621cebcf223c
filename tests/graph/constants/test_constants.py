"""Constants that kernels may trust: of one type, size and layout, and finite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgerun.errors import BundleError, InputError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.constants import check_constant
from edgerun.ops.base import matrix, stack, vector

NAN, INFINITE = np.float32("nan"), np.float32("inf")


def packed(**changes):
    weight = PackedWeight(
        "int4", (8, 40), 32, np.zeros((8, 2, 16), np.uint8), np.ones((8, 2), np.float32)
    )
    return replace(weight, **changes)


def test_a_packed_weight_that_fits_passes():
    check_constant("w", packed(), matrix("w", "N", "K"))
    check_constant("w", packed(zeros=np.zeros((8, 1), np.uint8)), matrix("w", "N", "K"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (9, 40)}, "codes of weight 'w' are"),
        ({"shape": (8, 70)}, "codes"),
        ({"shape": (0, 40)}, r"has shape \(0, 40\) and blocks"),
        ({"shape": (8, 0)}, r"has shape \(8, 0\) and blocks"),
        ({"block": 0}, r"blocks of 0; expected a power of two from 16 on"),
        ({"format": "int8"}, "codes"),
        ({"codes": np.zeros((8, 2, 16), np.float32)}, "float32"),
        ({"codes": np.zeros((8, 32, 1), np.uint8).transpose(0, 2, 1)}, "codes"),
        ({"codes": np.zeros((8, 2, 32), np.uint8)[:, :, ::2]}, "codes"),
        ({"scales": np.ones((8, 2))}, "scales"),
        ({"scales": np.ones((8, 3), np.float32)}, "scales"),
        ({"scales": np.full((8, 2), NAN)}, "infinite or no numbers"),
        ({"zeros": np.zeros((8, 2), np.uint8)}, "zero points"),
        ({"zeros": np.zeros((8, 1), np.float32)}, "zero points"),
    ],
)
def test_a_packed_weight_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(BundleError, match=message):
        check_constant("w", packed(**changes), matrix("w", "N", "K"))


def of_blocks(n: int, k: int, block: int) -> PackedWeight:
    """A weight whose parts have the sizes that it states."""
    blocks = -(-k // block)
    codes, scales = np.zeros((n, blocks, block // 2), np.uint8), np.ones((n, blocks), np.float32)
    return PackedWeight("int4", (n, k), block, codes, scales)


@pytest.mark.parametrize("sizes", [(0, 40, 16), (8, 0, 16), (8, 40, 8), (8, 40, 24), (8, 48, 48)])
def test_sizes_that_no_kernel_takes_are_refused_though_all_parts_fit(sizes):
    with pytest.raises(BundleError, match="expected a power of two from 16 on"):
        check_constant("w", of_blocks(*sizes), matrix("w", "N", "K"))


def test_the_smallest_matrix_passes():
    check_constant("w", of_blocks(1, 1, 16), matrix("w", "N", "K"))


def test_an_unknown_weight_format_is_named():
    with pytest.raises(InputError, match="unknown weight format 'fp4'"):
        check_constant("w", packed(format="fp4"), matrix("w", "N", "K"))
    with pytest.raises(BundleError, match="packed matrix; expected a float32 vector"):
        check_constant("w", packed(), vector("x", "size"))


def test_large_finite_numbers_whose_sum_overflows_are_finite():
    largest = np.finfo(np.float32).max
    check_constant("v", np.full(64, largest, np.float32), vector("x", "size"))
    with pytest.raises(BundleError, match="infinite"):
        values = np.array([largest, INFINITE, -INFINITE], np.float32)
        check_constant("v", values, vector("x", "size"))


def offset(scale: float, least: float) -> PackedWeight:
    weight = packed(scales=np.full((8, 2), scale, np.float32))
    return replace(weight, offsets=np.full((2, 8), least, np.float16))


def test_with_offsets_scales_are_halves():
    check_constant("w", offset(0.5, -1), matrix("w", "N", "K"))
    for scale in (np.nextafter(np.float32(1), np.float32(2)), np.float32(0.9999), 1e5):
        with pytest.raises(BundleError, match="scales that half precision does not hold"):
            check_constant("w", offset(scale, -1), matrix("w", "N", "K"))
    for least in (np.inf, np.nan):
        with pytest.raises(BundleError, match="offsets that are infinite or no numbers"):
            check_constant("w", offset(0.5, least), matrix("w", "N", "K"))


def test_a_stack_is_one_of_each_expert_and_nothing_else_is():
    experts = ExpertStack((packed(), packed()))
    check_constant("w", experts, stack("w", "experts", "N", "K"))
    with pytest.raises(BundleError, match="'w' is a stack of matrices; expected a matrix"):
        check_constant("w", experts, matrix("w", "N", "K"))
    with pytest.raises(BundleError, match="'w' is one matrix; expected one of each expert"):
        check_constant("w", packed(), stack("w", "experts", "N", "K"))


@pytest.mark.parametrize(
    "changes",
    [
        {
            "block": 16,
            "codes": np.zeros((8, 3, 8), np.uint8),
            "scales": np.ones((8, 3), np.float32),
        },
        {"zeros": np.zeros((8, 1), np.uint8)},
        {"shape": (8, 48)},
    ],
)
def test_experts_are_alike(changes):
    """Kernels take what all have from the first."""
    with pytest.raises(BundleError, match="of expert 1 and int4 8 x 40 in blocks of 32 of expert"):
        experts = ExpertStack((packed(), packed(**changes)))
        check_constant("w", experts, stack("w", "experts", "N", "K"))


def test_every_expert_is_finite():
    broken = packed(scales=np.full((8, 2), NAN, np.float32))
    for experts in (ExpertStack((packed(), broken)), ExpertStack((broken, packed()))):
        with pytest.raises(BundleError, match=r"w\[[01]\]' has scales that are infinite"):
            check_constant("w", experts, stack("w", "experts", "N", "K"))
