"""A segment as a network of OpenVINO's ops, whose shapes are all static.

Shapes are ours: so many rows, room for so much past, so many rows of logits. The host fills in
what a call brings: rows of embeddings, tables of angles, masks, and the past out of the pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.openvino.matrices import Stored, make_matrix
from edgerun.graph.ir import Constant, Graph, Node, ValueShape
from edgerun.graph.mapped_file import read_array
from edgerun.graph.shapes import value_shapes
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, State

OPSET = "openvino.opset13"


@dataclass(frozen=True, slots=True)
class Extent:
    """The static sizes of a network.

    Attributes:
        rows: tokens of a call; fewer are padded.
        past: tokens for which there is room before them.
        logit_rows: rows whose logits are computed; 0 if it ends with keys and values.
    """

    rows: int
    past: int
    logit_rows: int

    def __str__(self) -> str:
        return f"{self.rows} rows after up to {self.past} tokens"


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of one sequence, for one call of a network.

    Attributes:
        ids: token ids, int32 ``[rows]``, padded.
        slot: of the sequence.
        start: position of the first row.
        length: rows that are tokens.
        logit_rows: rows whose logits are computed, int32 ``[extent.logit_rows]``, padded.
        inputs: what the segment reads, by name, padded.
    """

    ids: NDArray[np.int32]
    slot: int
    start: int
    length: int
    logit_rows: NDArray[np.int32]
    inputs: dict[str, NDArray[np.float32]]

    @property
    def rows(self) -> int:
        """Tokens of the call, those that pad it included."""
        return len(self.ids)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Of all rows."""
        return np.arange(self.start, self.start + self.rows, dtype=np.int32)

    def positions_of(self, selected: bool) -> NDArray[np.int32]:
        """Of all rows, or of those whose logits are computed."""
        return self.positions[self.logit_rows] if selected else self.positions


Fill: TypeAlias = Callable[[Piece], NDArray[Any]]
Translate: TypeAlias = "Callable[[Translation, Node], Any]"


@dataclass(frozen=True, slots=True)
class Present:
    """A layer's new keys and values.

    Attributes:
        state: of the layer.
        rows: outputs, ``[rows, heads * dim]`` each.
    """

    state: AttentionState
    rows: tuple[Any, Any]


def part_names(state: AttentionState) -> tuple[str, str]:
    """The inputs with a layer's keys and with its values."""
    return f"{state.name}.key", f"{state.name}.value"


