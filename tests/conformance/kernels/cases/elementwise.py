"""Cases of the kernels that treat every element by itself."""

from __future__ import annotations

from math import gcd

import numpy as np

from edgerun.activations.registry import ACTIVATIONS
from edgerun.formats import format_named
from edgerun.ops.registry import OPS
from edgerun.state import Batch
from tests.conformance.kernels.harness import (
    ISAS,
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    float_lanes,
    random,
    untouched,
)

GATED = [(1, 7, 1), (1, 1000, 4), (3, 64, 2), (2, 5, 3)]  # rows, width, pieces of a row
# What an activation may be wrong by where it is nearly 0: of GELU's exponent, which goes to 80
# there, the last bit of float32 is forty of the result.
NEAR_ZERO = dict.fromkeys(("gelu_tanh", "normal_cdf", "normal_cdf_tanh"), 1e-8)
SHAPES = [(1, 7), (3, 64), (2, 130)]


@cases_of("embedding_dense", shape=SHAPES)
def embedding_dense(shape: tuple[int, int]) -> Call:
    rows, width = shape
    table, ids = random((9, width)), np.array([8, 0, 3], np.int32)[:rows]
    out = untouched((rows, width + 3))

    def check() -> None:
        np.testing.assert_array_equal(out[:, :width], OPS["embedding"].define(ids, table))
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"ids": ids, "table": table, "vocab": 9, "out": out}
    fields |= {"width": width, "out_stride": width + 3}
    return Call({}, fields, rows, check)


@cases_of("embedding_block", form=[("ternary", 32), ("int2", 16), ("int4", 32), ("int8", 128)])
def embedding_block(form: tuple[str, int]) -> Call:
    name, block = form
    table = format_named(name).pack(random((9, 2 * block)), block)
    ids, out = np.array([8, 0, 3], np.int32), untouched((3, 2 * block))

    def check() -> None:
        np.testing.assert_array_equal(out, OPS["embedding"].define(ids, table))

    fields = {"ids": ids, "codes": table.codes, "scales": table.scales, "out": out}
    sizes = {"width": 2 * block, "out_stride": 2 * block, "vocab": 9}
    return Call({"bits": table.bits, "block": block}, fields | sizes, 3, check)


@cases_of("gate", isa=ISAS[:1], activation=list(ACTIVATIONS), shape=GATED)
@cases_of("gate", isa=ISAS[1:], activation=["silu"], shape=GATED)
def gate(isa: str, activation: str, shape: tuple[int, int, int]) -> Call:
    rows, width, pieces = shape
    x, up, out = (
        random((rows, width), 1, gap=1),
        random((rows, width), 2, gap=2),
        untouched((rows, width + 3)),
    )
    x[0, :3] = -300, 300, 0
    up[-1, 2:5] = -300, 300, 0

    def check() -> None:
        expected = OPS["gate"].define(x[:, :width], up[:, :width], activation=activation)
        near = 5e-7 * np.abs(expected) + NEAR_ZERO.get(activation, 0) * np.abs(up[:, :width])
        assert (np.abs(out[:, :width] - expected) <= near + 1e-30).all()
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"gate": x, "up": up, "out": out, "width": width, "pieces": pieces}
    strides = {"gate_stride": width + 1, "up_stride": width + 2, "out_stride": width + 3}
    params = {"activation": activation, "lanes": float_lanes(isa)}
    return Call(params, fields | strides, rows, check, rows * pieces)


@cases_of("add", isa=ISAS, shape=SHAPES)
def add(isa: str, shape: tuple[int, int]) -> Call:
    a, b, out = random(shape, 1), random(shape, 2), untouched(shape)

    def check() -> None:
        np.testing.assert_array_equal(out, OPS["add"].define(a, b))

    fields = {"left": a, "right": b, "out": out, "width": shape[1]}
    return Call({"lanes": float_lanes(isa)}, fields, shape[0], check)


