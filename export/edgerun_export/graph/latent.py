"""Queries, keys and values that are made of narrow rows, in elementary ops."""

from __future__ import annotations

from collections.abc import Callable

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.layer import LatentAttention
from edgerun_export.graph.linear import LinearBuilder
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path

# Adds the norm of a value at a path below a layer's module.
Norm = Callable[[str, str, str | None], str]


class LatentBuilder:
    """Adds what attention reads, with keys and values of every head as any other decoder has them.

    The turned part of a key is the same in all heads: a row of a head's width, with zeros where it
    has nothing, is added to each.
    """

    def __init__(
        self, graph: OnnxGraph, spec: DecoderSpec, linear: LinearBuilder, norm: Norm
    ) -> None:
        self._graph, self._spec, self._linear, self._norm = graph, spec, linear, norm

    def add(self, hidden: str, layer: int, latent: LatentAttention) -> tuple[str, str, str]:
        """Adds queries, keys and values, each ``[batch, sequence, num_heads * head_dim]``."""
        module, projections = f"model.layers.{layer}", self._spec.attention(layer)

        def product(value: str, name: str) -> str:
            return self._linear.projection(value, module, projections[name])

        query = hidden
        if latent.query_rank is not None:
            query = self._norm(product(hidden, "q_a_proj"), module, latent.query_norm)
        row = self._norm(product(hidden, "kv_a_proj"), module, latent.row_norm)
        turned = product(hidden, "k_rope_proj")
        key = self._of_all_heads(product(row, "k_proj"), turned, f"{module}.self_attn.k_rope_proj")
        return product(query, "q_proj"), key, product(row, "v_proj")

    def _of_all_heads(self, keys: str, turned: str, module: str) -> str:
        """Adds ``turned``, ``[batch, sequence, head_dim]``, to the keys of every head."""
        heads, width = self._spec.num_heads, self._spec.head_dim
        add, integers, at = self._graph.node, self._graph.integers, node_path(module)
        apart = add("Reshape", [keys, integers(0, 0, heads, width)], f"{at}/Reshape")
        same = add("Unsqueeze", [turned, integers(2)], f"{at}/Unsqueeze")
        whole = add("Add", [apart, same], f"{at}/of_all_heads")
        return add("Reshape", [whole, integers(0, 0, heads * width)], f"{at}/Reshape_flat")
