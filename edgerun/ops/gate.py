"""The gate of a feed-forward layer."""

from __future__ import annotations

from edgerun.activations.registry import ACTIVATIONS
from edgerun.ops.base import F32, Attribute, Example, Op, normal, rows


def gate(gate: F32, up: F32, *, activation: str) -> F32:
    """The product that one of the files in ``activations/`` says, ``activation(gate) * up``."""
    return ACTIVATIONS[activation].product(gate, up)


def _examples() -> list[Example]:
    examples = []
    for activation in ACTIVATIONS:
        for shape in ((1, 7), (3, 64)):
            values = 3 * normal(shape, 1)
            values[0, :3] = -300, 300, 0
            inputs = {"gate": values, "up": 3 * normal(shape, 2)}
            examples.append(Example(inputs, {"activation": activation}))
    return examples


OP = Op(
    inputs=(rows("gate", "width"), rows("up", "width")),
    outputs=(rows("out", "width"),),
    define=gate,
    attributes={"activation": Attribute(str, choices=tuple(ACTIVATIONS))},
    model_sizes={"intermediate_size": "width"},
    tolerance=5e-7,
    examples=_examples,
)
