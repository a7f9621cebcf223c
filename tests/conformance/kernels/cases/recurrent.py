"""Convolutions over tokens in pages; linear attention and state spaces, with states in two rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, Batch, SequenceStore
from tests.conformance.kernels.cases.attention import cache_fields
from tests.conformance.kernels.harness import (
    ISAS,
    Call,
    assert_near,
    cases_of,
    float_lanes,
    random,
    untouched,
)
from tests.conformance.kernels.scenes import COUNT, PARTS, Scene

EPSILON = 1e-6
# Heads of keys and of values, elements of each, vectors of a unit.
SHAPES = [(2, 4, 32, 64, 2), (1, 1, 16, 16, 1), (2, 2, 48, 128, 8)]


def delta_scene(shape: tuple[int, int, int, int, int]) -> Scene:
    sizes = dict(zip(("key_heads", "value_heads", "key_dim", "value_dim"), shape[:4], strict=True))
    width = 2 * shape[0] * shape[2] + shape[1] * shape[3]
    return Scene("gated_delta", sizes, width, "qkv")


@cases_of("delta_inputs", isa=ISAS, strength=[1.0, 2.0], shape=SHAPES)
def delta_inputs(isa: str, strength: float, shape: tuple[int, int, int, int, int]) -> Call:
    scene = delta_scene(shape)
    key_heads, heads, key_dim, _, _ = shape
    rows, width = scene.batch.rows, scene.width
    decay, write = random((rows, heads), 2, gap=1), 9 * random((rows, heads), 3, gap=2)
    decay[0, 0], decay[1, 0] = 50, -50
    taps, offset = random((COUNT, width), 4), random((heads,), 5)
    rate = -np.abs(random((heads,), 6))
    mixed, gates = untouched((rows, width + 5)), untouched((rows, 3 * heads + 1))

    def check() -> None:
        expected = scene.convolved(taps)
        q, k, v = np.split(expected, [key_heads * key_dim, 2 * key_heads * key_dim], axis=1)
        q, k = (each.reshape(rows, key_heads, key_dim) for each in (q, k))
        q, k = (each / np.sqrt((each**2).sum(axis=-1, keepdims=True) + EPSILON) for each in (q, k))
        q /= np.sqrt(key_dim)
        for part, stop, bound in ((q, q[0].size, 2e-6), (k, 2 * q[0].size, 2e-6), (v, width, 2e-6)):
            part = part.reshape(rows, -1)
            assert_near(mixed[:, stop - part.shape[1] : stop], part, bound)
        with np.errstate(over="ignore"):
            products = np.repeat((q * k).sum(axis=-1), heads // key_heads, axis=1)
            forget = np.exp(rate * np.logaddexp(0, decay[:, :heads].astype(np.float64) + offset))
            opened = strength / (1 + np.exp(-write[:, :heads].astype(np.float64)))
        assert_near(gates[:, : 3 * heads], np.hstack([forget, opened, products]), 2e-6)
        np.testing.assert_allclose(gates[:, :heads], forget, rtol=2e-5, atol=1e-37)
        assert (mixed[:, width:] == untouched(())).all() and (gates[:, -1] == untouched(())).all()

    fields = scene.fields() | {"taps": taps, "rate": rate, "offset": offset}
    fields |= {"decay": decay, "decay_stride": heads + 1, "write": write, "write_stride": heads + 2}
    fields |= {"mixed": mixed, "mixed_stride": width + 5, "gates": gates}
    fields |= {"gates_stride": 3 * heads + 1, "epsilon": np.array([EPSILON], np.float32)}
    fields |= {"strength": np.array([strength], np.float32)}
    lanes = min(float_lanes(isa), 16)
    return Call({"lanes": lanes}, fields, rows, check, rows * key_heads)


@cases_of("delta_update", isa=ISAS[:1], shape=SHAPES, past_caches=[0, 1])
@cases_of("delta_update", isa=ISAS[1:], shape=SHAPES[:1], past_caches=[0])
def delta_update(isa: str, shape: tuple[int, int, int, int, int], past_caches: int) -> Call:
    scene = delta_scene(shape)
    key_heads, heads, key_dim, value_dim, vectors = shape
    rows, width, lanes = scene.batch.rows, scene.width, min(float_lanes(isa), 16)
    mixed, gates = random((rows, width), 7, gap=2), random((rows, 3 * heads), 8, gap=1)
    mixed[:, :width] /= np.sqrt(key_dim) * 3
    gates[:, :heads] = 1 / (1 + np.exp(-gates[:, :heads]))
    keys = mixed[:, : 2 * key_heads * key_dim].reshape(rows, 2, key_heads, key_dim)
    products = np.repeat((keys[:, 0] * keys[:, 1]).sum(axis=-1), heads // key_heads, axis=1)
    gates[:, 2 * heads : 3 * heads] = products
    result = untouched((rows, heads * value_dim + 4))
    before = scene.parts()
    runs = np.full(rows + 1, -1, np.int32)
    runs[: len(PARTS) + 1] = [0, *(mine.stop for _, mine, _, _ in before)]

    def check() -> None:
        expected = np.empty((rows, heads, value_dim))
        for slot, mine, past, matrix in before:
            state = matrix.astype(np.float64)
            for row in range(mine.start, mine.stop):
                q, k = (np.repeat(each, heads // key_heads, axis=0) for each in keys[row])
                forget, strength = (gates[row, n * heads : (n + 1) * heads, None] for n in (0, 1))
                v = mixed[row, width - heads * value_dim : width].reshape(heads, value_dim)
                state *= forget[..., None]
                step = strength * (v - np.einsum("hkv,hk->hv", state, k))
                state += k[:, :, None] * step[:, None]
                expected[row] = np.einsum("hkv,hk->hv", state, q)
            scene.check_states(slot, mine, past, matrix, state)
        assert_near(result[:, : heads * value_dim], expected.reshape(rows, -1), 2e-6)
        assert (result[:, heads * value_dim :] == untouched(())).all()

    fields = scene.fields("matrix", "written") | {"runs": runs, "result": result}
    fields |= {"mixed": mixed, "mixed_stride": width + 2, "gates": gates}
    fields |= {"gates_stride": 3 * heads + 1, "result_stride": heads * value_dim + 4}
    while value_dim % (vectors * lanes):
        vectors, lanes = (vectors // 2, lanes) if vectors > 1 else (vectors, lanes // 2)
    chunks = len(PARTS) * heads * value_dim // (vectors * lanes)
    params = {"past_caches": past_caches, "vectors": vectors, "lanes": lanes}
    return Call(params, fields, rows, check, chunks)


# Heads and groups, elements of an input and of a key, vectors of a unit.
SPACE_SHAPES = [(4, 2, 64, 32, 2), (1, 1, 16, 16, 1), (2, 1, 80, 48, 5)]


def space_scene(shape: tuple[int, int, int, int, int]) -> Scene:
    heads, groups, head_dim, state_dim, _ = shape
    sizes = {"heads": heads, "groups": groups, "head_dim": head_dim, "state_dim": state_dim}
    return Scene("state_space", sizes, heads * head_dim + 2 * groups * state_dim, "xbc")


@cases_of("space_inputs", isa=ISAS, shape=SPACE_SHAPES)
def space_inputs(isa: str, shape: tuple[int, int, int, int, int]) -> Call:
    scene = space_scene(shape)
    heads, groups, _, state_dim, _ = shape
    rows, width, keys = scene.batch.rows, scene.width, groups * state_dim
    step = random((rows, heads), 2, gap=1)
    step[0, 0], step[1, 0] = 50, -50
    taps, bias = random((COUNT, width), 4) / 3, random((width,), 7)
    offset, rate = random((heads,), 5), -np.abs(random((heads,), 6))
    mixed, gates = untouched((rows, width + 5)), untouched((rows, 3 * heads + 1))

    def check() -> None:
        expected = scene.convolved(taps, bias)
        assert_near(mixed[:, :width], expected, 2e-6)
        b, c = (
            each.reshape(rows, groups, state_dim)
            for each in (expected[:, -2 * keys : -keys], expected[:, -keys:])
        )
        times = np.logaddexp(0, step[:, :heads].astype(np.float64) + offset)
        products = np.repeat((b * c).sum(axis=-1), heads // groups, axis=1)
        assert_near(gates[:, 2 * heads : 3 * heads], products, 2e-6)
        assert_near(gates[:, heads : 2 * heads], times, 2e-6)
        np.testing.assert_allclose(gates[:, :heads], np.exp(rate * times), rtol=2e-5, atol=1e-37)
        assert (mixed[:, width:] == untouched(())).all() and (gates[:, -1] == untouched(())).all()

    fields = scene.fields() | {"taps": taps, "bias": bias, "rate": rate, "offset": offset}
    fields |= {"step": step, "step_stride": heads + 1, "mixed": mixed, "mixed_stride": width + 5}
    fields |= {"gates": gates, "gates_stride": 3 * heads + 1}
    lanes = min(float_lanes(isa), 16)
    return Call({"lanes": lanes}, fields, rows, check, rows * groups)


@cases_of("space_update", isa=ISAS[:1], shape=SPACE_SHAPES, past_caches=[0, 1])
@cases_of("space_update", isa=ISAS[1:], shape=SPACE_SHAPES[:1], past_caches=[0])
def space_update(isa: str, shape: tuple[int, int, int, int, int], past_caches: int) -> Call:
    scene = space_scene(shape)
    heads, groups, head_dim, state_dim, vectors = shape
    rows, width, lanes = scene.batch.rows, scene.width, min(float_lanes(isa), 16)
    mixed, gates = random((rows, width), 7, gap=2), random((rows, 3 * heads), 8, gap=1)
    gates[:, :heads] = 1 / (1 + np.exp(-gates[:, :heads]))
    skip = random((heads,), 9)
    x = mixed[:, : heads * head_dim].reshape(rows, heads, head_dim)
    keys = mixed[:, heads * head_dim : width].reshape(rows, 2, groups, state_dim)
    keys = np.repeat(keys, heads // groups, axis=2)
    gates[:, 2 * heads : 3 * heads] = (keys[:, 0] * keys[:, 1]).sum(axis=-1)
    result = untouched((rows, heads * head_dim + 4))
    before = scene.parts()
    runs = np.full(rows + 1, -1, np.int32)
    runs[: len(PARTS) + 1] = [0, *(mine.stop for _, mine, _, _ in before)]

    def check() -> None:
        expected = np.empty((rows, heads, head_dim))
        for slot, mine, past, matrix in before:
            state = matrix.astype(np.float64)
            for row in range(mine.start, mine.stop):
                forget, time = (gates[row, n * heads : (n + 1) * heads, None] for n in (0, 1))
                state *= forget[..., None]
                state += keys[row, 0, :, :, None] * (time * x[row])[:, None]
                expected[row] = np.einsum("hsd,hs->hd", state, keys[row, 1])
                expected[row] += skip[:, None] * x[row]
            scene.check_states(slot, mine, past, matrix, state)
        assert_near(result[:, : heads * head_dim], expected.reshape(rows, -1), 2e-6)
        assert (result[:, heads * head_dim :] == untouched(())).all()

    fields = scene.fields("matrix", "written") | {"runs": runs, "result": result, "skip": skip}
    fields |= {"mixed": mixed, "mixed_stride": width + 2, "gates": gates}
    fields |= {"gates_stride": 3 * heads + 1, "result_stride": heads * head_dim + 4}
    while head_dim % (vectors * lanes):
        vectors, lanes = (vectors // 2, lanes) if vectors > 1 else (vectors, lanes // 2)
    chunks = len(PARTS) * heads * head_dim // (vectors * lanes)
    params = {"past_caches": past_caches, "vectors": vectors, "lanes": lanes}
    return Call(params, fields, rows, check, chunks)


# Of each sequence, tokens in the cache and rows behind them: at the beginning, across a page's end.
CONV_PARTS = ((0, 4), (62, 3), (130, 1))


def filled(width: int, count: int) -> tuple[SequenceStore, Batch]:
    attributes = {"layer": 0, "width": width, "count": count}
    declare = OPS["short_conv"].state
    assert declare is not None
    state = declare(attributes)
    assert isinstance(state, AttentionState)
    # A second layer, so that pages hold more than what a kernel reads.
    other = declare({**attributes, "layer": 1})
    cache, batches = SequenceStore((state, other), 256, len(CONV_PARTS)), []
    for tokens, rows in CONV_PARTS:
        slot = cache.open()
        cache.reserve(slot, tokens + rows)
        cached = random((tokens, 1, width), slot + 5)
        cache.write_block(state.name, slot, 0, (cached, np.empty((tokens, 1, 0), np.float32)))
        batches.append(Batch.of([0] * rows, tokens, slot))
    return cache, Batch.join(batches)


def fields_of(cache: SequenceStore, batch: Batch) -> dict[str, Any]:
    fields = cache_fields(cache, batch)
    names = ("positions", "sequences", "key_data", "page_table", "pages", "page_heads")
    return {name: fields[name] for name in names}


@cases_of("short_conv_write", isa=ISAS, width=[64, 20])
def short_conv_write(isa: str, width: int) -> Call:
    (cache, batch), (expected, _) = (filled(width, 3) for _ in range(2))
    gate, value = random((batch.rows, width), 1, gap=2), random((batch.rows, width), 2, gap=3)

    def check() -> None:
        product = (gate[:, :width] * value[:, :width])[:, None]
        nothing = np.empty((1, 1, 0), np.float32)
        for row in range(batch.rows):
            place = expected.states[0].name, int(batch.sequences[row]), int(batch.positions[row])
            expected.write_block(*place, (product[row : row + 1], nothing))
        stores = (
            store.pool(store.states[0].name).arrays["key_data"] for store in (cache, expected)
        )
        np.testing.assert_array_equal(*stores)

    fields = {"gate": gate, "gate_stride": width + 2, "value": value, "value_stride": width + 3}
    fields |= fields_of(cache, batch) | {"width": width}
    return Call({"lanes": float_lanes(isa)}, fields, batch.rows, check)


@cases_of("short_conv", isa=ISAS, shape=[(64, 3), (20, 4), (16, 1)])
def short_conv(isa: str, shape: tuple[int, int]) -> Call:
    width, count = shape
    (cache, batch), (expected, _) = (filled(width, count) for _ in range(2))
    gate, value, out = (random((batch.rows, width), seed) for seed in (1, 2, 3))
    taps = random((count * width,), 4)
    attributes = {"layer": 0, "width": width, "count": count}
    (results,) = OPS["short_conv"].evaluate([gate, value, out, taps], attributes, batch, expected)
    # The kernel reads what another one wrote.
    OPS["short_conv"].evaluate([gate, value, out, taps], attributes, batch, cache)
    result = np.full((batch.rows, width + 5), np.nan, np.float32)

    def check() -> None:
        np.testing.assert_array_equal(result[:, :width], results)
        assert np.isnan(result[:, width:]).all()

    fields = {"out": out, "out_stride": width, "taps": taps, "count": count, "width": width}
    fields |= {"result": result, "result_stride": width + 5} | fields_of(cache, batch)
    return Call({"lanes": float_lanes(isa)}, fields, batch.rows, check)
