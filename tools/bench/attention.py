"""Measures attention alone: decode against memory bandwidth, prefill against the FMA peak.

    python -m tools.bench.attention [--shapes NAME ...] [--threads N ...] [--dtypes NAME ...]

Every layer of the shape is one attention node with a cache of its own, run as the CPU back-end
runs it, so that the figures hold writing the cache, waiting and combining. Tables go to standard
error, one line of JSON to standard output. "share" is the bytes of keys and values read per
second over what ``edgerun.machine.profile`` measures, or the floating-point operations of visible
pairs over the peak of fused multiply-adds. Caches below the size of the last level of cache are
read from there: only contexts of a thousand tokens and more say something about memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import float32

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Executable, buckets
from edgerun.engine.engine import DEFAULT_CHUNK_ROWS
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.isa import selected_isa
from edgerun.kernels.jit.compiler import compile_object
from edgerun.kernels.jit.loader import load_object
from edgerun.kernels.lang.simd import fma, splat, store
from edgerun.kernels.lang.word import word
from edgerun.kernels.run.instructions import Instruction, Loaded
from edgerun.kernels.run.program import Program, ThreadTeam
from edgerun.machine.bandwidth import measure_bandwidth
from edgerun.state import Batch, SequenceStore, State, same_attention
from edgerun.state.capacity import token_bytes

CACHE_LIMIT_BYTES = 600 << 20
MIN_SECONDS, MIN_RUNS = 0.1, 5
COMPARED = ("times_as_fast", "rms_error")
Prompt: TypeAlias = tuple[dict[str, float], Any]


@dataclass(frozen=True)
class Shape:
    """Attention of a model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    softcap: float = 0.0


SHAPES = {
    "bitnet-2b-4t": Shape(30, 20, 5, 128),
    "llama-3.2-1b": Shape(16, 32, 8, 64),
    "gemma-2-2b": Shape(26, 8, 4, 256, softcap=50.0),
}


def graph_of(shape: Shape, layers: int) -> Graph:
    """Attention nodes that all read the same projections."""
    attrs = {
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "scale": shape.head_dim**-0.5,
        "window": 0,
        "softcap": shape.softcap,
    }
    nodes = [
        Node("attention", f"layer{n}", ("q", "k", "v"), (f"out{n}",), attrs | {"layer": n})
        for n in range(layers)
    ]
    return Graph(nodes, ["q", "k", "v"], [f"out{layers - 1}"], {})


def fill(cache: SequenceStore) -> None:
    """Puts the same random page everywhere."""
    rng = np.random.default_rng(0)
    for name, array in cache.pool(cache.states[0].name).arrays.items():
        page: Any = rng.standard_normal(array.shape[1:])
        if array.dtype == np.int8:
            page = np.rint(page * 40)
        array[:] = 1 / 40 if name.endswith("scales") else page.astype(array.dtype)


