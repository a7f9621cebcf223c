"""Every GGUF type against the gguf package's own decoder, on random and on quantised blocks."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_export.checkpoint.codecs import GGUF, SAFETENSORS

gguf = pytest.importorskip("gguf")
BLOCK_TYPES = sorted(kind for kind, codec in GGUF.items() if codec.block_weights > 1)


def random_blocks(kind: int, count: int) -> np.ndarray:
    """Random bytes, with finite scales: a float16 is finite if its exponent is not all ones."""
    codec = GGUF[kind]
    blocks = np.random.default_rng(kind).integers(0, 256, (count, codec.block_bytes), np.uint8)
    halves = {2: [0], 8: [0], 12: [0, 2], 14: [208], 34: [52], 35: [64]}[kind]
    for at in halves:
        blocks[:, at + 1] &= 0xBB
    return blocks


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_decodes_random_blocks_as_gguf_does(kind: int) -> None:
    blocks = random_blocks(kind, 64)
    decode = GGUF[kind].decode
    assert decode is not None
    ours = decode(blocks)
    theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(kind))
    assert ours.shape == (64, GGUF[kind].block_weights)
    assert len(np.unique(ours)) > 100
    np.testing.assert_array_equal(ours, theirs)


def test_the_table_is_the_one_of_ggml() -> None:
    for kind, codec in GGUF.items():
        official = gguf.GGMLQuantizationType(kind)
        assert official.name == codec.name
        assert gguf.constants.GGML_QUANT_SIZES[official] == (codec.block_weights, codec.block_bytes)


@pytest.mark.parametrize("kind", [34, 35])
def test_ternary_values_and_scales_multiply_to_the_weights(kind: int) -> None:
    draw = np.random.default_rng(1)
    scales = np.float16(draw.uniform(0.1, 2, (8, 1))).astype(np.float32)
    values = draw.integers(-1, 2, (8, 256))
    values[:, 0] = 1
    weights = (values * scales).astype(np.float32)
    blocks = gguf.quants.quantize(weights, gguf.GGMLQuantizationType(kind))
    unpack = GGUF[kind].ternary
    assert unpack is not None
    got, got_scales = unpack(blocks)
    assert got.dtype == np.int8 and got_scales.dtype == np.float32
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(got_scales, scales[:, 0])


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).standard_normal(1000).astype(ml_dtypes.bfloat16)
    decode = SAFETENSORS["BF16"].decode
    assert decode is not None
    blocks = values.view(np.uint8).reshape(-1, 2)
    np.testing.assert_array_equal(decode(blocks)[:, 0], values.astype(np.float32))
