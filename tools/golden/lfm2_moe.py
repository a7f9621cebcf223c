"""Writes tests/golden/lfm2_moe: a tiny random checkpoint with its logits and a reply.

    python -m tools.golden.lfm2_moe [--out tests/golden]

Computes as ``experts.py`` does, in float64 and one token and expert at a time, what
Lfm2MoeForCausalLM of transformers computes: short convolutions in some layers, and experts that
are chosen by the sigmoid of their logit plus a bias, which does not count in their weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.golden import experts
from tools.golden.byte_tokenizer import BOS
from tools.golden.experts import DENSE_NAMES, F64, MARGIN, Golden, RandomTensors, Tensors
from tools.golden.folder import write_folder

TOKENS, REPLY = 24, 64
EPSILON = 1e-6  # beside the sum of the scores

CONFIG: dict[str, Any] = {
    **{key: value for key, value in experts.BASE.items() if key not in experts.LLAMA_ONLY},
    "model_type": "lfm2_moe",
    "architectures": ["Lfm2MoeForCausalLM"],
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "tie_embedding": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "intermediate_size": 72,
    "moe_intermediate_size": 48,
    "num_dense_layers": 1,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "use_expert_bias": True,
    "routed_scaling_factor": 1.5,
    "pad_token_id": None,
}
GOLDEN = Golden(
    CONFIG,
    "feed_forward",
    ("w1", "w3", "w2"),
    experts=CONFIG["num_experts"],
    normalises=True,
    norms="head",
    dense=(0,),
)
# What checkpoints call what is computed with.
STORED = {
    "model.norm.": "model.embedding_norm.",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def main() -> None:
    """Writes the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser.add_argument("--out", type=Path, default=default)
    write(parser.parse_args().out / "lfm2_moe")


def write(folder: Path) -> None:
    """Writes the first model whose choices no rounding of float32 could change."""
    prompt = np.random.default_rng(7).integers(0, 256, TOKENS)
    prompt[0] = BOS
    for seed in range(1, 1000):
        tensors = random_tensors(seed)
        model = Model(tensors)
        logits = model.logits(prompt)
        ids = model.continued(prompt) if model.margin > MARGIN else prompt
        if model.margin > MARGIN and model.overruled:
            break
    else:
        raise SystemExit("no seed keeps all choices apart")
    write_folder(
        folder,
        CONFIG,
        {stored_name(k): v for k, v in tensors.items()},
        prompt,
        logits,
        model.inv_freq,
        reply=ids[TOKENS:],
    )
    print(f"seed {seed}, margin {model.margin:.4f}, {model.overruled} choices made by biases")


def stored_name(name: str) -> str:
    """What a checkpoint calls a tensor."""
    for own, stored in STORED.items():
        name = name.replace(own, stored)
    return name