@cases_of("add_to_heads", isa=ISAS, shape=[(1, 3, 5), (3, 2, 64), (2, 16, 24)])
def add_to_heads(isa: str, shape: tuple[int, int, int]) -> Call:
    rows, heads, width = shape
    a, b = random((rows, heads * width), 1, gap=2), random((rows, width), 2, gap=3)
    out = untouched((rows, heads * width + 1))

    def check() -> None:
        expected = OPS["add_to_heads"].define(a[:, :-2], b[:, :-3], heads=heads)
        np.testing.assert_array_equal(out[:, :-1], expected)
        assert (out[:, -1] == UNTOUCHED).all()

    fields = {"left": a, "right": b, "out": out, "heads": heads, "width": width}
    strides = {"left_stride": a.shape[1], "right_stride": b.shape[1], "out_stride": out.shape[1]}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check)


@cases_of(
    "gate_heads",
    isa=ISAS,
    activation=["sigmoid", "softplus"],
    shape=[(1, 3, 5), (3, 2, 64), (2, 16, 24)],
)
def gate_heads(isa: str, activation: str, shape: tuple[int, int, int]) -> Call:
    rows, heads, width = shape
    gate, up = random((rows, heads), 1, gap=3), random((rows, heads * width), 2, gap=2)
    out = untouched((rows, heads * width + 1))

    def check() -> None:
        expected = OPS["gate_heads"].define(
            gate[:, :-3], up[:, :-2], heads=heads, head_dim=width, activation=activation
        )
        assert_near(out[:, :-1], expected, 1e-6)
        assert (out[:, -1] == UNTOUCHED).all()

    fields = {"gate": gate, "up": up, "out": out, "heads": heads, "width": width}
    strides = {"gate_stride": gate.shape[1], "up_stride": up.shape[1], "out_stride": out.shape[1]}
    params = {"activation": activation, "lanes": float_lanes(isa)}
    return Call(params, fields | strides, rows, check)


@cases_of("scale", isa=ISAS, shape=SHAPES)
def scale(isa: str, shape: tuple[int, int]) -> Call:
    x, out, factor = random(shape, 1), untouched(shape), np.array([-0.37], np.float32)

    def check() -> None:
        np.testing.assert_array_equal(out, OPS["scale"].define(x, factor=float(factor[0])))

    fields = {"x": x, "out": out, "width": shape[1], "factor": factor}
    return Call({"lanes": float_lanes(isa)}, fields, shape[0], check)


@cases_of("softcap", isa=ISAS, bound=[5.0, 30.0], shape=[(1, 7, 1), (1, 1000, 4), (3, 64, 2)])
def softcap(isa: str, bound: float, shape: tuple[int, int, int]) -> Call:
    rows, width, pieces = shape
    x, out = random((rows, width), 1, gap=1), untouched((rows, width + 3))
    x[:, :width] *= np.geomspace(1e-6, 300, width, dtype=np.float32)
    x[0, :6] = -3000, 3000, 0, bound / 4, np.inf, np.nan

    def check() -> None:
        exact = bound * np.tanh(x[:, :width].astype(np.float64) / bound)
        assert np.isnan(out[0, 5])
        out[0, 5] = exact[0, 5] = 0
        assert (np.abs(out[:, :width] - exact) <= 8e-7 * np.abs(exact)).all()
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "out": out, "width": width, "pieces": pieces}
    fields |= {"bound": np.array([bound], np.float32)}
    strides = {"x_stride": width + 1, "out_stride": width + 3}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check, rows * pieces)


