"""State space duality, whose states lie in two rows."""

from __future__ import annotations

import numpy as np

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

# Heads and groups, elements of an input and of a key, vectors of a unit.
SHAPES = [(4, 2, 64, 32, 2), (1, 1, 16, 16, 1), (2, 1, 80, 48, 5)]


def space_scene(shape: tuple[int, int, int, int, int]) -> Scene:
    heads, groups, head_dim, state_dim, _ = shape
    sizes = {"heads": heads, "groups": groups, "head_dim": head_dim, "state_dim": state_dim}
    return Scene("state_space", sizes, heads * head_dim + 2 * groups * state_dim, "xbc")


@cases_of("space_inputs", isa=ISAS, shape=SHAPES)
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


@cases_of("space_update", isa=ISAS, shape=SHAPES, past_caches=[0, 1])
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