def random_tensors(seed: int) -> Tensors:
    """All weights, by the names that are computed with."""
    hidden, heads = CONFIG["hidden_size"], CONFIG["num_attention_heads"]
    keys = hidden // heads * CONFIG["num_key_value_heads"]
    tensors = RandomTensors(hidden, seed)
    tensors.matrix("model.embed_tokens", CONFIG["vocab_size"], hidden, 0.4 * hidden**0.5)
    tensors.norm("model.norm", hidden)
    for layer, kind in enumerate(CONFIG["layer_types"]):
        at = f"model.layers.{layer}"
        tensors.norm(f"{at}.input_layernorm", hidden)
        tensors.norm(f"{at}.post_attention_layernorm", hidden)
        if kind == "conv":
            tensors.matrix(f"{at}.conv.in_proj", 3 * hidden, hidden)
            tensors.matrix(f"{at}.conv.out_proj", hidden, hidden)
            tensors.matrix(f"{at}.conv.conv", hidden, CONFIG["conv_L_cache"])
            taps = tensors.tensors[f"{at}.conv.conv.weight"]
            tensors.tensors[f"{at}.conv.conv.weight"] = taps[:, None]
        else:
            for name, rows in (("q", hidden), ("k", keys), ("v", keys), ("o", hidden)):
                tensors.matrix(f"{at}.self_attn.{name}_proj", rows, hidden)
            tensors.norm(f"{at}.self_attn.q_norm", hidden // heads)
            tensors.norm(f"{at}.self_attn.k_norm", hidden // heads)
        if layer < CONFIG["num_dense_layers"]:
            tensors.network(f"{at}.mlp", DENSE_NAMES, CONFIG["intermediate_size"])
        else:
            experts.random_experts(GOLDEN, CONFIG, f"{at}.feed_forward", tensors)
            biases = np.random.default_rng(seed + layer).uniform(-0.5, 0.5, CONFIG["num_experts"])
            tensors.tensors[f"{at}.feed_forward.expert_bias"] = biases.astype(np.float32)
    return tensors.tensors


class Model(experts.Model):
    """The forward pass in float64.

    Attributes:
        overruled: choices of experts that would have been others without the biases.
    """

    def __init__(self, tensors: Tensors) -> None:
        head_dim = CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
        config = {**CONFIG, "head_dim": head_dim, "rms_norm_eps": CONFIG["norm_eps"]}
        super().__init__(GOLDEN, {**config, "hidden_act": "silu"}, tensors)
        self.overruled = 0

    def logits(self, ids: NDArray[np.int64]) -> F64:
        """Logits after every token, ``[tokens, vocab]``."""
        hidden = self._get("model.embed_tokens")[ids]
        for layer, kind in enumerate(CONFIG["layer_types"]):
            at = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{at}.input_layernorm")
            if kind == "conv":
                hidden = hidden + self._convolution(normed, f"{at}.conv")
            else:
                hidden = hidden + self._attention(normed, f"{at}.self_attn")
            normed = self._norm(hidden, f"{at}.post_attention_layernorm")
            hidden = hidden + np.stack([self._feed_forward(row, layer) for row in normed])
        return self._norm(hidden, "model.norm") @ self._get("model.embed_tokens").T

    def continued(self, prompt: NDArray[np.int64]) -> NDArray[np.int64]:
        """A prompt with the likeliest tokens that follow; each choice counts in ``margin``."""
        ids = prompt
        while len(ids) < TOKENS + REPLY and self.margin > MARGIN:
            last = self.logits(ids)[-1]
            runner_up, best = np.sort(last)[-2:]
            self.margin = min(self.margin, best - runner_up)
            ids = np.append(ids, last.argmax())
        return ids

    def _convolution(self, hidden: F64, at: str) -> F64:
        gate, out, value = np.split(self._product(hidden, f"{at}.in_proj"), 3, axis=-1)
        taps = self._get(f"{at}.conv")[:, 0]
        mixed = np.zeros_like(hidden)
        for token in range(len(hidden)):
            for age in range(min(taps.shape[1], token + 1)):
                mixed[token] += taps[:, -1 - age] * gate[token - age] * value[token - age]
        return self._product(out * mixed, f"{at}.out_proj")

    def _feed_forward(self, row: F64, layer: int) -> F64:
        """Sigmoids of all logits; biases have a say in the choice, and none in the weights."""
        at = f"model.layers.{layer}"
        if layer < CONFIG["num_dense_layers"]:
            return self._network(row, f"{at}.mlp", DENSE_NAMES)
        scores = 1 / (1 + np.exp(-(self._get(f"{at}.feed_forward.gate") @ row)))
        ranks = scores + self._tensors[f"{at}.feed_forward.expert_bias"].astype(np.float64)
        order, top_k = np.argsort(-ranks), CONFIG["num_experts_per_tok"]
        self.margin = min(self.margin, ranks[order[top_k - 1]] - ranks[order[top_k]])
        chosen = order[:top_k]
        self.overruled += {*chosen} != {*np.argsort(-scores)[:top_k]}
        weights = scores[chosen] / (scores[chosen].sum() + EPSILON)
        out = np.zeros_like(row)
        for weight, expert in zip(weights, chosen, strict=True):
            network = self._network(row, f"{at}.feed_forward.experts.{expert}", GOLDEN.names)
            out += CONFIG["routed_scaling_factor"] * weight * network
        return out


if __name__ == "__main__":
    main()
