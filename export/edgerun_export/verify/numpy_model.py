"""A decoder in plain NumPy, written to be read: what exported bundles are verified against.

It shares no code with the graph or the quantisers, and handles one sequence without a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun.activations.registry import ACTIVATIONS
from edgerun.errors import CheckpointError
from edgerun.ops.pointwise.xielu import xielu
from edgerun_export.architectures import DecoderSpec, Experts, Projection
from edgerun_export.architectures.decoder.layer import Dense, GatedDelta, LatentAttention
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.architectures.decoder.streams import AltUp, Laurel
from edgerun_export.architectures.decoder.xielu import Xielu
from edgerun_export.verify import numpy_space
from edgerun_export.verify.numpy_delta import convolve, linear_attention
from edgerun_export.verify.numpy_ends import embedded, predicted
from edgerun_export.verify.numpy_ops import (
    attend,
    largest,
    layer_norm,
    norm,
    normed,
    rotate,
    round_rows,
    route,
)
from edgerun_export.verify.numpy_streams import correct_streams, predict_streams
from edgerun_export.verify.parts import Observer, Weights
from edgerun_export.verify.stream import stream_of

F32 = NDArray[np.float32]


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


class Layer:
    """The parts of a decoder layer."""

    def __init__(
        self, spec: DecoderSpec, weights: Weights, layer: int, observer: Observer | None = None
    ) -> None:
        self._spec, self._weights, self._layer = spec, weights, layer
        self._observer, self._stream = observer or Observer(), stream_of(spec)
        self._prefix = f"model.layers.{layer}"

    def run(self, hidden: F32) -> F32:
        """Adds all parts to what the layer before gave, ``[tokens, width]``."""
        for part in parts_of(self._spec):
            hidden = part(self, hidden)
        return hidden

    def attention(self, hidden: F32) -> F32:
        """Adds the attention part, or what stands in its place."""
        spec, after = self._spec, hidden.copy()
        if not spec.layers[self._layer].mixes:
            return after
        if spec.altup is not None:
            self._predict(spec.altup, after)
        residual = after[:, self._stream.residual].copy()
        if spec.parallel:
            after[:, self._stream.before] = residual
        delta, space = spec.layers[self._layer].delta, spec.layers[self._layer].space
        around = spec.norms_around(self._layer)
        is_added = around.behind is None and (space is None or not space.is_beside)
        self._observer.residual(residual if is_added else None)
        inner, attended = self._norm(residual, around.before), np.zeros_like(residual)
        if delta is not None:
            attended = self._linear_attention(inner, delta)
        if space is not None:
            attended = self._state_space(inner, space)
        if spec.attends(self._layer):
            attended = attended + self._attention(inner, after)
        elif spec.layers[self._layer].conv is not None:
            attended = self._convolution(inner)
        after[:, self._stream.residual] += self._norm(attended, around.behind)
        if spec.laurel is not None:
            after[:, self._stream.residual] += self._past_attention(spec.laurel, inner)
            after[:, self._stream.residual] *= np.float32(0.5**0.5)
        return after

    def _past_attention(self, laurel: Laurel, hidden: F32) -> F32:
        left, right = laurel.projections(self._spec.hidden_size).values()
        product = self._linear(self._linear(hidden, left), right)
        return hidden + self._norm(product, laurel.norm)

    def _predict(self, altup: AltUp, stream: F32) -> None:
        """Begins a layer with several streams, in place; it sees the first of them."""
        streams, residual = self._stream.streams, self._stream.residual
        coefs = self._coefs(altup, stream[:, streams][:, residual], altup.prediction)
        stream[:, streams] = predict_streams(altup, stream[:, streams], coefs)
        stream[:, residual] = stream[:, streams][:, residual]

    def _correct(self, altup: AltUp, stream: F32) -> F32:
        """Ends it, in place; returns the first stream as it opens the gate of the inputs."""
        streams, residual = self._stream.streams, self._stream.residual
        coefs = self._coefs(altup, stream[:, residual], altup.correction)
        stream[:, streams] = correct_streams(altup, stream[:, streams], stream[:, residual], coefs)
        first = stream[:, streams][:, residual]
        if not altup.scales_output:
            return first
        return first * self._weights.vector(f"{self._prefix}.{altup.output_scale}")

    def _coefs(self, altup: AltUp, value: F32, path: str) -> F32:
        router = self._weights.matrix(f"{self._prefix}.{altup.router}.weight")
        routed = np.tanh(self._norm(value, altup.norm) @ router.T)
        return np.asarray(routed @ self._weights.matrix(f"{self._prefix}.{path}.weight").T)

    def feed_forward(self, hidden: F32) -> F32:
        """Adds the feed-forward part to what attention gave."""
        spec, after = self._spec, hidden.copy()
        if spec.layers[self._layer].feed_forward is None:
            return after
        residual = hidden[:, self._stream.residual]
        behind = spec.norms_around(self._layer).behind_feed_forward
        added_plainly = spec.router(self._layer) is None and behind is None
        self._observer.residual(residual if added_plainly else None)
        fed = self._feed_forward(hidden[:, self._stream.before] if spec.parallel else residual)
        after[:, self._stream.residual] += self._norm(fed, behind)
        return after if spec.per_layer else self._scaled(after)

    def per_layer_input(self, hidden: F32) -> F32:
        """Adds what the layer makes of its part of the inputs."""
        inputs, after = self._spec.per_layer, hidden.copy()
        assert inputs is not None
        self._observer.residual(None)
        gate, out = inputs.projections(self._spec.hidden_size).values()
        altup = self._spec.altup
        first = after[:, self._stream.residual] if altup is None else self._correct(altup, after)
        gated = self._linear(first, gate)
        begin = self._stream.inputs.start + self._layer * inputs.width
        own = hidden[:, begin : begin + inputs.width]
        product = ACTIVATIONS[self._spec.activation].product(gated, own)
        added = self._norm(self._linear(product, out), inputs.out_norm)
        if altup is None:
            after[:, self._stream.residual] += added
            return self._scaled(after)
        others = slice(self._stream.streams.start + self._spec.hidden_size, None)
        after[:, others] += np.tile(added, altup.count - 1)
        return after

    def _scaled(self, hidden: F32) -> F32:
        """Ends a layer: multiplies the residual stream, in place, if the decoder does."""
        path = self._spec.layer_scale
        if path is not None:
            factor = self._weights.vector(f"{self._prefix}.{path}")
            hidden[:, self._stream.residual] *= factor
        return hidden

    def _attention(self, hidden: F32, stream: F32) -> F32:
        """Attends; keys and values that layers share are put into the stream or read from it."""
        spec, projections = self._spec, self._spec.attention(self._layer)
        inner = self._rounded(hidden)
        if spec.latent is None:
            products = {
                name: self._linear(inner, projections[name])
                for name in ("q_proj", "k_proj", "v_proj")
                if name in projections
            }
            query, key = products["q_proj"], products.get("k_proj")
            value = products.get("v_proj", key)
        else:
            query, key, value = self._from_latent_rows(spec.latent, inner)
        query = self._row_norm(query, spec.q_row_norm)
        query = self._turned(query, spec.q_norm)
        if key is None or value is None:
            key, value = self._shared_keys(stream)
        else:
            key, value = self._keys(key, value, stream)
        sinks = None
        if spec.sinks is not None:
            sinks = self._weights.vector(f"{self._prefix}.{spec.sinks}")
        mixed = attend(spec, self._layer, query, key, value, sinks)
        if spec.gates_attention:
            gate = self._linear(inner, projections["attention_gate"])
            gate = np.repeat(gate, mixed.shape[1] // gate.shape[1], axis=1)
            mixed = ACTIVATIONS[spec.attention_gate].product(gate, mixed)
        mixed = self._rounded(self._norm(mixed, spec.attention_sub_norm))
        return self._linear(mixed, projections["o_proj"])

    def _keys(self, key: F32, value: F32, stream: F32) -> tuple[F32, F32]:
        """Keys and values ``[heads, tokens, head_dim]`` as they are cached."""
        spec = self._spec
        key = self._observer.cached(self._turned(self._row_norm(key, spec.k_row_norm), spec.k_norm))
        value = self._heads(value, None)
        if spec.normalises_values:
            value = norm(value, np.ones(value.shape[2], np.float32), spec.norm_eps)
        value = self._observer.cached(value)
        place = self._stream.keys.get(self._layer)
        if place is not None:
            rows = [each.transpose(1, 0, 2).reshape(len(stream), -1) for each in (key, value)]
            stream[:, place] = np.concatenate(rows, axis=1)
        return key, value

    def _shared_keys(self, stream: F32) -> tuple[F32, F32]:
        """Those of the layer that this one attends to."""
        source = self._spec.layers[self._layer].kv_source
        assert source is not None
        rows = np.split(stream[:, self._stream.keys[source]], 2, axis=1)
        return self._heads(rows[0], None), self._heads(rows[1], None)

    def _from_latent_rows(self, latent: LatentAttention, hidden: F32) -> tuple[F32, F32, F32]:
        """Queries, keys and values, the keys of all heads with the same turned part."""
        spec, projections = self._spec, self._spec.attention(self._layer)
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
        mixed = convolve(gate * value, taps)
        return self._linear(self._rounded(out * mixed), projections["o_proj"])

    def _linear_attention(self, hidden: F32, delta: GatedDelta) -> F32:
        inner, silu = self._rounded(hidden), ACTIVATIONS["silu"]
        qkv, gate, output = self._spec.mixer(self._layer).values()
        mixed, opened = (self._linear(inner, each) for each in (qkv, gate))
        gates = delta.gates(self._spec.hidden_size).values()
        decay, write = (self._linear(hidden, each) for each in gates)
        taps, rate, offset = (
            self._weights.vector(f"{self._prefix}.{path}")
            for path in (delta.weight, delta.rate, delta.offset)
        )
        mixed = silu.define(convolve(mixed, taps.reshape(-1, delta.taps)))
        heads = self._norm(linear_attention(delta, mixed, decay, write, rate, offset), delta.norm)
        result = silu.product(opened, heads.reshape(opened.shape))
        return self._linear(self._rounded(result), output)

    def _state_space(self, hidden: F32, space: StateSpace) -> F32:
        def vector(path: str) -> F32:
            return self._weights.vector(f"{self._prefix}.{path}")

        inner, width = self._rounded(hidden), self._spec.hidden_size
        gate, xbc, output = space.projections(width).values()
        (step,) = space.gates(width).values()
        result = numpy_space.mixed(
            space, self._linear(inner, xbc), self._linear(hidden, step), vector
        )
        result = numpy_space.opened(space, self._linear(inner, gate), result, vector)
        return self._linear(self._rounded(result), output)

    def _feed_forward(self, residual: F32) -> F32:
        around = self._spec.norms_around(self._layer)
        hidden = own = routed = self._norm(residual, around.before_feed_forward)
        networks, router = self._spec.feed_forward(self._layer), self._spec.router(self._layer)
        if router is None:
            return self._network(hidden, networks[0])
        part, out = self._spec.layers[self._layer].feed_forward, np.zeros_like(hidden)
        assert isinstance(part, Experts)
        if part.beside is not None:
            own, routed = (self._norm(residual, path) for path in part.beside.paths[1::-1])
        bias = None
        if part.selection_bias:
            bias = self._weights.vector(f"{self._prefix}.{part.selection_bias}")
        routes = route(part, self._linear(routed, router), bias)
        for expert, projections in enumerate(networks):
            tokens = np.flatnonzero(routes[:, expert])
            if len(tokens):
                results = self._network(own[tokens], projections)
                out[tokens] += routes[tokens, expert, None] * results
        if self._spec.shared_expert(self._layer) is None:
            return out
        results = self._network(hidden, self._spec.shared_projections(self._layer))
        gate = self._spec.shared_gate(self._layer)
        if gate is not None:
            results = results / (1 + np.exp(-self._linear(hidden, gate)))
        if part.beside is not None:
            out = self._norm(out, part.beside.experts_out)
            results = self._norm(results, part.beside.shared_out)
        return out + results

    def _network(self, hidden: F32, projections: dict[str, Projection]) -> F32:
        hidden = self._rounded(hidden)
        part, is_gated = self._spec.layers[self._layer].feed_forward, "gate_proj" in projections
        up = gate = self._linear(hidden, projections["gate_proj" if is_gated else "up_proj"])
        if isinstance(part, Dense) and part.deviations is not None:
            gate = largest(gate, part.deviations)
        if is_gated:
            up = self._linear(hidden, projections["up_proj"])
        curve = part.curve if isinstance(part, Dense) else None
        act = ACTIVATIONS[self._spec.activation]
        gated = self._curved(up, curve) if curve else act.product(gate, up)
        gated = self._rounded(self._norm(gated, self._spec.sub_norm(self._layer)))
        return self._linear(gated, projections["down_proj"])

    def _curved(self, value: F32, curve: Xielu) -> F32:
        paths = (f"{self._prefix}.{path}" for path in curve.tensors)
        square, bend = (float(self._weights.vector(path)[0]) for path in paths)
        return xielu(value, square=square, bend=bend, slope=curve.slope)

    def _linear(self, value: F32, projection: Projection) -> F32:
        value = self._observer.projection(projection, value)
        name = f"{self._prefix}.{projection.path}"
        result = value @ self._weights.matrix(f"{name}.weight").T
        return result + self._weights.vector(f"{name}.bias") if projection.bias else result

    def _norm(self, value: F32, path: str | None) -> F32:
        if path is None:
            return value
        module = f"{self._prefix}.{path}"
        return normed(self._spec, self._weights, module, value, self._spec.epsilon(path))

    def _row_norm(self, value: F32, path: str | None) -> F32:
        """A norm of all queries or keys of a token: of all together, or of each head."""
        if path is None or not self._spec.is_by_head(path):
            return self._norm(value, path)
        weight = self._weights.vector(f"{self._prefix}.{path}.weight")
        heads = weight.reshape(-1, self._spec.head_dim_of(self._layer))
        parts, epsilon = value.reshape(len(value), *heads.shape), self._spec.epsilon(path)
        normalise = layer_norm if self._spec.centres else norm
        return normalise(parts, heads, epsilon).reshape(value.shape)

    def _rounded(self, value: F32) -> F32:
        return value if self._spec.ternary is None else round_rows(value)

    def _heads(self, value: F32, path: str | None) -> F32:
        heads = value.reshape(len(value), -1, self._spec.head_dim_of(self._layer))
        return self._norm(heads, path).transpose(1, 0, 2)

    def _turned(self, value: F32, path: str | None) -> F32:
        """Heads, normalised and turned by their positions, in the order of the decoder."""
        rope, after = self._spec.rope_of(self._layer), self._spec.norms_after_rope
        turned = rotate(rope, self._heads(value, None if after else path))
        return self._norm(turned, path) if after else turned


def parts_of(spec: DecoderSpec) -> list[Callable[[Layer, F32], F32]]:
    """What a layer does with the stream, one after the other."""
    parts: list[Callable[[Layer, F32], F32]] = [Layer.attention, Layer.feed_forward]
    return parts if spec.per_layer is None else [*parts, Layer.per_layer_input]
