"""A gate for each head, which multiplies all that the head makes."""

from __future__ import annotations

from edgerun.activations.registry import ACTIVATIONS
from edgerun.ops.base import COUNT, F32, Attribute, Example, Op, normal, rows


def gate_heads(gate: F32, up: F32, *, heads: int, head_dim: int, activation: str) -> F32:
    """``activation(gate) * up``, where each of ``heads`` parts of ``up`` has one gate."""
    factors = ACTIVATIONS[activation].define(gate)
    return (factors[:, :, None] * up.reshape(len(up), heads, head_dim)).reshape(up.shape)


def _examples() -> list[Example]:
    examples = []
    for activation in ACTIVATIONS:
        for height, heads, width in [(1, 3, 5), (3, 2, 64), (4, 1, 7)]:
            gate = 3 * normal((height, heads), 1)
            gate[0, 0] = -300
            inputs = {"gate": gate, "up": 3 * normal((height, heads * width), 2)}
            attributes = {"heads": heads, "head_dim": width, "activation": activation}
            examples.append(Example(inputs, attributes))
    return examples


OP = Op(
    inputs=(rows("gate", "heads"), rows("up", "heads*head_dim")),
    outputs=(rows("out", "heads*head_dim"),),
    define=gate_heads,
    attributes={
        "heads": COUNT,
        "head_dim": COUNT,
        "activation": Attribute(str, choices=tuple(ACTIVATIONS)),
    },
    tolerance=5e-7,
    examples=_examples,
)
