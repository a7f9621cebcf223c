"""Every GGUF type against the gguf package's own decoder, on random and on quantised blocks."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.errors import MissingDependencyError
from edgerun_export.checkpoint.codecs import GGUF, SAFETENSORS, mxfp4_scales

gguf = pytest.importorskip("gguf")
# I2_S is bitnet.cpp's alone: test_i2_s.py.
OFFICIAL = {kind: codec for kind, codec in GGUF.items() if codec.name != "I2_S"}
BLOCK_TYPES = sorted(kind for kind, codec in OFFICIAL.items() if codec.block_weights > 1)


# Offsets of the float16 scales, so that random blocks can be made finite.
HALVES = {2: [0], 3: [0, 2], 6: [0], 7: [0, 2], 8: [0], 10: [80, 82], 11: [108], 12: [0, 2]}
HALVES |= {13: [0, 2], 14: [208], 34: [52], 35: [64]}
CODES = sorted(kind for kind, codec in GGUF.items() if codec.codes)


def random_blocks(kind: int, count: int) -> np.ndarray:
    """Random bytes; where scales are float16, finite ones (an exponent that is not all ones)."""
    codec = GGUF[kind]
    blocks = np.random.default_rng(kind).integers(0, 256, (count, codec.block_bytes), np.uint8)
    for at in HALVES.get(kind, []):
        blocks[:, at + 1] &= 0xBB
    if codec.name == "MXFP4":
        blocks[:, 0] %= 250  # exponents that leave room for the values
    return blocks


@pytest.mark.parametrize("kind", BLOCK_TYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_decodes_random_blocks_as_gguf_does(kind: int) -> None:
    blocks = random_blocks(kind, 64)
    decode = GGUF[kind].decode
    assert decode is not None
    ours = decode(blocks)
    theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(kind))
    assert ours.shape == (64, GGUF[kind].block_weights)
    assert len(np.unique(ours)) > 100
    np.testing.assert_array_equal(ours, theirs)


def test_every_type_that_gguf_decodes_can_be_read() -> None:
    readable = {kind for kind, codec in GGUF.items() if codec.decode is not None}
    for kind in gguf.GGMLQuantizationType:
        blocks = np.zeros((1, gguf.constants.GGML_QUANT_SIZES[kind][1]), np.uint8)
        try:
            gguf.quants.dequantize(blocks, kind)
        except NotImplementedError:
            continue
        assert kind.value in readable, kind.name


@pytest.mark.parametrize("error", [ImportError, KeyError, NotImplementedError])
def test_an_old_gguf_package_is_named(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types came to it one by one."""

    def refuse(*_: object) -> None:
        raise error

    decode = GGUF[40].decode
    assert decode is not None
    monkeypatch.setattr("gguf.quants.dequantize", refuse)
    with pytest.raises(MissingDependencyError, match="NVFP4 need a newer gguf package: pip"):
        decode(np.zeros((1, 36), np.uint8))


def test_exponents_of_mxfp4_are_exact_or_none() -> None:
    exponents = np.array([0, 127, 252, 253, 254, 255], np.uint8)
    expected = np.array([2.0**-128, 0.5, 2.0**124, np.nan, np.nan, np.nan], np.float32)
    np.testing.assert_array_equal(mxfp4_scales(exponents), expected)
    assert np.isfinite(expected[2] * np.float32(12))


@pytest.mark.parametrize("kind", CODES)
def test_integers_and_scales_multiply_to_the_weights(kind: int) -> None:
    blocks = random_blocks(kind, 32)
    codec = GGUF[kind]
    assert codec.codes is not None and codec.decode is not None
    values, scales = codec.codes.unpack(blocks)
    assert values.dtype == np.int8 and scales.dtype == np.float32
    assert (scales > 0).any()
    assert (scales < 0).any() or codec.name == "MXFP4"  # whose scales are powers of two
    wide = np.repeat(scales, codec.codes.group, axis=1)
    np.testing.assert_array_equal(values * wide, codec.decode(blocks))


def test_the_table_is_the_one_of_ggml() -> None:
    for kind, codec in OFFICIAL.items():
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
    codes = GGUF[kind].codes
    assert codes is not None and codes.high == 1
    got, got_scales = codes.unpack(blocks)
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(got_scales, scales)


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).standard_normal(1000).astype(ml_dtypes.bfloat16)
    decode = SAFETENSORS["BF16"].decode
    assert decode is not None
    blocks = values.view(np.uint8).reshape(-1, 2)
    np.testing.assert_array_equal(decode(blocks)[:, 0], values.astype(np.float32))
