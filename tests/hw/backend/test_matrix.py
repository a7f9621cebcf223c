"""Matrices on the device: what is cut, what comes back, and how close to the definition it is."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.formats import dense
from edgerun.formats.base import PackedWeight
from edgerun.model.bundle import open_bundle
from edgerun.ops import linear
from edgerun_hw.backend import memory
from edgerun_hw.backend.matrix import DeviceMatrix, device_bytes, integers_of, largest_integer
from edgerun_hw.backend.memory import contiguous_bytes
from edgerun_hw.backend.products import (
    Multiplier,
    Product,
    WrongResultError,
    _inputs,
    quantise_activations,
)
from edgerun_hw.backend.screen import make_screen
from edgerun_hw.overlay.attention_layout import KvLayout
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS, Geometry, capabilities_of
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.fake import FakeBuffer, FakeDevice
from tests.hw.support.overlays import fake_overlay, normal, random_weight
from tests.support.bundles import SMALL_MODEL

TINY = capabilities_of(PRESETS["tiny"])
SHAPES = [(1, 16), (5, 32), (37, 64), (130, 96), (421, 160)]
FORMATS = ["ternary", "int2", "int4", "int8"]
# Cuts large matrices along N, and columns into whole and partial groups.
SMALL = Geometry(ports=2, columns=3, nb_max=16, queue_depth=2)


def expected_bound(
    x: np.ndarray, weight: PackedWeight, activations: str
) -> tuple[np.ndarray, np.ndarray]:
    """The definition in float64 and the error that ``products.py`` promises."""
    rounded = linear.rounded_activations(x, activations, weight.block).astype(np.float64)
    matrix = dense(weight).astype(np.float64)
    magnitudes = np.abs(rounded) @ np.abs(matrix).T
    # Each of the scales' products is rounded in the definition's float32 operands too.
    return rounded @ matrix.T, (weight.blocks + 4) * 2.0**-24 * magnitudes


@pytest.mark.parametrize("activations", ["int8_row", "int8_block"])
@pytest.mark.parametrize("row_scales", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_within_their_bound_of_the_definition(name, row_scales, activations):
    rng = np.random.default_rng([FORMATS.index(name), row_scales])
    overlay = fake_overlay(SMALL)
    multiplier = Multiplier(overlay)
    for index, shape in enumerate(SHAPES):
        weight = random_weight(rng, name, shape, 16, row_scales=row_scales)
        if activations == "int8_block" and row_scales:
            weight = random_weight(rng, name, shape, 32 if shape[1] % 32 == 0 else 16)
        x = normal(rng, 1 + index, shape[1])
        product = Product(DeviceMatrix(weight, overlay), quantise_activations(x, activations, 16))
        if activations == "int8_block":
            product = Product(product.matrix, quantise_activations(x, activations, weight.block))
        multiplier.multiply([product])
        exact, bound = expected_bound(x, weight, activations)
        assert (np.abs(product.out - exact) <= bound).all()


@pytest.mark.parametrize("name", FORMATS)
def test_one_scale_a_row_gives_the_bits_of_the_cpu_kernels_formula(name):
    rng = np.random.default_rng(1)
    overlay = fake_overlay(SMALL)
    weight = random_weight(rng, name, (117, 96), 32, row_scales=True)
    x = normal(rng, 7, 96)
    product = Product(DeviceMatrix(weight, overlay), quantise_activations(x, "int8_row", 0))
    Multiplier(overlay).multiply([product])
    codes, scale = linear.quantize_row(x)
    sums = codes.astype(np.int32) @ integers_of(weight, 0, 117).astype(np.int32).T
    expected = (sums.astype(np.float32) * scale[:, None]) * weight.scales[:, 0]
    np.testing.assert_array_equal(product.out, expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("row_scales", [True, False])
@pytest.mark.parametrize("shape", [*SHAPES, (2000, 1600)])
def test_bytes_on_the_device_are_known_before_any_is_written(name, row_scales, shape):
    rng = np.random.default_rng(3)
    weight = random_weight(rng, name, shape, 16, row_scales=row_scales)
    overlay = fake_overlay(SMALL)
    assert device_bytes(weight, overlay.capabilities) == DeviceMatrix(weight, overlay).nbytes


def test_contiguous_memory_of_a_model_is_that_of_its_matrices():
    graph = open_bundle(SMALL_MODEL).graph
    can = capabilities_of(SMALL)
    weights = [
        graph.constants[node.inputs[1]]
        for node in graph.nodes
        if node.op == "linear" and isinstance(graph.constants[node.inputs[1]], PackedWeight)
    ]
    assert len(weights) == 36
    assert contiguous_bytes(graph, can) == sum(device_bytes(weight, can) for weight in weights)
    for megabytes, cma in ((31, 64), (32, 64), (33, 128), (33.5, 128), (400, 448)):
        assert memory.Needs(int(megabytes * 2**20), 0, 0, 1).cma_mib == cma
        assert memory.Needs(2**20, 2**20, int((megabytes - 2) * 2**20), 1).cma_mib == cma


def test_memory_of_a_screen_and_of_a_sequence_is_counted():
    graph = open_bundle(SMALL_MODEL).graph
    can = capabilities_of(PRESETS["attention-300"])
    (head,) = [node for node in graph.nodes if node.outputs[0] in graph.outputs]
    screen = make_screen(graph.constants[head.inputs[1]])
    overlay = fake_overlay("attention-300")
    needs = memory.contiguous_needs(graph, can, 512)
    assert needs.screen == DeviceMatrix(screen.weight, overlay, largest=screen.levels).nbytes
    layers = [node for node in graph.nodes if node.op == "attention"]
    layout = KvLayout(layers[0].attrs["num_kv_heads"], layers[0].attrs["head_dim"])
    assert needs.cache == len(layers) * 4 * layout.port_bytes(512) > 0
    without = memory.contiguous_needs(graph, capabilities_of(PRESETS["decode-300"]), 512)
    assert (without.cache, without.screen, without.weights) == (0, needs.screen, needs.weights)


def test_matrices_that_share_their_input_share_it_on_the_device():
    rng = np.random.default_rng(2)
    overlay = fake_overlay("tiny-prefill")
    x = quantise_activations(normal(rng, 5, 64), "int8_row", 0)
    weights = [random_weight(rng, "ternary", (n, 64), 64, row_scales=True) for n in (30, 20, 10)]
    products = [Product(DeviceMatrix(weight, overlay), x) for weight in weights]
    multiplier = Multiplier(overlay)
    multiplier.multiply(products)
    tiles, groups = 5, 2
    assert [operand.nbytes for operand in _inputs(products, 3).values()] == [tiles * 16 * 5]
    assert multiplier.commands == len(products) * groups
    for product, weight in zip(products, weights, strict=True):
        alone = Product(DeviceMatrix(weight, overlay), x)
        Multiplier(overlay).multiply([alone])
        np.testing.assert_array_equal(product.out, alone.out)


@pytest.mark.parametrize(
    ("largest", "mode", "digits"),
    [
        (1, LookupMode.TERNARY, 1),
        (2, LookupMode.MULTIPLES, 1),
        (8, LookupMode.MULTIPLES, 1),
        (13, LookupMode.MULTIPLES, 1),
        (14, LookupMode.MULTIPLES, 2),
        (128, LookupMode.MULTIPLES, 2),
    ],
)
def test_weights_take_the_fewest_codes_that_hold_them(largest, mode, digits):
    cut = cut_matrix((1000, 100), largest, 32, TINY)
    assert (cut.mode, cut.digits) == (mode, digits)
    pieces = list(cut.pieces())
    assert pieces[0][0] == 0 and pieces[-1][1] == 1000
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
    limit = TINY.max_row_beats * TINY.rows_per_beat
    assert all((last - first) * digits <= limit for first, last in pieces)
    assert [cut.columns(block) for block in range(cut.blocks)][-1] == (96, 100)


def test_the_padding_of_a_last_block_does_not_make_ternary_weights_wide():
    rng = np.random.default_rng(3)
    weight = random_weight(rng, "ternary", (10, 32), 32)
    assert largest_integer(weight) == 1
    shorter = PackedWeight("ternary", (10, 20), 32, weight.codes.copy(), weight.scales)
    shorter.codes[:, 0, 5:] = 0
    assert largest_integer(shorter) == 1
    shorter.codes[3, 0, 0] &= 0xFC
    assert largest_integer(shorter) == 2


def test_no_rows_are_no_work():
    rng = np.random.default_rng(4)
    overlay = fake_overlay()
    weight = random_weight(rng, "int8", (12, 32), 16)
    product = Product(
        DeviceMatrix(weight, overlay), quantise_activations(normal(rng, 0, 32), "int8_block", 16)
    )
    multiplier = Multiplier(overlay)
    multiplier.multiply([product])
    assert product.out.shape == (0, 12)
    assert multiplier.commands == 0


def test_what_is_not_a_number_is_not_turned_into_one():
    rng = np.random.default_rng(5)
    overlay = fake_overlay()
    weight = random_weight(rng, "ternary", (12, 32), 32, row_scales=True)
    x = normal(rng, 2, 32)
    x[1, 3] = np.nan
    product = Product(DeviceMatrix(weight, overlay), quantise_activations(x, "int8_row", 0))
    Multiplier(overlay).multiply([product])
    assert np.isfinite(product.out[0]).all()
    assert np.isnan(product.out[1]).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_wrong_sum_is_noticed(seed):
    rng = np.random.default_rng(seed)
    overlay = fake_overlay(SMALL)
    weight = random_weight(rng, FORMATS[seed % 4], (50, 48), 16, row_scales=seed % 3 == 0)
    matrix = DeviceMatrix(weight, overlay)
    x = quantise_activations(normal(rng, 4, 48), "int8_row", 0)
    Multiplier(overlay).multiply([Product(matrix, x)])
    device = overlay.port
    done = device._accepted  # type: ignore[attr-defined]
    device.faults.altered = [done + int(rng.integers(len(matrix.pieces)))]  # type: ignore[attr-defined]
    with pytest.raises(WrongResultError, match="do not add up"):
        Multiplier(overlay).multiply([Product(matrix, x)])


def test_memory_is_given_back():
    rng = np.random.default_rng(6)
    overlay = fake_overlay()
    device = overlay.port
    before = device.allocated_bytes  # type: ignore[attr-defined]
    matrix = DeviceMatrix(random_weight(rng, "int8", (400, 64), 16), overlay)
    multiplier = Multiplier(overlay)
    multiplier.multiply([Product(matrix, quantise_activations(normal(rng, 3, 64), "int8_row", 0))])
    assert matrix.nbytes > 400 * 64
    matrix.free()
    multiplier.free()
    assert device.allocated_bytes == before  # type: ignore[attr-defined]


def test_few_activations_after_many_are_copied_alone(monkeypatch):
    rng = np.random.default_rng(9)
    overlay = fake_overlay()
    multiplier = Multiplier(overlay)
    matrix = DeviceMatrix(random_weight(rng, "ternary", (20, 640), 64), overlay)
    flush, copied = FakeBuffer.flush, []
    monkeypatch.setattr(
        FakeBuffer, "flush", lambda self: (copied.append(self.array.nbytes), flush(self))
    )
    for rows in (1, 100, 1):
        x = quantise_activations(normal(rng, rows, 640), "int8_row", 0)
        multiplier.multiply([Product(matrix, x)])
    assert copied[0] == copied[2] < copied[1] / 8


def test_a_matrix_that_does_not_fit_leaves_nothing_behind():
    overlay = Tlmm(FakeDevice(PRESETS["tiny"], memory_bytes=1 << 14))
    weight = random_weight(np.random.default_rng(7), "ternary", (1600, 64), 64)
    with pytest.raises(MemoryError):
        DeviceMatrix(weight, overlay)
    assert overlay.port.allocated_bytes == 0  # type: ignore[attr-defined]


def test_the_ports_of_long_weights_begin_in_different_banks():
    overlay = fake_overlay("decode-300")
    matrix = DeviceMatrix(
        random_weight(np.random.default_rng(8), "ternary", (1200, 512), 64), overlay
    )
    long = DeviceMatrix(
        random_weight(np.random.default_rng(8), "ternary", (1200, 512), 64, row_scales=True),
        overlay,
    )
    for piece in long.pieces[:1]:
        banks = [address % (64 << 10) for address in piece.weights]
        assert banks == [port * (16 << 10) for port in range(4)]
    assert long.nbytes < long.pieces[0].tiles * 60 * 64 + 5 * (64 << 10)
    assert all(address % 16 == 0 for piece in matrix.pieces for address in piece.weights)
