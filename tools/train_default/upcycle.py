"""Weights to begin with, from a finished dense model: as it is, or for experts (sparse upcycling).

    python -m tools.train_default.upcycle --bundle models/small/bundle --recipe own.toml \\
        --out initial/
    python -m tools.train_default.upcycle --bundle models/small/bundle --recipe experts.toml \\
        --text real.jsonl --out initial/

A dense network of width 512 is two halves of width 256 that are added up. Each half becomes half
of the experts, with noise, and the two experts of a pair begin with the same row of the router, so
that tokens go to whole pairs at first (Komatsuzaki et al. 2022; He et al. 2024, "virtual groups").
What the dense network's norm before its down projection did becomes a factor of that projection,
the one with which the outputs differ least on some text.

A bundle has no masters. Of a ternary matrix -s/p, 0 and s/p are masters that round to it, p the
share of weights that are not 0.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import relu

from edgerun_export.architectures import describe
from edgerun_export.verify.bundle_weights import BundleWeights
from tools.train_default.model import Block, TernaryLM
from tools.train_default.recipe import ModelConfig, Recipe
from tools.train_default.rounding import round_rows
from tools.train_default.save import save_hf

NOISE = 0.3  # of a matrix's mean magnitude
STORIES = 40  # read for the factors


def masters_of(matrix: Tensor) -> Tensor:
    """Masters whose rounding is a ternary matrix."""
    return matrix / (matrix != 0).float().mean()


@torch.no_grad()
def dense_model(bundle: Path, config: ModelConfig) -> TernaryLM:
    """The model of a bundle, with masters."""
    spec = describe(json.loads((bundle / "config.json").read_text()))
    weights = BundleWeights(bundle, spec)
    model = TernaryLM(replace(config, experts=0))
    for name, tensor in model.tensors():
        path = f"model.{name}"
        if tensor.ndim == 1:
            tensor.copy_(torch.tensor(weights.vector(path)))
        elif name.startswith("embed_tokens"):
            tensor.copy_(torch.tensor(weights.matrix(weights.head_name())))
        else:
            tensor.copy_(masters_of(torch.tensor(weights.matrix(path))))
    model.refresh()
    return model.eval()


@torch.no_grad()
def norm_factors(model: TernaryLM, batches: list[Tensor]) -> list[float]:
    """For each layer, by how much the output without the norm is to be multiplied."""
    sums = torch.zeros(len(model.layers), 2)
    for ids in batches:
        x, part = model.embed_tokens(ids), slice(ids.shape[1])
        for layer, block in enumerate(model.layers):
            angles = model.cos[part], model.sin[part]
            attended = x + block.attention(block.input_layernorm(x), *angles, None)
            inner = block.post_attention_layernorm(attended)
            normed, plain = block.feed_forward(inner), without_norm(block, inner)
            sums[layer] += torch.stack([(normed * plain).sum(), (plain * plain).sum()])
            x = block(x, *angles)
    return (sums[:, 0] / sums[:, 1]).tolist()


def without_norm(block: Block, x: Tensor) -> Tensor:
    """The feed-forward part, as two halves that are rounded each by itself."""
    gate, up = block.ffn_in(x).chunk(2, dim=-1)
    halves = (relu(gate).square() * up).chunk(2, dim=-1)
    down = block.ffn_out.effective.chunk(2, dim=1)
    first, second = (round_rows(each) @ part.T for each, part in zip(halves, down, strict=True))
    return first + second


@torch.no_grad()
def upcycled(dense: TernaryLM, config: ModelConfig, factors: list[float], seed: int) -> TernaryLM:
    """A model of experts that computes nearly what the dense one does."""
    torch.manual_seed(seed)
    model = TernaryLM(config)
    dense_masters = dict(dense.masters())
    for name, parameter in model.masters():
        if name in dense_masters:
            parameter.copy_(dense_masters[name])
    for layer, block in enumerate(model.layers):
        if block.experts is None:
            continue
        at, pairs = f"layers.{layer}.mlp", config.experts // 2
        block.experts.router[pairs:] = block.experts.router[:pairs]
        for name, stack, dim in (
            ("gate_proj", block.experts.inner, 0),
            ("up_proj", block.experts.inner, 0),
            ("down_proj", block.experts.outer, 1),
        ):
            halves = dense_masters[f"{at}.{name}.weight"].chunk(2, dim)
            # The scores of a pair add up to 1, and both halves count whole.
            factor = 2 * factors[layer] if name == "down_proj" else 1.0
            for expert, master in enumerate(stack.masters[name]):
                half = halves[expert // pairs] * factor
                master.copy_(half + NOISE * half.abs().mean() * torch.randn_like(half))
    model.refresh()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="a JSON string a line; for experts")
    parser.add_argument("--out", type=Path, required=True, help="Hugging Face directory")
    args = parser.parse_args()
    recipe = Recipe.read(args.recipe)
    dense = dense_model(args.bundle, recipe.model)
    if not recipe.model.experts:
        save_hf(dense, args.bundle, args.out)
        return
    tokenizer = Tokenizer.from_file(str(args.bundle / "tokenizer.json"))
    if args.text is None:
        parser.error("a model of experts is fitted to some text: say --text")
    texts = [json.loads(line) for _, line in zip(range(STORIES), args.text.open(), strict=False)]
    batches = [torch.tensor([each.ids[:512]]) for each in tokenizer.encode_batch(texts)]
    factors = norm_factors(dense, batches)
    print("factors of the layers without norm:", [round(each, 4) for each in factors])
    save_hf(upcycled(dense, recipe.model, factors, recipe.seed), args.bundle, args.out)


if __name__ == "__main__":
    main()
