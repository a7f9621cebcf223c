"""Matrices as OpenVINO's constants: codes stay packed, and the device unpacks them as it reads.

Codes are those of the bundle, so the network computes with exactly its weights. Devices that know
no unsigned codes with a zero point get the same numbers as signed ones: ``code - 8`` of four bits,
which turns over one bit of each, and for two bits takes four.

Codes are read from the file into memory that OpenVINO owns. To map them would save that copy until
the network is compiled; but whoever touches a mapped page of a file that has become shorter is
ended by the system, and OpenVINO does not keep what a constant of others' memory stands on.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight, pack_bits, unpack_bits, zero_points
from edgerun.graph.ir import Constant
from edgerun.graph.mapped_file import read_array

UNSIGNED_BITS = {2: "u2", 4: "u4", 8: "u8"}
SIGN = {4: np.uint8(0x88), 8: np.uint8(0x80)}  # the bits that turn ``code`` into ``code - middle``
TWO_TO_FOUR = np.uint8(8 - 2)  # between the middles of the ranges


class Stored(Enum):
    """How a device holds codes."""

    UNSIGNED = "u2, u4 or u8 with a zero point"
    SIGNED = "i4 or i8"


def make_matrix(ops: Any, constant: Constant, stored: Stored) -> Any:
    """A float32 matrix ``[N, K]``.

    Args:
        ops: OpenVINO's functions that make ops.
        constant: packed, or an array.
        stored: how codes lie in the device's memory.

    Raises:
        BackendError: the file of weights was cut off.
    """
    if not isinstance(constant, PackedWeight):
        return ops.constant(read_array(np.asarray(constant)).astype(np.float32, copy=False))
    integers = ops.convert(_codes(constant, stored), "f32")
    if stored is Stored.UNSIGNED or constant.zeros is not None:
        integers = ops.subtract(integers, ops.convert(_zeros(constant, stored), "f32"))
    scales = read_array(constant.scales).astype(np.float32, copy=False)
    weights = ops.multiply(integers, ops.constant(scales[..., None]))
    if constant.offsets is not None:
        offsets = read_array(constant.offsets).T.astype(np.float32)
        weights = ops.add(weights, ops.constant(offsets[..., None]))
    n, k = constant.shape
    padded = constant.blocks * constant.block
    weights = ops.reshape(weights, ops.constant(np.array([n, padded], np.int64)), False)
    if padded == k:
        return weights
    begin, end, step, axis = (ops.constant(np.array([number], np.int64)) for number in (0, k, 1, 1))
    return ops.slice(weights, begin, end, step, axis)


def stored_bytes(constant: Constant, stored: Stored) -> int:
    """What a device needs for a matrix: codes and scales, or numbers as it computes with them."""
    if not isinstance(constant, PackedWeight):
        return math.prod(constant.shape) * (4 if stored is Stored.UNSIGNED else 2)
    widens = stored is Stored.SIGNED and constant.bits == 2
    return constant.nbytes + constant.codes.nbytes * widens


def _codes(constant: PackedWeight, stored: Stored) -> Any:
    """Codes ``[N, blocks, block]``."""
    codes, bits = read_array(constant.codes), constant.bits
    if stored is Stored.SIGNED:
        if bits == 2:
            codes, bits = pack_bits(unpack_bits(codes, 2) + TWO_TO_FOUR, 4), 4
        codes = codes ^ SIGN[bits]
    n, blocks, nbytes = codes.shape
    return _constant(codes, _type_of(bits, stored), (n, blocks, nbytes * 8 // bits))


def _zeros(constant: PackedWeight, stored: Stored) -> Any:
    """Zero points, ``[N, blocks, 1]`` or one for all, as far above the middle as codes are."""
    zeros = zero_points(constant)
    bits = constant.bits
    if stored is Stored.SIGNED:
        bits = max(bits, 4)
        zeros = (zeros.astype(np.int16) - (1 << (constant.bits - 1))).astype(np.int8)
    padded = np.zeros(-(-zeros.size * bits // 8) * 8 // bits, np.uint8)
    padded[: zeros.size] = zeros.reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    return _constant(pack_bits(padded, bits), _type_of(bits, stored), (*zeros.shape, 1))


def _type_of(bits: int, stored: Stored) -> str:
    return UNSIGNED_BITS[bits] if stored is Stored.UNSIGNED else f"i{bits}"


def _constant(packed: NDArray[np.uint8], type_name: str, shape: tuple[int, ...]) -> Any:
    from openvino import Shape, Tensor, Type
    from openvino.op import Constant as OvConstant

    tensor = Tensor(getattr(Type, type_name), Shape(list(shape)))
    tensor.data.reshape(-1).view(np.uint8)[:] = packed.reshape(-1)
    return OvConstant(tensor)