@cases_of("xielu", isa=ISAS, slope=[0.5, -2.0], shape=[(1, 7, 1), (1, 1000, 4), (3, 64, 2)])
def xielu(isa: str, slope: float, shape: tuple[int, int, int]) -> Call:
    rows, width, pieces = shape
    x, out = random((rows, width), 1, gap=1), untouched((rows, width + 3))
    x[:, :width] *= np.geomspace(1e-6, 300, width, dtype=np.float32)
    x[0, :6] = -3000, 3000, 0, -0.5, -1e-30, np.nan
    factors = {"square": 0.75, "bend": 1.25, "slope": slope}

    def check() -> None:
        wide = x[:, :width].astype(np.float64)
        below = np.minimum(wide, 0)
        terms = 0.75 * np.maximum(wide, 0) ** 2, 1.25 * (np.expm1(below) - below), slope * wide
        exact, size = sum(terms), sum(map(np.abs, terms))
        assert np.isnan(out[0, 5])
        out[0, 5] = exact[0, 5] = size[0, 5] = 0
        assert (np.abs(out[:, :width] - exact) <= 1e-6 * size).all()
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "out": out, "width": width, "pieces": pieces}
    fields |= {name: np.array([value], np.float32) for name, value in factors.items()}
    strides = {"x_stride": width + 1, "out_stride": width + 3}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check, rows * pieces)


@cases_of("select_rows", width=[7, 64])
def select_rows(width: int) -> Call:
    x, index = random((6, width), gap=2), np.array([0, 3, 5], np.int32)
    out = untouched((3, width))

    def check() -> None:
        np.testing.assert_array_equal(out, x[index, :width])

    fields = {"index": index, "x": x, "x_stride": width + 2, "out": out}
    return Call({}, fields | {"out_stride": width, "width": width}, 3, check)


