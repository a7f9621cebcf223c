"""What a file in this folder says of its op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import State

F32: TypeAlias = NDArray[np.float32]

IDS = "ids"
POSITIONS = "positions"
LOGITS = "logits"

MAX_SIZE = 2**31 - 1
SMALLEST_NORMAL = 2.0**-126  # of float32
LARGEST_FLOAT32 = 2.0**128 * (1 - 2.0**-24)


class Kind(Enum):
    """What an input of an op is.

    ``ROWS`` is a value, ``BATCH`` one of ``ids`` and ``positions``, int32 ``[rows]``; the others
    are constants: float32 ``VECTOR``, float32 or packed ``MATRIX``, a ``STACK`` of either kind.
    """

    ROWS = "rows"
    BATCH = "batch"
    VECTOR = "vector"
    MATRIX = "matrix"
    STACK = "stack"


@dataclass(frozen=True, slots=True)
class Operand:
    """An input or an output of an op.

    Attributes:
        name: what the op calls it.
        kind: what it is.
        sizes: a name for each dimension, of a value for its width alone; the same name is the
            same size everywhere in a node, and a product of names is written ``a*b``; a sum,
            ``a+b``, may be the width of an output, and of an input if attributes say its terms.
        optional: whether it may be absent.
        dtype: element type of a value, ``"float32"`` or ``"int32"``.
        limit: largest magnitude of an element of a vector.
        of_heads: it is as long as a row, or else as the heads that all readers of the node's
            output divide rows into, or those that its first input is made of.
        every_row: of a value, that it must have a row for every token; others may have those alone
            whose logits are wanted, and then the outputs have these, too.
    """

    name: str
    kind: Kind
    sizes: tuple[str, ...] = ()
    optional: bool = False
    dtype: str = "float32"
    limit: float = LARGEST_FLOAT32
    of_heads: bool = False
    every_row: bool = False


def rows(
    name: str,
    width: str,
    *,
    optional: bool = False,
    dtype: str = "float32",
    every_row: bool = False,
) -> Operand:
    """A value ``[rows, width]``."""
    return Operand(name, Kind.ROWS, (width,), optional, dtype, every_row=every_row)


def vector(name: str, size: str, *, optional: bool = False) -> Operand:
    """A float32 constant ``[size]``."""
    return Operand(name, Kind.VECTOR, (size,), optional)


def matrix(name: str, height: str, width: str) -> Operand:
    """A constant ``[height, width]``, float32 or packed."""
    return Operand(name, Kind.MATRIX, (height, width))


def stack(name: str, experts: str, *sizes: str, optional: bool = False) -> Operand:
    """A constant ``[experts, *sizes]``: a matrix of each expert, or a vector."""
    return Operand(name, Kind.STACK, (experts, *sizes), optional)


@dataclass(frozen=True, slots=True)
class Attribute:
    """Type and range of an attribute.

    Attributes:
        kind: its exact type.
        low: the smallest number allowed.
        high: the largest number allowed.
        choices: the strings allowed.
        or_zero: whether 0 is allowed besides.
    """

    kind: type[int] | type[float] | type[str]
    low: float = -LARGEST_FLOAT32
    high: float = LARGEST_FLOAT32
    choices: tuple[str, ...] = ()
    or_zero: bool = False

    def allows(self, value: Any) -> bool:
        """Whether a value has the type and lies in the range."""
        if type(value) is not self.kind:
            return False
        if isinstance(value, str):
            return value in self.choices
        if self.or_zero and value == 0:
            return True
        return bool(self.low <= value <= self.high)  # neither is true of NaN

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = "a whole number" if self.kind is int else "a number"
        return f"{'0 or ' * self.or_zero}{kind} from {self.low:.6g} to {self.high:.6g}"


COUNT = Attribute(int, 1, MAX_SIZE)


@dataclass(frozen=True, slots=True)
class Work:
    """What a node has to multiply and to read.

    Attributes:
        macs: multiply-adds a row.
        cached_macs: multiply-adds for every row and token that it attends to.
        nbytes: bytes of constants that a call reads, however many rows it has.
        row_nbytes: bytes of constants that each row reads.
        expert_nbytes: bytes of the constants of one expert, which a call reads if a row goes there.
        experts: how many there are.
        chosen: how many of them a row goes to.
        row_elements: float32 numbers that a row may take in memory beside inputs and outputs.
    """

    macs: int = 0
    cached_macs: int = 0
    nbytes: int = 0
    row_nbytes: int = 0
    expert_nbytes: int = 0
    experts: int = 0
    chosen: int = 0
    row_elements: int = 0

    def active_experts(self, rows: int) -> float:
        """Experts that some of so many rows go to, if each row chooses by itself and evenly."""
        if not self.experts:
            return 0.0
        return self.experts * (1 - (1 - self.chosen / self.experts) ** rows)

    def read_nbytes(self, rows: int) -> float:
        """Bytes of constants that a call of so many rows reads."""
        return self.nbytes + self.row_nbytes * rows + self.expert_nbytes * self.active_experts(rows)


Sizes: TypeAlias = Mapping[str, int]
NBytes: TypeAlias = Mapping[str, int]  # of the constants of a node, by operand


def streams_constants(sizes: Sizes, nbytes: NBytes) -> Work:
    """The work of an op that multiplies nothing worth counting."""
    return Work(nbytes=sum(nbytes.values()))


@dataclass(frozen=True, slots=True)
class Example:
    """A node and its inputs, on which definition and back-ends are compared.

    Attributes:
        inputs: arrays and packed weights by operand; ``positions`` come from ``parts``.
        attributes: of the node.
        parts: of every sequence of the batch how many tokens are cached, and how many rows follow
            them; none is one sequence of all rows.
        selected: the inputs that have a row for every wanted logit alone: those of the last row of
            each sequence.
    """

    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[int, int], ...] = ()
    selected: tuple[str, ...] = ()


def rows_of(value: NDArray[Any], batch: Batch) -> NDArray[np.int64]:
    """Which rows of a batch a value has: all of them, or those whose logits are wanted."""
    return np.arange(batch.rows) if len(value) == batch.rows else batch.logit_rows.astype(np.int64)


def normal(shape: tuple[int, ...], seed: int) -> F32:
    """Normally distributed elements for examples."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Op:
    """An op: the schema of its nodes, its meaning, and what planning needs to know of it.

    Attributes:
        inputs: in order; optional ones come last.
        outputs: in order.
        define: computes the outputs from inputs (None for an absent one) and attributes, in NumPy,
            for clarity and not for speed; several outputs as a tuple.
        examples: makes some; every back-end that supports them is tested with them.
        attributes: by name; all must be there, and no others.
        equal: pairs of sizes that must be equal.
        divides: pairs of sizes of which the first must divide the second.
        at_most: pairs of sizes of which the first must not exceed the second.
        selects: whether its outputs have rows for the wanted logits only.
        state: what a node remembers, from its attributes; None for an op that remembers nothing.
        reads: what an earlier node remembers that this one reads; None for an op that reads none.
        context: what else ``define`` takes: ``"batch"``, ``"cache"``.
        model_sizes: sizes that a bundle's description states, by their names there.
        work: what a node has to do, from its sizes and the bytes of its constants.
        tolerance: error that a back-end may make, of the largest magnitude of an output.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    define: Callable[..., Any]
    examples: Callable[[], Sequence[Example]]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    divides: tuple[tuple[str, str], ...] = ()
    at_most: tuple[tuple[str, str], ...] = ()
    selects: bool = False
    state: Callable[[Mapping[str, Any]], State] | None = None
    reads: Callable[[Mapping[str, Any]], State] | None = None
    context: tuple[str, ...] = ()
    model_sizes: Mapping[str, str] = field(default_factory=dict)
    work: Callable[[Sizes, NBytes], Work] = streams_constants
    tolerance: float = 0.0

    def evaluate(
        self, inputs: Sequence[Any], attrs: Mapping[str, Any], batch: Batch, cache: SequenceStore
    ) -> tuple[NDArray[Any], ...]:
        """Computes the outputs by the definition.

        Args:
            inputs: arrays and packed weights, None for an absent optional one.
            attrs: attributes of the node.
            batch: the rows that run.
            cache: read and written by ops that keep state.
        """
        offered = {"batch": batch, "cache": cache}
        outputs = self.define(*inputs, **attrs, **{name: offered[name] for name in self.context})
        return outputs if isinstance(outputs, tuple) else (outputs,)
