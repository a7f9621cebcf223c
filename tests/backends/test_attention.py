"""Attention as programs run it, against its definition: split contexts, shared pages, threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numba import njit

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.cpu.binder import ATTENTION
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.attention.int8_tiles import round_rows
from edgerun.kernels.attention.planner import AttentionUnits
from edgerun.kernels.run.program import ThreadTeam
from edgerun.ops.registry import OPS
from edgerun.state import Batch, SequenceStore, same_attention

# Of the largest value: what float32 sums lose, and what rounding to 16 bits costs with int8.
BOUNDS = {"fp32": 3e-6, "fp16": 3e-6, "int8": 5e-4}
HEAD_DIM = 32
BLOCK_TOKENS = 512
INT8_MAX = 127
PAST = "past_key_values"


def attention(spec, group, softcap=0.0):
    attrs = {
        "num_heads": spec[0].kv_heads * group,
        "num_kv_heads": spec[0].kv_heads,
        "head_dim": spec[0].key_dim,
        "scale": spec[0].key_dim ** -0.5,
        "window": spec[0].window,
        "softcap": softcap,
        "layer": 0,
    }
    return Node("attention", "attend", ("q", "k", "v"), ("out",), attrs)


def projections(spec, group, rows):
    kv_heads = spec[0].kv_heads
    widths = {"q": group * kv_heads, "k": kv_heads, "v": kv_heads}
    values = {}
    for name, heads in widths.items():
        rng = np.random.default_rng([7, heads])
        values[name] = rng.standard_normal((rows, heads * spec[0].key_dim)).astype(np.float32) * 2
    return values


def append(cache, sequence, tokens, seed=0):
    """Writes random tokens behind those of a sequence."""
    start = cache.length(sequence)
    cache.reserve(sequence, start + tokens)
    rng = np.random.default_rng(seed)
    state = cache.states[0]
    shape = (2, tokens, state.kv_heads, state.key_dim)
    keys, values = rng.standard_normal(shape).astype(np.float32) * 2
    cache.write_block(state.name, sequence, start, (keys, values))
    cache.commit(sequence, start + tokens)


def batch_of(cache, parts: Sequence[tuple[int, int]], forked: int = 0):
    """A batch that appends ``parts[i][1]`` tokens to ``parts[i][0]`` cached ones.

    The first ``forked`` tokens of all sequences are those of the first.
    """
    batches = []
    for number, (cached, tokens) in enumerate(parts):
        sequence = cache.fork(0, forked)[0] if forked and number else cache.open()
        append(cache, sequence, cached - cache.length(sequence), seed=number)
        cache.reserve(sequence, cached + tokens)
        batches.append(Batch.of([0] * tokens, cached, sequence))
    return Batch.join(batches)


def run(spec, group, parts, *, threads=2, forked=0, softcap=0.0):
    """What the CPU back-end computes, and what the definition says."""
    node = attention(spec, group, softcap)
    graph = Graph([node], ["q", "k", "v"], ["out"], {})
    rows = sum(tokens for _, tokens in parts)
    cache = SequenceStore(spec, max(sum(part) for part in parts), len(parts))
    batch = batch_of(cache, parts, forked)
    values = projections(spec, group, rows)
    backend = make_backend("cpu", given={"threads": threads})
    executable = backend.compile(graph, Shape.of(rows), CompileOptions(spec))
    try:
        computed = executable(batch, cache, values)["out"].copy()
    finally:
        executable.close()
        backend.close()
    inputs = [values[name] for name in "qkv"]
    return computed, OPS["attention"].evaluate(inputs, node.attrs, batch, cache)[0]


def run_alone(spec, group, parts, softcap=0.0):
    """What the CPU back-end computes for the rows of ``run``, one call a row."""
    node = attention(spec, group, softcap)
    graph = Graph([node], ["q", "k", "v"], ["out"], {})
    cache = SequenceStore(spec, max(sum(part) for part in parts), len(parts))
    batch = batch_of(cache, parts)
    values = projections(spec, group, batch.rows)
    backend = make_backend("cpu", given={"threads": 1})
    executable = backend.compile(graph, Shape.of(1), CompileOptions(spec))
    rows = []
    for row in range(batch.rows):
        single = Batch.of([0], int(batch.positions[row]), int(batch.sequences[row]))
        inputs = {name: value[row : row + 1] for name, value in values.items()}
        rows.append(executable(single, cache, inputs)["out"].copy())
    executable.close()
    backend.close()
    return np.concatenate(rows)


def assert_near(computed, expected, bound):
    error = np.abs(computed - expected).max() / np.abs(expected).max()
    assert error <= bound, f"{error:.2e} of the largest value, allowed {bound:.0e}"


# Each length is also the limit of its cache. The suite of kernels has more shapes.
@pytest.mark.parametrize(
    ("dtype", "group"), [("fp32", 4), ("fp16", 4), ("int8", 4), ("fp16", 1), ("int8", 8)]
)
def test_decoding_equals_the_definition_at_every_length(dtype, group):
    spec = same_attention(1, 2, HEAD_DIM, dtype)
    for length in [1, 63, 64, 65, BLOCK_TOKENS, BLOCK_TOKENS + 1, 1000, 2500]:
        computed, expected = run(spec, group, [(length - 1, 1)])
        assert_near(computed, expected, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("window", [0, 100, 700])
def test_prompts_drafts_and_single_tokens_mix(dtype, window):
    spec = same_attention(1, 2, HEAD_DIM, dtype, window)
    parts = [(999, 1), (64, 1), (1000, 4), (300, 10), (0, 9), (63, 1)]
    computed, expected = run(spec, 4, parts)
    assert_near(computed, expected, BOUNDS[dtype])


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_threads_change_no_bit(dtype):
    spec = same_attention(1, 3, HEAD_DIM, dtype)
    parts = [(1800, 1), (1100, 3), (40, 12)]
    single, two, three = (run(spec, 4, parts, threads=threads)[0] for threads in (1, 2, 3))
    np.testing.assert_array_equal(single, two)
    np.testing.assert_array_equal(single, three)


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_bounded_scores_have_the_same_bits_alone_and_together(dtype):
    """Scores reach 20 here; their bound changes results by more than a tenth of the largest."""
    spec = same_attention(1, 2, HEAD_DIM, dtype)
    parts = [(1100, 1), (30, 1), (1020, 8), (BLOCK_TOKENS - 5, 20)]
    together, expected = run(spec, 4, parts, softcap=5.0)
    assert_near(together, expected, BOUNDS[dtype])
    np.testing.assert_array_equal(together, run_alone(spec, 4, parts, 5.0))
    assert np.abs(together - run(spec, 4, parts)[0]).max() > 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("window", [0, 600])
@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_rows_have_the_same_bits_alone_and_together(dtype, window):
    """Prompts, drafts and single tokens, near each limit of a page and of a block of pages."""
    spec = same_attention(1, 2, HEAD_DIM, dtype, window)
    parts = [(1800, 1), (30, 1), (1020, 8), (BLOCK_TOKENS - 5, 20), (1500, 70)]
    together, _ = run(spec, 4, parts)
    alone = run_alone(spec, 4, parts)
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    ("head_dim", "group", "dtype"),
    [
        *((16, 2, "fp32"), (16, 2, "fp16"), (80, 3, "fp32"), (80, 3, "fp16")),
        *((256, 2, "fp16"), (40, 4, "fp32")),
    ],
)
def test_keys_that_are_turned_for_many_queries_give_the_same_bits(head_dim, group, dtype):
    spec, parts = same_attention(1, 2, head_dim, dtype), [(70, 21), (0, 9)]
    together, expected = run(spec, group, parts)
    np.testing.assert_array_equal(together, run_alone(spec, group, parts))
    assert_near(together, expected, BOUNDS[dtype])


@pytest.mark.parametrize(("head_dim", "group"), [(64, 4), (128, 8)])
def test_int8_keys_that_are_turned_for_single_rows_give_the_same_bits(head_dim, group):
    """Decoding reads them otherwise than prompts and drafts do; pages of 64 elements are small."""
    spec = same_attention(1, 2, head_dim, "int8", 600)
    parts = [(1021, 3), (70, 21), (0, 9)]
    together, expected = run(spec, group, parts)
    np.testing.assert_array_equal(together, run_alone(spec, group, parts))
    assert_near(together, expected, BOUNDS["int8"])


@pytest.mark.parametrize("capacity", [0, 5, 7])
def test_rows_without_room_for_partial_results_have_the_same_bits(capacity, monkeypatch):
    spec = same_attention(1, 2, HEAD_DIM, "fp16")
    parts = [(1200, 1), (1700, 1), (1130, 2), (900, 1)]
    cut, _ = run(spec, 4, parts)
    original = AttentionUnits.plan

    def plan(units):
        units.arguments[units.names.index("capacity")] = capacity
        original(units)

    monkeypatch.setattr(AttentionUnits, "plan", plan)
    whole, _ = run(spec, 4, parts)
    np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("forked", [64, BLOCK_TOKENS, 1100])
def test_a_shared_prefix_changes_nothing_beyond_the_bound(dtype, forked):
    spec = same_attention(1, 2, HEAD_DIM, dtype)
    parts = [(1200, 1), (1200, 1), (1500, 1), (1130, 4), (1300, 1)] * 2
    computed, expected = run(spec, 4, parts, forked=forked)
    assert_near(computed, expected, BOUNDS[dtype])


@pytest.mark.parametrize("forked", [0, 1030])
def test_pages_in_common_are_visited_once(forked, monkeypatch):
    counted = []
    original = ThreadTeam.run

    def spy(team, program):
        original(team, program)
        counted.append(program.frame.copy())

    monkeypatch.setattr(ThreadTeam, "run", spy)
    spec = same_attention(1, 1, HEAD_DIM, "fp16")
    run(spec, 1, [(1200, 1)] * 6, forked=forked)
    single, stacked = counted[0][ATTENTION:][:2].tolist()
    # Three blocks a sequence: of the first two, one unit serves all six. With nothing in common a
    # unit of the first sequences has two.
    assert (single, stacked) == ((6, 2) if forked else (16, 0))


def layers_with_windows(windows):
    """A model of attention layers that differ in their windows, and its states."""
    states, nodes = [], []
    for layer, window in enumerate(windows):
        state = replace(same_attention(1, 1, HEAD_DIM, "fp32", window)[0], name=f"{PAST}.{layer}")
        node = attention([state], 2)
        states.append(state)
        attrs = {**node.attrs, "layer": layer}
        nodes.append(node.replace(name=f"layer{layer}", outputs=(f"out{layer}",), attrs=attrs))
    outputs = [node.outputs[0] for node in nodes]
    return Graph(nodes, ["q", "k", "v"], outputs, {}), tuple(states)


def test_layers_with_many_windows_each_see_their_own():
    graph, states = layers_with_windows([0, 20, 70, 100, 130, 260, 0, 70])
    cache = SequenceStore(states, 400, 2)
    slot = cache.open()
    cache.reserve(slot, 300)
    rng = np.random.default_rng(0)
    for state in states:
        keys, values = rng.standard_normal((2, 300, 1, HEAD_DIM)).astype(np.float32)
        cache.write_block(state.name, slot, 0, (keys, values))
    cache.commit(slot, 300)
    cache.reserve(slot, 305)
    batch, values = Batch.of([0] * 5, 300, slot), projections(states, 2, 5)
    backend = make_backend("cpu", given={"threads": 2})
    executable = backend.compile(graph, Shape.of(5), CompileOptions(states))
    results = {name: out.copy() for name, out in executable(batch, cache, values).items()}
    executable.close()
    backend.close()
    for node in graph.nodes:
        inputs = [values[name] for name in "qkv"]
        expected = OPS["attention"].evaluate(inputs, node.attrs, batch, cache)[0]
        assert_near(results[node.outputs[0]], expected, BOUNDS["fp32"])


def test_more_kinds_of_attention_than_there_is_room_for_are_refused():
    graph, states = layers_with_windows(range(1, 30))
    backend = make_backend("cpu")
    with pytest.raises(UnsupportedError, match="more than 20 different windows and shapes"):
        backend.compile(graph, Shape.of(1), CompileOptions(states))
    backend.close()


@pytest.mark.parametrize("width", [64, 512, 576, 1024])
def test_int32_holds_whatever_a_head_of_int8_comes_to(width):
    @njit
    def rounded(x, codes, factors):
        round_rows(x, codes, factors, 1, width, 4)

    x, codes = np.linspace(-1, 1, width, dtype=np.float32), np.zeros(width, np.int16)
    factor = np.zeros(1, np.float32)
    rounded(*(each.ctypes.data for each in (x, codes, factor)))
    assert width * INT8_MAX * int(codes.max()) < 2**31
    np.testing.assert_allclose(codes * factor, x, atol=BOUNDS["int8"] / 10)


def test_a_codec_without_kernels_is_refused_by_name():
    graph, states = layers_with_windows([0])
    backend = make_backend("cpu")
    options = CompileOptions(tuple(replace(state, codec="int4") for state in states))
    with pytest.raises(UnsupportedError, match="no kernels for keys and values in int4: choose"):
        backend.compile(graph, Shape.of(1), options)
    backend.close()
