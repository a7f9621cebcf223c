"""A feed-forward layer of many gated networks, of which each row goes through a few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edgerun.activations.registry import ACTIVATIONS
from edgerun.formats import format_named
from edgerun.formats.stack import ExpertStack, Matrix
from edgerun.ops import gate as gates
from edgerun.ops import linear as products
from edgerun.ops.base import (
    COUNT,
    F32,
    Attribute,
    Example,
    NBytes,
    Op,
    Sizes,
    Work,
    normal,
    rows,
    stack,
)

SHORT_ROW = 256  # elements that shorter rows are padded to, if a back-end pads them


def experts(
    x: F32,
    routes: F32,
    gate: ExpertStack,
    up: ExpertStack,
    down: ExpertStack,
    gate_bias: ExpertStack | None = None,
    up_bias: ExpertStack | None = None,
    down_bias: ExpertStack | None = None,
    *,
    top_k: int,
    activation: str,
    activations: str,
) -> F32:
    """``sum_e routes[:, e] * down_e(activation(gate_e(x)) * up_e(x))``, in the order of experts.

    A row goes through the experts whose route is not 0, and of these through no more than the
    first ``top_k``. All products see their activations as ``ops/linear.py`` says, and may have a
    bias for each expert.

    Source: Shazeer et al. 2017, equation 1; Jiang et al. 2024 (Mixtral), section 2.1.
    """
    chosen = routes != 0
    chosen &= np.cumsum(chosen, axis=1) <= top_k
    out = np.zeros_like(x)
    for expert in range(routes.shape[1]):
        places = np.flatnonzero(chosen[:, expert])
        if len(places):
            product = partial(_product, expert=expert, activations=activations)
            taken = x[places]
            inner = gates.gate(
                product(taken, gate, gate_bias),
                product(taken, up, up_bias),
                activation=activation,
            )
            out[places] += routes[places, expert, None] * product(inner, down, down_bias)
    return out


def _product(
    x: F32, weight: ExpertStack, bias: ExpertStack | None, *, expert: int, activations: str
) -> F32:
    vector = None if bias is None else bias.vector(expert)
    return products.linear(x, weight.matrices[expert], vector, activations=activations)


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    matrices = 2 if nbytes.get("up") == 0 else 3  # networks without a gate have the same twice
    return Work(
        macs=matrices * sizes["N"] * sizes["K"] * sizes["top_k"],
        expert_nbytes=sum(nbytes.values()) // sizes["experts"],
        experts=sizes["experts"],
        chosen=sizes["top_k"],
        row_elements=sizes["top_k"] * max(sizes["N"], sizes["K"], SHORT_ROW),
    )


def _stack(count: int, shape: tuple[int, int], form: str, block: int, seed: int) -> ExpertStack:
    matrices: list[Matrix] = []
    for index in range(count):
        values = normal(shape, 10 * index + seed) / np.float32(shape[1] ** 0.5)
        if form.endswith("_asym"):
            values = values + np.float32(0.1)
        if form == "float32":
            matrices.append(values)
            continue
        packed = format_named(form.removesuffix(" by row")).pack(_padded(values, block), block)
        packed = replace(packed, shape=shape)
        if form.endswith(" by row"):
            scales = np.repeat(packed.scales[:, :1], packed.blocks, axis=1)
            packed = replace(packed, scales=scales)
        matrices.append(packed)
    return ExpertStack(tuple(matrices))


def _biases(count: int, widths: Mapping[str, int]) -> dict[str, ExpertStack]:
    return {
        f"{name}_bias": ExpertStack(tuple(3 * normal((width,), 20 + e) for e in range(count)))
        for name, width in widths.items()
    }


def _padded(values: F32, block: int) -> F32:
    return np.pad(values, ((0, 0), (0, -values.shape[1] % block)))


def _routes(height: int, count: int, top_k: int) -> F32:
    """Each row goes to a random choice of experts, and the first and the last are popular."""
    rng, routes = np.random.default_rng(height), np.zeros((height, count), np.float32)
    for row in routes:
        likely = np.ones(count)
        likely[[0, -1]] = count
        places = rng.choice(count, top_k, replace=False, p=likely / likely.sum())
        row[places] = rng.uniform(0.1, 1, top_k)
    return routes


def _examples() -> list[Example]:
    examples = []
    for form, block, activations in [
        ("float32", 0, "float"),
        ("int4", 32, "float"),
        ("int4", 32, "int8_block"),
        ("int8", 16, "int8_block"),
        ("int2", 16, "int8_block"),
        ("int4_asym", 32, "int8_block"),
        ("int4_asym", 32, "float"),
        ("int8_asym", 16, "int8_block"),
        ("ternary", 32, "int8_block"),
        ("ternary by row", 32, "int8_row"),
        ("float32", 0, "int8_row"),
    ]:
        for height, count, top_k, wide in [(1, 8, 2, 48), (40, 5, 3, 40), (5, 1, 1, 72)]:
            inputs: dict[str, Any] = {
                "x": normal((height, 96), 1),
                "routes": _routes(height, count, top_k),
            }
            for seed, (name, shape) in enumerate(
                {"gate": (wide, 96), "up": (wide, 96), "down": (96, wide)}.items()
            ):
                inputs[name] = _stack(count, shape, form, block, seed)
            chosen = {"top_k": top_k, "activation": "silu", "activations": activations}
            examples.append(Example(inputs, chosen))
            if form in ("float32", "int4"):
                biased = inputs | _biases(count, {"gate": wide, "up": wide, "down": 96})
                examples.append(Example(biased, {**chosen, "activation": "clamped_swiglu"}))
    # More routes than a row may have: the first ones count.
    first = next(each for each in examples if each.attributes["activations"] == "int8_block")
    crowded = np.where(np.arange(8) % 3, normal((1, 8), 9), 0).astype(np.float32)
    mixed = _stack(8, (96, 48), "int2_asym", 16, 2)
    others = {"routes": crowded}, {"down": mixed}
    return [*examples, *(replace(first, inputs={**first.inputs, **each}) for each in others)]


OP = Op(
    inputs=(
        rows("x", "K"),
        rows("routes", "experts"),
        stack("gate", "experts", "N", "K"),
        stack("up", "experts", "N", "K"),
        stack("down", "experts", "K", "N"),
        stack("gate_bias", "experts", "N", optional=True),
        stack("up_bias", "experts", "N", optional=True),
        stack("down_bias", "experts", "K", optional=True),
    ),
    outputs=(rows("out", "K"),),
    define=experts,
    attributes={
        "top_k": COUNT,
        "activation": Attribute(str, choices=tuple(ACTIVATIONS)),
        "activations": Attribute(str, choices=("float", "int8_row", "int8_block")),
    },
    at_most=(("top_k", "experts"),),
    model_sizes={
        "intermediate_size": "N",
        "num_experts": "experts",
        "experts_per_token": "top_k",
    },
    work=_work,
    tolerance=5e-6,
    examples=_examples,
)
