"""What layers are given beside the residual stream, in elementary ops."""

from __future__ import annotations

from collections.abc import Callable

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.streams import PerLayerInputs
from edgerun_export.graph.blocks import gated
from edgerun_export.graph.linear import LinearBuilder
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path

# Adds the norm of a value with the weight of a module, and an epsilon.
Norm = Callable[[str, str, float], str]


class PerLayerBuilder:
    """Adds the inputs of all layers at once, and what each layer makes of its own."""

    def __init__(
        self, graph: OnnxGraph, spec: DecoderSpec, linear: LinearBuilder, norm: Norm
    ) -> None:
        self._graph, self._spec, self._linear, self._norm = graph, spec, linear, norm
        self._inputs = ""

    def begin(self, embedded: str, inputs: PerLayerInputs) -> None:
        """Adds ``[batch, sequence, layers, width]`` of tokens and what they are embedded as."""
        add, layers = self._graph.node, self._spec.num_layers
        at = node_path(inputs.projection.removesuffix(".weight"))
        shape = self._graph.integers(0, 0, layers, inputs.width)
        total = layers * inputs.width
        rows = self._linear.vocabulary_projection(inputs.projection, embedded, total)
        parts = add("Reshape", [rows, shape], f"{at}/Reshape")
        normed = self._norm(parts, inputs.norm, inputs.norm_eps)
        looked_up = self._linear.lookup(inputs.table, total)
        at = node_path(inputs.table.removesuffix(".weight"))
        of_tokens = add("Reshape", [looked_up, shape], f"{at}/Reshape_parts")
        self._inputs = add("Add", [normed, of_tokens], "/model/per_layer_inputs")

    def make(self, hidden: str, layer: int, inputs: PerLayerInputs) -> str:
        """Adds what a layer makes of its part of the inputs, which the residual stream opens."""
        module = f"model.layers.{layer}"
        add, at = self._graph.node, node_path(module)
        gate, out = inputs.projections(self._spec.hidden_size).values()
        number = self._graph.integer(layer)
        own = add("Gather", [self._inputs, number], f"{at}/per_layer_input", axis=2)
        opened = self._linear.projection(hidden, module, gate)
        product = gated(self._graph, self._spec.activation, opened, own, f"{at}/per_layer_gate")
        added = self._linear.projection(product, module, out)
        return self._norm(added, f"{module}.{inputs.out_norm}", self._spec.norm_eps)
