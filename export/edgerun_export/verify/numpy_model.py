"""A decoder in plain NumPy, written to be read: what exported bundles are verified against.

It shares no code with the graph or the quantisers, and handles one sequence without a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgerun.activations.registry import ACTIVATIONS
from edgerun.errors import CheckpointError
from edgerun_export.architectures import DecoderSpec, Experts, Projection, Rope
from edgerun_export.architectures.decoder.layer import LatentAttention

F32 = NDArray[np.float32]
_HEAD_ROWS = 8192


class Weights(Protocol):
    """Where the forward pass finds its tensors, by Hugging Face name, as float32."""

    def vector(self, name: str) -> F32:
        """A bias or the weight of a norm, ``[n]``."""
        ...

    def matrix(self, name: str) -> F32:
        """A projection, ``[out_features, in_features]``."""
        ...

    def head_name(self) -> str:
        """Name of the head's tensor, which may be the embedding's."""
        ...

    def rows(self, name: str, rows: slice) -> F32:
        """Some rows of the embedding or the head."""
        ...


@np.errstate(over="ignore", invalid="ignore")  # is told of as an error
def forward(spec: DecoderSpec, weights: Weights, ids: NDArray[np.int64]) -> F32:
    """Returns the logits after every token, float32 ``[tokens, vocab]``.

    Args:
        spec: the decoder.
        weights: its tensors.
        ids: token ids ``[tokens]``.

    Raises:
        CheckpointError: what a layer or the head computes exceeds float32.
    """
    hidden = embedded(spec, weights, ids)
    for layer in range(spec.num_layers):
        hidden = _finite(f"layer {layer}", Layer(spec, weights, layer).run(hidden))
    return _finite("the head", predicted(spec, weights, hidden))


def _finite(part: str, values: F32) -> F32:
    if np.isfinite(values).all():
        return values
    raise CheckpointError(
        f"what {part} computes of a short text is infinite or no number: the checkpoint is damaged "
        "or of an architecture that its config.json does not say"
    )


def embedded(spec: DecoderSpec, weights: Weights, ids: NDArray[np.int64]) -> F32:
    """What the first layer gets, ``[tokens, hidden_size]``."""
    return np.concatenate(
        [weights.rows(spec.embedding_weight, slice(i, i + 1)) for i in map(int, ids)]
    )


def predicted(spec: DecoderSpec, weights: Weights, hidden: F32) -> F32:
    """Logits ``[tokens, vocab]`` of what the last layer gives."""
    parts = [logits for _, logits in predicted_parts(spec, weights, hidden)]
    return np.concatenate(parts, axis=1)


def predicted_parts(
    spec: DecoderSpec, weights: Weights, hidden: F32
) -> Iterator[tuple[slice, F32]]:
    """The same for one part of the vocabulary after the other, ``[tokens, n]`` with its ids."""
    hidden = _norm(hidden, weights.vector(spec.final_norm_weight), spec.norm_eps)
    head = weights.head_name()
    for start in range(0, spec.vocab_size, _HEAD_ROWS):
        part = slice(start, min(start + _HEAD_ROWS, spec.vocab_size))
        yield part, hidden @ weights.rows(head, part).T


class Observer:
    """Is shown what comes by in a layer, and may put something else in its place."""

    def residual(self, hidden: F32 | None) -> None:
        """What the next part's last projection is added to; None if it is not, as it is."""

    def projection(self, projection: Projection, value: F32) -> F32:
        """The input ``[tokens, K]`` of a projection."""
        return value

    def cached(self, vectors: F32) -> F32:
        """Keys or values, ``[heads, tokens, head_dim]``."""
        return vectors


