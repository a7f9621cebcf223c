"""Writes a checkpoint with random weights in the true shape of a known model, for speed work.

    python -m tools.bench.random_model bitnet-2b-4t OUT [--layers N] [--seed S]

Tensors are generated and written piece by piece: memory stays below 150 MB whatever the model.
BitNet projections are written in transformers' packed form, everything else as bfloat16, or as
float32 if told so. Weights are scaled so that activations keep their size from layer to layer.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.source.rows import joined_rows, picked_rows
from tools.golden.byte_tokenizer import BOS, EOS, write_json, write_tokenizer

_PIECE = 1 << 22
_TERNARY_PER_BYTE = 4

_NEMOTRON = {"M": "linear_attention", "*": "full_attention", "E": "moe"}
PRESETS: dict[str, dict[str, Any]] = {
    "bitnet-2b-4t": {
        "model_type": "bitnet",
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 30,
        "num_attention_heads": 20,
        "num_key_value_heads": 5,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "relu2",
        "tie_word_embeddings": True,
        "quantization_config": {
            "quant_method": "bitnet",
            "linear_class": "autobitlinear",
            "quantization_mode": "offline",
        },
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "granite-4-h-1b": {
        "model_type": "granitemoehybrid",
        "hidden_size": 1536,
        "shared_intermediate_size": 4096,
        "num_local_experts": 0,
        "num_hidden_layers": 40,
        "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "vocab_size": 100352,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "attention_multiplier": 0.0078125,
        "tie_word_embeddings": True,
    },
    "phi-2": {
        "model_type": "phi",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 51200,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.4,
        "hidden_act": "gelu_new",
        "tie_word_embeddings": False,
    },
    "nemotron-3-nano-30b-a3b": {
        "model_type": "nemotron_h",
        "hidden_size": 2688,
        "layer_types": [
            _NEMOTRON[letter] for letter in "MEMEM*" + 4 * "EMEMEM*" + "EMEMEMEM*EMEMEMEME"
        ],
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "routed_scaling_factor": 2.5,
        "vocab_size": 131072,
        "max_position_embeddings": 262144,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "vocab_size": 102400,
        "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 40.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "tinyllama": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe",
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 50304,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
}


def main() -> None:
    """Writes the model named on the command line."""
    arguments = asked(__doc__)
    write(config_of(arguments), arguments.out, arguments.seed)


def asked(description: str | None, formats: Sequence[str] = ()) -> argparse.Namespace:
    """What the command line says: a preset, where to write it, and how.

    Weights have one of ``formats``, the first unless it says another.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("preset", choices=list(PRESETS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--seed", type=int, default=0)
    if formats:
        parser.add_argument("--weights", choices=formats, default=formats[0])
    return parser.parse_args()


def config_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The configuration of a preset, perhaps with fewer layers."""
    config = {**PRESETS[arguments.preset], "bos_token_id": BOS, "eos_token_id": EOS}
    if arguments.layers:
        config["num_hidden_layers"] = arguments.layers
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][: arguments.layers]
    return config


def write(config: dict[str, Any], folder: Path, seed: int = 0, dtype: str = "BF16") -> None:
    """Writes ``config.json``, ``model.safetensors`` and a tokenizer.

    ``dtype`` is ``BF16`` or ``F32``. The largest of some bfloat16 weights is a number of half
    precision, too, and so may a scale be that is made of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = describe(config)
    write_json(folder / "config.json", config)
    write_tokenizer(folder, spec.context_length)
    tensors = stored_tensors(spec, dtype)
    widths = {name: shape[-1] for name, shape in stored_shapes(spec).items()}
    generator = np.random.Generator(np.random.SFC64(seed))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header(tensors))
        for name, (kind, shape) in tensors.items():
            width = widths[name if name in widths else name.removesuffix("_scale")]
            for piece in pieces(kind, shape, width, generator):
                file.write(np.ascontiguousarray(piece).data)


def stored_tensors(
    spec: DecoderSpec, dtype: str = "BF16"
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Names every tensor with its storage type and shape; ``dtype`` is what is not packed."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in stored_shapes(spec).items():
        if spec.ternary == "packed" and "_proj.weight" in name:
            tensors[name] = ("U8", (shape[0] // _TERNARY_PER_BYTE, shape[1]))
            tensors[f"{name}_scale"] = ("F32", (1,))
        else:
            tensors[name] = (dtype, shape)
    return tensors


def stored_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of a checkpoint's tensors, by the names that they have there."""
    picked, joined = dict(picked_rows(spec)), dict(joined_rows(spec))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in spec.tensors().items():
        stored, end = spec.storage.names.get(name, name), shape[0]
        if name in picked:
            stored, end = picked[name].path, int(picked[name].rows.max()) + 1
        elif name in joined:
            stored, end = joined[name][0], joined[name][1] + shape[0]
        stored = spec.storage.placed(stored)
        rows = max(end, *shapes.get(stored, (0,))[:1])
        shapes[stored] = (rows, *shape[1:])
    return shapes


def header(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Returns the start of a safetensors file."""
    sizes = {"U8": 1, "BF16": 2, "F32": 4}
    entries, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = at + sizes[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def pieces(
    dtype: str, shape: tuple[int, ...], width: int, generator: np.random.Generator
) -> Iterator[NDArray[Any]]:
    """Yields a tensor's stored values in order, as large as suits sums of ``width`` terms."""
    total = math.prod(shape)
    if dtype == "F32" and shape == (1,):
        # Of the ternary weights two thirds are not zero.
        yield np.array([math.sqrt(1.5 / width)], np.float32)
        return
    for start in range(0, total, _PIECE):
        count = min(_PIECE, total - start)
        if dtype == "U8":
            yield _VALID_BYTES[generator.integers(0, len(_VALID_BYTES), count, np.uint8)]
        else:
            values = np.ones(count, np.float32)
            if len(shape) > 1:
                values = generator.standard_normal(count, np.float32) * np.float32(width**-0.5)
            yield bfloat16(values) if dtype == "BF16" else values


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to the upper half of a float32 (ties away from zero; these values are random)."""
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def valid_bytes() -> NDArray[np.uint8]:
    """Returns the 81 bytes that hold four codes 0, 1 or 2."""
    codes = np.arange(256, dtype=np.uint8)
    fields = np.stack([(codes >> shift) & 3 for shift in range(0, 8, 2)])
    return codes[(fields < 3).all(axis=0)]


_VALID_BYTES = valid_bytes()


if __name__ == "__main__":
    main()
