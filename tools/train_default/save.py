"""Write a checkpoint as a Hugging Face directory, and read one.

    python -m tools.train_default.save --checkpoint run/checkpoint.pt \\
        --tokenizer tokenizer/ --out hf/
    python -m tools.train_default.save --checkpoint run/checkpoint.pt earlier/checkpoint.pt \\
        --shares 0.9 0.1 --tokenizer tokenizer/ --out hf/

Checkpoints of which one goes on from the other may be averaged, by shares (Wortsman et al. 2022,
"Robust fine-tuning of zero-shot models"): what a short run forgets comes back, and most of what it
learned stays.

`transformers` loads the directory as `BitNetForCausalLM`; its quantization_config makes every
projection an `AutoBitLinear` that quantises the stored full-precision masters online, as training
did.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from tools.train_default.model import TernaryLM
from tools.train_default.recipe import ModelConfig
from tools.train_default.tokenizer import END, TEXT

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
SAMPLING = {
    "do_sample": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.0,
    "dry_multiplier": 0.8,
    "dry_allowed_length": 3,
}


def config_json(config: ModelConfig, bos: int, eos: int) -> dict[str, Any]:
    """What config.json says; with experts a `bitnet_moe`, which only edgerun knows."""
    experts = {
        "architectures": ["BitNetMoeForCausalLM"],
        "model_type": "bitnet_moe",
        "num_experts": config.experts,
        "num_experts_per_tok": config.top_k,
        "moe_intermediate_size": config.expert_size,
        "mlp_only_layers": list(range(config.dense_layers)),
        "norm_topk_prob": True,
    }
    return {
        "architectures": ["BitNetForCausalLM"],
        "model_type": "bitnet",
        **(experts if config.experts else {}),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "hidden_act": "relu2",
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "dtype": "float32",
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "online",
        },
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def save_hf(model: TernaryLM, tokenizer: Path, out: Path) -> None:
    """Write all files beside `out`, then move them in, so that a reader finds whole files."""
    work = out.with_name(out.name + ".new")
    work.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, work / name)
    ids = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    ids.save(str(work / "tokenizer.json"), pretty=False)  # indented it is twice as large
    text, end = ids.token_to_id(TEXT), ids.token_to_id(END)
    write_json(work / "config.json", config_json(model.config, text, end))
    generation = {
        "bos_token_id": text,
        "eos_token_id": [end, text],
        "pad_token_id": text,
        **SAMPLING,
    }
    write_json(work / "generation_config.json", generation)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.tensors()}
    save_file(tensors, work / "model.safetensors", metadata={"format": "pt"})
    out.mkdir(parents=True, exist_ok=True)
    for path in work.iterdir():
        os.replace(path, out / path.name)
    work.rmdir()


def read_checkpoints(paths: Sequence[Path], shares: Sequence[float] = (1.0,)) -> dict[str, Any]:
    """A checkpoint, or the first of several with the average of their weights, by their shares.

    Raises:
        ValueError: there is not a share for each, they do not add up to 1, or the models differ.
    """
    if len(shares) != len(paths) or not abs(sum(shares) - 1) <= 1e-6:
        raise ValueError(f"{len(paths)} checkpoints need as many shares that add up to 1: {shares}")
    states = [torch.load(path, weights_only=True) for path in paths]
    if any(state["config"] != states[0]["config"] for state in states):
        raise ValueError("checkpoints of different models cannot be averaged")
    weights = {
        name: sum(share * state["model"][name] for share, state in zip(shares, states, strict=True))
        for name in states[0]["model"]
    }
    return {**states[0], "model": weights}


def load_checkpoint(paths: Sequence[Path], shares: Sequence[float] = (1.0,)) -> TernaryLM:
    """The model of `read_checkpoints`."""
    state = read_checkpoints(paths, shares)
    model = TernaryLM(ModelConfig(**state["config"]))
    model.load_state_dict(state["model"], strict=False)
    model.refresh()
    return model.eval()


def model_config(fields: Mapping[str, Any]) -> ModelConfig:
    """What a config.json says that `config_json` made."""
    return ModelConfig(
        vocab_size=fields["vocab_size"],
        hidden_size=fields["hidden_size"],
        intermediate_size=fields["intermediate_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=fields["num_attention_heads"],
        num_kv_heads=fields["num_key_value_heads"],
        max_positions=fields["max_position_embeddings"],
        rope_theta=fields["rope_theta"],
        norm_eps=fields["rms_norm_eps"],
        experts=fields.get("num_experts", 0),
        top_k=fields.get("num_experts_per_tok", 2),
        expert_size=fields.get("moe_intermediate_size", 0),
        dense_layers=len(fields.get("mlp_only_layers", ())),
    )


def load_hf(folder: Path) -> TernaryLM:
    """The model of a directory written by `save_hf`."""
    model = TernaryLM(model_config(json.loads((folder / "config.json").read_text())))
    read_hf(model, folder)
    return model.eval()


@torch.no_grad()
def read_hf(model: TernaryLM, folder: Path) -> None:
    """Takes over all weights of a directory."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in model.tensors():
        tensor.copy_(tensors[f"model.{name}"])
    model.refresh()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, nargs="+", required=True)
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0], help="of each checkpoint")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    save_hf(load_checkpoint(args.checkpoint, args.shares), args.tokenizer, args.out)


if __name__ == "__main__":
    main()
