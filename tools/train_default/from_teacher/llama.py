"""A Llama in torch, whose products are in bfloat16 while it is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from tools.train_default.model import LanguageModel, RMSNorm, rotate
from tools.train_default.recipe import ModelConfig

FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_positions": "max_position_embeddings",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
}


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim, kv = config.hidden_size, config.num_kv_heads * config.head_dim
        self.shared = config.num_heads // config.num_kv_heads
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, kv, bias=False)
        self.v_proj = nn.Linear(dim, kv, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        k, v = (each.repeat_interleave(self.shared, dim=1) for each in (k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Llama(LanguageModel):
    """Weights in float32; products of a training batch, and of what is scored, in `products`."""

    def __init__(self, config: ModelConfig, products: torch.dtype = torch.bfloat16) -> None:
        super().__init__(config, (Layer(config) for _ in range(config.num_layers)))
        self.products = products

    def forward(self, ids: Tensor) -> Tensor:
        with self.autocast():
            return super().forward(ids).float()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Under their Hugging Face names, without the prefix `model.`."""
        for name, parameter in self.named_parameters():
            yield name, parameter.detach()


def read_config(fields: Mapping[str, Any], context: int) -> ModelConfig:
    """Sizes from a Llama's config.json; its positions are only as many as are needed."""
    sizes = {name: fields[field] for name, field in FIELDS.items()}
    return ModelConfig(**{**sizes, "max_positions": context})


@torch.no_grad()
def load_llama(folder: Path, context: int = 512, products: torch.dtype = torch.bfloat16) -> Llama:
    """The model of a Hugging Face directory whose embedding is its head."""
    model = Llama(read_config(json.loads((folder / "config.json").read_text()), context), products)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in model.tensors():
        tensor.copy_(tensors[f"model.{name}"])
    return model


def save_llama(model: Llama, like: Path, out: Path) -> None:
    """Writes a directory with the tokenizer and the settings of another one."""
    work = out.with_name(out.name + ".new")
    work.mkdir(parents=True, exist_ok=True)
    for path in like.iterdir():
        if path.suffix == ".json":
            (work / path.name).write_bytes(path.read_bytes())
    tensors = {f"model.{name}": tensor.cpu().contiguous() for name, tensor in model.tensors()}
    save_file(tensors, work / "model.safetensors", metadata={"format": "pt"})
    out.mkdir(parents=True, exist_ok=True)
    for path in work.iterdir():
        path.replace(out / path.name)
    work.rmdir()
