"""Linear attention with what it remembers, in elementary ops and a loop over tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.layer import GatedDelta
from edgerun_export.graph.blocks import FLOAT, activated
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.short_conv import ConvBuilder
from edgerun_export.graph.weight_store import WeightStore

_Shape: TypeAlias = tuple[str | int, ...]
TOKENS = 1  # the axis that the loop goes along
ACTIVATION = "silu"


class DeltaBuilder:
    """Adds the linear attention of a decoder, between its projections and its norm.

    A layer remembers its inputs as a short convolution does, ``[batch, width, taps - 1]``, and the
    matrix of each value head, ``[batch, value_heads, key_dim, value_dim]``, zeros before the first
    token. Tokens that are padding leave zeros as they are.
    """

    def __init__(
        self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec, conv: ConvBuilder
    ) -> None:
        self._graph, self._store, self._spec, self._conv = graph, store, spec, conv

    def mix(self, layer: int, qkv: str, decay: str, write: str) -> str:
        """Adds what queries read of the matrices.

        Args:
            layer: its number.
            qkv: queries, keys and values before the convolution, ``[batch, sequence, width]``.
            decay: what tokens say of the decay, ``[batch, sequence, value_heads]``.
            write: likewise of the strength of a change.

        Returns:
            ``[batch, sequence, value_heads, value_dim]``.
        """
        delta, add, integers = self._delta(layer), self._graph.node, self._graph.integers
        at = node_path(f"model.layers.{layer}.{delta.module}")
        mixed = self._conv.convolve(layer, qkv, at, delta.weight, delta.width, delta.taps)
        active = activated(self._graph, ACTIVATION, mixed, f"{at}/activation")
        keys = delta.key_heads * delta.key_dim
        parts = [self._graph.value() for _ in range(3)]
        sizes = integers(keys, keys, delta.value_width)
        add("Split", [active, sizes], f"{at}/Split", outputs=parts, axis=-1)
        query = self._heads(parts[0], delta, f"{at}/query")
        query = add("Mul", [query, self._graph.scalar(delta.key_dim**-0.5)], f"{at}/query/scaled")
        key = self._heads(parts[1], delta, f"{at}/key")
        rows = integers(3)
        query = add("Unsqueeze", [query, rows], f"{at}/query/row")
        key = add("Unsqueeze", [key, rows], f"{at}/key/row")
        shape = integers(0, 0, delta.value_heads, 1, delta.value_dim)
        value = add("Reshape", [parts[2], shape], f"{at}/value/row")
        number = self._spec.state(layer)
        scan_inputs = [query, key, value, self._decay(layer, decay, at)]
        scan_inputs.append(self._strength(write, delta, at))
        result = self._graph.value()
        add(
            "Scan",
            [f"past_key_values.{number}.recurrent", *scan_inputs],
            f"{at}/Scan",
            outputs=[f"present.{number}.recurrent", result],
            body=scan_body(delta),
            num_scan_inputs=len(scan_inputs),
            scan_input_axes=[TOKENS] * len(scan_inputs),
            scan_output_axes=[TOKENS],
        )
        heads = integers(0, 0, delta.value_heads, delta.value_dim)
        return add("Reshape", [result, heads], f"{at}/heads")

    def _delta(self, layer: int) -> GatedDelta:
        delta = self._spec.layers[layer].delta
        assert delta is not None
        return delta

    def _heads(self, flat: str, delta: GatedDelta, at: str) -> str:
        """Queries or keys of every value head, divided by their length."""
        add, integers = self._graph.node, self._graph.integers
        shape = integers(0, 0, delta.key_heads, delta.key_dim)
        heads = add("Reshape", [flat, shape], f"{at}/Reshape")
        squares = add("Mul", [heads, heads], f"{at}/squares")
        total = add("ReduceSum", [squares, integers(-1)], f"{at}/ReduceSum", keepdims=1)
        total = add("Add", [total, self._graph.scalar(delta.epsilon)], f"{at}/Add")
        length = add("Sqrt", [total], f"{at}/Sqrt")
        heads = add("Div", [heads, length], f"{at}/Div")
        of_values = np.repeat(np.arange(delta.key_heads), delta.value_heads // delta.key_heads)
        return add("Gather", [heads, integers(*of_values.tolist())], f"{at}/Gather", axis=2)

    def _decay(self, layer: int, decay: str, at: str) -> str:
        """What matrices are multiplied by, ``exp(rate * softplus(decay + offset))``."""
        add, module, delta = self._graph.node, f"model.layers.{layer}", self._delta(layer)
        offset = self._store.vector(f"{module}.{delta.offset}")
        rate = self._store.vector(f"{module}.{delta.rate}")
        value = add("Add", [decay, offset], f"{at}/decay/Add")
        value = add("Softplus", [value], f"{at}/decay/Softplus")
        value = add("Mul", [value, rate], f"{at}/decay/Mul")
        value = add("Exp", [value], f"{at}/decay/Exp")
        return add("Unsqueeze", [value, self._graph.integers(3, 4)], f"{at}/decay/Unsqueeze")

    def _strength(self, write: str, delta: GatedDelta, at: str) -> str:
        """How much of a change is made, ``strength * sigmoid(write)``."""
        add = self._graph.node
        value = add("Sigmoid", [write], f"{at}/write/Sigmoid")
        if delta.strength != 1:
            value = add("Mul", [value, self._graph.scalar(delta.strength)], f"{at}/write/Mul")
        return add("Unsqueeze", [value, self._graph.integers(3, 4)], f"{at}/write/Unsqueeze")


def scan_body(delta: GatedDelta) -> onnx.GraphProto:
    """What one token does with the matrices of all heads (Yang et al. 2024, equation 10)."""
    heads: _Shape = ("batch", delta.value_heads)
    state: _Shape = (*heads, delta.key_dim, delta.value_dim)
    keys: _Shape = (*heads, 1, delta.key_dim)
    row: _Shape = (*heads, 1, delta.value_dim)
    ones: _Shape = (*heads, 1, 1)
    nodes = [
        helper.make_node("Mul", ["state", "decay"], ["decayed"]),
        helper.make_node("MatMul", ["key", "decayed"], ["known"]),
        helper.make_node("Sub", ["value", "known"], ["error"]),
        helper.make_node("Mul", ["error", "strength"], ["change"]),
        helper.make_node("Transpose", ["key"], ["column"], perm=[0, 1, 3, 2]),
        helper.make_node("Mul", ["column", "change"], ["added"]),
        helper.make_node("Add", ["decayed", "added"], ["next"]),
        helper.make_node("MatMul", ["query", "next"], ["result"]),
    ]
    inputs = {
        "state": state,
        "query": keys,
        "key": keys,
        "value": row,
        "decay": ones,
        "strength": ones,
    }
    outputs = {"next": state, "result": row}
    return helper.make_graph(nodes, "token", declared(inputs), declared(outputs))


def declared(shapes: Mapping[str, _Shape]) -> list[onnx.ValueInfoProto]:
    """Inputs or outputs of a body, float32."""
    return [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()]
