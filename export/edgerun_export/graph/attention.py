"""Attention in the ways that profiles ask for; everything around it is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import onnx

from edgerun.errors import UnsupportedError
from edgerun_export.architectures import DecoderSpec
from edgerun_export.graph.blocks import AttentionMask, RotaryTables
from edgerun_export.graph.onnx_graph import CONTRIB_DOMAIN, OnnxGraph, node_path, numbered
from edgerun_export.graph.weight_store import WeightStore

# Adds the norm at a path below ``model.layers.N``, or nothing if there is no path.
Norm = Callable[[str, str | None], str]
# What GroupQueryAttention takes widths of heads in; more where it rotates them.
_HEAD_UNIT, _ROTATED_HEAD_UNIT = 8, 16


class Attention(Protocol):
    """Attends within one layer."""

    def attend(self, layer: int, query: str, key: str, value: str, norm: Norm) -> str:
        """Adds rotary embedding, cache and attention.

        Args:
            layer: its number.
            query: ``[batch, sequence, num_heads * head_dim]``.
            key: ``[batch, sequence, num_kv_heads * head_dim]``; empty where the layer attends to
                keys and values of another.
            value: likewise.
            norm: adds a norm of query or key heads.

        Returns:
            ``[batch, sequence, num_heads * head_dim]``.
        """
        ...


def score_bound(spec: DecoderSpec) -> dict[str, Any]:
    """The attribute that bounds scores before the mask, in both operators; none if nothing does."""
    return {} if spec.score_softcap is None else {"softcap": spec.score_softcap}


class StandardAttention:
    """ONNX's own ``Attention`` with mask and rotary embedding written out in elementary ops."""

    def __init__(self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec) -> None:
        self._graph = graph
        self._store = store
        self._spec = spec
        self._mask = AttentionMask(graph)
        self._rotary = RotaryTables(graph, spec.ropes)

    def attend(self, layer: int, query: str, key: str, value: str, norm: Norm) -> str:
        spec, add = self._spec, self._graph.node
        at = node_path(f"model.layers.{layer}.self_attn")
        width, part = spec.head_dim_of(layer), spec.layers[layer]
        before, after = (spec.q_norm, spec.k_norm), (None, None)
        if spec.norms_after_rope:
            before, after = after, before
        heads = (spec.num_heads_of(layer), width)
        query = self._heads(query, f"{at}/q_proj", heads, lambda v: norm(v, before[0]))
        if part.kv_source is None:
            heads = (spec.num_kv_heads_of(layer), width)
            key = self._heads(key, f"{at}/k_proj", heads, lambda v: norm(v, before[1]))
            value = self._heads(
                value,
                f"{at}/v_proj",
                heads,
                value_norm(self._graph, spec, layer),
            )
        mask, scores = self._mask.get(part.window), self._graph.value()
        if part.rope is not None:
            query = self._rotary.apply(part.rope, query, f"{at}/q_rotary")
            if part.kv_source is None:
                key = self._rotary.apply(part.rope, key, f"{at}/k_rotary")
        query = norm(query, after[0])
        key = norm(key, after[1]) if part.kv_source is None else key
        own = [f"{spec.state(layer)}.{kind}" for kind in ("key", "value")]
        past = [f"past_key_values.{name}" for name in own]
        outputs = [self._graph.value(), *(f"present.{name}" for name in own)]
        if part.kv_source is not None:
            key, value = (
                f"present.{spec.state(part.kv_source)}.{kind}" for kind in ("key", "value")
            )
            past, outputs = [], outputs[:1]
        attended = add(
            "Attention",
            [query, key, value, mask, *past],
            f"{at}/Attention",
            outputs=outputs if spec.sinks is None else [*outputs, scores],
            is_causal=0,
            scale=spec.attention_scale(layer),
            **score_bound(spec),
        )
        if spec.sinks is not None:
            attended = self._beside_sinks(attended, scores, mask, layer)
        rows = add("Transpose", [attended], f"{at}/Transpose", perm=[0, 2, 1, 3])
        joined = self._graph.integers(0, 0, spec.num_heads_of(layer) * width)
        return add("Reshape", [rows, joined], f"{at}/Reshape")

    def _beside_sinks(self, attended: str, scores: str, mask: str, layer: int) -> str:
        """Takes from each head the share that its sink has in the softmax.

        With ``s`` the sum of the exponentials of all scores that is ``s / (s + exp(sink))``.
        """
        spec, graph, add = self._spec, self._graph, self._graph.node
        name = f"model.layers.{layer}.{spec.sinks}"
        at = node_path(name)
        shape = (1, spec.num_heads_of(layer), 1, 1)
        sinks = self._store.derived(name, self._store.read_vector(name).reshape(shape))
        seen = add("Where", [mask, scores, graph.scalar(-np.inf)], f"{at}/Where")
        total = add("ReduceLogSumExp", [seen, graph.integers(-1)], f"{at}/total", keepdims=1)
        share = add("Sub", [total, sinks], f"{at}/Sub")
        share = add("Sigmoid", [share], f"{at}/Sigmoid")
        return add("Mul", [attended, share], f"{at}/Mul")

    def _heads(self, flat: str, at: str, heads: tuple[int, int], norm: Callable[[str], str]) -> str:
        """Splits into heads and normalises them: ``[batch, heads, sequence, head_dim]``."""
        shape = self._graph.integers(0, 0, *heads)
        split = norm(self._graph.node("Reshape", [flat, shape], f"{at}/Reshape"))
        return self._graph.node("Transpose", [split], f"{at}/Transpose", perm=[0, 2, 1, 3])


