"""The op schema: every operation that a lowered graph may contain.

Passes turn an ONNX graph into these ops; back-ends implement them; ``kernels/reference.py``
defines each in NumPy. Values are float32 ``[rows, width]``, one row per token of the batch, so
batch and sequence axes are gone. ``ids`` and ``positions`` are the batch's.

=============  ==========================================  =====================================
op             inputs                                      attributes
=============  ==========================================  =====================================
embedding      ids, table                                  (table: array or PackedWeight)
rms_norm       x, weight                                   epsilon; normalises groups of
                                                           ``len(weight)`` elements
linear         x, weight, bias?, residual?                 activations (see ``Activations``)
rotary         x, positions, inv_freq                      head_dim, factor
attention      q, k, v                                     layer, num_heads, num_kv_heads,
                                                           head_dim, scale, window (0: none)
gate           gate, up                                    activation: ``silu`` or ``relu2``
add            a, b
select_rows    x                                           keeps ``batch.logit_rows``
=============  ==========================================  =====================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

# How a linear layer sees its activations: as they are; rounded to int8 with one scale per row
# (BitNet b1.58, part of the trained model); or rounded per weight block (MatMulNBits
# accuracy_level 4, a property of the runtime that the exporter asked for).
Activations: TypeAlias = Literal["float", "int8_row", "int8_block"]

IDS = "ids"
POSITIONS = "positions"
LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class OpSchema:
    """Inputs (a trailing ``?`` marks an optional one) and attribute names of an op."""

    inputs: tuple[str, ...]
    attributes: tuple[str, ...] = ()


SCHEMAS: dict[str, OpSchema] = {
    "embedding": OpSchema(("ids", "table")),
    "rms_norm": OpSchema(("x", "weight"), ("epsilon",)),
    "linear": OpSchema(("x", "weight", "bias?", "residual?"), ("activations",)),
    "rotary": OpSchema(("x", "positions", "inv_freq"), ("head_dim", "factor")),
    "attention": OpSchema(
        ("q", "k", "v"), ("layer", "num_heads", "num_kv_heads", "head_dim", "scale", "window")
    ),
    "gate": OpSchema(("gate", "up"), ("activation",)),
    "add": OpSchema(("a", "b")),
    "select_rows": OpSchema(("x",)),
}
