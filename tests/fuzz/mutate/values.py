"""Values that readers get wrong: extreme numbers, odd texts, and broken bytes."""

from __future__ import annotations

import json
import random
from typing import Any

EDGES = (
    0, 1, -1, 2, 3, 5, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 4096, 65535, 65536,
    2**24, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**40, 2**63 - 1, -(2**63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-8, 0.5, 3.4e38, -3.4e38, float("inf"), float("nan"))
TEXTS = (
    "", " ", ".", "..", "/", "\0", "\n", "a" * 5000, "é" * 200, "\ufeff", "\u202e", "\x1b[31m",
    "../secret", "/etc/passwd", "/dev/zero", "file:///etc/passwd", "{{ 7 * 7 }}", "%s%n", "null",
    "model.onnx", "model.onnx.data", "../model.onnx.data", "sub/file", "-rf", "$(id)", "http://x/",
)  # fmt: skip

DEEP, DEPTH = "many lists", 100_000


def integer(draw: random.Random, near: int = 0) -> int:
    """An edge of some integer type, or a value close to ``near``."""
    if draw.random() < 0.5:
        return draw.choice(EDGES)
    return draw.choice((near + 1, near - 1, near * 2, near // 2, near * 3, -near, near + 64))


def small(draw: random.Random, near: int) -> int:
    """A value that could be a size: from 0 to a few times ``near``."""
    choices = (near + 1, max(0, near - 1), near * 2, near // 2, near // 4, near * 4, 1, 2, 16)
    return draw.choice(choices)


def number(draw: random.Random) -> float:
    """A float at the edge of what float32 can hold."""
    return draw.choice(FLOATS)


def text(draw: random.Random) -> str:
    """A text that is no name."""
    return draw.choice(TEXTS)


def anything(draw: random.Random) -> Any:
    """A JSON value of any type."""
    kinds = (
        lambda: draw.choice(EDGES),
        lambda: draw.choice(FLOATS),
        lambda: draw.choice(TEXTS),
        lambda: draw.choice((None, True, False, [], {}, [[]], {"": None}, 10**400)),
        lambda: [draw.choice(EDGES) for _ in range(draw.randrange(5))],
        lambda: nested(draw.choice((3, 30))),
        lambda: DEEP,
    )
    return draw.choice(kinds)()


def write_json(tree: Any, *, ascii_only: bool = True) -> bytes:
    """A document as text, in which ``DEEP`` stands for more lists than any parser can follow.

    The first is enough: a list of 5,000 would be a gigabyte, which is the fuzzer's and no file's.
    """
    written = json.dumps(tree, ensure_ascii=ascii_only)
    deep = "[" * DEPTH + "]" * DEPTH
    return written.replace(f'"{DEEP}"', deep, 1).encode("utf-8", "surrogatepass")


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def damage(data: bytes, draw: random.Random, front: int | None = None) -> bytes:
    """Bytes cut short, flipped, overwritten by extreme numbers, removed or put in.

    ``front`` limits damage to that many bytes at the beginning, where headers are.
    """
    if not data:
        return bytes(draw.randrange(256) for _ in range(draw.randrange(8)))
    if draw.random() < 0.15:
        return data[: draw.randrange(len(data))]
    broken = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(min(front or len(broken), len(broken)) or 1)
        how = draw.randrange(5)
        if how == 0 and at < len(broken):
            broken[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            width = draw.choice((1, 2, 4, 8))
            value = draw.choice(EDGES) % 256**width
            broken[at : at + width] = value.to_bytes(width, "little")
        elif how == 2:
            broken[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif how == 3:
            del broken[at : at + draw.randrange(1, 9)]
        else:
            broken[at:at] = broken[at : at + draw.randrange(1, 64)]
    return bytes(broken)