def value_norm(graph: OnnxGraph, spec: DecoderSpec, layer: int) -> Callable[[str], str]:
    """What adds the norm without a weight of a layer's value heads, or nothing if it has none."""
    name = node_path(f"model.layers.{layer}.self_attn.v_norm/RMSNormalization")

    def add(heads: str) -> str:
        ones = graph.constant(np.ones(spec.head_dim_of(layer), np.float32))
        inputs = [heads, ones]
        return graph.node("RMSNormalization", inputs, name, axis=-1, epsilon=spec.norm_eps)

    return add if spec.normalises_values else lambda heads: heads


def check_fused(spec: DecoderSpec) -> None:
    """Checks that ``GroupQueryAttention`` has a form for the attention of all layers.

    Raises:
        UnsupportedError: layers attend to keys and values of others, or have heads of other widths
            than it takes.
    """
    without = "leave it out, and the folder opens in onnxruntime-genai as well"
    if spec.norms_after_rope:
        raise UnsupportedError(
            f"--profile genai: norms of heads of {spec.architecture} come after the rope, which "
            f"GroupQueryAttention applies by itself; {without}"
        )
    if any(layer.kv_source is not None for layer in spec.layers):
        raise UnsupportedError(
            f"--profile genai: layers of this {spec.architecture} attend to keys and values of "
            f"others, for which GroupQueryAttention has no form; {without}"
        )
    for number, layer in enumerate(spec.layers):
        width = spec.head_dim_of(number)
        unit = _HEAD_UNIT if layer.rope is None else _ROTATED_HEAD_UNIT
        if spec.attends(number) and width % unit:
            raise UnsupportedError(
                f"--profile genai: the heads of layer {number} have {width} elements, and "
                f"GroupQueryAttention takes multiples of {unit}; {without}"
            )


