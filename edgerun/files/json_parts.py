"""How much JSON holds, before it is read: a list in three bytes takes sixty of memory."""

from __future__ import annotations

import numpy as np

CHUNK_BYTES = 1 << 20
QUOTE, PARTS = ord('"'), b"[{,"
OTHERS = bytes(set(range(256)) - {QUOTE, *PARTS})


def has_more_parts(data: bytes, most: int) -> bool:
    """Whether JSON has more than ``most`` lists, objects and commas, those in texts left out.

    >>> has_more_parts(b'{"a": [",", 1, 2]}', most=4), has_more_parts(b"[[],[]]", most=3)
    (False, True)
    """
    if sum(data.count(part) for part in PARTS) <= most:
        return False
    data = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, OTHERS)
    parts, quotes = 0, 0
    for start in range(0, len(data), CHUNK_BYTES):
        chunk = np.frombuffer(data, np.uint8)[start : start + CHUNK_BYTES]
        is_quote = chunk == QUOTE
        before = quotes + np.cumsum(is_quote)
        parts += int(np.count_nonzero(~is_quote & (before % 2 == 0)))
        quotes = int(before[-1])
    return parts > most
