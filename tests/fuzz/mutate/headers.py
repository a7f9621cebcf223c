"""Mutations of safetensors and llama2.c files: their headers, and what the headers point to."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from tests.fuzz.mutate.json_tree import change
from tests.fuzz.mutate.values import EDGES, damage, integer, small, write_json

DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "F4", "", "?")
LLAMA2C_MAGIC = 0x616B3432


def mutate_safetensors(data: bytes, draw: random.Random) -> bytes:
    """Changes entries of the header, its length, or bytes of it."""
    (size,) = struct.unpack_from("<Q", data)
    if draw.random() < 0.1:
        return damage(data, draw, size + 8)
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    for _ in range(draw.choice((1, 1, 2))):
        if draw.random() < 0.5:
            change(header, draw)
        else:
            _change_tensor(header, draw)
    text = write_json(header)
    stated = len(text) if draw.random() < 0.95 else draw.choice(EDGES) % 2**64
    return struct.pack("<Q", stated) + text + data[8 + size :]


def _change_tensor(header: dict[str, Any], draw: random.Random) -> None:
    names = [
        name
        for name, entry in header.items()
        if isinstance(entry, dict) and {"shape", "dtype", "data_offsets"} <= set(entry)
    ]
    if not names:
        return
    name = draw.choice(names)
    entry = header[name]
    how = draw.randrange(5)
    if how == 0:
        entry["dtype"] = draw.choice(DTYPES)
    elif how == 1 and isinstance(entry["shape"], list) and entry["shape"]:
        entry["shape"] = draw.choice((entry["shape"][::-1], [*entry["shape"], 1], []))
    elif how == 2:
        entry["data_offsets"] = [integer(draw, 64), integer(draw, 128)]
    elif how == 3:
        header[draw.choice(names)] = header.pop(name)
    else:
        other = header[draw.choice(names)]
        entry["shape"], other["shape"] = other["shape"], entry["shape"]


def mutate_llama2c(data: bytes, draw: random.Random) -> bytes:
    """Changes the numbers at the beginning, or damages bytes there."""
    start = 8 if struct.unpack_from("<I", data)[0] == LLAMA2C_MAGIC else 0
    if draw.random() < 0.3:
        return damage(data, draw, start + 32)
    broken = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = start + 4 * draw.randrange(7)
        (value,) = struct.unpack_from("<i", broken, at)
        pick = small if draw.random() < 0.6 else integer
        struct.pack_into("<I", broken, at, pick(draw, value) % 2**32)
    if draw.random() < 0.2:
        broken += bytes(draw.randrange(1, 4096))
    return bytes(broken)


def mutate_llama2c_tokenizer(data: bytes, draw: random.Random) -> bytes:
    """Damages a ``tokenizer.bin``."""
    if draw.random() < 0.5:
        return damage(data, draw)
    broken = bytearray(data)
    at = draw.randrange(len(data) // 4) * 4
    struct.pack_into("<I", broken, at, draw.choice(EDGES) % 2**32)
    return bytes(broken)
