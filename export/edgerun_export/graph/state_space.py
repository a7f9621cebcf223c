"""State spaces with what they remember, in elementary ops and a loop over tokens."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.graph.blocks import activated, gated, norm_of_groups
from edgerun_export.graph.gated_delta import ACTIVATION, TOKENS, declared
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.short_conv import ConvBuilder
from edgerun_export.graph.weight_store import WeightStore


class SpaceBuilder:
    """Adds the state spaces of a decoder.

    A layer remembers its inputs as a short convolution does, ``[batch, width, taps - 1]``, and the
    matrix of each head, ``[batch, heads, state_dim, head_dim]``, zeros before the first token.
    Tokens that are padding leave zeros as they are.
    """

    def __init__(
        self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec, conv: ConvBuilder
    ) -> None:
        self._graph, self._store, self._spec, self._conv = graph, store, spec, conv

    def mix(self, layer: int, xbc: str, step: str) -> str:
        """Adds what queries read of the matrices, and inputs times what they skip these by.

        Args:
            layer: its number.
            xbc: inputs, keys and queries before the convolution, ``[batch, sequence, width]``.
            step: what tokens say of their time, ``[batch, sequence, heads]``.

        Returns:
            ``[batch, sequence, inner]``.
        """
        space = self._space(layer)
        at = node_path(f"model.layers.{layer}.{space.module}")
        add, integers, module = self._graph.node, self._graph.integers, f"model.layers.{layer}"
        mixed = self._conv.convolve(
            layer, xbc, at, space.weight, space.width, space.taps, space.bias
        )
        active = activated(self._graph, ACTIVATION, mixed, f"{at}/activation")
        parts = [self._graph.value() for _ in range(3)]
        sizes = integers(space.inner, space.keys, space.keys)
        add("Split", [active, sizes], f"{at}/Split", outputs=parts, axis=-1)
        shape = integers(0, 0, space.heads, 1, space.head_dim)
        row = add("Reshape", [parts[0], shape], f"{at}/input/row")
        key = self._shared(parts[1], space, f"{at}/key")
        key = add("Unsqueeze", [key, integers(4)], f"{at}/key/column")
        query = self._shared(parts[2], space, f"{at}/query")
        query = add("Unsqueeze", [query, integers(3)], f"{at}/query/row")
        paths = (space.offset, space.rate, space.skip)
        offset, rate, skip = (self._store.vector(f"{module}.{path}") for path in paths)
        time = add("Add", [step, offset], f"{at}/time/Add")
        time = add("Softplus", [time], f"{at}/time/Softplus")
        decay = add("Mul", [time, rate], f"{at}/decay/Mul")
        decay = add("Exp", [decay], f"{at}/decay/Exp")
        decay = add("Unsqueeze", [decay, integers(3, 4)], f"{at}/decay/Unsqueeze")
        time = add("Unsqueeze", [time, integers(3, 4)], f"{at}/time/Unsqueeze")
        taken = add("Mul", [row, time], f"{at}/input/taken")
        scan_inputs, result = [key, query, taken, decay], self._graph.value()
        number = self._spec.state(layer)
        add(
            "Scan",
            [f"past_key_values.{number}.recurrent", *scan_inputs],
            f"{at}/Scan",
            outputs=[f"present.{number}.recurrent", result],
            body=scan_body(space),
            num_scan_inputs=len(scan_inputs),
            scan_input_axes=[TOKENS] * len(scan_inputs),
            scan_output_axes=[TOKENS],
        )
        skip = add("Unsqueeze", [skip, integers(1, 2)], f"{at}/skip/Unsqueeze")
        skipped = add("Mul", [row, skip], f"{at}/skip/Mul")
        result = add("Add", [result, skipped], f"{at}/skip/Add")
        return add("Reshape", [result, integers(0, 0, space.inner)], f"{at}/Reshape")

    def _shared(self, flat: str, space: StateSpace, at: str) -> str:
        """Keys or queries of every head."""
        add, integers = self._graph.node, self._graph.integers
        shape = integers(0, 0, space.groups, space.state_dim)
        heads = add("Reshape", [flat, shape], f"{at}/Reshape")
        of_heads = np.repeat(np.arange(space.groups), space.heads // space.groups)
        return add("Gather", [heads, integers(*of_heads.tolist())], f"{at}/Gather", axis=2)

    def gate(self, layer: int, gate: str, value: str) -> str:
        """Adds the gate and the norm, both of ``[batch, sequence, inner]``."""
        space, module = self._space(layer), f"model.layers.{layer}"
        at = node_path(f"{module}.{space.module}")
        if space.norm == "before":
            value = self._normed(value, space, module)
        value = gated(self._graph, ACTIVATION, gate, value, f"{at}/gate")
        return self._normed(value, space, module) if space.norm == "behind" else value

    def _space(self, layer: int) -> StateSpace:
        space = self._spec.layers[layer].space
        assert space is not None
        return space

    def _normed(self, value: str, space: StateSpace, module: str) -> str:
        """Adds the norm, of each group by itself."""
        (path,) = space.norms
        name, op, epsilon = f"{module}.{path}", "RMSNormalization", space.norm_eps
        weight, at = self._store.vector(f"{name}.weight"), node_path(name)
        if space.groups == 1:
            return self._graph.node(op, [value, weight], f"{at}/{op}", axis=-1, epsilon=epsilon)
        sizes = space.groups, space.inner // space.groups
        return norm_of_groups(self._graph, op, value, weight, sizes, epsilon, name)


def scan_body(space: StateSpace) -> onnx.GraphProto:
    """What one token does with the matrices of all heads (Dao and Gu 2024, section 6)."""
    heads = ("batch", space.heads)
    state = (*heads, space.state_dim, space.head_dim)
    row = (*heads, 1, space.head_dim)
    nodes = [
        helper.make_node("Mul", ["state", "decay"], ["decayed"]),
        helper.make_node("Mul", ["key", "taken"], ["added"]),
        helper.make_node("Add", ["decayed", "added"], ["next"]),
        helper.make_node("MatMul", ["query", "next"], ["result"]),
    ]
    inputs = {
        "state": state,
        "key": (*heads, space.state_dim, 1),
        "query": (*heads, 1, space.state_dim),
        "taken": row,
        "decay": (*heads, 1, 1),
    }
    return helper.make_graph(
        nodes, "token", declared(inputs), declared({"next": state, "result": row})
    )
