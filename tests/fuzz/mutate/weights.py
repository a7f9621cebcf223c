"""Mutations of the numbers themselves: ``model.onnx.data``."""

from __future__ import annotations

import random
import struct

from tests.fuzz.mutate.values import number


def mutate_weights(data: bytes, draw: random.Random) -> bytes:
    """Extreme floats and extreme codes at a few places, or one file too short or too long."""
    if draw.random() < 0.05:
        return draw.choice((data[: draw.randrange(len(data))], data + bytes(draw.randrange(9000))))
    broken = bytearray(data)
    for _ in range(draw.choice((1, 3, 30))):
        at = draw.randrange(len(data) // 4) * 4
        if draw.random() < 0.5:
            struct.pack_into("<f", broken, at, number(draw))
        else:
            count = draw.choice((4, 64, 512))
            filler = bytes([draw.choice((0, 0x7F, 0x80, 0xFF))])
            broken[at : at + count] = filler * len(broken[at : at + count])
    return bytes(broken)
