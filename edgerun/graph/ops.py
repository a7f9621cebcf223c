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

``SCHEMAS`` says the same as data, and more: types and ranges of attributes, and how the sizes of
inputs, weights and attributes hang together. ``graph/shapes.py`` derives widths from it,
``graph/check.py`` refuses what contradicts it. A new op is a row of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

# How a linear layer sees its activations: as they are; rounded to int8 with one scale per row
# (BitNet b1.58, part of the trained model); or rounded per weight block (MatMulNBits
# accuracy_level 4, a property of the runtime that the exporter asked for).
Activations: TypeAlias = Literal["float", "int8_row", "int8_block"]

IDS = "ids"
POSITIONS = "positions"
LOGITS = "logits"

MAX_SIZE = 2**31 - 1
SMALLEST_NORMAL = 2.0**-126  # of float32
LARGEST_FLOAT32 = 2.0**128 * (1 - 2.0**-24)


class Kind(Enum):
    """What an input of an op is.

    ``ROWS`` is a value, ``BATCH`` one of ``ids`` and ``positions``; the others are constants:
    float32 ``VECTOR``, float32 or packed ``MATRIX``.
    """

    ROWS = "rows"
    BATCH = "batch"
    VECTOR = "vector"
    MATRIX = "matrix"


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of an op.

    Attributes:
        name: what the op calls it.
        kind: what it is.
        sizes: a name for each dimension, of a value for its width alone; the same name is the
            same size everywhere in a node, and a product of names is written ``a*b``.
        optional: whether it may be absent.
    """

    name: str
    kind: Kind
    sizes: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """Type and range of an attribute.

    Attributes:
        kind: its exact type.
        low: the smallest number allowed.
        high: the largest number allowed.
        choices: the strings allowed.
    """

    kind: type[int] | type[float] | type[str]
    low: float = -LARGEST_FLOAT32
    high: float = LARGEST_FLOAT32
    choices: tuple[str, ...] = ()

    def allows(self, value: Any) -> bool:
        """Whether a value has the type and lies in the range."""
        if type(value) is not self.kind:
            return False
        if isinstance(value, str):
            return value in self.choices
        return bool(self.low <= value <= self.high)  # neither is true of NaN

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = "a whole number" if self.kind is int else "a number"
        return f"{kind} from {self.low:.6g} to {self.high:.6g}"


@dataclass(frozen=True, slots=True)
class OpSchema:
    """What a node of an op looks like; it has one output.

    Attributes:
        inputs: in order; optional ones come last.
        width: size that is the output's width.
        attributes: by name; all must be there, and no others.
        equal: pairs of sizes that must be equal.
        divides: pairs of sizes of which the first must divide the second.
        every_row: whether it must see a row for every token, not the selected ones.
        selects: whether its output has rows for the wanted logits only.
    """

    inputs: tuple[Operand, ...]
    width: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    divides: tuple[tuple[str, str], ...] = ()
    every_row: bool = False
    selects: bool = False


def _rows(name: str, width: str, *, optional: bool = False) -> Operand:
    return Operand(name, Kind.ROWS, (width,), optional)


def _vector(name: str, size: str, *, optional: bool = False) -> Operand:
    return Operand(name, Kind.VECTOR, (size,), optional)


def _matrix(name: str, rows: str, columns: str) -> Operand:
    return Operand(name, Kind.MATRIX, (rows, columns))


_COUNT = Attribute(int, 1, MAX_SIZE)

SCHEMAS: dict[str, OpSchema] = {
    "embedding": OpSchema(
        (Operand(IDS, Kind.BATCH), _matrix("table", "vocab", "width")),
        width="width",
    ),
    "rms_norm": OpSchema(
        (_rows("x", "width"), _vector("weight", "group")),
        width="width",
        attributes={"epsilon": Attribute(float, SMALLEST_NORMAL)},
        divides=(("group", "width"),),
    ),
    "linear": OpSchema(
        (
            _rows("x", "K"),
            _matrix("weight", "N", "K"),
            _vector("bias", "N", optional=True),
            _rows("residual", "N", optional=True),
        ),
        width="N",
        attributes={"activations": Attribute(str, choices=("float", "int8_row", "int8_block"))},
    ),
    "rotary": OpSchema(
        (_rows("x", "width"), Operand(POSITIONS, Kind.BATCH), _vector("inv_freq", "half")),
        width="width",
        attributes={"head_dim": _COUNT, "factor": Attribute(float)},
        equal=(("head_dim", "2*half"),),
        divides=(("head_dim", "width"),),
        every_row=True,
    ),
    "attention": OpSchema(
        (
            _rows("q", "num_heads*head_dim"),
            _rows("k", "num_kv_heads*head_dim"),
            _rows("v", "num_kv_heads*head_dim"),
        ),
        width="num_heads*head_dim",
        attributes={
            "layer": Attribute(int, 0, MAX_SIZE),
            "num_heads": _COUNT,
            "num_kv_heads": _COUNT,
            "head_dim": _COUNT,
            "scale": Attribute(float),
            "window": Attribute(int, 0, MAX_SIZE),
        },
        divides=(("num_kv_heads", "num_heads"),),
        every_row=True,
    ),
    "gate": OpSchema(
        (_rows("gate", "width"), _rows("up", "width")),
        width="width",
        attributes={"activation": Attribute(str, choices=("silu", "relu2"))},
    ),
    "add": OpSchema((_rows("a", "width"), _rows("b", "width")), width="width"),
    "select_rows": OpSchema((_rows("x", "width"),), width="width", every_row=True, selects=True),
}