@cases_of("rotary", isa=ISAS, shape=[(8, 3, 5), (64, 2, 1), (20, 1, 2)])
def rotary(isa: str, shape: tuple[int, int, int]) -> Call:
    head_dim, heads, rows = shape
    width = heads * head_dim
    frequencies = (10000.0 ** -(np.arange(head_dim // 2) * 2 / head_dim)).astype(np.float32)
    angles = np.arange(50, dtype=np.float32)[:, None] * frequencies
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * np.float32(1.5)
    positions = np.arange(11, 11 + rows, dtype=np.int32)
    x = random((rows, width), gap=3)
    before = x[:, :width].copy()

    def check() -> None:
        batch = Batch.of([0] * rows, int(positions[0]), 0)
        expected = OPS["rotary"].define(
            before, positions, frequencies, batch=batch, head_dim=head_dim, factor=1.5
        )
        assert_near(x[:, :width], expected, 4e-7)
        assert np.isnan(x[:, width:]).all()

    fields = {"positions": positions, "table": table, "x": x, "x_stride": width + 3}
    fields |= {"heads": heads, "head_dim": head_dim}
    return Call({"lanes": gcd(head_dim // 2, float_lanes(isa))}, fields, rows, check)


@cases_of("match_magnitude", isa=ISAS, shape=SHAPES)
def match_magnitude(isa: str, shape: tuple[int, int]) -> Call:
    rows, width = shape
    x, like = random(shape, 1, gap=1), random(shape, 2, gap=2)
    x[-1, :width] *= 1e-4  # less than the floor
    out, floor = untouched((rows, width + 3)), np.array([1e-5], np.float32)

    def check() -> None:
        expected = OPS["match_magnitude"].define(
            x[:, :width], like[:, :width], floor=float(floor[0])
        )
        assert_near(out[:, :width], expected, 1e-6)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "like": like, "out": out, "width": width, "floor": floor}
    strides = {"x_stride": width + 1, "like_stride": width + 2, "out_stride": width + 3}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check)


@cases_of("layer_norm", isa=ISAS, mean=[0.0, 30.0], groups=[1, 3], shape=SHAPES)
def layer_norm(isa: str, mean: float, groups: int, shape: tuple[int, int]) -> Call:
    rows, size = shape
    width = groups * size
    x, out = random((rows, width), gap=1), untouched((rows, width + 3))
    x += np.float32(mean)
    vectors = {"weight": random((width,), 2), "bias": random((width,), 3)}

    def check() -> None:
        expected = OPS["layer_norm"].define(
            x[:, :width].astype(np.float64), **vectors, groups=groups, epsilon=1e-3
        )
        assert_near(out[:, :width], expected, 1e-5 if mean else 1e-6)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "out": out, "groups": groups, "size": size}
    fields |= {"epsilon": np.array([1e-3], np.float32)}
    strides = {"x_stride": width + 1, "out_stride": width + 3}
    return Call({"lanes": float_lanes(isa)}, fields | vectors | strides, rows, check)


@cases_of("gaussian_top_k", isa=ISAS, deviations=[1.6448536, -0.25], shape=SHAPES)
def gaussian_top_k(isa: str, deviations: float, shape: tuple[int, int]) -> Call:
    rows, width = shape
    x, out = random(shape, 1, gap=1), untouched((rows, width + 3))
    x[:, :width] += 0.5

    def check() -> None:
        expected = OPS["gaussian_top_k"].define(x[:, :width], deviations=deviations)
        assert_near(out[:, :width], expected, 1e-6)
        assert (out[:, width:] == UNTOUCHED).all()

    fields = {"x": x, "out": out, "width": width}
    fields |= {"deviations": np.array([deviations], np.float32)}
    strides = {"x_stride": width + 1, "out_stride": width + 3}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check)


STREAMS = [(1, 4, 7), (3, 2, 64), (2, 4, 130), (2, 1, 5)]


@cases_of("altup_predict", isa=ISAS, shape=STREAMS)
def altup_predict(isa: str, shape: tuple[int, int, int]) -> Call:
    rows, parts, width = shape
    whole = parts * width
    streams, coefs = random((rows, whole), 1, gap=1), random((rows, parts * parts), 2, gap=2)
    out = untouched((rows, whole + 3))

    def check() -> None:
        given = streams[:, :whole], coefs[:, :-2]
        assert_near(out[:, :whole], OPS["altup_predict"].define(*given, parts=parts), 1e-6)
        assert (out[:, whole:] == UNTOUCHED).all()

    fields = {"streams": streams, "coefs": coefs, "out": out, "parts": parts, "width": width}
    strides = {"streams_stride": whole + 1, "coefs_stride": coefs.shape[1], "out_stride": whole + 3}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check)


@cases_of("altup_correct", isa=ISAS, scaled=[True, False], in_place=[True, False], shape=STREAMS)
def altup_correct(isa: str, scaled: bool, in_place: bool, shape: tuple[int, int, int]) -> Call:
    rows, parts, width = shape
    whole = parts * width
    activated, predictions = random((rows, width), 1, gap=1), random((rows, whole), 2, gap=3)
    coefs, scale = random((rows, parts), 3, gap=2), random((width,), 4) if scaled else 0
    before = predictions.copy()
    out = predictions if in_place else untouched((rows, whole + 3))
    first = untouched((rows, width + 1))

    def check() -> None:
        given = activated[:, :width], before[:, :whole], coefs[:, :parts], scale if scaled else None
        expected = OPS["altup_correct"].define(*given, parts=parts)
        assert_near(out[:, :whole], expected[0], 1e-6)
        assert_near(first[:, :width], expected[1], 1e-6)
        if not in_place:
            assert (out[:, whole:] == UNTOUCHED).all()
        assert (first[:, width:] == UNTOUCHED).all()

    fields = {"activated": activated, "predictions": predictions, "coefs": coefs, "scale": scale}
    fields |= {"out": out, "first": first, "parts": parts, "width": width}
    strides = {"activated_stride": width + 1, "predictions_stride": whole + 3}
    strides |= {"coefs_stride": parts + 2, "out_stride": whole + 3, "first_stride": width + 1}
    return Call({"lanes": float_lanes(isa)}, fields | strides, rows, check)