class FusedAttention:
    """``GroupQueryAttention``, which rotates by itself and writes into the cache in place.

    onnxruntime-genai shares one buffer between past and present with it; OpenVINO's NPU path
    cannot run it.
    """

    def __init__(self, graph: OnnxGraph, store: WeightStore, spec: DecoderSpec) -> None:
        """Adds what all layers read; of a decoder that ``check_fused`` accepts."""
        self._graph = graph
        self._store = store
        self._spec = spec
        add, at, int32 = graph.node, "/model/lengths", onnx.TensorProto.INT32
        rows = add("ReduceSum", ["attention_mask", graph.integers(1)], f"{at}/sum", keepdims=0)
        last = add("Sub", [rows, graph.integer(1)], f"{at}/last")
        self._last = add("Cast", [last], f"{at}/seqlens_k", to=int32)
        total = add("Shape", ["attention_mask"], f"{at}/shape", start=1, end=2)
        total = add("Squeeze", [total, graph.integers(0)], f"{at}/total_scalar")
        self._total = add("Cast", [total], f"{at}/total_sequence_length", to=int32)
        self._tables = [self._table(number) for number in range(len(spec.ropes))]

    def _table(self, number: int) -> tuple[str, str]:
        """Cosines and sines of all positions by one of the decoder's ropes."""
        rope, derived = self._spec.ropes[number], self._store.derived
        positions = np.arange(self._spec.context_length, dtype=np.float32)
        angles = positions[:, None] * rope.inv_freq[None, :]
        factor, at = np.float32(rope.attention_factor), numbered("model.rotary", number)
        cos = derived(f"{at}.cos_cache", np.cos(angles) * factor)
        return cos, derived(f"{at}.sin_cache", np.sin(angles) * factor)

    def attend(self, layer: int, query: str, key: str, value: str, norm: Norm) -> str:
        spec, rope = self._spec, self._spec.layers[layer].rope
        at = node_path(f"model.layers.{layer}.self_attn")
        width, kv_heads = spec.head_dim_of(layer), spec.num_kv_heads_of(layer)
        of_queries, of_keys = (spec.num_heads_of(layer), width), (kv_heads, width)
        if spec.normalises_values:
            value = self._normed(
                value,
                f"{at}/v_proj",
                of_keys,
                value_norm(self._graph, spec, layer),
            )
        sinks, number = [], spec.state(layer)
        if spec.sinks is not None:  # after the positions and the mask, which it counts by itself
            sinks = ["", "", self._store.vector(f"model.layers.{layer}.{spec.sinks}")]
        return self._graph.node(
            "GroupQueryAttention",
            [
                self._head_norm(query, f"{at}/q_proj", of_queries, spec.q_norm, norm),
                self._head_norm(key, f"{at}/k_proj", of_keys, spec.k_norm, norm),
                value,
                f"past_key_values.{number}.key",
                f"past_key_values.{number}.value",
                self._last,
                self._total,
                *self._tables[rope or 0],
                *sinks,
            ],
            f"{at}/GroupQueryAttention",
            domain=CONTRIB_DOMAIN,
            outputs=[
                self._graph.value(),
                f"present.{number}.key",
                f"present.{number}.value",
            ],
            num_heads=of_queries[0],
            kv_num_heads=kv_heads,
            scale=spec.attention_scale(layer),
            do_rotary=int(rope is not None),
            rotary_interleaved=0,
            local_window_size=spec.layers[layer].window or -1,
            **score_bound(spec),
        )

    def _head_norm(
        self, flat: str, at: str, heads: tuple[int, int], path: str | None, norm: Norm
    ) -> str:
        return flat if path is None else self._normed(flat, at, heads, lambda v: norm(v, path))

    def _normed(
        self, flat: str, at: str, heads: tuple[int, int], norm: Callable[[str], str]
    ) -> str:
        integers = self._graph.integers
        split = self._graph.node("Reshape", [flat, integers(0, 0, *heads)], f"{at}/Reshape")
        joined = integers(0, 0, heads[0] * heads[1])
        return self._graph.node("Reshape", [norm(split), joined], f"{at}/Reshape_flat")


ATTENTION: dict[str, Callable[[OnnxGraph, WeightStore, DecoderSpec], Attention]] = {
    "standard": StandardAttention,
    "fused": FusedAttention,
}
