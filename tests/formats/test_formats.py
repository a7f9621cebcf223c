"""Weight formats: the bit layout, exact encoding, and what onnxruntime makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgerun.backends.onnxruntime import COMPLETE, release
from edgerun.errors import UnsupportedError
from edgerun.formats import PackedWeight, format_named, format_names
from edgerun.formats.base import BlockFormat, has_half_scales, pack_bits, unpack_bits

RANGES = {"ternary": (-1, 1), "int2": (-2, 1), "int4": (-8, 7), "int8": (-127, 127)}


@st.composite
def integers_and_scales(draw: st.DrawFn) -> tuple[str, int, NDArray[Any], NDArray[np.float32]]:
    """A format, a block size, and weights that the format can hold exactly."""
    name = draw(st.sampled_from(sorted(RANGES)))
    block = draw(st.sampled_from([16, 32, 128]))
    n, blocks = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low, high = RANGES[name]
    integers = rng.integers(low, high + 1, (n, blocks * block))
    scales = rng.uniform(1e-3, 10, (n, blocks)) * rng.choice([-1, 1], (n, blocks))
    scales = scales.astype(np.float32)
    return name, block, integers, scales


def with_negative_scales(packed: PackedWeight) -> PackedWeight:
    """Every other block's weights take the other sign."""
    signs = np.where(np.arange(packed.scales.size) % 2, 1, -1).reshape(packed.scales.shape)
    return replace(packed, scales=(packed.scales * signs).astype(np.float32))


@given(integers_and_scales())
@settings(deadline=None)
def test_weights_on_the_grid_come_back_exactly(drawn: Any) -> None:
    name, block, integers, scales = drawn
    weight = (integers * np.repeat(scales, block, axis=1)).astype(np.float32)
    form = format_named(name)
    assert isinstance(form, BlockFormat)
    packed = form.encode(weight, scales, block)
    np.testing.assert_array_equal(form.integers(packed), integers)
    np.testing.assert_array_equal(form.unpack(packed), weight)


@given(
    name=st.sampled_from(sorted(RANGES)),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-30, 30),
)
@settings(deadline=None)
def test_packing_is_rounding_to_the_grid(name: str, seed: int, exponent: int) -> None:
    weight = np.random.default_rng(seed).standard_normal((3, 64)).astype("f4") * 2.0**exponent
    weight = weight.astype(np.float32)
    packed = format_named(name).pack(weight, 32)
    low, high = RANGES[name]
    steps = np.repeat(packed.scales, 32, axis=1)
    inside = np.clip(weight, low * steps, high * steps)
    error = np.abs(format_named(name).unpack(packed) - inside)
    assert (error <= steps * 0.500001).all()
    again = format_named(name).encode(format_named(name).unpack(packed), packed.scales, 32)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(again.codes, packed.codes)


@given(
    bits=st.sampled_from([2, 4, 8]),
    codes=st.lists(st.integers(0, 255), min_size=8, max_size=64),
)
def test_bits_unpack_to_what_was_packed(bits: int, codes: list[int]) -> None:
    array = np.array(codes[: len(codes) // 8 * 8], np.uint8) & np.uint8(2**bits - 1)
    packed = pack_bits(array, bits)
    assert packed.nbytes == array.size * bits // 8
    np.testing.assert_array_equal(unpack_bits(packed, bits), array)


def by_the_specification(packed: PackedWeight) -> NDArray[np.float64]:
    """Reads a packed matrix bit by bit, as MatMulNBits is described: lowest bits first."""
    n, k = packed.shape
    bits, weight = packed.bits, np.zeros(packed.shape)
    for row in range(n):
        for column in range(k):
            block, index = divmod(column, packed.block)
            code, zero = 0, 2 ** (bits - 1)
            for bit in range(bits):
                byte, place = divmod(index * bits + bit, 8)
                code |= int(packed.codes[row, block, byte] >> place & 1) << bit
            if packed.zeros is not None:
                byte, place = divmod(block * bits, 8)
                zero = int(packed.zeros[row, byte]) >> place & (2**bits - 1)
            weight[row, column] = (code - zero) * packed.scales[row, block]
            if packed.offsets is not None:
                weight[row, column] += packed.offsets[block, row]
    return weight


@pytest.mark.parametrize("name", format_names())
@pytest.mark.parametrize("zeros", [False, True], ids=["middle", "stored zero points"])
def test_layout_is_that_of_the_specification(name: str, zeros: bool) -> None:
    rng = np.random.default_rng(3)
    packed = format_named(name).pack(rng.standard_normal((3, 96)).astype(np.float32), 32)
    packed = with_negative_scales(packed)
    if zeros:
        stored = rng.integers(0, 256, (3, -(-3 * packed.bits // 8)), np.uint8)
        packed = replace(packed, zeros=stored)
    unpacked = format_named(name).unpack(packed)
    np.testing.assert_allclose(unpacked, by_the_specification(packed), rtol=1e-6)


@pytest.mark.parametrize("name", format_names())
def test_onnxruntime_reads_the_same_weights(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    packed = format_named(name).pack(
        np.random.default_rng(4).standard_normal((24, 64)).astype(np.float32), 32
    )
    packed = replace(with_negative_scales(packed), offsets=None)  # which the operator has not
    if packed.bits == 2 and release(onnxruntime.__version__) < COMPLETE:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no 2-bit MatMulNBits")
    session = onnxruntime.InferenceSession(matmul_model(packed), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"x": np.eye(64, dtype=np.float32)})
    np.testing.assert_allclose(out.T, format_named(name).unpack(packed), atol=1e-5)


def matmul_model(packed: PackedWeight) -> bytes:
    """A model of one MatMulNBits."""
    from onnx import TensorProto, helper, numpy_helper

    n, k = packed.shape
    stored = {"codes": packed.codes, "scales": packed.scales}
    stored |= {} if packed.zeros is None else {"zeros": packed.zeros}
    node = helper.make_node(
        "MatMulNBits",
        ["x", *stored],
        ["out"],
        domain="com.microsoft",
        N=n,
        K=k,
        bits=packed.bits,
        block_size=packed.block,
    )
    graph = helper.make_graph(
        [node],
        "matmul",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, k])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [None, n])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def test_zero_weights_stay_zero() -> None:
    for name in format_names():
        packed = format_named(name).pack(np.zeros((2, 32), np.float32), 32)
        assert (format_named(name).unpack(packed) == 0).all()


def test_sizes_are_what_is_stored() -> None:
    packed = format_named("int4").pack(np.ones((4, 64), np.float32), 32)
    assert (packed.bits, packed.blocks, packed.nbytes) == (4, 2, 4 * (32 + 8))


def test_width_that_is_no_multiple_of_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        format_named("int4").pack(np.zeros((2, 40), np.float32), 32)


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="int3.*ternary"):
        format_named("int3")


@pytest.mark.parametrize(
    ("name", "halved"), [("int4", True), ("int2_asym", True), ("int4_offset", False)]
)
def test_scales_are_kept_as_halves_where_each_is_one_and_no_offset_is_beside_it(
    name: str, halved: bool
) -> None:
    """Those beside offsets lie in half a dword as it is."""
    values = np.random.default_rng(1).standard_normal((8, 96)).astype(np.float32)
    packed = format_named(name).pack(values, 32)
    scales = packed.scales.astype(np.float16).astype(np.float32)
    assert has_half_scales(replace(packed, scales=scales)) is halved
    scales[-1, -1] *= 1 + 2**-20
    assert not has_half_scales(replace(packed, scales=scales))