class Layer:
    """The parts of a decoder layer."""

    def __init__(
        self, spec: DecoderSpec, weights: Weights, layer: int, observer: Observer | None = None
    ) -> None:
        self._spec, self._weights, self._layer = spec, weights, layer
        self._observer = observer or Observer()
        self._prefix = f"model.layers.{layer}"

    def run(self, hidden: F32) -> F32:
        """Adds attention and feed-forward part to ``[tokens, hidden_size]``."""
        return self.feed_forward(self.attention(hidden))

    def attention(self, hidden: F32) -> F32:
        """Adds the attention part, or what stands in its place."""
        spec = self._spec
        mix = self._attention if spec.attends(self._layer) else self._convolution
        self._observer.residual(hidden if spec.attention_out_norm is None else None)
        attended = mix(self._norm(hidden, spec.input_norm))
        return hidden + self._norm(attended, spec.attention_out_norm)

    def feed_forward(self, hidden: F32) -> F32:
        """Adds the feed-forward part to what attention gave."""
        spec = self._spec
        added_plainly = spec.router(self._layer) is None and spec.feed_forward_out_norm is None
        self._observer.residual(hidden if added_plainly else None)
        fed = self._feed_forward(self._norm(hidden, spec.feed_forward_norm))
        return hidden + self._norm(fed, spec.feed_forward_out_norm)

    def _attention(self, hidden: F32) -> F32:
        spec, projections = self._spec, self._spec.attention()
        inner = self._rounded(hidden)
        if spec.latent is None:
            query, key, value = (
                self._linear(inner, projections[name]) for name in ("q_proj", "k_proj", "v_proj")
            )
        else:
            query, key, value = self._from_latent_rows(spec.latent, inner)
        query, key = self._norm(query, spec.q_row_norm), self._norm(key, spec.k_row_norm)
        rope = spec.rope_of(self._layer)
        query = _rotate(rope, self._heads(query, spec.q_norm))
        key = self._observer.cached(_rotate(rope, self._heads(key, spec.k_norm)))
        value = self._observer.cached(self._heads(value, None))
        sinks = None
        if spec.sinks is not None:
            sinks = self._weights.vector(f"{self._prefix}.{spec.sinks}")
        mixed = _attend(spec, self._layer, query, key, value, sinks)
        mixed = self._rounded(self._norm(mixed, spec.attention_sub_norm))
        return self._linear(mixed, projections["o_proj"])

    def _from_latent_rows(self, latent: LatentAttention, hidden: F32) -> tuple[F32, F32, F32]:
        """Queries, keys and values, the keys of all heads with the same turned part."""
        spec, projections = self._spec, self._spec.attention()
        row, turned = (
            self._linear(hidden, projections[name]) for name in ("kv_a_proj", "k_rope_proj")
        )
        if latent.query_rank is None:
            query = self._linear(hidden, projections["q_proj"])
        else:
            query_row = self._linear(hidden, projections["q_a_proj"])
            query = self._linear(self._norm(query_row, latent.query_norm), projections["q_proj"])
        row = self._norm(row, latent.row_norm)
        key, value = (self._linear(row, projections[name]) for name in ("k_proj", "v_proj"))
        key = (key.reshape(len(key), spec.num_heads, -1) + turned[:, None]).reshape(key.shape)
        return query, key, value

    def _convolution(self, hidden: F32) -> F32:
        conv, projections = self._spec.layers[self._layer].conv, self._spec.mixer(self._layer)
        assert conv is not None
        inner = self._rounded(hidden)
        gate, out, value = (
            self._linear(inner, projections[name]) for name in ("b_proj", "c_proj", "x_proj")
        )
        taps = self._weights.vector(f"{self._prefix}.{conv.weight}").reshape(-1, conv.taps)
        seen = np.pad(gate * value, ((conv.taps - 1, 0), (0, 0)))
        tokens = len(hidden)
        mixed = sum(seen[tap : tap + tokens] * taps[:, tap] for tap in range(conv.taps))
        return self._linear(self._rounded(out * mixed), projections["o_proj"])

    def _feed_forward(self, hidden: F32) -> F32:
        networks, router = self._spec.feed_forward(self._layer), self._spec.router(self._layer)
        if router is None:
            return self._network(hidden, networks[0])
        part, out = self._spec.layers[self._layer].feed_forward, np.zeros_like(hidden)
        assert isinstance(part, Experts)
        bias = None
        if part.selection_bias:
            bias = self._weights.vector(f"{self._prefix}.{part.selection_bias}")
        routes = _route(part, self._linear(hidden, router), bias)
        for expert, projections in enumerate(networks):
            tokens = np.flatnonzero(routes[:, expert])
            if len(tokens):
                results = self._network(hidden[tokens], projections)
                out[tokens] += routes[tokens, expert, None] * results
        if self._spec.shared_expert(self._layer) is None:
            return out
        results = self._network(hidden, self._spec.shared_projections(self._layer))
        gate = self._spec.shared_gate(self._layer)
        if gate is not None:
            results = results / (1 + np.exp(-self._linear(hidden, gate)))
        return out + results

    def _network(self, hidden: F32, projections: dict[str, Projection]) -> F32:
        hidden = self._rounded(hidden)
        gate = self._linear(hidden, projections["gate_proj"])
        up = self._linear(hidden, projections["up_proj"])
        gated = ACTIVATIONS[self._spec.activation].product(gate, up)
        gated = self._rounded(self._norm(gated, self._spec.sub_norm(self._layer)))
        return self._linear(gated, projections["down_proj"])

    def _linear(self, value: F32, projection: Projection) -> F32:
        value = self._observer.projection(projection, value)
        name = f"{self._prefix}.{projection.path}"
        result = value @ self._weights.matrix(f"{name}.weight").T
        return result + self._weights.vector(f"{name}.bias") if projection.bias else result

    def _norm(self, value: F32, path: str | None) -> F32:
        if path is None:
            return value
        weight = self._weights.vector(f"{self._prefix}.{path}.weight")
        return _norm(value, weight, self._spec.epsilon(path))

    def _rounded(self, value: F32) -> F32:
        return value if self._spec.ternary is None else _round_rows(value)

    def _heads(self, value: F32, path: str | None) -> F32:
        heads = value.reshape(len(value), -1, self._spec.head_dim)
        return self._norm(heads, path).transpose(1, 0, 2)


