"""Queries, keys and values that are made of narrow rows, in elementary ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.layer import LatentAttention
from edgerun_export.graph.linear import LinearBuilder
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.weight_store import WeightStore

# Adds the norm of a value at a path below a layer's module.
Norm = Callable[[str, str, str | None], str]
_SPREAD = "model.rotary.key_spread"


class LatentBuilder:
    """Adds what attention reads, with keys and values of every head as any other decoder has them.

    The turned part of a key is the same in all heads. A product with a matrix that has a single
    number in each column puts it there, which is exact, and which every runtime knows.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        store: WeightStore,
        spec: DecoderSpec,
        linear: LinearBuilder,
        norm: Norm,
    ) -> None:
        self._graph, self._store, self._spec = graph, store, spec
        self._linear, self._norm = linear, norm
        self._spread: str | None = None

    def add(self, hidden: str, layer: int, latent: LatentAttention) -> tuple[str, str, str]:
        """Adds queries, keys and values, each ``[batch, sequence, num_heads * head_dim]``."""
        module, add = f"model.layers.{layer}", self._graph.node
        projections = self._spec.attention()

        def product(value: str, name: str) -> str:
            return self._linear.projection(value, module, projections[name])

        query = hidden
        if latent.query_rank is not None:
            query = self._norm(product(hidden, "q_a_proj"), module, latent.query_norm)
        row = self._norm(product(hidden, "kv_a_proj"), module, latent.row_norm)
        at = node_path(f"{module}.self_attn.k_rope_proj")
        turned = product(hidden, "k_rope_proj")
        turned = add("MatMul", [turned, self._spread_of_heads(latent)], f"{at}/spread")
        key = add("Add", [product(row, "k_proj"), turned], f"{at}/Add")
        return product(query, "q_proj"), key, product(row, "v_proj")

    def _spread_of_heads(self, latent: LatentAttention) -> str:
        if self._spread is None:
            self._spread = self._store.derived(_SPREAD, spread(self._spec, latent))
        return self._spread


def spread(spec: DecoderSpec, latent: LatentAttention) -> NDArray[np.float32]:
    """Where the turned part of a key goes in every head, ``[turned, num_heads * head_dim]``."""
    assert spec.storage.head_rows is not None
    order, factors = spec.storage.head_rows.order, spec.storage.head_rows.factors
    places = np.flatnonzero(order >= latent.plain)
    head = np.zeros((latent.turned, spec.head_dim), np.float32)
    head[order[places] - latent.plain, places] = factors[places]
    return np.tile(head, spec.num_heads)
