"""A Llama-like layer in torch, in the pieces between which weights are fitted.

Products are computed in the type of their weights, all else in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from edgerun_export.architectures import DecoderSpec
from edgerun_export.source.weights import SourceWeights

Weights: TypeAlias = Mapping[str, Tensor]
INPUT_NORM, MLP_NORM = "input_layernorm", "post_attention_layernorm"
PARTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


class Layer:
    """The functions of a layer.

    Args:
        spec: the decoder.
        layer: number of the layer.
        tokens: length of windows.
        product: of inputs and a projection.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        layer: int,
        tokens: int,
        product: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self._spec, self._scale = spec, spec.attention_scale(layer)
        self._product = product or plain_product
        rope = spec.rope_of(layer)
        angles = torch.zeros(tokens, spec.head_dim // 2)
        factor = 1.0
        if rope is not None:
            frequencies = torch.from_numpy(rope.inv_freq.astype("float32"))
            angles = torch.outer(torch.arange(tokens).float(), frequencies)
            factor = rope.attention_factor
        self._cos = torch.cat((angles, angles), -1).cos() * factor
        self._sin = torch.cat((angles, angles), -1).sin() * factor

    def normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm of ``[..., hidden_size]``."""
        return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._spec.norm_eps))

    def mixed(self, x: Tensor, w: Weights) -> Tensor:
        """Input ``[windows, tokens, heads * head_dim]`` of o_proj, x being normed."""
        spec = self._spec
        query, key, value = (
            self._product(x, w[name]).unflatten(-1, (-1, spec.head_dim)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        kind = w["q_proj"].dtype
        query, key = (self._turned(each).to(kind) for each in (query, key))
        shared = spec.num_heads // spec.num_kv_heads
        key, value = (each.repeat_interleave(shared, 1) for each in (key, value.to(kind)))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=self._scale)
        return out.transpose(1, 2).flatten(2).float()

    def gated(self, x: Tensor, w: Weights) -> Tensor:
        """Input ``[windows, tokens, intermediate_size]`` of down_proj, x being normed."""
        return silu(self._product(x, w["gate_proj"])) * self._product(x, w["up_proj"])

    def run(self, x: Tensor, w: Weights) -> Tensor:
        """The whole layer on ``[windows, tokens, hidden_size]``."""
        x = x + self._product(self.mixed(self.normed(x, w[INPUT_NORM]), w), w["o_proj"])
        return x + self._product(self.gated(self.normed(x, w[MLP_NORM]), w), w["down_proj"])

    def _turned(self, heads: Tensor) -> Tensor:
        first, second = heads.chunk(2, -1)
        return heads * self._cos + torch.cat((-second, first), -1) * self._sin


def plain_product(x: Tensor, weight: Tensor) -> Tensor:
    """``x W^T`` in the type of W, float32."""
    return linear(x.to(weight.dtype), weight).float()


def paths(spec: DecoderSpec, layer: int) -> dict[str, str]:
    """Names of a layer's projections in a checkpoint, by their short names."""
    return {
        each.name: f"model.layers.{layer}.{each.path}.weight" for each in spec.projections(layer)
    }


def norms(source: SourceWeights, layer: int) -> dict[str, Tensor]:
    """Both norms of a layer, float32."""
    return {
        name: torch.from_numpy(source.vector(f"model.layers.{layer}.{name}.weight").copy())
        for name in (INPUT_NORM, MLP_NORM)
    }


def source_layer(source: SourceWeights, layer: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The source's weights of a layer by short names, projections in a type."""
    weights = norms(source, layer)
    for name, path in paths(source.spec, layer).items():
        weights[name] = torch.from_numpy(source.matrix(path)).to(dtype)
    return weights
