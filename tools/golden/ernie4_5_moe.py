"""Writes tests/golden/ernie4_5_moe: a tiny random checkpoint with its logits.

    python -m tools.golden.ernie4_5_moe [--out tests/golden]

Computes as ``experts.py`` does what Ernie4_5_MoeForCausalLM of transformers computes: neighbours
in a head are turned together, experts are chosen by their share plus a bias, and some are every
token's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.golden import experts
from tools.golden.byte_tokenizer import BOS
from tools.golden.experts import (
    BASE,
    DENSE_NAMES,
    F64,
    MARGIN,
    TOKENS,
    Golden,
    RandomTensors,
    Tensors,
)
from tools.golden.folder import write_folder

BIAS = "moe_statics.e_score_correction_bias"
CONFIG: dict[str, Any] = {
    **BASE,
    "model_type": "ernie4_5_moe",
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "num_hidden_layers": 3,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "use_bias": False,
    "intermediate_size": 72,
    "moe_intermediate_size": 48,
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_norm_min": 1e-12,
    "num_nextn_predict_layers": 1,
    "pad_token_id": None,
}
GOLDEN = Golden(
    CONFIG,
    "mlp",
    DENSE_NAMES,
    experts=CONFIG["moe_num_experts"],
    normalises=True,
    dense=tuple(range(CONFIG["moe_layer_start_index"])),
)


def main() -> None:
    """Writes the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser.add_argument("--out", type=Path, default=default)
    write(parser.parse_args().out / "ernie4_5_moe")


def write(folder: Path) -> None:
    """Writes the first model whose choices no rounding of float32 could change."""
    ids: NDArray[np.int64] = np.random.default_rng(7).integers(0, 256, TOKENS)
    ids[0] = BOS
    for seed in range(1, 1000):
        tensors = random_tensors(seed)
        model = Model(tensors)
        logits = model.logits(ids)
        if model.margin > MARGIN and model.overruled:
            break
    else:
        raise SystemExit("no seed keeps all choices apart")
    # Of multi-token prediction, which nothing reads.
    unread = {"model.mtp_emb_norm.0.weight": np.ones(CONFIG["hidden_size"], np.float16)}
    write_folder(folder, CONFIG, {**tensors, **unread}, ids, logits, model.inv_freq)
    print(f"seed {seed}, margin {model.margin:.4f}, {model.overruled} choices made by biases")


def random_tensors(seed: int) -> Tensors:
    """All weights."""
    tensors = experts.random_tensors(GOLDEN, CONFIG, seed)
    del tensors["lm_head.weight"]
    more = RandomTensors(CONFIG["hidden_size"], seed + 1)
    width = CONFIG["moe_num_shared_experts"] * CONFIG["moe_intermediate_size"]
    for layer in range(len(GOLDEN.dense), CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp"
        more.network(f"{at}.shared_experts", DENSE_NAMES, width)
        biases = np.random.default_rng(seed + layer).uniform(-0.3, 0.3, (1, GOLDEN.experts))
        more.tensors[f"{at}.{BIAS}"] = biases.astype(np.float32)
    return tensors | more.tensors


class Model(experts.Model):
    """The forward pass in float64.

    Attributes:
        overruled: choices of experts that would have been others without the biases.
    """

    def __init__(self, tensors: Tensors) -> None:
        tied = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
        super().__init__(GOLDEN, CONFIG, tensors | tied)
        self.overruled = 0

    def _rotated(self, heads: F64) -> F64:
        angles = np.arange(len(heads))[:, None, None] * self.inv_freq
        a, b = heads[..., 0::2], heads[..., 1::2]
        turned = np.empty_like(heads)
        turned[..., 0::2] = a * np.cos(angles) - b * np.sin(angles)
        turned[..., 1::2] = b * np.cos(angles) + a * np.sin(angles)
        return turned

    def _feed_forward(self, row: F64, layer: int) -> F64:
        """Shares of all logits; biases have a say in the choice, and none in the weights."""
        at = f"model.layers.{layer}.mlp"
        if layer in GOLDEN.dense:
            return self._network(row, at, DENSE_NAMES)
        logits = self._get(f"{at}.gate") @ row
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        ranks = shares + self._tensors[f"{at}.{BIAS}"][0].astype(np.float64)
        order, top_k = np.argsort(-ranks), CONFIG["moe_k"]
        self.margin = min(self.margin, ranks[order[top_k - 1]] - ranks[order[top_k]])
        chosen = order[:top_k]
        self.overruled += {*chosen} != {*np.argsort(-shares)[:top_k]}
        weights = shares[chosen] / max(shares[chosen].sum(), CONFIG["moe_norm_min"])
        out = self._network(row, f"{at}.shared_experts", DENSE_NAMES)
        for weight, expert in zip(weights, chosen, strict=True):
            out = out + weight * self._network(row, f"{at}.experts.{expert}", DENSE_NAMES)
        return out


if __name__ == "__main__":
    main()
