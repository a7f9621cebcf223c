"""Writes those of tests/golden that have experts: tiny random checkpoints with their logits.

    python -m tools.golden.experts [--out tests/golden] [NAME ...]

Where ``make.py`` asks transformers, this computes the logits itself, in float64 and from the
definitions that were published: MixtralForCausalLM, OlmoeForCausalLM, Qwen2MoeForCausalLM and
Qwen3MoeForCausalLM of transformers, one token and one expert at a time. It shares no code with
the exporter.
``bitnet_moe`` is BitNetForCausalLM with experts that have no norm of their own, which
``tools/train_default`` makes.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.golden.byte_tokenizer import BOS, EOS
from tools.golden.folder import write_folder

F64 = NDArray[np.float64]
Tensors = dict[str, NDArray[Any]]

MARGIN = 1e-3  # between the logits of the last expert that is chosen and the first that is not
CLEAR = 2e-5  # from the next boundary of what is rounded: float32 is to round it to the same side
TOKENS = 24
BASE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
LLAMA_ONLY = ("head_dim", "hidden_act", "rms_norm_eps", "tie_word_embeddings")  # no LFM2 has them


@dataclass(frozen=True, slots=True)
class Golden:
    """One tiny checkpoint.

    Attributes:
        config: what its config.json says beyond the common keys.
        module: path of a layer's experts.
        names: of an expert's gate, up and down projection.
        experts: how many a layer has.
        normalises: whether the weights of the chosen ones add up to 1.
        norms: what a norm of queries and keys covers: nothing, each head, or all of them.
        dense: layers without experts.
        is_ternary: BitNet b1.58's projections, sub-norms and squared ReLU (equations 1 to 4).
        is_shared: queries, keys and values have biases, and one expert is every token's.
    """

    config: dict[str, Any]
    module: str
    names: tuple[str, str, str]
    experts: int
    normalises: bool
    norms: str = ""
    dense: tuple[int, ...] = ()
    is_ternary: bool = False
    is_shared: bool = False


DENSE_NAMES = ("gate_proj", "up_proj", "down_proj")
GOLDEN = {
    # 40 is no multiple of a block.
    "mixtral": Golden(
        {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 40},
        "block_sparse_moe",
        ("w1", "w3", "w2"),
        experts=4,
        normalises=True,
    ),
    "olmoe": Golden(
        {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32},
        "mlp",
        DENSE_NAMES,
        experts=8,
        normalises=False,
        norms="row",
    ),
    "qwen3_moe": Golden(
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 72,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "head_dim": 32,
        },
        "mlp",
        DENSE_NAMES,
        experts=5,
        normalises=True,
        norms="head",
        dense=(0,),
    ),
    "qwen2_moe": Golden(
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 72,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 104,
            "mlp_only_layers": [0],
            "norm_topk_prob": False,
        },
        "mlp",
        DENSE_NAMES,
        experts=6,
        normalises=False,
        dense=(0,),
        is_shared=True,
    ),
    "bitnet_moe": Golden(
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "intermediate_size": 96,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [0],
            "norm_topk_prob": True,
            "hidden_act": "relu2",
            "quantization_config": {
                "quant_method": "bitnet",
                "linear_class": "autobitlinear",
                "quantization_mode": "online",
            },
        },
        "mlp",
        DENSE_NAMES,
        experts=6,
        normalises=True,
        dense=(0,),
        is_ternary=True,
    ),
}


def main() -> None:
    """Writes the checkpoints named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(GOLDEN), metavar="NAME")
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    for name in arguments.names:
        write(name, arguments.out / name)
        print(name)


def write(name: str, folder: Path) -> None:
    """Writes one checkpoint with its tokenizer and logits."""
    golden = GOLDEN[name]
    config = {**BASE, **golden.config, "model_type": name}
    ids = np.random.default_rng(7).integers(0, 256, TOKENS)
    ids[0] = BOS
    for seed in range(1, 1000):
        tensors = random_tensors(golden, config, seed)
        model = Model(golden, config, tensors)
        logits = model.logits(ids)
        if model.margin > MARGIN and model.clear > CLEAR:
            break
    else:
        raise SystemExit(f"{name}: no seed keeps all choices apart")
    write_folder(folder, config, tensors, ids, logits, model.inv_freq)


