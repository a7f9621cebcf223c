"""Builds the portable ONNX graph of any decoder that a ``DecoderSpec`` can describe."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from edgerun_export.architectures import DecoderSpec
from edgerun_export.blocks import ACTIVATIONS, AttentionMask, Rotary, quantised_activations
from edgerun_export.linear import LinearBuilder
from edgerun_export.onnx_graph import OnnxGraph
from edgerun_export.recipe import Recipe
from edgerun_export.weight_store import WeightStore

_FLOAT, _INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
_Shape = Sequence[str | int]


def build_model(
    spec: DecoderSpec, recipe: Recipe, graph: OnnxGraph, store: WeightStore
) -> onnx.ModelProto:
    """Adds the whole decoder to ``graph``, writing each weight as it is reached.

    Returns:
        the model: ``input_ids``, ``attention_mask``, ``position_ids`` and past keys and values
        in; ``logits`` and present keys and values out.

    Raises:
        CheckpointError: a weight cannot be read.
        UnsupportedError: a weight cannot be stored in the recipe's format.
        OSError: the data file cannot be written.
    """
    decoder = _DecoderBuilder(spec, recipe, graph, store)
    decoder.build()
    return graph.model(_inputs(spec), _outputs(spec))


class _DecoderBuilder:
    def __init__(
        self, spec: DecoderSpec, recipe: Recipe, graph: OnnxGraph, store: WeightStore
    ) -> None:
        self._spec = spec
        self._graph = graph
        self._store = store
        self._linear = LinearBuilder(graph, store, spec, recipe)
        self._projections = spec.projections()
        self._mask = AttentionMask(graph)
        self._rotary = Rotary(graph, spec.rope)

    def build(self) -> None:
        hidden = self._linear.embedding()
        for layer in range(self._spec.num_layers):
            hidden = self._layer(hidden, layer)
        hidden = self._norm(hidden, self._spec.final_norm_weight, "/model/norm")
        self._linear.head(hidden)

    def _layer(self, hidden: str, layer: int) -> str:
        prefix, at = f"model.layers.{layer}", f"/model/layers.{layer}"
        normed = self._layer_norm(hidden, layer, self._spec.input_norm)
        attended = self._attention(normed, layer)
        hidden = self._graph.node("Add", [hidden, attended], f"{at}/attention_residual")
        normed = self._layer_norm(hidden, layer, self._spec.post_attention_norm)
        fed = self._feed_forward(normed, prefix, f"{at}/mlp")
        return self._graph.node("Add", [hidden, fed], f"{at}/mlp_residual")

    def _attention(self, hidden: str, layer: int) -> str:
        spec, add = self._spec, self._graph.node
        prefix, at = f"model.layers.{layer}", f"/model/layers.{layer}/self_attn"
        hidden = self._activations(hidden, f"{at}/input")
        query = self._heads(hidden, layer, "q_proj", spec.num_heads, spec.q_norm)
        key = self._heads(hidden, layer, "k_proj", spec.num_kv_heads, spec.k_norm)
        value = self._heads(hidden, layer, "v_proj", spec.num_kv_heads, None)
        attended = add(
            "Attention",
            [
                self._rotary.apply(query, f"{at}/q_rotary"),
                self._rotary.apply(key, f"{at}/k_rotary"),
                value,
                self._mask.get(spec.windows[layer]),
                f"past_key_values.{layer}.key",
                f"past_key_values.{layer}.value",
            ],
            f"{at}/Attention",
            outputs=[f"{at}/Attention/output_0", f"present.{layer}.key", f"present.{layer}.value"],
            is_causal=0,
            scale=spec.attention_scale,
        )
        rows = add("Transpose", [attended], f"{at}/Transpose", perm=[0, 2, 1, 3])
        width = self._graph.integers(0, 0, spec.num_heads * spec.head_dim)
        joined = add("Reshape", [rows, width], f"{at}/Reshape")
        joined = self._layer_norm(joined, layer, spec.attention_sub_norm)
        joined = self._activations(joined, f"{at}/output")
        return self._linear.projection(joined, prefix, self._projections["o_proj"])

    def _heads(self, hidden: str, layer: int, name: str, heads: int, norm: str | None) -> str:
        """Projects, splits into heads, normalises them: ``[batch, heads, sequence, head_dim]``."""
        add, at = self._graph.node, f"/model/layers.{layer}/self_attn/{name}"
        flat = self._linear.projection(hidden, f"model.layers.{layer}", self._projections[name])
        shape = self._graph.integers(0, 0, heads, self._spec.head_dim)
        split = add("Reshape", [flat, shape], f"{at}/Reshape")
        split = self._layer_norm(split, layer, norm)
        return add("Transpose", [split], f"{at}/Transpose", perm=[0, 2, 1, 3])

    def _feed_forward(self, hidden: str, prefix: str, at: str) -> str:
        hidden = self._activations(hidden, f"{at}/input")
        gate = self._linear.projection(hidden, prefix, self._projections["gate_proj"])
        up = self._linear.projection(hidden, prefix, self._projections["up_proj"])
        active = ACTIVATIONS[self._spec.activation](self._graph, gate, f"{at}/activation")
        gated = self._graph.node("Mul", [active, up], f"{at}/Mul")
        if self._spec.mlp_sub_norm:
            weight = f"{prefix}.{self._spec.mlp_sub_norm}.weight"
            gated = self._norm(gated, weight, _node_path(weight.removesuffix(".weight")))
        gated = self._activations(gated, f"{at}/output")
        return self._linear.projection(gated, prefix, self._projections["down_proj"])