def _route(experts: Experts, logits: F32, bias: F32 | None) -> F32:
    """How much each token ``[tokens, experts]`` gets of each expert."""
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    if experts.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    routes, ranks = np.zeros_like(logits), logits if bias is None else scores + bias
    for token, row in enumerate(ranks):
        chosen = sorted(range(experts.count), key=lambda expert: (-row[expert], expert))
        routes[token, chosen[: experts.top_k]] = scores[token, chosen[: experts.top_k]]
    if experts.normalise:
        routes /= routes.sum(axis=-1, keepdims=True) + np.float32(experts.epsilon)
    return routes * np.float32(experts.scale)


def _norm(value: F32, weight: F32, epsilon: float) -> F32:
    mean = np.mean(value * value, axis=-1, keepdims=True, dtype=np.float32)
    length: F32 = np.sqrt(mean + np.float32(epsilon))
    return value / length * weight


def _round_rows(value: F32) -> F32:
    largest: F32 = np.maximum(np.abs(value).max(axis=-1, keepdims=True), np.float32(1e-5))
    scale = np.float32(127) / largest
    integers: F32 = np.rint(value * scale)
    clipped: F32 = np.clip(integers, np.float32(-128), np.float32(127))
    return clipped / scale


def _rotate(rope: Rope | None, heads: F32) -> F32:
    if rope is None:
        return heads
    positions = np.arange(heads.shape[1], dtype=np.float32)
    angles = positions[:, None] * rope.inv_freq[None, :]
    factor = np.float32(rope.attention_factor)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attend(
    spec: DecoderSpec, layer: int, query: F32, key: F32, value: F32, sinks: F32 | None
) -> F32:
    """Attention of ``[heads, tokens, head_dim]``; returns ``[tokens, heads * head_dim]``."""
    tokens = query.shape[1]
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    visible = (distance >= 0) & (distance < (spec.layers[layer].window or tokens))
    shared = spec.num_heads // spec.num_kv_heads
    key, value = key.repeat(shared, axis=0), value.repeat(shared, axis=0)
    scores = query @ key.transpose(0, 2, 1) * np.float32(spec.attention_scale)
    scores = np.where(visible, scores, np.float32(-np.inf))
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (spec.num_heads, tokens, 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: F32 = weights[..., :tokens] @ value
    return mixed.transpose(1, 0, 2).reshape(tokens, -1)