class RandomTensors:
    """Weights with which attention is peaked and logits differ, as float16.

    Attributes:
        tensors: those made so far, by name.
    """

    def __init__(self, hidden: int, seed: int) -> None:
        self._hidden, self._generator = hidden, np.random.default_rng(seed)
        self.tensors: Tensors = {}

    def matrix(self, name: str, rows: int, columns: int, size: float = 1.5) -> None:
        values = self._generator.standard_normal((rows, columns)) * size * columns**-0.5
        self.tensors[f"{name}.weight"] = values.astype(np.float16)

    def norm(self, name: str, width: int) -> None:
        values = 1 + 0.2 * self._generator.standard_normal(width)
        self.tensors[f"{name}.weight"] = values.astype(np.float16)

    def bias(self, name: str, width: int) -> None:
        values = self._generator.standard_normal(width)
        self.tensors[f"{name}.bias"] = values.astype(np.float16)

    def network(self, prefix: str, names: tuple[str, str, str], width: int) -> None:
        self.matrix(f"{prefix}.{names[0]}", width, self._hidden)
        self.matrix(f"{prefix}.{names[1]}", width, self._hidden)
        self.matrix(f"{prefix}.{names[2]}", self._hidden, width)


def random_tensors(golden: Golden, config: dict[str, Any], seed: int) -> Tensors:
    """All weights of a checkpoint."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = (
        config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads")
    )
    tensors = RandomTensors(hidden, seed)
    tensors.matrix("model.embed_tokens", config["vocab_size"], hidden, 0.4 * hidden**0.5)
    tensors.matrix("lm_head", config["vocab_size"], hidden)
    tensors.norm("model.norm", hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, rows, columns in (
            ("q_proj", queries, hidden),
            ("k_proj", keys, hidden),
            ("v_proj", keys, hidden),
            ("o_proj", hidden, queries),
        ):
            tensors.matrix(f"{at}.self_attn.{name}", rows, columns)
        for name, width in norms_of(golden, config, layer).items():
            tensors.norm(f"{at}.{name}", width)
        if golden.is_shared:
            for name, width in (("q", queries), ("k", keys), ("v", keys)):
                tensors.bias(f"{at}.self_attn.{name}_proj", width)
        if layer in golden.dense:
            tensors.network(f"{at}.mlp", DENSE_NAMES, config["intermediate_size"])
        else:
            random_experts(golden, config, f"{at}.{golden.module}", tensors)
    return tensors.tensors


def random_experts(golden: Golden, config: dict[str, Any], at: str, tensors: RandomTensors) -> None:
    """The weights of a layer of experts and of its routers."""
    tensors.matrix(f"{at}.gate", golden.experts, config["hidden_size"])
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    for expert in range(golden.experts):
        tensors.network(f"{at}.experts.{expert}", golden.names, width)
    if golden.is_shared:
        width = config["shared_expert_intermediate_size"]
        tensors.network(f"{at}.shared_expert", golden.names, width)
        tensors.matrix(f"{at}.shared_expert_gate", 1, config["hidden_size"])


def norms_of(golden: Golden, config: dict[str, Any], layer: int) -> dict[str, int]:
    """The norms of a layer by their paths, with their widths."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = (
        config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads")
    )
    widths = {"head": (head_dim, head_dim), "row": (queries, keys)}.get(golden.norms, ())
    pairs = zip(("self_attn.q_norm", "self_attn.k_norm"), widths, strict=False)
    norms = {**dict(pairs), "input_layernorm": hidden, "post_attention_layernorm": hidden}
    if golden.is_ternary:
        norms["self_attn.attn_sub_norm"] = queries
    if golden.is_ternary and layer in golden.dense:
        norms["mlp.ffn_sub_norm"] = config["intermediate_size"]
    return norms