@contextmanager
def attention(
    shape: Shape, layers: int, dtype: Any, threads: int, rows: int, form: str = "exact"
) -> Iterator[tuple[Executable, tuple[State, ...]]]:
    """An executable for batches of up to ``rows`` rows."""
    spec = same_attention(layers, shape.kv_heads, shape.head_dim, dtype)
    backend = make_backend("cpu", given={"threads": threads, "attention": form})
    graph = graph_of(shape, layers)
    reasons = {why for why in backend.prompt_attention(graph).values() if why}
    if reasons:
        raise SystemExit(f"attention cannot be {form}: {'; '.join(reasons)}")
    options = CompileOptions(spec)
    executable = backend.compile(graph, buckets(rows)[-1], options)
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
    token = token_bytes(same_attention(1, shape.kv_heads, shape.head_dim, dtype))
    tokens = context * (1 if shared else sequences)
    layers = max(1, min(shape.layers, CACHE_LIMIT_BYTES // (token * tokens)))
    with attention(shape, layers, dtype, threads, sequences) as (executable, spec):
        cache = SequenceStore(spec, context + 64, sequences)
        opened = [cache.open()]
        cache.reserve(opened[0], context)
        fill(cache)
        if shared:
            cache.commit(opened[0], context - 1)
            opened += [cache.fork(opened[0])[0] for _ in range(sequences - 1)]
        else:
            opened += [cache.open() for _ in range(sequences - 1)]
        for sequence in opened:
            cache.reserve(sequence, context)
        batch = Batch.join([Batch.of([0], context - 1, slot) for slot in opened])
        values = inputs(shape, sequences)
        took = seconds(lambda: executable(batch, cache, values))
    return {
        "us_per_layer": took / layers * 1e6,
        "gb_per_s": tokens * token * layers / took / 1e9,
        "layers": layers,
    }


def prefill(shape: Shape, dtype: Any, tokens: int, threads: int, form: str) -> Prompt:
    """Time of a whole prompt in calls of as many rows as the engine feeds, and its last output."""
    layers, rows = 4, min(tokens, DEFAULT_CHUNK_ROWS)
    pairs = tokens * (tokens + 1) / 2
    with attention(shape, layers, dtype, threads, rows, form) as (executable, spec):
        cache = SequenceStore(spec, tokens, 1)
        sequence = cache.open()
        cache.reserve(sequence, tokens)
        values = inputs(shape, rows)
        starts = range(0, tokens, rows)
        chunks = [Batch.of([0] * min(rows, tokens - start), start, sequence) for start in starts]

        def prompt() -> None:
            for chunk in chunks:
                executable(chunk, cache, {k: v[: chunk.rows] for k, v in values.items()})

        took = seconds(prompt)
        rest = {k: v[: chunks[-1].rows] for k, v in values.items()}
        (output,) = executable(chunks[-1], cache, rest).values()
        figures = {
            "us_per_layer": took / layers * 1e6,
            "gflop_per_s": 4 * shape.heads * shape.head_dim * pairs * layers / took / 1e9,
        }
        return figures, output.astype(np.float64)


def prompts(
    shape: Shape, dtype: Any, tokens: int, threads: int, forms: Sequence[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Figures of every form; of all but the first also how they differ from it."""
    first: tuple[float, Any] | None = None
    for form in forms:
        row, output = prefill(shape, dtype, tokens, threads, form)
        if first is None:
            first = row["us_per_layer"], output
        else:
            row["times_as_fast"] = first[0] / row["us_per_layer"]
            row["rms_error"] = float(np.sqrt(np.mean((output - first[1]) ** 2) / first[1].var()))
        yield form, row


def fma_peak(threads: int) -> float:
    """Floating-point operations a second of independent fused multiply-adds in registers."""
    lanes = selected_isa().float_lanes
    rounds, sums = 4096, np.zeros((256, lanes), np.float32)

    def body(a: int, chunk: int) -> None:
        value = splat(float32(0.5), "f32", lanes)
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = s8 = s9 = value
        for _ in range(rounds):
            s0, s1 = fma(s0, value, value), fma(s1, value, value)
            s2, s3 = fma(s2, value, value), fma(s3, value, value)
            s4, s5 = fma(s4, value, value), fma(s5, value, value)
            s6, s7 = fma(s6, value, value), fma(s7, value, value)
            s8, s9 = fma(s8, value, value), fma(s9, value, value)
        total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9
        store(word(a, 0) + chunk * lanes * 4, total)

    arguments: Any = np.array([sums.ctypes.data], np.int64)
    address = load_object(compile_object(body))
    step = Instruction(
        Loaded(address), arguments, ("sums",), 0, 1, 1, frozenset(), frozenset(), "fma"
    )
    program = Program([step], [arguments, sums])
    program.frame[0] = len(sums)
    team = ThreadTeam(threads)
    try:
        return len(sums) * rounds * 10 * 2 * lanes / seconds(lambda: team.run(program))
    finally:
        team.close()


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures asked for, by threads, shape and cache type."""
    result: dict[str, Any] = {}
    for threads in options.threads:
        bandwidth, peak = measure_bandwidth(threads), fma_peak(threads)
        figures = result[f"threads={threads}"] = {
            "bandwidth_gb_per_s": bandwidth / 1e9,
            "peak_gflop_per_s": peak / 1e9,
        }
        say(f"{threads} threads: {bandwidth / 1e9:.1f} GB/s, {peak / 1e9:.0f} GFLOP/s")
        for name, dtype in ((name, dtype) for name in options.shapes for dtype in options.dtypes):
            for context in options.contexts:
                row = decode(SHAPES[name], dtype, context, threads)
                row["share"] = row["gb_per_s"] * 1e9 / bandwidth
                figures[f"decode {name} {dtype} {context}"] = row
                say(
                    f"  decode  {name} {dtype} {context:6}: {row['us_per_layer']:8.1f} us a layer, "
                    f"{row['gb_per_s']:5.1f} GB/s, {row['share']:.2f}"
                )
            for tokens in options.prompts:
                forms = prompts(SHAPES[name], dtype, tokens, threads, options.attention)
                for form, row in forms:
                    row["share"] = row["gflop_per_s"] * 1e9 / peak
                    figures[f"prefill {name} {dtype} {tokens} {form}"] = row
                    also = "".join(f", {key} {row[key]:.4g}" for key in COMPARED if key in row)
                    say(
                        f"  prefill {name} {dtype} {tokens:6} {form}: {row['us_per_layer']:8.1f}"
                        f" us a layer, {row['gflop_per_s']:5.1f} GFLOP/s, {row['share']:.2f}{also}"
                    )
            for shared in (False, True) if options.sequences > 1 else ():
                row = decode(SHAPES[name], dtype, 2048, threads, options.sequences, shared)
                kind = "shared" if shared else "separate"
                figures[f"decode {options.sequences} {kind} {name} {dtype} 2048"] = row
                say(f"  {options.sequences} {kind} of 2048: {row['us_per_layer']:8.1f} us a layer")
    return result


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(description="Measures attention alone.")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=["fp16", "int8"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--contexts", nargs="*", type=int, default=[128, 1024, 4096, 16384])
    parser.add_argument("--prompts", nargs="*", type=int, default=[512, 2048])
    forms = ["exact", "fast"]
    parser.add_argument("--attention", nargs="+", choices=forms, default=["exact"])
    parser.add_argument("--sequences", type=int, default=8, help="1 leaves shared prefixes out")
    result = measure(parser.parse_args(), lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
