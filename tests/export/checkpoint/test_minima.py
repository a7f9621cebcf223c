"""GGUF's types with minima, against what the gguf package makes of the same bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from edgerun.errors import CheckpointError
from edgerun.formats import format_named
from edgerun_export.checkpoint.base import Affine, Source, TensorInfo
from edgerun_export.checkpoint.codecs import GGUF
from edgerun_export.checkpoint.files import ByteFile
from edgerun_export.checkpoint.minima import MINIMA
from edgerun_export.checkpoint.stored import Stored, StoredCheckpoint
from edgerun_export.quantize import encode_affine

Type = gguf.GGMLQuantizationType
HALVES = {"Q2_K": (80, 82)}  # where scales of a block lie; before all else otherwise


def random_blocks(name: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (50, gguf.GGML_QUANT_SIZES[Type[name]][1]), np.uint8)
    for at in HALVES.get(name, (0, 2)):
        halves = rng.standard_normal((50, 1)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks


def decoded(name: str, blocks: np.ndarray) -> np.ndarray:
    return gguf.quants.dequantize(blocks.reshape(1, -1), Type[name]).reshape(len(blocks), -1)


@pytest.mark.parametrize("name", MINIMA)
def test_codes_scales_and_minima_are_those_of_the_file(name):
    minima, blocks = MINIMA[name], random_blocks(name)
    codes, scales, least = minima.unpack(blocks)
    assert codes.dtype == np.uint8 and codes.max() == (1 << minima.bits) - 1
    grouped = codes.reshape(*scales.shape, minima.group)
    weights = grouped * scales[..., None] + least[..., None]
    np.testing.assert_array_equal(weights.reshape(len(blocks), -1), decoded(name, blocks))


@pytest.mark.parametrize("name", MINIMA)
def test_a_bundle_has_the_codes_and_weights_to_half_precision(name):
    minima, blocks = MINIMA[name], random_blocks(name)
    layout, affine = format_named(minima.weights), minima.affine(blocks)
    packed = encode_affine(affine, layout, minima.group)
    codes = layout.integers(packed) + (1 << (minima.bits - 1))
    np.testing.assert_array_equal(codes, minima.unpack(blocks)[0])
    error = np.abs(layout.unpack(packed) - decoded(name, blocks)).reshape(*affine.scales.shape, -1)
    greatest = np.abs(affine.offsets) + np.abs(affine.scales) * (1 << (minima.bits - 1))
    assert (error.max(axis=-1) <= greatest * 2.0**-11).all()
    if name in ("Q4_1", "Q5_1"):  # whose scales are halves
        np.testing.assert_array_equal(packed.scales, affine.scales)


def test_smaller_groups_repeat_scales_and_offsets():
    affine = MINIMA["Q4_1"].affine(random_blocks("Q4_1"))
    layout = format_named("int4_offset")
    whole, halves = (encode_affine(affine, layout, block) for block in (32, 16))
    assert halves.offsets.shape == (2, 50)
    np.testing.assert_array_equal(layout.unpack(halves), layout.unpack(whole))


@pytest.mark.parametrize(("weights", "block"), [("int4_offset", 64), ("int2_offset", 32)])
def test_what_a_format_cannot_hold_is_not_packed(weights, block):
    values = np.tile(np.arange(-8, 8, dtype=np.int8), (2, 4))
    scales = np.ones((2, 2), np.float32)
    assert encode_affine(Affine(values, scales, scales), format_named(weights), block) is None


@pytest.mark.parametrize("at", [0, 2])
def test_scales_and_minima_are_finite(at, tmp_path):
    block = bytearray(20)
    block[at : at + 2] = np.float16(np.inf).tobytes()
    (tmp_path / "blocks").write_bytes(block)
    info = TensorInfo("x", (1, 32), "Q4_1")
    stored = {"x": Stored(info, ByteFile(tmp_path / "blocks"), 0, GGUF[Type.Q4_1])}
    with (
        StoredCheckpoint({}, Source("gguf", "m"), stored, dict) as checkpoint,
        pytest.raises(CheckpointError, match="'x' holds NaN or Inf"),
    ):
        checkpoint.affine("x")


def test_no_rows_have_no_numbers(tmp_path):
    (tmp_path / "blocks").write_bytes(bytes(34))
    info = TensorInfo("x", (1, 32), "Q8_0")
    stored = {"x": Stored(info, ByteFile(tmp_path / "blocks"), 0, GGUF[Type.Q8_0])}
    with StoredCheckpoint({}, Source("gguf", "m"), stored, dict) as checkpoint:
        assert checkpoint.read("x", slice(1, 1)).shape == (0, 32)
        values, scales = checkpoint.integers("x", slice(1, 1))
        assert values.shape == (0, 32) and scales.shape == (0, 1)


@pytest.mark.parametrize(("kind", "nbytes"), [("Q8_0", 34), ("Q4_1", 20)])
@pytest.mark.parametrize("shape", [(2, 1, 32), (1, 2, 32)])
def test_only_matrices_have_integers(kind, nbytes, shape, tmp_path):
    (tmp_path / "blocks").write_bytes(bytes(2 * nbytes))
    info = TensorInfo("x", shape, kind)
    stored = {"x": Stored(info, ByteFile(tmp_path / "blocks"), 0, GGUF[Type[kind]])}
    with StoredCheckpoint({}, Source("gguf", "m"), stored, dict) as checkpoint:
        assert checkpoint.integers("x") is checkpoint.affine("x") is None
        assert checkpoint.read("x").shape == shape