class Model:
    """The forward pass in float64.

    Attributes:
        inv_freq: radians a position.
        margin: the least difference between the logits of an expert that was just chosen and the
            first that was not.
        clear: the least distance of a number that was rounded from where it would be rounded
            otherwise.
    """

    def __init__(self, golden: Golden, config: dict[str, Any], tensors: Tensors) -> None:
        self._golden, self._config, self._tensors = golden, config, tensors
        half = np.arange(config["head_dim"] // 2)
        self.inv_freq: F64 = config["rope_theta"] ** (-2.0 * half / config["head_dim"])
        self.margin = self.clear = np.inf

    def logits(self, ids: NDArray[np.int64]) -> F64:
        """Logits after every token, ``[tokens, vocab]``."""
        hidden = self._get("model.embed_tokens")[ids]
        for layer in range(self._config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{at}.input_layernorm")
            hidden = hidden + self._attention(normed, f"{at}.self_attn")
            normed = self._norm(hidden, f"{at}.post_attention_layernorm")
            hidden = hidden + np.stack([self._feed_forward(row, layer) for row in normed])
        return self._norm(hidden, "model.norm") @ self._get("lm_head").T

    def _get(self, name: str) -> F64:
        return self._tensors[f"{name}.weight"].astype(np.float64)

    def _product(self, values: F64, name: str) -> F64:
        weight, bias = self._get(name), self._tensors.get(f"{name}.bias", np.zeros(()))
        if not self._golden.is_ternary:
            return values @ weight.T + bias.astype(np.float64)
        scale = np.abs(weight).mean()
        largest = np.maximum(np.abs(values).max(axis=-1, keepdims=True), 1e-5) / 127
        signs = np.clip(self._rounded(weight / scale), -1, 1)
        return self._rounded(values / largest) * largest @ (signs * scale).T

    def _rounded(self, values: F64) -> F64:
        self.clear = min(self.clear, np.abs(values - np.floor(values) - 0.5).min())
        rounded: F64 = np.rint(values)
        return rounded

    def _norm(self, values: F64, name: str) -> F64:
        mean = (values**2).mean(axis=-1, keepdims=True)
        normed: F64 = values / np.sqrt(mean + self._config["rms_norm_eps"]) * self._get(name)
        return normed

    def _attention(self, hidden: F64, at: str) -> F64:
        count, head_dim = len(hidden), self._config["head_dim"]
        parts = {}
        for name in ("q", "k", "v"):
            values = self._product(hidden, f"{at}.{name}_proj")
            normed = self._golden.norms if name != "v" else ""
            if normed == "row":
                values = self._norm(values, f"{at}.{name}_norm")
            heads = values.reshape(count, -1, head_dim)
            if normed == "head":
                heads = self._norm(heads, f"{at}.{name}_norm")
            parts[name] = self._rotated(heads) if name != "v" else heads
        q, k, v = parts.values()
        out = np.zeros_like(q)
        for head in range(q.shape[1]):
            shared = head * k.shape[1] // q.shape[1]
            for token in range(count):
                scores = k[: token + 1, shared] @ q[token, head] / np.sqrt(head_dim)
                weights = np.exp(scores - scores.max())
                out[token, head] = weights / weights.sum() @ v[: token + 1, shared]
        joined = out.reshape(count, -1)
        if self._golden.is_ternary:
            joined = self._norm(joined, f"{at}.attn_sub_norm")
        return self._product(joined, f"{at}.o_proj")

    def _rotated(self, heads: F64) -> F64:
        angles = np.arange(len(heads))[:, None, None] * self.inv_freq
        a, b = np.split(heads, 2, axis=-1)
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1
        )

    def _feed_forward(self, row: F64, layer: int) -> F64:
        """Softmax over the logits of all experts, then the ``top_k`` of them (and their share)."""
        at, golden = f"model.layers.{layer}", self._golden
        if layer in golden.dense:
            norm = f"{at}.mlp.ffn_sub_norm" if golden.is_ternary else ""
            return self._network(row, f"{at}.mlp", DENSE_NAMES, norm)
        logits = self._get(f"{at}.{golden.module}.gate") @ row
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        order, top_k = np.argsort(-weights), self._config["num_experts_per_tok"]
        self.margin = min(self.margin, logits[order[top_k - 1]] - logits[order[top_k]])
        chosen = weights[order[:top_k]]
        if golden.normalises:
            chosen = chosen / chosen.sum()
        out = np.zeros_like(row)
        for weight, expert in zip(chosen, order, strict=False):
            at_expert = f"{at}.{golden.module}.experts.{expert}"
            out += weight * self._network(row, at_expert, golden.names)
        if golden.is_shared:
            logit = self._get(f"{at}.{golden.module}.shared_expert_gate")[0] @ row
            shared = self._network(row, f"{at}.{golden.module}.shared_expert", golden.names)
            out += shared / (1 + np.exp(-logit))
        return out

    def _network(self, row: F64, at: str, names: tuple[str, str, str], norm: str = "") -> F64:
        gate, up, down = (f"{at}.{name}" for name in names)
        inner = self._product(row, gate)
        if self._config["hidden_act"] == "relu2":
            active = np.maximum(inner, 0) ** 2
        else:
            active = inner / (1 + np.exp(-inner))
        gated = active * self._product(row, up)
        return self._product(self._norm(gated, norm) if norm else gated, down)


if __name__ == "__main__":
    main()
