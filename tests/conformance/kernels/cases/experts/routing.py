"""Cases of the kernels that choose experts."""

from __future__ import annotations

import numpy as np

from edgerun.ops.registry import OPS
from tests.conformance.kernels.harness import (
    UNTOUCHED,
    Call,
    assert_near,
    cases_of,
    random,
    untouched,
)

NAN, INFINITY = np.nan, np.inf


@cases_of(
    "route",
    scoring=["softmax", "sigmoid"],
    shape=[(3, 8, 2), (1, 128, 8), (4, 5, 5), (2, 1, 1), (20, 70, 6)],
    normalise=[0, 1],
    biased=["", "scores", "logits"],
)
def route(scoring: str, shape: tuple[int, int, int], normalise: int, biased: str) -> Call:
    rows, experts, top_k = shape
    x, out = random((rows, experts), gap=2), untouched((rows, experts + 3))
    x[-1, : experts // 2] = x[-1, 0]
    if rows > 2:
        x[1, experts // 2] = -INFINITY
    bias = random((experts,)) if biased else None
    if bias is not None:
        bias[: experts // 2] = bias[0]
    given = {"top_k": top_k, "normalise": normalise, **scored(scoring, biased), **grouping(1, 1, 1)}
    expected = OPS["route"].define(x[:, :experts], bias, **given, epsilon=0.25, scale=2.5)

    def check() -> None:
        assert_near(out[:, :experts], expected, 1e-6)
        np.testing.assert_array_equal(out[:, :experts] != 0, expected != 0)
        assert (out[:, experts:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": experts + 2, "out": out, "out_stride": experts + 3}
    fields |= {"scale": np.float32([2.5]), "epsilon": np.float32([0.25]), "experts": experts}
    fields |= {"bias": 0 if bias is None else bias, "top_k": top_k, "normalise": normalise}
    params = {"scoring": scoring, "biased": biased, "grouped": False}
    return Call(params, fields | grouping(1, 1, 1), rows, check)


def scored(scoring: str, biased: str) -> dict[str, str]:
    return {"scoring": scoring, "biased": biased or "scores"}


def grouping(*numbers: int) -> dict[str, int]:
    """Attributes that say of how many groups how many are chosen, and by how many experts."""
    return dict(zip(("groups", "top_groups", "group_top_k"), numbers, strict=True))


@cases_of(
    "route",
    scoring=["softmax", "sigmoid"],
    shape=[
        *((3, 8, 2, (4, 2, 1)), (40, 24, 4, (6, 2, 2)), (2, 256, 8, (8, 4, 2))),
        *((2, 6, 2, (6, 2, 1)), (3, 30, 30, (2, 2, 2))),
    ],
    biased=["", "scores", "logits"],
)
def route_in_groups(
    scoring: str, shape: tuple[int, int, int, tuple[int, ...]], biased: str
) -> Call:
    """Most experts and groups are as good as another."""
    (rows, experts, top_k, groups), rng = shape, np.random.default_rng(shape[:2])
    x = rng.choice(np.float32([-1, 0, 0.7, 1.9]), (rows, experts))
    x[0, ::2] = -INFINITY
    bias = rng.choice(np.float32([-2, 0, 0.4]), experts) if biased else None
    out, numbers = untouched((rows, experts + 3)), grouping(*groups)
    given = {"top_k": top_k, "normalise": 1, **scored(scoring, biased), **numbers}
    expected = OPS["route"].define(x, bias, **given, epsilon=0.25, scale=2.5)

    def check() -> None:
        assert_near(out[:, :experts], expected, 1e-6)
        np.testing.assert_array_equal(out[:, :experts] != 0, expected != 0)
        assert (out[:, experts:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": experts, "out": out, "out_stride": experts + 3}
    fields |= {"scale": np.float32([2.5]), "epsilon": np.float32([0.25]), "experts": experts}
    fields |= {"bias": 0 if bias is None else bias, "top_k": top_k, "normalise": 1, **numbers}
    return Call({"scoring": scoring, "biased": biased, "grouped": True}, fields, rows, check)


@cases_of(
    "route",
    scoring=["softmax", "sigmoid"],
    wrong=[
        (NAN, 1, 2, 3),
        (NAN, NAN, NAN, NAN),
        (INFINITY, 1, 2, 3),
        (INFINITY, INFINITY, -INFINITY, NAN),
        (-INFINITY, -INFINITY, -INFINITY, -INFINITY),
        (-INFINITY, NAN, 5, 5),
        (INFINITY, -INFINITY, 1, 2),
    ],
    biased=["", "scores", "logits"],
    groups=[(1, 1, 1), (2, 1, 1), (2, 1, 2)],
)
def route_of_no_numbers(
    scoring: str, wrong: tuple[float, ...], biased: str, groups: tuple[int, ...]
) -> Call:
    x, out = np.float32([wrong]), untouched((1, 4))
    bias = np.float32([-2, 1, 0, 3]) if biased else None
    given = {"top_k": 2, "normalise": 0, "epsilon": 0.0, "scale": 1.0, **scored(scoring, biased)}
    expected = OPS["route"].define(x, bias, **given, **grouping(*groups))

    def check() -> None:
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-30)

    fields = {"x": x, "x_stride": 4, "out": out, "out_stride": 4, "experts": 4, "top_k": 2}
    fields |= {"scale": np.ones(1, np.float32), "epsilon": np.zeros(1, np.float32)}
    fields |= {"bias": 0 if bias is None else bias, "normalise": 0, **grouping(*groups)}
    params = {"scoring": scoring, "biased": biased, "grouped": groups[0] > 1}
    return Call(params, fields, 1, check)


@cases_of(
    "sparse_mixer",
    shape=[(3, 16, 2), (1, 70, 3), (4, 2, 2), (20, 5, 1)],
    margin=[0.02, 0.5, 1.5],
)
def sparse_mixer(shape: tuple[int, int, int], margin: float) -> Call:
    """Some rows have logits below 0 alone, zeros, or such that are no numbers."""
    rows, experts, top_k = shape
    x, out = random((rows, experts), gap=2), untouched((rows, experts + 3))
    x[0] -= 4
    if rows > 2:
        x[1], x[2, 0] = 0, -INFINITY
    if rows > 3:
        x[3, 1] = NAN
    if rows > 4:
        x[4, 1] = INFINITY
    given = {"normalise": 0, "epsilon": 0.0, "scale": 2.5, "top_k": top_k, "margin": margin}
    given |= scored("sparse_mixer", "") | grouping(1, 1, 1)
    expected = OPS["route"].define(x[:, :experts], **given)

    def check() -> None:
        np.testing.assert_allclose(out[:, :experts], expected, rtol=2e-6, atol=1e-30)
        assert (out[:, experts:] == UNTOUCHED).all()

    fields = {"x": x, "x_stride": experts + 2, "out": out, "out_stride": experts + 3}
    fields |= {"scale": np.float32([2.5]), "margin": np.float32([margin])}
    return Call({}, fields | {"experts": experts, "top_k": top_k}, rows, check)
