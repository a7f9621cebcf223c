"""A feed-forward layer of many gated networks, of which each row goes through a few."""

from __future__ import annotations

from dataclasses import replace
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
    *,
    top_k: int,
    activation: str,
    activations: str,
) -> F32:
    """``sum_e routes[:, e] * down_e(activation(gate_e(x)) * up_e(x))``, in the order of experts.

    A row goes through the experts whose route is not 0, and of these through no more than the
    first ``top_k``. All products see their activations as ``ops/linear.py`` says.

    Source: Shazeer et al. 2017, equation 1; Jiang et al. 2024 (Mixtral), section 2.1.
    """
    chosen = routes != 0
    chosen &= np.cumsum(chosen, axis=1) <= top_k
    out = np.zeros_like(x)
    networks = zip(gate.matrices, up.matrices, down.matrices, strict=True)
    for expert, (gate_weight, up_weight, down_weight) in enumerate(networks):
        places = np.flatnonzero(chosen[:, expert])
        if len(places):
            taken = x[places]
            inner = gates.gate(
                products.linear(taken, gate_weight, activations=activations),
                products.linear(taken, up_weight, activations=activations),
                activation=activation,
            )
            made = products.linear(inner, down_weight, activations=activations)
            out[places] += routes[places, expert, None] * made
    return out


def _work(sizes: Sizes, nbytes: NBytes) -> Work:
    stacks = sum(nbytes[name] for name in ("gate", "up", "down"))
    return Work(
        macs=3 * sizes["N"] * sizes["K"] * sizes["top_k"],
        expert_nbytes=stacks // sizes["experts"],
        experts=sizes["experts"],
        chosen=sizes["top_k"],
        row_elements=sizes["top_k"] * max(sizes["N"], sizes["K"], SHORT_ROW),
    )


def _stack(count: int, shape: tuple[int, int], form: str, block: int, seed: int) -> ExpertStack:
    matrices: list[Matrix] = []
    for index in range(count):
        values = normal(shape, 10 * index + seed) / np.float32(shape[1] ** 0.5)
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
    # More routes than a row may have: the first ones count.
    first = examples[3]
    crowded = np.where(np.arange(8) % 3, normal((1, 8), 9), 0).astype(np.float32)
    return [*examples, replace(first, inputs={**first.inputs, "routes": crowded})]


OP = Op(
    inputs=(
        rows("x", "K"),
        rows("routes", "experts"),
        stack("gate", "experts", "N", "K"),
        stack("up", "experts", "N", "K"),
        stack("down", "experts", "K", "N"),
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
