"""Cases of attention and of writing its cache: ragged batches, windows, page boundaries.

Attention as a whole, over contexts of several blocks, is tested in ``tests/backends``.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from edgerun.kernels.attention.planner import AttentionUnits
from edgerun.kernels.attention.units import (
    COUNTS,
    PROMPT_LANES,
    PROMPT_ROWS,
    ROW_BLOCKS,
    ROW_INTS,
    ROW_SLOT,
    SINGLE,
    SPLIT,
    STACK_ROWS,
    STACKED,
    stack_rows,
)
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, Batch, SequenceStore, same_attention
from tests.conformance.kernels.harness import (
    F32,
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    float_lanes,
    random,
    untouched,
)

# What float32 summation may lose; scores here reach about 10, so exp costs 10 * 2**-23.
BOUND = 3e-6
BOUND_INT8 = 5e-4  # queries and weights are rounded to 16 bits
PAGE_TOKENS, STACK = 64, 8
# Batches: (tokens already cached, tokens in the batch) of every sequence.
DECODE = [((0, 1),), ((63, 1),), ((64, 1), (200, 1), (5, 1))]
PREFILL = [((0, 5),), ((60, 9), (0, 1), (127, 20)), ((100, 33),)]


def filled_cache(
    states: tuple[AttentionState, ...], parts: tuple[tuple[int, int], ...]
) -> tuple[SequenceStore, Batch]:
    """A cache with random tokens in shuffled pages, and the batch that continues them."""
    cache = SequenceStore(states, context=300, slots=len(parts))
    name, pool = states[0].name, cache.pool(states[0].name)
    pool._free = np.random.default_rng(0).permutation(pool.unwritten).tolist()
    pool._grown = len(pool._free)
    batches = []
    for number, (cached, tokens) in enumerate(parts):
        sequence = cache.open()
        cache.reserve(sequence, cached + tokens)
        shape = (cached, states[0].kv_heads, states[0].key_dim)
        block = random(shape, 2 * number), random(shape, 2 * number + 1)
        cache.write_block(name, sequence, 0, block)
        batches.append(Batch.of([0] * tokens, cached, sequence))
    return cache, Batch.join(batches)


def cache_fields(cache: SequenceStore, batch: Batch) -> dict[str, Any]:
    """Fields that describe layer 0 of a cache and the rows of a batch."""
    state = cache.states[0]
    assert isinstance(state, AttentionState)
    pool = cache.pool(state.name)
    return {
        "positions": batch.positions,
        "sequences": batch.sequences,
        "key_scales": 0,
        "value_scales": 0,
        **pool.fields(state.name),
        **pool.arrays,
        "page_table": pool.page_table,
        "kv_heads": state.kv_heads,
    }


@cases_of("cache_write", isa=ISAS, dtype=["fp32", "fp16", "int8"], shape=[(8, 3), (40, 1)])
def cache_write(isa: str, dtype: Any, shape: tuple[int, int]) -> Call:
    head_dim, kv_heads = shape
    states = same_attention(1, kv_heads, head_dim, dtype)
    cache, batch = filled_cache(states, PREFILL[1])
    expected, _ = filled_cache(states, PREFILL[1])
    width = kv_heads * head_dim
    k, v = random((batch.rows, width), 1, gap=2), random((batch.rows, width), 2, gap=3)
    k[1, :head_dim] = 0

    def check() -> None:
        keys, values = (x[:, :width].reshape(batch.rows, kv_heads, head_dim) for x in (k, v))
        for row in range(batch.rows):
            place = (states[0].name, int(batch.sequences[row]), int(batch.positions[row]))
            expected.write_block(*place, (keys[row : row + 1], values[row : row + 1]))
        for name, array in cache.pool(states[0].name).arrays.items():
            np.testing.assert_array_equal(array, expected.pool(states[0].name).arrays[name])

    fields = {"k": k, "k_stride": width + 2, "v": v, "v_stride": width + 3, "head_dim": head_dim}
    params = {"dtype": dtype, "lanes": gcd(head_dim, float_lanes(isa))}
    return Call(params, fields | cache_fields(cache, batch), batch.rows, check)


def block_fields(cache: SequenceStore, shape: tuple[int, ...], start: int) -> dict[str, Any]:
    """Fields of a block in the second slot of a cache."""
    fields = cache_fields(cache, Batch.of([0], 0, 0))
    del fields["positions"], fields["sequences"]
    blocks = {"k": random(shape, 1), "v": random(shape, 2)}
    blocks["k"][1, 0] = 0
    numbers = {"tokens": shape[0], "head_dim": shape[2], "start": start, "slot": 1}
    return fields | blocks | numbers


@cases_of("block_write", isa=ISAS, dtype=["fp32", "fp16", "int8"], shape=[(8, 3), (40, 1)])
def block_write(isa: str, dtype: Any, shape: tuple[int, int]) -> Call:
    head_dim, kv_heads = shape
    states = same_attention(1, kv_heads, head_dim, dtype)
    (cache, _), (expected, _) = (filled_cache(states, ((5, 1), (60, 90))) for _ in range(2))
    fields = block_fields(cache, (80, kv_heads, head_dim), 60)

    def check() -> None:
        expected.write_block(states[0].name, 1, 60, (fields["k"], fields["v"]))
        for name, array in cache.pool(states[0].name).arrays.items():
            np.testing.assert_array_equal(array, expected.pool(states[0].name).arrays[name])

    params = {"dtype": dtype, "lanes": gcd(head_dim, float_lanes(isa))}
    return Call(params, fields, 0, check, 1)


@cases_of("block_read", isa=ISAS, dtype=["fp32", "fp16", "int8"], shape=[(8, 3), (40, 1)])
def block_read(isa: str, dtype: Any, shape: tuple[int, int]) -> Call:
    head_dim, kv_heads = shape
    states = same_attention(1, kv_heads, head_dim, dtype)
    cache, _ = filled_cache(states, ((5, 1), (140, 1)))
    cache.pool(states[0].name).page_table[1, 1] = -1  # as a window leaves it
    fields = block_fields(cache, (99, kv_heads, head_dim), 40)

    def check() -> None:
        block = cache.read_block(states[0].name, 1, 40, 139)
        for name, expected in zip("kv", block, strict=True):
            np.testing.assert_array_equal(fields[name], expected)

    params = {"dtype": dtype, "lanes": gcd(head_dim, float_lanes(isa))}
    return Call(params, fields, 0, check, 1)


class Counted:
    """A batch as kernels see it, and its units."""

    def __init__(
        self,
        batch: Batch,
        cache: SequenceStore,
        window: int,
        partial_floats: int = 1,
        kv_heads: int = 1,
        threads: int = 1,
        stack: int = STACK,
        room: int = 0,
    ) -> None:
        self.batch, self.cache = batch, cache
        self.rows = np.array([batch.rows], np.int64)
        self.counts = np.zeros(COUNTS, np.int64)
        fields = {
            "rows": self.rows.ctypes.data,
            "positions": batch.positions.ctypes.data,
            "sequences": batch.sequences.ctypes.data,
            "counts": self.counts.ctypes.data,
        }
        team = kv_heads, threads
        self.units = AttentionUnits(batch.rows, stack, window, partial_floats, *team, fields, room)
        fields = cache.pool(cache.states[0].name).fields(cache.states[0].name)
        for name in ("page_table", "pages"):
            value = fields[name]
            self.units.arguments[self.units.names.index(name)] = value


def attention_call(
    params: dict[str, Any],
    parts: tuple[tuple[int, int], ...],
    window: int,
    kv_heads: int,
    stack: int = STACK,
    bound: float | None = None,
    room: int | None = None,
    softcap: float = 0.0,
) -> tuple[dict[str, Any], Counted, Any]:
    """Fields, units and check of a call of either attention kernel.

    In windows heads have sinks, and in float32 two of them share keys if their number is even.
    """
    head_dim, group = params["head_dim"], params["group"]
    is_exact = room is None
    shares = 2 if is_exact and window and kv_heads % 2 == 0 else 1
    key_heads = kv_heads // shares
    cache, batch = filled_cache(same_attention(1, key_heads, head_dim, params["dtype"]), parts)
    width = kv_heads * group * head_dim
    q = random((batch.rows, width), 1, gap=1)
    k, v = (random((batch.rows, key_heads * head_dim), seed) for seed in (2, 3))
    scale, out = np.array([0.3 / head_dim**0.5], np.float32), untouched((batch.rows, width + 2))
    sinks = np.linspace(-9, 9, kv_heads * group).astype(np.float32) if window else None
    expected: F32 = OPS["attention"].define(
        q[:, :width],
        k,
        v,
        sinks,
        batch=batch,
        cache=cache,
        layer=0,
        num_heads=kv_heads * group,
        num_kv_heads=key_heads,
        head_dim=head_dim,
        scale=float(scale[0]),
        window=window,
        softcap=softcap,
    )
    counted = Counted(batch, cache, window, stack=stack, room=room or 0)
    counted.units.plan()
    assert counted.counts[SPLIT] == 0
    bound = bound or (BOUND_INT8 if params["dtype"] == "int8" else BOUND)

    def check() -> None:
        assert_near(out[:, :width], expected, bound)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"q": q, "q_stride": width + 1, "out": out, "out_stride": width + 2, "scale": scale}
    units = counted.units
    fields |= {"row_blocks": units.rows, "partials": units.partials, "window": window}
    fields |= {"sinks": 0 if sinks is None else sinks}
    fields |= {"softcap": np.array([softcap], np.float32) if softcap else 0}
    fields |= cache_fields(cache, batch) | {"kv_heads": kv_heads}
    return fields | ({"shares": shares} if is_exact else {}), counted, check


# head_dim, query heads a kv head, kv heads, storage: chosen to meet every register blocking.
SHAPES = [(8, 1, 2, "fp32"), (64, 4, 2, "fp16"), (128, 2, 1, "int8"), (40, 7, 2, "fp16")]


# All shapes on the best instruction set, two on the others: compiling takes most of the time.
VARIANTS = [(isa, shape) for isa in ISAS for shape in (SHAPES if isa == ISAS[0] else SHAPES[1:3])]
# Four queries share int8 keys: with AVX-512 these are turned, small pages asked for as a whole.
SHARED = [(ISAS[0], (64, 4, 2, "int8")), (ISAS[0], (128, 8, 1, "int8"))]
SOFTCAP = 4.0  # of scores that reach about 10


@cases_of("attention", variant=VARIANTS + SHARED, parts=DECODE, window=[0, 50])
@cases_of("attention", variant=VARIANTS + SHARED, parts=DECODE[2:], window=[0], softcap=[SOFTCAP])
def attention(
    variant: tuple[str, tuple[int, int, int, str]],
    parts: tuple[tuple[int, int], ...],
    window: int,
    softcap: float = 0.0,
) -> Call:
    isa, (head_dim, group, kv_heads, dtype) = variant
    params = {"dtype": dtype, "head_dim": head_dim, "group": group, "lanes": float_lanes(isa)}
    fields, counted, check = attention_call(params, parts, window, kv_heads, softcap=softcap)
    assert counted.counts[STACKED] == 0
    fields |= {"units": counted.units.single}
    return Call(params, fields, 0, check, int(counted.counts[SINGLE]) * kv_heads)


# Of calls of few rows, whose keys are not turned with these vectors.
FEW = [(isa, SHAPES[1]) for isa in ISAS if float_lanes(isa) == PROMPT_LANES]


@cases_of("attention_many", variant=VARIANTS[1:], parts=PREFILL, window=[0, 50])
@cases_of("attention_many", variant=VARIANTS[1:], parts=PREFILL[2:], window=[50], softcap=[SOFTCAP])
@cases_of("attention_many", variant=FEW, parts=PREFILL, window=[50], most=[STACK_ROWS])
def attention_many(
    variant: tuple[str, tuple[int, int, int, str]],
    parts: tuple[tuple[int, int], ...],
    window: int,
    softcap: float = 0.0,
    most: int = PROMPT_ROWS,
) -> Call:
    isa, (head_dim, group, kv_heads, dtype) = variant
    lanes = float_lanes(isa)
    stack = stack_rows(dtype, head_dim, group, gcd(head_dim, lanes), most)
    params = {"dtype": dtype, "head_dim": head_dim, "group": group, "lanes": lanes, "stack": stack}
    fields, counted, check = attention_call(params, parts, window, kv_heads, stack, softcap=softcap)
    # A unit of one row is for the other kernel, but this one must manage it too.
    single, stacked = (int(counted.counts[kind]) for kind in (SINGLE, STACKED))
    counted.units.stacked[stacked : stacked + single] = counted.units.single[:single]
    fields |= {"units": counted.units.stacked}
    return Call(params, fields, 0, check, (single + stacked) * kv_heads)


@cases_of(
    "attention_combine", isa=ISAS, shape=[(8, 1, 2), (40, 7, 1), (64, 4, 2)], with_sinks=[0, 1]
)
def attention_combine(isa: str, shape: tuple[int, int, int], with_sinks: int) -> Call:
    head_dim, group, kv_heads = shape
    blocks = [3, 1, 40]  # a row of one block has its result already
    rows = np.zeros((3, ROW_INTS), np.int32)
    rows[:, ROW_SLOT], rows[:, ROW_BLOCKS] = [0, 3, 3], blocks
    partials = random((43, kv_heads, group * (head_dim + 2)))
    sums = partials[..., : group * head_dim].reshape(43, kv_heads, group, head_dim)
    states = partials[..., group * head_dim :].reshape(43, kv_heads, group, 2)
    states[..., 0] *= 20
    states[..., 1] = np.abs(states[..., 1]) + 1
    width = kv_heads * group * head_dim
    out = untouched((3, width + 1))
    sinks = random((kv_heads, group), 5) * 20 if with_sinks else None

    def check() -> None:
        for row, place in ((0, slice(0, 3)), (2, slice(3, 43))):
            top = states[place, ..., 0].max(axis=0)
            factors = np.exp(states[place, ..., 0].astype(np.float64) - top)
            weight = (factors * states[place, ..., 1]).sum(axis=0)
            if sinks is not None:
                weight += np.exp(sinks - top)
            expected = (factors[..., None] * sums[place]).sum(axis=0) / weight[..., None]
            assert_near(out[row, :width], expected.reshape(-1), 1e-6)
        assert (out[1] == UNTOUCHED).all()
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"row_blocks": rows, "partials": partials, "out": out, "out_stride": width + 1}
    fields |= {"kv_heads": kv_heads, "group": group, "head_dim": head_dim}
    fields |= {"sinks": 0 if sinks is None else sinks}
    return Call({"lanes": gcd(head_dim, float_lanes(isa))}, fields, 0, check, 3 * kv_heads)
