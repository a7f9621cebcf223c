"""What a decoder-only transformer consists of, as data: the graph builder needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from edgerun_export.architectures.decoder.attention import attention_projections
from edgerun_export.architectures.decoder.layer import (
    Dense,
    Experts,
    FeedForward,
    GatedDelta,
    LatentAttention,
    LayerSpec,
    NormsAround,
    Projection,
    Rope,
    SharedExpert,
)
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.architectures.decoder.storage import HEAD_WEIGHT, PLAIN, Storage
from edgerun_export.architectures.decoder.streams import AltUp, Laurel, PerLayerInputs
from edgerun_export.architectures.decoder.tensors import (
    experts_of,
    gated_width_of,
    norms_of,
    tensors_of,
)

Config = Mapping[str, Any]
NETWORK = ("gate_proj", "up_proj", "down_proj")
TernaryOrigin = Literal["packed", "master"]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder: embedding, layers of attention and gated feed-forward networks, norm, head.

    A norm path of ``None`` means that the model has none there. Paths are relative to
    ``model.layers.N``.

    Attributes:
        architecture: the checkpoint's ``model_type``.
        hidden_size: width of the residual stream.
        layers: what differs between its layers, in their order.
        num_heads, num_kv_heads: query heads, key and value heads, where a layer says nothing else.
        head_dim: width of a head, likewise.
        vocab_size: rows of the embedding.
        context_length: positions the model was made for, in tokens.
        norm_eps: epsilon of norms, but those of ``latent``, of linear attention that says another,
            and of state spaces.
        activation: of the feed-forward gate, the name of a file in ``edgerun/activations``.
        ropes: rotary position embeddings, of which layers name theirs.
        tied: the head reads the embedding's weights.
        biases: short names of the projections that have a bias in every layer; not of experts.
        head_bias: whether the head has one.
        centres: whether norms are layer norms, which subtract the mean first; else RMS norms.
        norm_biases: whether these have biases.
        parallel: whether the feed-forward part reads what the layer reads, not what attention has
            been added to; where both have the same norm, it is computed once.
        input_norm: norm before attention, or what stands in its place; these four are those of
            layers that have no norms of their own.
        attention_out_norm: norm of what attention adds.
        feed_forward_norm: norm before the feed-forward part.
        feed_forward_out_norm: norm of what that adds.
        latent: what keys and values are made of; ``None`` for the layer's input.
        sinks: of attention, one more score for each head, whose weight goes to nothing.
        q_row_norm, k_row_norm: norms of all queries of a token together, and of all its keys.
        row_norms_by_head: of these two, mean and length are those of each head by itself, while
            heads have weights of their own; without biases, whatever other norms have.
        q_norm, k_norm: norms of each query head, and of each key head.
        norms_after_rope: both come after the rope, not before.
        attention_sub_norm: norm before the output projection.
        mlp_sub_norm: norm before the down projection; experts have none.
        gates_attention: what attention makes is multiplied by one more projection, activated.
        attention_gate: the activation, the name of a file in ``edgerun/activations``.
        gates_by_head: that projection has an output for each head, which multiplies all of it.
        normalises_values: each value head goes through a norm without a weight.
        layer_scale: what the residual stream is multiplied by at the end of a layer, ``[1]``.
        per_layer: what layers are given beside the residual stream.
        altup, laurel: residual streams beside it, and a way past attention.
        softcap: logits ``x`` become ``softcap * tanh(x / softcap)``; ``None`` for as they are.
        score_softcap: likewise attention scores, once they are multiplied by their factor.
        score_scale: factor of the attention scores; ``None`` for ``head_dim ** -0.5``.
        storage: how the checkpoint stores the weights, where it is not as they are named here.
        notes: what a user should know of the model, one sentence each.
        ternary: ``None``, or how a natively ternary checkpoint stores its projections; then each
            projection quantises its input to int8 (BitNet b1.58).
    """

    architecture: str
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    activation: str
    ropes: tuple[Rope, ...]
    tied: bool
    biases: frozenset[str] = frozenset()
    head_bias: bool = False
    centres: bool = False
    norm_biases: bool = False
    parallel: bool = False
    input_norm: str | None = "input_layernorm"
    attention_out_norm: str | None = None
    feed_forward_norm: str | None = "post_attention_layernorm"
    feed_forward_out_norm: str | None = None
    latent: LatentAttention | None = None
    sinks: str | None = None
    q_row_norm: str | None = None
    k_row_norm: str | None = None
    row_norms_by_head: bool = False
    q_norm: str | None = None
    k_norm: str | None = None
    norms_after_rope: bool = False
    attention_sub_norm: str | None = None
    mlp_sub_norm: str | None = None
    gates_attention: bool = False
    attention_gate: str = "sigmoid"
    gates_by_head: bool = False
    normalises_values: bool = False
    layer_scale: str | None = None
    per_layer: PerLayerInputs | None = None
    altup: AltUp | None = None
    laurel: Laurel | None = None
    softcap: float | None = None
    score_softcap: float | None = None
    score_scale: float | None = None
    storage: Storage = PLAIN
    notes: tuple[str, ...] = ()
    ternary: TernaryOrigin | None = None

    embedding_weight: ClassVar[str] = "model.embed_tokens.weight"
    final_norm_weight: ClassVar[str] = "model.norm.weight"
    final_norm_bias: ClassVar[str] = "model.norm.bias"

    @property
    def head_weight(self) -> str:
        """Name of the tensor that the head multiplies by."""
        return self.embedding_weight if self.tied else HEAD_WEIGHT

    def attention_scale(self, layer: int) -> float:
        """Factor of a layer's attention scores."""
        usual = float(self.head_dim_of(layer) ** -0.5)
        return usual if self.score_scale is None else self.score_scale

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def intermediate_size(self) -> int:
        """Width of whatever layers gate, feed-forward parts as a rule; 0 where it differs."""
        return gated_width_of(self)

    @property
    def experts(self) -> tuple[int, int]:
        """Experts of a layer and how many a token goes to; 0 if layers differ or have none.

        A shared expert with a gate is a layer of one.
        """
        return experts_of(self)

    def epsilon(self, path: str) -> float:
        """Epsilon of the norm at a path below ``model.layers.N``."""
        parts = (self.latent, *(layer.delta for layer in self.layers))
        own = (part.norm_eps for part in parts if part is not None and path in part.norms)
        return next(own, None) or self.norm_eps

    def norms_around(self, layer: int) -> NormsAround:
        """Paths of the norms around the parts of a layer."""
        usual = NormsAround(
            self.input_norm,
            self.attention_out_norm,
            self.feed_forward_norm,
            self.feed_forward_out_norm,
        )
        return self.layers[layer].norms or usual

    def is_by_head(self, path: str) -> bool:
        """Whether the norm at such a path is one of each head with weights of its own."""
        return self.row_norms_by_head and path in (self.q_row_norm, self.k_row_norm)

    def norm_kinds(self, path: str) -> tuple[str, ...]:
        """What the norm at such a path has: a weight, and a bias or none."""
        has_bias = self.norm_biases and not self.is_by_head(path)
        return ("weight", "bias") if has_bias else ("weight",)

    def rope_of(self, layer: int) -> Rope | None:
        """What a layer's queries and keys are turned by; None if they are not."""
        which = self.layers[layer].rope
        return None if which is None else self.ropes[which]

    def with_ropes(self, which: Sequence[int | None]) -> DecoderSpec:
        """The same decoder with other ropes, one for each layer."""
        pairs = zip(self.layers, which, strict=True)
        return replace(self, layers=tuple(replace(layer, rope=rope) for layer, rope in pairs))

    def with_windows(self, windows: Sequence[int | None]) -> DecoderSpec:
        """The same decoder with other windows, one for each layer."""
        pairs = zip(self.layers, windows, strict=True)
        return replace(self, layers=tuple(replace(layer, window=window) for layer, window in pairs))

    def with_feed_forward(self, parts: Sequence[FeedForward | None]) -> DecoderSpec:
        """The same decoder with other feed-forward parts, one for each layer."""
        pairs = zip(self.layers, parts, strict=True)
        layers = tuple(replace(layer, feed_forward=part) for layer, part in pairs)
        return replace(self, layers=layers)

    def head_dim_of(self, layer: int) -> int:
        """Width of a layer's heads."""
        return self.layers[layer].head_dim or self.head_dim

    def num_heads_of(self, layer: int) -> int:
        """Query heads of a layer."""
        return self.layers[layer].num_heads or self.num_heads

    def num_kv_heads_of(self, layer: int) -> int:
        """Key and value heads of a layer."""
        return self.layers[layer].num_kv_heads or self.num_kv_heads

    def attention(self, layer: int) -> dict[str, Projection]:
        """The projections of a layer's attention, by their short names."""
        return attention_projections(self, layer)

    def attends(self, layer: int) -> bool:
        """Whether a layer has attention."""
        part = self.layers[layer]
        is_alone = part.space is None or part.space.is_beside
        return part.mixes and part.conv is None and part.delta is None and is_alone

    def state(self, layer: int) -> int:
        """The number of what a layer remembers: layers that mix no tokens are not counted."""
        return sum(part.mixes for part in self.layers[:layer])

    @property
    def num_states(self) -> int:
        """Number of layers that remember something, or attend to what others do."""
        return self.state(self.num_layers)

    def matrices(self, layer: int) -> GatedDelta | StateSpace | None:
        """What keeps matrices that tokens change; None without such."""
        return self.layers[layer].delta or self.layers[layer].space

    def has_keys(self, layer: int) -> bool:
        """Whether a layer has attention to keys and values of its own."""
        return self.attends(layer) and self.layers[layer].kv_source is None

    def mixer(self, layer: int) -> dict[str, Projection]:
        """The projections of a layer's attention and beside it, or of what stands in its place.

        The last one, ``o_proj``, makes what is added to the residual stream; beside attention
        ``space_o_proj`` as well.
        """
        conv, hidden = self.layers[layer].conv, self.hidden_size
        if not self.layers[layer].mixes:
            return {}
        matrices = self.matrices(layer)
        if matrices is not None and not self.attends(layer):
            return matrices.projections(hidden)
        if conv is None:
            beside = {} if matrices is None else matrices.projections(hidden)
            beside |= {} if self.laurel is None else self.laurel.projections(hidden)
            return {**beside, **self.attention(layer)}
        paths = {name: f"{conv.module}.{name}" for name in ("b_proj", "c_proj", "x_proj")}
        paths["o_proj"] = f"{conv.module}.out_proj"
        return {name: Projection(name, path, hidden, hidden) for name, path in paths.items()}

    def mixer_groups(self, layer: int) -> list[list[tuple[Projection, ...]]]:
        """The same by what they read, in stages that depend on those before only.

        Those of the first stage read the residual stream.
        """
        projections = self.mixer(layer)
        if not projections:
            return []
        latent = self.latent.readers if self.latent else ()
        laurel = self.laurel.readers if self.laurel else ()
        later = (*latent, *laurel) if self.attends(layer) else ()
        outputs = [name for name in ("space_o_proj", "o_proj") if name in projections]
        others = {name for group in later for name in group} | {*outputs}
        first = tuple(each for name, each in projections.items() if name not in others)
        middle = [tuple(projections[name] for name in group) for group in later]
        last: list[tuple[Projection, ...]] = [(projections[name],) for name in outputs]
        return [[first], *([middle] if middle else []), last]

    def mixer_readers(self, layer: int) -> tuple[Projection, ...]:
        """All that reads the input of a layer's mixer, also what is never quantised."""
        first = self.mixer_groups(layer)[:1]
        return (*(each for stage in first for each in stage[0]), *self._gates(layer))

    def feed_forward(self, layer: int) -> list[dict[str, Projection]]:
        """Gate, up and down projection of each feed-forward network of a layer.

        Those that are not gated have no gate projection.
        """
        part = self.layers[layer].feed_forward
        if part is None:
            return []
        shapes = self._network_shapes(part.width, part.gated)
        if isinstance(part, Dense):
            return [
                {
                    name: Projection(name, f"mlp.{name}", *shape, name in self.biases)
                    for name, shape in shapes.items()
                }
            ]
        stored = dict(zip(NETWORK, part.names, strict=True))
        return [
            {
                name: Projection(
                    name, f"{part.module}.experts.{expert}.{stored[name]}", *shape, part.biases
                )
                for name, shape in shapes.items()
            }
            for expert in range(part.count)
        ]

    def router(self, layer: int) -> Projection | None:
        """What the router of a layer multiplies by, which is never quantised; None without one."""
        part = self.layers[layer].feed_forward
        if not isinstance(part, Experts):
            return None
        path = f"{part.module}.{part.router}"
        return Projection("router", path, part.count, self.hidden_size, part.biases)

    def is_expert(self, module: str) -> bool:
        """Whether a projection, ``model.layers.N.<path>``, is one of an expert, shared or not."""
        number, _, path = module.removeprefix("model.layers.").partition(".")
        layer = int(number)
        others = {each.path for each in self.mixer(layer).values()}
        if self.per_layer is not None:
            others |= self.per_layer.projections(self.hidden_size).keys()
        return self.router(layer) is not None and path not in others

    def shared_expert(self, layer: int) -> SharedExpert | None:
        """The expert of a layer that all tokens go through; None without one."""
        part = self.layers[layer].feed_forward
        return part.shared if isinstance(part, Experts) else None

    def shared_projections(self, layer: int) -> dict[str, Projection]:
        """Gate, up and down projection of the shared expert of a layer; none without one."""
        part, experts = self.shared_expert(layer), self.layers[layer].feed_forward
        if part is None or experts is None:
            return {}
        return {
            name: Projection(name, f"{part.module}.{name}", *shape)
            for name, shape in self._network_shapes(part.width, experts.gated).items()
        }

    def _network_shapes(self, width: int, gated: bool) -> dict[str, tuple[int, int]]:
        inward, outward = (width, self.hidden_size), (self.hidden_size, width)
        names = NETWORK if gated else NETWORK[1:]
        return {name: outward if name == "down_proj" else inward for name in names}

    def shared_gate(self, layer: int) -> Projection | None:
        """What says how much the shared expert of a layer counts, never quantised.

        None without one, or where it counts as it is.
        """
        part = self.shared_expert(layer)
        if part is None or not part.gate:
            return None
        return Projection("shared_gate", part.gate, 1, self.hidden_size)

    def float_projections(self, layer: int) -> list[Projection]:
        """The projections of a layer that are never quantised, a few rows each."""
        others = (self.router(layer), self.shared_gate(layer))
        return [*self._gates(layer), *filter(None, others)]

    def _gates(self, layer: int) -> list[Projection]:
        """What makes gates of a layer's matrices."""
        matrices = self.matrices(layer)
        return [] if matrices is None else [*matrices.gates(self.hidden_size).values()]

    def sub_norm(self, layer: int) -> str | None:
        """Path of the norm before a layer's down projection; None without one."""
        return self.mlp_sub_norm if isinstance(self.layers[layer].feed_forward, Dense) else None

    def projections(self, layer: int) -> list[Projection]:
        """All projections of a layer but ``float_projections``."""
        parts = [self.mixer(layer), *self.feed_forward(layer), self.shared_projections(layer)]
        if self.per_layer is not None:
            parts.append(self.per_layer.projections(self.hidden_size))
        return [projection for part in parts for projection in part.values()]

    def norms(self, layer: int) -> dict[str, int]:
        """Paths of a layer's norms with their widths."""
        return norms_of(self, layer)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the decoder reads, with its shape."""
        return tensors_of(self)
