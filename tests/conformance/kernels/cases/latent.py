"""What is around attention to latent rows."""

from __future__ import annotations

import numpy as np

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

# Heads, width, inputs, outputs, copied of either half, width of outputs.
SHAPES = [(2, 24, 16, 96, 4, 112), (1, 12, 12, 5, 0, 9)]
# Halves on every instruction set: compiling takes most of the time.
VARIANTS = [(isa, "fp16") for isa in ISAS] + [(ISAS[0], "fp32")]


@cases_of("head_products", variant=VARIANTS, rows=[1, 4, 7], shape=SHAPES)
def head_products(variant: tuple[str, str], rows: int, shape: tuple[int, ...]) -> Call:
    isa, dtype = variant
    heads, width, inputs, outputs, copied, out_width = shape
    x = random((rows, heads * width), 1, gap=3)
    weights = random((heads, inputs, outputs), 2).astype({"fp16": "f2", "fp32": "f4"}[dtype])
    out = untouched((rows, heads * out_width + 1))

    def check() -> None:
        halves = x[:, : heads * width].reshape(rows, heads, 2, width // 2)
        multiplied = halves[..., copied : copied + inputs // 2].reshape(rows, heads, inputs)
        products = np.einsum("rhi,hio->rho", multiplied, weights.astype(np.float64))
        result = out[:, :-1].reshape(rows, heads, out_width)
        assert_near(result[..., :outputs], products, 1e-6)
        tail = halves[..., :copied].reshape(rows, heads, 2 * copied)
        np.testing.assert_array_equal(result[..., outputs : outputs + 2 * copied], tail)
        assert not result[..., outputs + 2 * copied :].any()
        assert (out[:, -1] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": x.shape[1], "weights": weights, "out": out}
    fields |= {"out_stride": out.shape[1], "heads": heads, "width": width, "inputs": inputs}
    fields |= {
        "item": weights.itemsize,
        "half": width // 2,
        "copied": copied,
        "out_width": out_width,
    }
    params = {"dtype": dtype, "outputs": outputs, "lanes": float_lanes(isa)}
    return Call(params, fields, rows, check, heads)


@cases_of("latent_keys", shape=[(1, 5, 8, 2), (3, 32, 24, 4), (2, 16, 6, 3)])
def latent_keys(shape: tuple[int, int, int, int]) -> Call:
    rows, size, width, copied = shape
    latent, turned = random((rows, size), 1, gap=2), random((rows, width), 2, gap=1)
    out = untouched((rows, size + 2 * copied + 1))

    def check() -> None:
        halves = turned[:, :width].reshape(rows, 2, width // 2)[..., :copied]
        expected = np.concatenate([latent[:, :size], halves.reshape(rows, -1)], axis=1)
        np.testing.assert_array_equal(out[:, :-1], expected)
        assert (out[:, -1] == UNTOUCHED).all()

    fields = {"latent": latent, "latent_stride": size + 2, "turned": turned, "out": out}
    fields |= {"turned_stride": width + 1, "out_stride": out.shape[1], "size": size}
    return Call({}, fields | {"width": width, "copied": copied}, rows, check)
