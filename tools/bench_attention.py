"""Measures attention alone: decode against memory bandwidth, prefill against the FMA peak.

    python tools/bench_attention.py [--shapes bitnet-2b-4t llama-3.2-1b] [--threads 1 2]

Every layer of the shape is one attention node with a cache of its own, run as the CPU back-end
runs it, so that the figures hold writing the cache, waiting and combining. Tables go to standard
error, one line of JSON to standard output. "share" is the bytes of keys and values read per
second over what ``edgerun.profile`` measures, or the floating-point operations of visible pairs
over the peak of fused multiply-adds. Caches below the size of the last level of cache are read
from there: only contexts of a thousand tokens and more say something about memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerun.backends import CompileOptions, Phase, make_backend
from edgerun.backends.base import Executable
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.isa import VECTOR_BYTES, selected_isa
from edgerun.kernels.program import Program, ThreadTeam
from edgerun.kernels.registry import instruction
from edgerun.profile import measure_bandwidth
from edgerun.state import Batch, CacheSpec, KVCache

CACHE_LIMIT_BYTES = 600 << 20
MIN_SECONDS, MIN_RUNS = 0.15, 5


@dataclass(frozen=True)
class Shape:
    """Attention of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = {
    "bitnet-2b-4t": Shape(30, 20, 5, 128),
    "llama-3.2-1b": Shape(16, 32, 8, 64),
}


def graph_of(shape: Shape, layers: int) -> Graph:
    """Attention nodes that all read the same projections."""
    attrs = {
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "scale": shape.head_dim**-0.5,
        "window": 0,
    }
    nodes = [
        Node("attention", f"layer{n}", ("q", "k", "v"), (f"out{n}",), attrs | {"layer": n})
        for n in range(layers)
    ]
    return Graph(nodes, ["q", "k", "v"], [f"out{layers - 1}"], {})


def fill(cache: KVCache) -> None:
    """Puts the same random page everywhere."""
    rng = np.random.default_rng(0)
    page = rng.standard_normal(cache.keys.shape[1:])
    if cache.spec.dtype == "int8":
        page = np.rint(page * 40)
        cache.key_scales[:] = cache.value_scales[:] = 1 / 40
    cache.keys[:] = page.astype(cache.keys.dtype)
    cache.values[:] = cache.keys


@contextmanager
def attention(
    shape: Shape, layers: int, dtype: Any, threads: int, rows: int
) -> Iterator[tuple[Executable, CacheSpec]]:
    """An executable for batches of up to ``rows`` rows."""
    spec = CacheSpec(layers, shape.kv_heads, shape.head_dim, dtype)
    backend = make_backend("cpu")
    phase = Phase.DECODE if rows == 1 else Phase.PREFILL
    options = CompileOptions(threads, rows, spec)
    executable = backend.compile(graph_of(shape, layers), phase, options)
    try:
        yield executable, spec
    finally:
        executable.close()
        backend.close()


def inputs(shape: Shape, rows: int) -> dict[str, Any]:
    """Random projections."""
    rng = np.random.default_rng(1)
    widths = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    return {
        name: rng.standard_normal((rows, heads * shape.head_dim)).astype(np.float32)
        for name, heads in widths.items()
    }


def seconds(call: Callable[[], Any]) -> float:
    """Median time of a call after two that warm up."""
    call()
    call()
    times: list[float] = []
    end = time.perf_counter() + MIN_SECONDS
    while len(times) < MIN_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def decode(
    shape: Shape, dtype: Any, context: int, threads: int, sequences: int = 1, shared: bool = False
) -> dict[str, float]:
    """Time of a decode step for one or several sequences of ``context`` tokens each."""
    token = CacheSpec(1, shape.kv_heads, shape.head_dim, dtype).bytes_per_token
    tokens = context * (1 if shared else sequences)
    layers = max(1, min(shape.layers, CACHE_LIMIT_BYTES // (token * tokens)))
    with attention(shape, layers, dtype, threads, sequences) as (executable, spec):
        cache = KVCache(spec, context + 64, sequences)
        opened = [cache.open()]
        cache.reserve(opened[0], context)
        fill(cache)
        if shared:
            cache.extend(opened[0], context - 1)
            opened += [cache.fork(opened[0]) for _ in range(sequences - 1)]
        else:
            opened += [cache.open() for _ in range(sequences - 1)]
        for sequence in opened:
            cache.reserve(sequence, context)
        batch = Batch.join([Batch.of([0], context - 1, one) for one in opened])
        values = inputs(shape, sequences)
        took = seconds(lambda: executable(batch, cache, values))
    return {
        "us_per_layer": took / layers * 1e6,
        "gb_per_s": tokens * token * layers / took / 1e9,
        "layers": layers,
    }


def prefill(shape: Shape, dtype: Any, tokens: int, threads: int) -> dict[str, float]:
    """Time of a whole prompt in chunks of 256, as the engine feeds it."""
    layers, rows = 4, 256
    pairs = tokens * (tokens + 1) / 2
    with attention(shape, layers, dtype, threads, rows) as (executable, spec):
        cache = KVCache(spec, tokens, 1)
        sequence = cache.open()
        cache.reserve(sequence, tokens)
        values = inputs(shape, rows)
        starts = range(0, tokens, rows)
        chunks = [Batch.of([0] * min(rows, tokens - one), one, sequence) for one in starts]

        def prompt() -> None:
            for chunk in chunks:
                executable(chunk, cache, {k: v[: chunk.rows] for k, v in values.items()})

        took = seconds(prompt)
    return {
        "us_per_layer": took / layers * 1e6,
        "gflop_per_s": 4 * shape.heads * shape.head_dim * pairs * layers / took / 1e9,
    }
