"""Writes tests/golden/gpt_oss: a tiny random checkpoint in MXFP4, what transformers makes of it.

    python -m tools.golden.gpt_oss [--out tests/golden]

Needs torch and transformers, as ``make.py`` does. The experts are random MXFP4 codes and exponents,
decoded by transformers; logits are those of a prompt and of the 64 tokens that follow greedily.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tools.golden.byte_tokenizer import BOS, EOS, write_json, write_tokenizer
from tools.golden.make import randomise

PROMPT, REPLY = 24, 64
MARGIN = 1e-2  # between the two largest logits, and around the choice of experts
CONFIG: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 128,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
Tensors = dict[str, torch.Tensor]


def main() -> None:
    """Writes the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "tests" / "golden"
    parser.add_argument("--out", type=Path, default=default)
    write(parser.parse_args().out / "gpt_oss")


def write(folder: Path) -> None:
    """Writes the first model whose choices no rounding of float32 could change."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    prompt = torch.randint(0, 256, (1, PROMPT), generator=generator)
    prompt[0, 0] = BOS
    for seed in range(1, 1000):
        torch.manual_seed(seed)
        model, stored = make_model()
        ids, logits, margin = reply(model, prompt)
        if margin > MARGIN:
            break
    else:
        raise SystemExit("no seed keeps all choices apart")
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in sorted(stored.items())}, folder / "model.safetensors")
    np.savez(
        folder / "golden.npz",
        ids=ids.numpy(),
        logits=logits.numpy(),
        inv_freq=model.model.rotary_emb.inv_freq.numpy(),
        prompt=PROMPT,
    )
    config = {
        **CONFIG,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": model.config.rms_norm_eps,
        "rope_scaling": {key: value for key, value in ROPE.items() if key != "rope_theta"},
        "rope_theta": ROPE["rope_theta"],
        "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    write_json(folder / "config.json", config)
    write_tokenizer(folder, CONFIG["max_position_embeddings"])
    print(f"seed {seed}, margin {margin:.3f}")


def make_model() -> tuple[Any, Tensors]:
    """Makes a model with random weights; returns it, and the tensors to save."""
    config = transformers.GptOssConfig(**CONFIG, rope_parameters=ROPE, attn_implementation="eager")
    model = transformers.GptOssForCausalLM(config).float().eval()
    randomise(model)
    stored: Tensors = {name: value.bfloat16() for name, value in model.state_dict().items()}
    for layer, block in enumerate(model.model.layers):
        # Some gates and ups beyond the limits that they are clamped to, some sinks that count.
        block.mlp.experts.gate_up_proj_bias.data.mul_(8)
        block.self_attn.sinks.data.mul_(8)
        at = f"model.layers.{layer}"
        stored[f"{at}.mlp.experts.gate_up_proj_bias"] = block.mlp.experts.gate_up_proj_bias.data
        stored[f"{at}.self_attn.sinks"] = block.self_attn.sinks.data
        for name in ("gate_up_proj", "down_proj"):
            parameter = getattr(block.mlp.experts, name)
            blocks, scales = random_codes(parameter.shape)
            values = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
            parameter.data.copy_(values.float())
            stored.pop(f"{at}.mlp.experts.{name}")
            stored[f"{at}.mlp.experts.{name}_blocks"] = blocks
            stored[f"{at}.mlp.experts.{name}_scales"] = scales
    wide = (torch.float32,)
    return model, {k: v.bfloat16() if v.dtype in wide else v for k, v in stored.items()}


def random_codes(shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and scales of a stack ``[experts, K, N]``."""
    experts, k, n = shape
    blocks = torch.randint(0, 256, (experts, n, k // 32, 16), dtype=torch.uint8)
    scales = torch.randint(122, 125, (experts, n, k // 32), dtype=torch.uint8)
    return blocks, scales


def reply(model: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Prompt and reply, the logits after each of them, and how clear all choices were."""
    margins = [float("inf")]

    def look(module: Any, inputs: Any, outputs: Any) -> None:
        logits = torch.nn.functional.linear(inputs[0], module.weight, module.bias)
        ordered = logits.reshape(-1, logits.shape[-1]).sort(dim=-1, descending=True).values
        top_k = CONFIG["num_experts_per_tok"]
        margins.append(float((ordered[:, top_k - 1] - ordered[:, top_k]).min()))

    for block in model.model.layers:
        block.mlp.router.register_forward_hook(look)
    ids = prompt
    with torch.no_grad():
        for _ in range(REPLY):
            logits = model(ids).logits[0]
            best = logits[-1].topk(2)
            margins.append(float(best.values[0] - best.values[1]))
            ids = torch.cat([ids, best.indices[:1][None]], dim=1)
            if min(margins) <= MARGIN:
                break
        logits = model(ids).logits[0]
    return ids[0], logits, min(margins)


if __name__ == "__main__":
    main()
