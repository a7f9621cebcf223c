"""Builds the ONNX graph of any decoder that a ``DecoderSpec`` can describe."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from edgerun_export.architectures import DecoderSpec
from edgerun_export.architectures.decoder.layer import Dense, Experts
from edgerun_export.architectures.decoder.xielu import Xielu
from edgerun_export.graph.attention import ATTENTION
from edgerun_export.graph.blocks import (
    gated,
    gated_heads,
    largest,
    norm_of_groups,
    quantised_activations,
    xielu,
)
from edgerun_export.graph.experts import ExpertsBuilder, Projections
from edgerun_export.graph.fused_experts import FusedExperts, obstacle
from edgerun_export.graph.gated_delta import DeltaBuilder
from edgerun_export.graph.latent import LatentBuilder
from edgerun_export.graph.linear import LinearBuilder
from edgerun_export.graph.onnx_graph import OnnxGraph, node_path
from edgerun_export.graph.per_layer import PerLayerBuilder
from edgerun_export.graph.short_conv import ConvBuilder
from edgerun_export.graph.state_space import SpaceBuilder
from edgerun_export.graph.streams import StreamsBuilder
from edgerun_export.graph.weight_store import WeightStore
from edgerun_export.recipe import Recipe

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
    return graph.model(_inputs(spec, recipe), _outputs(spec))


class _DecoderBuilder:
    def __init__(
        self, spec: DecoderSpec, recipe: Recipe, graph: OnnxGraph, store: WeightStore
    ) -> None:
        self._spec = spec
        self._graph = graph
        self._store = store
        self._norms: dict[tuple[str, str], str] = {}  # by what they read and their path
        self._linear = LinearBuilder(graph, store, spec, recipe)
        self._single_experts = ExpertsBuilder(graph, store, spec, self._network)
        self._experts: ExpertsBuilder | FusedExperts = (
            FusedExperts(graph, store, spec, recipe)
            if recipe.target.fuses_experts and not obstacle(spec, recipe)
            else self._single_experts
        )
        self._attention_op = ATTENTION[recipe.target.attention](graph, store, spec)
        self._conv = ConvBuilder(graph, store, spec)
        self._delta = DeltaBuilder(graph, store, spec, self._conv)
        self._space = SpaceBuilder(graph, store, spec, self._conv)
        self._latent = LatentBuilder(graph, spec, self._linear, self._optional_norm)
        self._per_layer = PerLayerBuilder(graph, spec, self._linear, self._norm)
        self._streams = StreamsBuilder(graph, store, spec, self._linear, self._norm)

    def build(self) -> None:
        hidden, altup = self._linear.embedding(), self._spec.altup
        if self._spec.per_layer is not None:
            self._per_layer.begin(hidden, self._spec.per_layer)
        if altup is not None:
            hidden = self._streams.begin(hidden, altup)
        for layer in range(self._spec.num_layers):
            hidden = self._layer(hidden, layer)
        if altup is not None:
            hidden = self._streams.end(hidden, altup)
        final_norm = self._spec.final_norm_weight.removesuffix(".weight")
        hidden = self._norm(hidden, final_norm, self._spec.norm_eps)
        self._linear.head(hidden)

    def _layer(self, hidden: str, layer: int) -> str:
        """Adds a layer to the residual stream, or to all of them."""
        altup = self._spec.altup
        if altup is None:
            return self._scaled(self._with_inputs(self._parts(hidden, layer), layer), layer)
        streams = self._streams.predict(hidden, layer, altup)
        at = node_path(f"model.layers.{layer}.altup.active")
        activated = self._parts(self._streams.first(streams, at), layer)
        streams, first = self._streams.correct(streams, activated, layer, altup)
        if self._spec.per_layer is None:
            return streams
        added = self._per_layer.make(first, layer, self._spec.per_layer)
        return self._streams.add_to_others(streams, added, layer, altup)

    def _parts(self, hidden: str, layer: int) -> str:
        """Adds attention and feed-forward part to a residual stream."""
        before = hidden
        if self._spec.layers[layer].mixes:
            hidden = self._mixed(hidden, layer)
        if self._spec.layers[layer].feed_forward is None:
            return hidden
        module, spec = f"model.layers.{layer}", self._spec
        fed = self._feed_forward(before if spec.parallel else hidden, layer)
        fed = self._optional_norm(fed, module, spec.norms_around(layer).behind_feed_forward)
        return self._graph.node("Add", [hidden, fed], f"{node_path(module)}/mlp_residual")

    def _mixed(self, hidden: str, layer: int) -> str:
        """Adds attention, or what stands in its place, to a residual stream."""
        module, spec = f"model.layers.{layer}", self._spec
        mix = self._attention if spec.attends(layer) else self._convolution
        mix = self._linear_attention if spec.layers[layer].delta is not None else mix
        space, at = spec.layers[layer].space, f"{node_path(module)}/attention_residual"
        mix = self._state_space if space is not None and not space.is_beside else mix
        around = spec.norms_around(layer)
        normed = self._optional_norm(hidden, module, around.before)
        mixed = mix(normed, layer)
        if space is not None and space.is_beside:
            beside = self._state_space(normed, layer)
            mixed = self._graph.node("Add", [beside, mixed], f"{node_path(module)}/mixers")
        attended = self._optional_norm(mixed, module, around.behind)
        hidden = self._graph.node("Add", [hidden, attended], at)
        if spec.laurel is not None:
            hidden = self._streams.laurel(hidden, normed, layer, spec.laurel)
        return hidden

    def _with_inputs(self, hidden: str, layer: int) -> str:
        """Adds to the residual stream what a layer makes of its inputs, if it has such."""
        if self._spec.per_layer is None:
            return hidden
        added = self._per_layer.make(hidden, layer, self._spec.per_layer)
        at = node_path(f"model.layers.{layer}")
        return self._graph.node("Add", [hidden, added], f"{at}/per_layer_residual")

    def _scaled(self, hidden: str, layer: int) -> str:
        """Multiplies the residual stream at the end of a layer, if the decoder does."""
        if self._spec.layer_scale is None:
            return hidden
        name = f"model.layers.{layer}.{self._spec.layer_scale}"
        scale = self._store.vector(name)
        return self._graph.node("Mul", [hidden, scale], node_path(name))

    def _attention(self, hidden: str, layer: int) -> str:
        module = f"model.layers.{layer}"
        at = node_path(f"{module}.self_attn")
        hidden = self._activations(hidden, f"{at}/input")
        projections = self._spec.attention(layer)
        if self._spec.latent is None:
            query, key, value = (
                self._linear.projection(hidden, module, projections[name])
                if name in projections
                else ""
                for name in ("q_proj", "k_proj", "v_proj")
            )
            value = value or key
        else:
            query, key, value = self._latent.add(hidden, layer, self._spec.latent)
        query = self._row_norm(query, layer, self._spec.q_row_norm)
        key = self._row_norm(key, layer, self._spec.k_row_norm) if key else ""
        joined = self._attention_op.attend(
            layer, query, key, value, lambda heads, path: self._optional_norm(heads, module, path)
        )
        if self._spec.gates_attention:
            gate = self._linear.projection(hidden, module, projections["attention_gate"])
            joined = self._gated(gate, joined, layer, f"{at}/gate")
        joined = self._optional_norm(joined, module, self._spec.attention_sub_norm)
        joined = self._activations(joined, f"{at}/output")
        return self._linear.projection(joined, module, projections["o_proj"])

    def _gated(self, gate: str, joined: str, layer: int, at: str) -> str:
        spec, graph = self._spec, self._graph
        if not spec.gates_by_head:
            return gated(graph, spec.attention_gate, gate, joined, at)
        sizes = spec.num_heads_of(layer), spec.head_dim_of(layer)
        return gated_heads(graph, spec.attention_gate, gate, joined, sizes, at)

    def _convolution(self, hidden: str, layer: int) -> str:
        module, conv = f"model.layers.{layer}", self._spec.layers[layer].conv
        assert conv is not None
        at = node_path(f"{module}.{conv.module}")
        hidden = self._activations(hidden, f"{at}/input")
        *inputs, output = self._spec.mixer(layer).values()
        values = [self._linear.projection(hidden, module, linear) for linear in inputs]
        mixed = self._conv.mix(layer, *values)
        return self._linear.projection(self._activations(mixed, f"{at}/output"), module, output)

    def _linear_attention(self, hidden: str, layer: int) -> str:
        module, delta, add = f"model.layers.{layer}", self._spec.layers[layer].delta, self._graph
        assert delta is not None
        at = node_path(f"{module}.{delta.module}")
        read = self._activations(hidden, f"{at}/input")
        qkv, gate, output = self._spec.mixer(layer).values()
        values = [self._linear.projection(read, module, each) for each in (qkv, gate)]
        gates = [
            self._linear.float_projection(hidden, module, each)
            for each in delta.gates(self._spec.hidden_size).values()
        ]
        heads = self._delta.mix(layer, values[0], *gates)
        normed = self._optional_norm(heads, module, delta.norm)
        joined = add.integers(0, 0, delta.value_width)
        normed = add.node("Reshape", [normed, joined], f"{at}/Reshape")
        mixed = gated(self._graph, "silu", values[1], normed, f"{at}/gate")
        return self._linear.projection(self._activations(mixed, f"{at}/output"), module, output)

    def _state_space(self, hidden: str, layer: int) -> str:
        module, space = f"model.layers.{layer}", self._spec.layers[layer].space
        assert space is not None
        at, width = node_path(f"{module}.{space.module}"), self._spec.hidden_size
        read = self._activations(hidden, f"{at}/input")
        gate, xbc, output = space.projections(width).values()
        opened, mixed = (self._linear.projection(read, module, each) for each in (gate, xbc))
        (step,) = space.gates(width).values()
        step_rows = self._linear.float_projection(hidden, module, step)
        result = self._space.gate(layer, opened, self._space.mix(layer, mixed, step_rows))
        return self._linear.projection(self._activations(result, f"{at}/output"), module, output)

    def _feed_forward(self, residual: str, layer: int) -> str:
        module, part = f"model.layers.{layer}", self._spec.layers[layer].feed_forward
        around = self._spec.norms_around(layer)
        hidden = self._optional_norm(residual, module, around.before_feed_forward)
        networks, router = self._spec.feed_forward(layer), self._spec.router(layer)
        at = node_path(f"{module}.mlp")
        if router is None or not isinstance(part, Experts):
            return self._network(hidden, layer, at, networks[0])
        own = routed = hidden
        if part.beside is not None:
            routed = self._optional_norm(residual, module, part.beside.router)
            own = self._optional_norm(residual, module, part.beside.experts)
        fed = self._experts.add(own, layer, router, networks, routed)
        if part.shared is None:
            return fed
        shared = self._shared(hidden, layer)
        if part.beside is not None:
            fed = self._optional_norm(fed, module, part.beside.experts_out)
            shared = self._optional_norm(shared, module, part.beside.shared_out)
        return self._graph.node("Add", [fed, shared], f"{at}/shared_residual")

    def _shared(self, hidden: str, layer: int) -> str:
        """Adds the expert that all tokens go through."""
        part = self._spec.shared_expert(layer)
        assert part is not None
        if part.gate:
            return self._single_experts.add_shared(hidden, layer)
        at = node_path(f"model.layers.{layer}.{part.module}")
        return self._network(hidden, layer, at, self._spec.shared_projections(layer))

    def _network(self, hidden: str, layer: int, at: str, projections: Projections) -> str:
        """Adds a gated network, at a path of nodes."""
        module = f"model.layers.{layer}"
        hidden = self._activations(hidden, f"{at}/input")
        part = self._spec.layers[layer].feed_forward
        gate = ""
        if "gate_proj" in projections:
            gate = self._linear.projection(hidden, module, projections["gate_proj"])
        if isinstance(part, Dense) and part.deviations is not None:
            gate = largest(self._graph, gate, part.deviations, f"{at}/largest")
        up = self._linear.projection(hidden, module, projections["up_proj"])
        if isinstance(part, Dense) and part.curve is not None:
            inner = self._curved(up, module, part.curve, at)
        else:
            inner = gated(self._graph, self._spec.activation, gate or up, up, at)
        inner = self._optional_norm(inner, module, self._spec.sub_norm(layer))
        inner = self._activations(inner, f"{at}/output")
        return self._linear.projection(inner, module, projections["down_proj"])

    def _curved(self, value: str, module: str, curve: Xielu, at: str) -> str:
        """Adds the activation of a layer that has a curve of its own."""
        square, bend = (self._store.vector(f"{module}.{path}") for path in curve.tensors)
        return xielu(self._graph, value, square, bend, curve.slope, f"{at}/activation")

    def _activations(self, value: str, at: str) -> str:
        """Rounds the input of projections to int8 if the model was trained that way."""
        if self._spec.ternary is None:
            return value
        return quantised_activations(self._graph, value, f"{at}_quantisation")

    def _optional_norm(self, value: str, module: str, path: str | None) -> str:
        if path is None:
            return value
        return self._norm(value, f"{module}.{path}", self._spec.epsilon(path))

    def _row_norm(self, value: str, layer: int, path: str | None) -> str:
        """Adds a norm of all queries or keys of a token: of all together, or of each head."""
        module, spec = f"model.layers.{layer}", self._spec
        if path is None or not spec.is_by_head(path):
            return self._optional_norm(value, module, path)
        name, size = f"{module}.{path}", spec.head_dim_of(layer)
        sizes, epsilon = (spec.norms(layer)[path] // size, size), spec.epsilon(path)
        weight = self._store.vector(f"{name}.weight")
        return norm_of_groups(self._graph, self._norm_op, value, weight, sizes, epsilon, name)

    @property
    def _norm_op(self) -> str:
        return "LayerNormalization" if self._spec.centres else "RMSNormalization"

    def _norm(self, value: str, module: str, epsilon: float) -> str:
        """Adds a norm over the last axis; once, where two parts of a layer have the same."""
        key = value, module
        if key not in self._norms:
            kinds = ("weight", "bias") if self._spec.norm_biases else ("weight",)
            inputs = [value, *(self._store.vector(f"{module}.{kind}") for kind in kinds)]
            at = f"{node_path(module)}/{self._norm_op}"
            self._norms[key] = self._graph.node(self._norm_op, inputs, at, axis=-1, epsilon=epsilon)
        return self._norms[key]


def _inputs(spec: DecoderSpec, recipe: Recipe) -> list[onnx.ValueInfoProto]:
    values = [
        _value("input_ids", _INT64, ["batch", "sequence_length"]),
        _value("attention_mask", _INT64, ["batch", "total_sequence_length"]),
    ]
    if recipe.target.has_positions:
        values.append(_value("position_ids", _INT64, ["batch", "sequence_length"]))
    return [*values, *_cache("past_key_values", spec, "past_sequence_length")]


def _outputs(spec: DecoderSpec) -> list[onnx.ValueInfoProto]:
    logits = _value("logits", _FLOAT, ["batch", "sequence_length", spec.vocab_size])
    return [logits, *_cache("present", spec, "total_sequence_length")]


def _cache(prefix: str, spec: DecoderSpec, length: str) -> list[onnx.ValueInfoProto]:
    """What layers remember: keys and values, the last inputs of a convolution, matrices."""
    values = []
    for layer, part in enumerate(spec.layers):
        heads: _Shape = ["batch", spec.num_kv_heads_of(layer), length, spec.head_dim_of(layer)]
        shapes: dict[str, _Shape] = {}
        if spec.has_keys(layer):
            shapes = dict.fromkeys(("key", "value"), heads)
        matrices = spec.matrices(layer)
        if matrices is not None:
            shapes["conv"] = ["batch", matrices.width, matrices.taps - 1]
            shapes["recurrent"] = ["batch", *matrices.shape]
        elif part.conv is not None:
            shapes = {"conv": ["batch", spec.hidden_size, part.conv.taps - 1]}
        values += [
            _value(f"{prefix}.{spec.state(layer)}.{kind}", _FLOAT, shape)
            for kind, shape in shapes.items()
        ]
    return values


def _value(name: str, kind: int, shape: _Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))
