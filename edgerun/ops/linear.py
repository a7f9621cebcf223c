"""A product with a constant matrix, which may be packed, and what is added to it.

How a layer sees its activations is part of what it computes: as they are (``float``); rounded to
int8 with one scale a row (``int8_row``: BitNet b1.58, part of the trained model); or rounded per
block of weights (``int8_block``: MatMulNBits with accuracy_level 4, a property of the runtime that
the exporter asked for).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats import dense, format_named
from edgerun.formats.base import PackedWeight
from edgerun.ops.base import (
    F32,
    Attribute,
    Example,
    NBytes,
    Op,
    Sizes,
    Work,
    matrix,
    normal,
    rows,
    vector,
)

Activations: TypeAlias = Literal["float", "int8_row", "int8_block"]

INT8_MAX = np.float32(127)
MIN_ABSMAX = np.float32(1e-5)  # BitNet b1.58 clamps the row maximum here


def _codes(x: F32) -> NDArray[np.int8]:
    """The nearest int8, of halves the even one; 0 for NaN, which the scale then is as well."""
    whole = np.clip(np.rint(x), -128, 127)
    return np.where(np.isnan(whole), 0, whole).astype(np.int8)


@np.errstate(divide="ignore", invalid="ignore")  # an infinite value: all codes 0, scale infinite
def quantize_row(x: F32) -> tuple[NDArray[np.int8], F32]:
    """int8 codes and one scale a row: ``scale = max(absmax, 1e-5) / 127``, nearest even.

    Source: Ma et al. 2024 (BitNet b1.58), as transformers implements it.
    """
    factor = INT8_MAX / np.maximum(np.abs(x).max(axis=-1, keepdims=True), MIN_ABSMAX)
    return _codes(x * factor), (1 / factor[:, 0]).astype(np.float32)


@np.errstate(invalid="ignore")
def quantize_block(x: F32, block: int) -> tuple[NDArray[np.int8], F32]:
    """int8 codes and one scale per block of K: ``scale = absmax / 127``, nearest even."""
    height, k = x.shape
    padded = np.zeros((height, -(-k // block) * block), np.float32)
    padded[:, :k] = x
    blocks = padded.reshape(height, padded.shape[1] // block, block)
    scales = np.abs(blocks).max(axis=-1) / INT8_MAX
    inverse = np.where(scales > 0, 1 / np.where(scales > 0, scales, 1), 0)
    codes = _codes(blocks * inverse[..., None].astype(np.float32))
    return codes.reshape(padded.shape)[:, :k], scales.astype(np.float32)


@np.errstate(invalid="ignore")
def rounded_activations(x: F32, activations: str, block: int) -> F32:
    """The activations as a linear layer sees them."""
    if activations == "int8_row":
        codes, scale = quantize_row(x)
        return codes * scale[:, None]
    if activations == "int8_block":
        codes, scales = quantize_block(x, block)
        return codes * np.repeat(scales, block, axis=1)[:, : x.shape[1]]
    return x


def linear(
    x: F32,
    weight: NDArray[Any] | PackedWeight,
    bias: F32 | None = None,
    residual: F32 | None = None,
    *,
    activations: str = "float",
) -> F32:
    """``round(x) @ weight.T + bias + residual`` with ``weight`` ``[N, K]``."""
    block = weight.block if isinstance(weight, PackedWeight) else 1
    out = rounded_activations(x, activations, block) @ dense(weight).T
    if bias is not None:
        out = out + bias
    if residual is not None:
        out = out + residual
    return out.astype(np.float32)


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    return Work(macs=sizes["N"] * sizes["K"], nbytes=sum(nbytes.values()))


def _examples() -> list[Example]:
    n, k = 40, 96
    values, bias = normal((n, k), 1), normal((n,), 2)
    int4, ternary = format_named("int4").pack(values, 32), format_named("ternary").pack(values, 32)
    int4_asym = format_named("int4_asym").pack(values + np.float32(0.5), 32)
    int4_offset = format_named("int4_offset").pack(values + np.float32(0.5), 32)
    int8 = format_named("int8").pack(values, 32)
    # Rounding has no use for code 0; integers of checkpoints have it.
    lowest = replace(int8, codes=np.where(int8.codes == 1, np.uint8(0), int8.codes))
    by_row = replace(ternary, scales=np.repeat(ternary.scales[:, :1], ternary.blocks, axis=1))
    stored = [
        (values, "float"),
        (values, "int8_row"),
        (int4, "float"),
        (int4, "int8_block"),
        (int4, "int8_row"),
        (int8, "int8_block"),
        (lowest, "int8_block"),
        (format_named("int2").pack(values, 16), "int8_block"),
        (ternary, "int8_row"),
        (by_row, "int8_row"),
        *((int4_asym, activations) for activations in ("float", "int8_block", "int8_row")),
        (format_named("int2_asym").pack(values, 16), "int8_block"),
        (format_named("int8_asym").pack(values + np.float32(0.5), 32), "int8_block"),
        *((int4_offset, activations) for activations in ("float", "int8_block", "int8_row")),
        (format_named("int8_offset").pack(values, 32), "int8_block"),
        (format_named("int2_offset").pack(values, 16), "int8_block"),
    ]
    plain = [
        Example({"x": normal((height, k), 3), "weight": weight}, {"activations": activations})
        for weight, activations in stored
        for height in (1, 20)
    ]
    added = {"bias": bias, "residual": normal((3, n), 4)}
    for extra in (("bias",), ("residual",), ("bias", "residual")):
        inputs = {"x": normal((3, k), 5), "weight": int4} | {name: added[name] for name in extra}
        plain.append(Example(inputs, {"activations": "int8_block"}))
    return plain


OP = Op(
    inputs=(
        rows("x", "K"),
        matrix("weight", "N", "K"),
        vector("bias", "N", optional=True),
        rows("residual", "N", optional=True),
    ),
    outputs=(rows("out", "N"),),
    define=linear,
    attributes={"activations": Attribute(str, choices=("float", "int8_row", "int8_block"))},
    work=_work,
    tolerance=2e-6,
    examples=_examples,
)
