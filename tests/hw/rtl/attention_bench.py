"""Runs commands on the attention unit alone (``hw/tb/units``), and what they must give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.attention import (
    BLOCK_TOKENS,
    MAX_SHIFT,
    Cache,
    Queries,
    encode_scales,
    quantise_queries,
)
from edgerun_hw.overlay.attention_layout import PORTS, KvLayout, pack_queries, run_attention
from edgerun_hw.overlay.register_map import BEAT_BYTES
from tests.hw.rtl.queued_bench import QueuedBench

U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class Command:
    """Operands as they lie in memory.

    Attributes:
        layout: of the layer.
        count: of the queries.
        queries: their bytes.
        ports: what the command reads of each port's region.
    """

    layout: KvLayout
    count: int
    queries: U8
    ports: list[U8]

    @cached_property
    def expected(self) -> NDArray[np.uint32]:
        """What the definition gives."""
        return run_attention(self.layout, self.queries, self.count, self.ports)

    @property
    def pairs(self) -> int:
        return self.ports[0].size // BEAT_BYTES // self.layout.pair_beats

    @property
    def fields(self) -> list[int]:
        """Heads, units, queries, pairs."""
        return [self.layout.kv_heads, self.layout.units, self.count, self.pairs]

    @property
    def streams(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Words of x and w; in w a beat of each port after another."""
        w = np.stack([port.reshape(-1, BEAT_BYTES) for port in self.ports], axis=1)
        return self.queries.view(np.uint32), w.reshape(-1).view(np.uint32)


@dataclass(frozen=True)
class Report:
    """Cycles of a case."""

    cycles: int
    beats: int
    stall_beats: int
    stall_softmax: int
    stall_output: int
    faults: int


def random_command(
    rng: np.random.Generator,
    *,
    heads: int,
    units: int,
    count: int,
    tokens: int,
    bounds: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    fill: str = "random",
) -> Command:
    """A command on random operands.

    Args:
        rng: where to draw from.
        heads: of keys and values.
        units: elements of a head over 16.
        count: of queries.
        tokens: of keys and values; what fills the last block up is random too.
        bounds: the first token that each query sees and the one behind the last; all by default.
        fill: ``random``; ``extreme``: the largest magnitudes; ``rising``: every block's scores lie
            above those before it; ``wild``: headers and scales of any bits.
    """
    layout = KvLayout(heads, 16 * units)
    dim = layout.head_dim
    first, limit = bounds or (np.zeros(count, np.int64), np.full(count, tokens))
    shape = (tokens, heads, dim)
    keys, values = (rng.integers(-127, 128, shape).astype(np.int8) for _ in range(2))
    sizes = np.exp(rng.uniform(-6, 2, (2, tokens, heads))).astype(np.float32) / 127
    q = rng.standard_normal((count, heads, dim)).astype(np.float32)
    if fill == "extreme":
        keys = np.where(rng.integers(2, size=shape) > 0, 127, -128).astype(np.int8)
        values = np.where(rng.integers(2, size=(1, heads, dim)) > 0, 127, -128) + 0 * keys
        values = values.astype(np.int8)
        q *= 30
    if fill == "rising":
        q = np.abs(q)
        keys = np.abs(keys)
        sizes[0] = np.exp(np.linspace(-6, 3, tokens))[:, None] / 127
    scales = encode_scales(sizes)
    if fill == "wild":
        scales = rng.integers(0, 1 << 16, scales.shape).astype(np.uint16)
    cache = Cache(keys, values, scales[0], scales[1])
    queries = quantise_queries(q, dim**-0.5, first, limit, cache.value_scales)
    if fill == "wild":
        queries = Queries(
            codes=rng.integers(-(1 << 15), 1 << 15, q.shape).astype(np.int16),
            shifts=rng.integers(0, 2 * MAX_SHIFT + 1, q.shape[:2]),
            top=queries.top,
            first=first,
            limit=limit,
        )
    regions = [
        rng.integers(0, 256, layout.port_bytes(tokens)).astype(np.uint8) for _ in range(PORTS)
    ]
    layout.write(regions, 0, cache)
    return Command(layout, count, pack_queries(queries), regions)


def some_command(
    rng: np.random.Generator, queries: int, *, most_beats: int = 6000, most_tokens: int = 4096
) -> Command:
    """A command of random sizes, small ones and edges more often."""
    units = int(rng.choice([1, 1, 2, 3, 4, 6, 8, 16]))
    heads = min(int(rng.choice([1, 1, 2, 3, 5, 8, 32])), 128 // units)
    pair_beats = 4 + 32 * units
    while heads > 1 and 3 * heads * pair_beats > most_beats:
        heads -= 1
    blocks = max(1, min(most_tokens // BLOCK_TOKENS, most_beats // (heads * pair_beats)))
    tokens = int(np.exp(rng.uniform(0, np.log(blocks * BLOCK_TOKENS + 1))))
    if rng.random() < 0.2:
        tokens = int(rng.choice([1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1]))
    tokens = max(1, min(tokens, blocks * BLOCK_TOKENS))
    count = int(rng.integers(1, queries + 1))
    return random_command(
        rng,
        heads=heads,
        units=units,
        count=count,
        tokens=tokens,
        bounds=_bounds(rng, count, tokens),
        fill=str(rng.choice(["random", "random", "extreme", "rising", "wild"])),
    )


def _bounds(
    rng: np.random.Generator, count: int, tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All tokens; the rows of a prompt's chunk; a window; or anything, nothing included."""
    kind = rng.integers(4)
    first, limit = np.zeros(count, np.int64), np.full(count, tokens)
    if kind == 1:
        limit = np.maximum(tokens - np.arange(count)[::-1], 0)
    elif kind == 2:
        limit = np.maximum(tokens - np.arange(count), 1)
        first = np.maximum(limit - int(rng.integers(1, 100)), 0)
    elif kind == 3:
        first, limit = rng.integers(0, tokens + 2, (2, count))
    return first, limit


class AttentionBench(QueuedBench):
    """The compiled bench of a unit for so many queries."""

    def __init__(self, queries: int, cache: Path, rtl: list[Path] | None = None) -> None:
        parameters = {"QUERIES": queries}
        super().__init__("attention", Report, cache, ports=PORTS, parameters=parameters, rtl=rtl)