class Translation:
    """A network in the making.

    Attributes:
        segment: what is translated.
        extent: static sizes.
        states: what the model's layers remember.
        ops: OpenVINO's functions that make ops.
        inputs: by name.
        fills: of every input that the host computes, how, by the input's name.
        present: new keys and values, of each layer that has some.
        written_states: of layers of earlier networks whose keys and values are read here.
        is_half: the device computes in half precision.
    """

    def __init__(
        self,
        segment: Graph,
        extent: Extent,
        states: tuple[State, ...],
        stored: Stored | None,
        translators: Mapping[str, Translate],
        *,
        is_half: bool = False,
    ) -> None:
        """Translates all nodes.

        Args:
            segment: all of whose nodes are supported.
            extent: of the network.
            states: what the layers remember.
            stored: how the device holds weights; None for a sketch, with inputs in their place.
            translators: by op, what makes OpenVINO's output of a node, or outputs, where it has
                several; None if nothing reads it.
            is_half: the device computes in half precision.
        """
        from importlib import import_module

        self.segment, self.extent, self.states = segment, extent, states
        self.is_half = is_half
        self.ops: Any = import_module(OPSET)
        self.inputs: dict[str, Any] = {}
        self.fills: dict[str, Fill] = {}
        self.present: list[Present] = []
        self.written_states: list[AttentionState] = []
        self._stored = stored
        self._matrices: dict[str, Any] = {}
        self._read = {name for node in segment.nodes for name in node.inputs}
        self._shapes = value_shapes(segment)
        self._values: dict[str, Any] = {}
        for name in segment.inputs:
            self._values[name] = self._segment_input(name)
        for node in segment.nodes:
            is_computed = OPS[node.op].state is not None or self._is_computed(node.inputs)
            result = translators[node.op](self, node) if is_computed else None
            outputs = result if isinstance(result, tuple) else (result,) * len(node.outputs)
            self._values.update(zip(node.outputs, outputs, strict=True))

    @property
    def outputs(self) -> dict[str, Any]:
        """The segment's outputs that the network computes."""
        named = {name: self._values.get(name) for name in self.segment.outputs}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def matrices(self) -> list[Constant]:
        """The matrices that it multiplies with."""
        return [self.segment.constants[name] for name in self._matrices]

    def value(self, name: str) -> Any:
        """The output of an earlier node, by its name."""
        return self._values[name]

    def sized(self, name: str) -> tuple[Any, int, int]:
        """A value, its rows and its width."""
        shape = self._shapes[name]
        return self.value(name), self.rows_of(shape), shape.width

    def is_selected(self, name: str) -> bool:
        """Whether a value has a row for each wanted logit alone."""
        return self._shapes[name].selected

    def rows_of(self, shape: ValueShape) -> int:
        """Rows that a value has here."""
        return self.extent.logit_rows if shape.selected else self.extent.rows

    def is_read(self, name: str) -> bool:
        """Whether anything needs a value."""
        return name in self._read or name in self.segment.outputs

    def constant(self, array: NDArray[Any] | np.generic) -> Any:
        """A small constant."""
        return self.ops.constant(read_array(np.asarray(array)))

    def integers(self, *numbers: int) -> Any:
        """Axes, sizes or indices; one is a scalar."""
        return self.ops.constant(np.array(numbers[0] if len(numbers) == 1 else numbers, np.int64))

    def reshape(self, value: Any, shape: tuple[int, ...]) -> Any:
        """A value of the same elements in another shape."""
        return self.ops.reshape(value, self.ops.constant(np.array(shape, np.int64)), False)

    def matrix(self, name: str) -> Any:
        """A constant matrix ``[N, K]`` in float32, which the device keeps packed if it can."""
        if name not in self._matrices:
            constant = self.segment.constants[name]
            self._matrices[name] = (
                self.ops.parameter(list(constant.shape), np.float32, name=name)
                if self._stored is None
                else make_matrix(self.ops, constant, self._stored)
            )
        return self._matrices[name]

    def feed(self, name: str, shape: tuple[int, ...], fill: Fill, dtype: Any = np.float32) -> Any:
        """An input that the host computes; one of a name that was fed before is that one."""
        self.fills.setdefault(name, fill)
        return self._input(name, shape, dtype)

    def extend_cache(self, state: AttentionState, keys: Any, values: Any) -> tuple[Any, Any]:
        """Makes a layer's new keys and values outputs; returns the inputs with those before."""
        self.present.append(Present(state, (keys, values)))
        return self.past(state)

    def new_rows(self, state: AttentionState) -> tuple[Any, Any] | None:
        """The keys and values that this network computes of a layer; None if it does not."""
        return next((each.rows for each in self.present if each.state == state), None)

    def past(self, state: AttentionState) -> tuple[Any, Any]:
        """The inputs with a layer's keys and values before the rows of the call."""
        return self._stored_rows(state, self.extent.past)

    def written(self, state: AttentionState) -> tuple[Any, Any]:
        """The inputs with a layer's keys and values, the rows of the call included.

        An earlier network has computed them.
        """
        if state not in self.written_states:
            self.written_states.append(state)
        return self._stored_rows(state, self.extent.past + self.extent.rows)

    def _stored_rows(self, state: AttentionState, tokens: int) -> tuple[Any, Any]:
        widths = (state.kv_heads * state.key_dim, state.kv_heads * state.value_dim)
        keys, values = (
            self._input(name, (tokens, width), np.float32)
            for name, width in zip(part_names(state), widths, strict=True)
        )
        return keys, values

    def _input(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        if name not in self.inputs:
            self.inputs[name] = self.ops.parameter(list(shape), dtype, name=name)
        return self.inputs[name]

    def _segment_input(self, name: str) -> Any:
        shape = self._shapes[name]
        rows = self.rows_of(shape)
        return (
            self.feed(name, (rows, shape.width), lambda piece: piece.inputs[name]) if rows else None
        )

    def _is_computed(self, inputs: tuple[str, ...]) -> bool:
        """Whether none of a node's inputs is left out, as rows of logits that nobody wants are."""
        return all(self._values.get(name, self) is not None for name in inputs)
