"""How queries, keys and values lie in memory for an attention command.

Keys and values of a layer are blocks of 64 tokens and one head. A port holds 16 tokens of each: the
tokens ``16 * port`` to ``16 * port + 15``. *Step* ``block * kv_heads + head`` counts them. A port's
region is a sequence of pairs, each the keys of step ``i`` and the values of step ``i - 2``, which
gives the softmax the time of two blocks; so a region grows at its end, and attention that begins
at a later block begins at a later pair. Beats of 16 bytes, little endian:

====================  =====================================================================
2 beats               scales of the keys of 16 tokens, 16 bits each (``encode_scales``)
2 beats               scales of the values of the same tokens
head_dim beats        keys: element ``d`` of all 16 tokens in beat ``d``, int8
head_dim beats        values of step ``i - 2``: 16 elements of a token, the 16 tokens one after
                      another, then the next 16 elements
====================  =====================================================================

Queries: for each head, for each query, a header and ``head_dim`` int16. The header's bytes: 0 the
score's shift, 1 the top exponent of the values' scales, 4 to 7 the first token, 8 to 11 the token
behind the last; tokens count from the beginning of the region that the command reads. Results are
float32 ``[kv_heads][queries][head_dim]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.attention import BLOCK_TOKENS, Cache, Queries, attend
from edgerun_hw.overlay.register_map import (
    BEAT_BYTES,
    KV_LEAD,
    KV_SCALE_BEATS,
    KV_TOKENS,
    MAX_HEAD_UNITS,
    MAX_KV_HEADS,
    MAX_KV_UNITS,
)

U8: TypeAlias = NDArray[np.uint8]
PORTS = BLOCK_TOKENS // KV_TOKENS
UNIT = BEAT_BYTES  # elements of a head are a multiple of this
SCALE_BYTES = KV_SCALE_BEATS * BEAT_BYTES


@dataclass(frozen=True)
class KvLayout:
    """Where keys and values of one layer lie.

    Attributes:
        kv_heads: heads of keys and values.
        head_dim: elements of a head.

    Raises:
        ValueError: the overlay cannot attend with such heads.
    """

    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if reason := self.obstacle(self.kv_heads, self.head_dim):
            raise ValueError(reason)

    @staticmethod
    def obstacle(kv_heads: int, head_dim: int) -> str:
        """Why the overlay cannot attend with such heads; empty if it can."""
        if head_dim < 1 or head_dim % UNIT:
            return f"heads of {head_dim} elements; the overlay takes multiples of {UNIT}"
        if head_dim > UNIT * MAX_HEAD_UNITS:
            return (
                f"heads of {head_dim} elements; the overlay takes {UNIT * MAX_HEAD_UNITS} at most"
            )
        if not 1 <= kv_heads <= MAX_KV_HEADS:
            return f"{kv_heads} heads of keys and values; the overlay takes 1 to {MAX_KV_HEADS}"
        if kv_heads * head_dim > (most := UNIT * MAX_KV_UNITS):
            return f"{kv_heads} heads of {head_dim} elements; the overlay takes {most} in all"
        return ""

    @property
    def units(self) -> int:
        """Elements of a head over 16."""
        return self.head_dim // UNIT

    @property
    def pair_beats(self) -> int:
        """Beats of a pair of blocks, on each port."""
        return KV_SCALE_BEATS + 2 * self.head_dim

    @property
    def query_beats(self) -> int:
        """Beats of a query of one head, its header included."""
        return 1 + 2 * self.units

    def pairs(self, tokens: int) -> int:
        """Pairs of a region of ``tokens`` tokens."""
        return -(-tokens // BLOCK_TOKENS) * self.kv_heads + KV_LEAD

    def port_bytes(self, tokens: int) -> int:
        """Bytes of a port's region of ``tokens`` tokens."""
        return self.pairs(tokens) * self.pair_beats * BEAT_BYTES

    def offset(self, block: int) -> int:
        """Bytes before the first pair of a block of tokens, in each port's region."""
        return block * self.kv_heads * self.pair_beats * BEAT_BYTES

    def write(self, ports: list[U8], start: int, cache: Cache) -> None:
        """Puts tokens from position ``start`` on into the regions of the four ports.

        Args:
            ports: the region of each, uint8 ``[port_bytes]``.
            start: position of the first token.
            cache: the tokens.
        """
        views = [_Views(region, self) for region in ports]
        positions = start + np.arange(len(cache.keys))
        port_of = positions % BLOCK_TOKENS // KV_TOKENS
        for port, view in enumerate(views):
            chosen = port_of == port
            if chosen.any():
                part = Cache(
                    cache.keys[chosen],
                    cache.values[chosen],
                    cache.key_scales[chosen],
                    cache.value_scales[chosen],
                )
                view.write(positions[chosen], part)

    def read(self, ports: list[U8], tokens: int) -> Cache:
        """The first ``tokens`` tokens of the four regions."""
        views = [_Views(region, self) for region in ports]
        blocks = -(-tokens // BLOCK_TOKENS)
        parts = [view.read(blocks) for view in views]
        joined = [
            np.stack(arrays, axis=1).reshape(blocks * BLOCK_TOKENS, *arrays[0].shape[2:])[:tokens]
            for arrays in zip(*parts, strict=True)
        ]
        return Cache(joined[0], joined[1], joined[2], joined[3])


class _Views:
    """One port's region, as arrays."""

    def __init__(self, region: U8, layout: KvLayout) -> None:
        pairs = region.reshape(-1, layout.pair_beats * BEAT_BYTES)
        block = layout.head_dim * BEAT_BYTES
        ends = SCALE_BYTES, SCALE_BYTES + block
        self._heads = layout.kv_heads
        self._scales = pairs[:, : ends[0]].view("<u2").reshape(len(pairs), 2, KV_TOKENS)
        self._keys = pairs[:, ends[0] : ends[1]].view(np.int8)
        self._values = pairs[KV_LEAD:, ends[1] :].view(np.int8)
        self._layout = layout

    def write(self, positions: NDArray[np.int64], cache: Cache) -> None:
        steps = positions[:, None] // BLOCK_TOKENS * self._heads + np.arange(self._heads)
        lane = (positions % KV_TOKENS)[:, None]
        self._scales[steps, 0, lane] = cache.key_scales
        self._scales[steps, 1, lane] = cache.value_scales
        element = np.arange(self._layout.head_dim)
        places = element * KV_TOKENS + lane[..., None]
        self._keys[steps[..., None], places] = cache.keys
        unit, within = element // UNIT, element % UNIT
        places = (unit * KV_TOKENS + lane[..., None]) * UNIT + within
        self._values[steps[..., None], places] = cache.values

    def read(self, blocks: int) -> tuple[NDArray[np.generic], ...]:
        """Keys, values and their scales, each ``[blocks, tokens, heads, ...]``."""
        steps, layout = blocks * self._heads, self._layout
        keys = self._keys[:steps].reshape(blocks, self._heads, layout.head_dim, KV_TOKENS)
        values = self._values[:steps].reshape(blocks, self._heads, layout.units, KV_TOKENS, UNIT)
        scales = self._scales[:steps].reshape(blocks, self._heads, 2, KV_TOKENS)
        return (
            keys.transpose(0, 3, 1, 2),
            values.transpose(0, 3, 1, 2, 4).reshape(blocks, KV_TOKENS, self._heads, -1),
            scales[:, :, 0].transpose(0, 2, 1),
            scales[:, :, 1].transpose(0, 2, 1),
        )


def pack_queries(queries: Queries) -> U8:
    """The bytes of a command's queries."""
    count, heads, head_dim = queries.codes.shape
    packed = np.zeros((heads, count, BEAT_BYTES + 2 * head_dim), np.uint8)
    packed[..., 0] = queries.shifts.T
    packed[..., 1] = queries.top.T
    limits = np.stack([queries.first, queries.limit], axis=-1).astype("<u4")
    packed[..., 4:12] = limits.view(np.uint8)
    codes = np.ascontiguousarray(queries.codes.transpose(1, 0, 2)).astype("<i2")
    packed[..., BEAT_BYTES:] = codes.view(np.uint8)
    return packed.reshape(-1)


def unpack_queries(packed: U8, layout: KvLayout, count: int) -> Queries:
    """What ``pack_queries`` packed."""
    beats = packed.reshape(layout.kv_heads, count, -1)
    limits = np.ascontiguousarray(beats[0, :, 4:12]).view("<u4").astype(np.int64)
    codes = np.ascontiguousarray(beats[..., BEAT_BYTES:]).view("<i2")
    return Queries(
        codes=codes.transpose(1, 0, 2).astype(np.int16),
        shifts=beats[..., 0].T.astype(np.int64),
        top=beats[..., 1].T.astype(np.int64),
        first=limits[:, 0],
        limit=limits[:, 1],
    )


def run_attention(layout: KvLayout, queries: U8, count: int, ports: list[U8]) -> NDArray[np.uint32]:
    """Computes one command from the bytes in memory.

    Args:
        layout: of the layer.
        queries: their bytes.
        count: of the queries.
        ports: what the command reads of each port's region.

    Returns:
        the words of the results.
    """
    blocks = (ports[0].size // BEAT_BYTES // layout.pair_beats - KV_LEAD) // layout.kv_heads
    cache = layout.read(ports, blocks * BLOCK_TOKENS)
    out = attend(unpack_queries(queries, layout, count), cache)
    return in_memory_order(out).view(np.uint32)


def in_memory_order(out: NDArray[np.float32]) -> NDArray[np.float32]:
    """Results ``[queries, kv_heads, head_dim]`` in the order of memory, flat."""
    return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(-1)
