"""What a decoder-only transformer consists of, as data: the graph builder needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, Any]
TernaryOrigin = Literal["packed", "master"]
HEAD_WEIGHT = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) in the half-split form.

    Attributes:
        inv_freq: float32 ``[head_dim / 2]``, radians a position.
        attention_factor: multiplies cosine and sine (1 except for yarn).
    """

    inv_freq: NDArray[np.float32]
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Projection:
    """A linear layer of a decoder layer.

    Attributes:
        path: module path below ``model.layers.N``, such as ``self_attn.q_proj``.
        out_features: rows of the weight.
        in_features: columns of the weight.
        bias: whether the checkpoint holds a bias for it.
    """

    path: str
    out_features: int
    in_features: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder: embedding, layers of attention and a gated feed-forward part, norm, head.

    Every norm is an RMS norm. A norm path of ``None`` means that the model has none there. Paths
    are relative to ``model.layers.N``.

    Attributes:
        architecture: the checkpoint's ``model_type``.
        hidden_size: width of the residual stream.
        intermediate_size: width of the feed-forward part.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: width of a head.
        vocab_size: rows of the embedding.
        context_length: positions the model was made for, in tokens.
        norm_eps: epsilon of every norm.
        activation: of the feed-forward gate, the name of a file in ``edgerun/activations``.
        rope: rotary position embedding.
        windows: for each layer the number of latest positions it attends to, or ``None`` for all.
        tied: the head reads the embedding's weights.
        biases: short names of the projections that have a bias, the same in every layer.
        q_norm: norm of each query head.
        k_norm: norm of each key head.
        attention_sub_norm: norm before the output projection.
        mlp_sub_norm: norm before the down projection.
        ternary: ``None``, or how a natively ternary checkpoint stores its projections; then each
            projection quantises its input to int8 (BitNet b1.58).
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    activation: str
    rope: Rope
    windows: tuple[int | None, ...]
    tied: bool
    biases: frozenset[str] = frozenset()
    q_norm: str | None = None
    k_norm: str | None = None
    attention_sub_norm: str | None = None
    mlp_sub_norm: str | None = None
    ternary: TernaryOrigin | None = None

    input_norm: ClassVar[str] = "input_layernorm"
    post_attention_norm: ClassVar[str] = "post_attention_layernorm"
    embedding_weight: ClassVar[str] = "model.embed_tokens.weight"
    final_norm_weight: ClassVar[str] = "model.norm.weight"

    @property
    def head_weight(self) -> str:
        """Name of the tensor that the head multiplies by."""
        return self.embedding_weight if self.tied else HEAD_WEIGHT

    @property
    def attention_scale(self) -> float:
        """Factor of the attention scores."""
        return float(self.head_dim**-0.5)

    def projections(self) -> dict[str, Projection]:
        """The seven projections of a layer by their short names."""
        queries = self.num_heads * self.head_dim
        keys = self.num_kv_heads * self.head_dim
        hidden, wide = self.hidden_size, self.intermediate_size
        shapes = {
            "q_proj": ("self_attn", queries, hidden),
            "k_proj": ("self_attn", keys, hidden),
            "v_proj": ("self_attn", keys, hidden),
            "o_proj": ("self_attn", hidden, queries),
            "gate_proj": ("mlp", wide, hidden),
            "up_proj": ("mlp", wide, hidden),
            "down_proj": ("mlp", hidden, wide),
        }
        return {
            name: Projection(f"{part}.{name}", rows, columns, name in self.biases)
            for name, (part, rows, columns) in shapes.items()
        }

    def norms(self) -> dict[str, int]:
        """Paths of a layer's norms with their widths."""
        widths = {
            self.input_norm: self.hidden_size,
            self.post_attention_norm: self.hidden_size,
            self.q_norm: self.head_dim,
            self.k_norm: self.head_dim,
            self.attention_sub_norm: self.num_heads * self.head_dim,
            self.mlp_sub_norm: self.intermediate_size,
        }
        return {path: width for path, width in widths.items() if path is not None}

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor the decoder reads, with its shape."""
        shapes: dict[str, tuple[int, ...]] = {
            self.embedding_weight: (self.vocab_size, self.hidden_size),
            self.final_norm_weight: (self.hidden_size,),
            self.head_weight: (self.vocab_size, self.hidden_size),
        }
        for layer in range(self.num_layers):
            shapes.update(self._layer_tensors(f"model.layers.{layer}"))
        return shapes

    def _layer_tensors(self, prefix: str) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            f"{prefix}.{path}.weight": (width,) for path, width in self.norms().items()
        }
        for linear in self.projections().values():
            name = f"{prefix}.{linear.path}"
            shapes[f"{name}.weight"] = (linear.out_features, linear.in_features)
            if linear.bias:
                shapes[f"{name}.bias"] = (linear.out_features,)
        return shapes
