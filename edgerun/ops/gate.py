"""A gated feed-forward layer's activation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgerun.ops.base import F32, Attribute, Example, Op, normal, rows


def silu(x: F32) -> F32:
    """``x * sigmoid(x)`` (Elfwing et al. 2018)."""
    return np.asarray(x / (1 + np.exp(-np.clip(x, -80, None))), dtype=np.float32)


def relu2(x: F32) -> F32:
    """``max(x, 0) ** 2`` (So et al. 2021)."""
    positive = np.maximum(x, np.float32(0))
    return positive * positive


ACTIVATIONS: dict[str, Callable[[F32], F32]] = {"silu": silu, "relu2": relu2}


def gate(gate: F32, up: F32, *, activation: str) -> F32:
    """``activation(gate) * up``."""
    return ACTIVATIONS[activation](gate) * up


def _examples() -> list[Example]:
    return [
        Example({"gate": 3 * normal(shape, 1), "up": normal(shape, 2)}, {"activation": activation})
        for activation in ACTIVATIONS
        for shape in [(1, 7), (3, 64)]
    ]


OP = Op(
    inputs=(rows("gate", "width"), rows("up", "width")),
    outputs=(rows("out", "width"),),
    define=gate,
    attributes={"activation": Attribute(str, choices=tuple(ACTIVATIONS))},
    model_sizes={"intermediate_size": "width"},
    tolerance=5e-7,
    examples=_examples,
)
