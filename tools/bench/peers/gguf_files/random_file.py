"""Writes a GGUF file with random weights in the shape of a known model.

The blocks are made of random bytes directly (llama.cpp, ``ggml-common.h``): how fast a file runs
does not depend on what its weights are. What is stored in which type follows llama.cpp's own
quantiser (``llama-quant.cpp``): the head in Q6_K, which is the embedding too if they are tied, and
routers in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tools.bench.peers.gguf_files.recurrent import FAMILIES

U8 = NDArray[np.uint8]
Type = gguf.GGMLQuantizationType
Stored = tuple[Type, tuple[int, ...]]
# llama.cpp's names of architectures, by model_type.
ARCHITECTURES = {
    "bitnet": "bitnet",
    "llama": "llama",
    "olmoe": "olmoe",
    "phi": "phi2",
    "qwen3_moe": "qwen3moe",
    **{name: family.architecture for name, family in FAMILIES.items()},
}
BIASED = ("phi",)  # whose norms, projections and head have biases, and whose networks no gate
DECAY = ".ssm_a"  # of states, which is negative
BODY_TYPES = {"tq2_0": Type.TQ2_0, "tq1_0": Type.TQ1_0, "q4_0": Type.Q4_0}
HEAD_TYPE = Type.Q6_K
# Bytes of a block after (or before) which its float16 scale lies, and the range of its codes.
SCALE_AT = {Type.TQ2_0: 64, Type.TQ1_0: 52, Type.Q4_0: 0, Type.Q6_K: 208}
CODE_SPREAD = {Type.TQ2_0: 0.8, Type.TQ1_0: 0.8, Type.Q4_0: 4.6, Type.Q6_K: 18.5 * 74}


def write(config: Mapping[str, Any], path: Path, body: str, seed: int = 0) -> None:
    """Writes the file, a tensor at a time; it appears when complete.

    Args:
        config: the ``config.json`` of a model of one of ``ARCHITECTURES``.
        path: file to make.
        body: storage of the projections, a key of ``BODY_TYPES``.
        seed: of the random bytes.
    """
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, ARCHITECTURES[config["model_type"]])
    _add_config(writer, config)
    shapes = tensor_shapes(config, BODY_TYPES[body])
    for name, (kind, shape) in shapes.items():
        count = int(np.prod(shape))
        stored = gguf.quant_shape_to_byte_shape(shape, kind) if len(shape) > 1 else shape
        if kind == Type.F32:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * count)
        else:
            writer.add_tensor_info(
                name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=kind
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    generator = np.random.Generator(np.random.SFC64(seed))
    for name, (kind, shape) in shapes.items():
        values = tensor(kind, shape, generator)
        writer.write_tensor_data(-np.ones_like(values) if name.endswith(DECAY) else values)
    writer.close()
    partial.rename(path)


def tensor_shapes(config: Mapping[str, Any], body: Type) -> dict[str, Stored]:
    """Returns type and shape (rows, columns) of every tensor, in file order."""
    hidden = config["hidden_size"]
    table = (config["vocab_size"], hidden)
    shapes: dict[str, Stored] = {"output_norm.weight": (Type.F32, (hidden,))}
    if config["tie_word_embeddings"]:
        shapes["token_embd.weight"] = (HEAD_TYPE, table)
    else:
        shapes |= {"token_embd.weight": (body, table), "output.weight": (HEAD_TYPE, table)}
    for layer in range(config["num_hidden_layers"]):
        of_layer = _mixer(config, layer, body) | _feed_forward(config, body)
        shapes |= {f"blk.{layer}.{name}": each for name, each in of_layer.items()}
    if config["model_type"] in BIASED:
        shapes |= {
            name.replace(".weight", ".bias"): (Type.F32, shape[:1])
            for name, (_, shape) in shapes.items()
            if name != "token_embd.weight"
        }
    return shapes


def _mixer(config: Mapping[str, Any], layer: int, body: Type) -> dict[str, Stored]:
    """Type and shape of every tensor of a layer but for those of its network."""
    family = FAMILIES.get(config["model_type"])
    if family is not None:
        mixer = family.mixer(config, layer).items()
        return {name: (body if large else Type.F32, shape) for name, (large, shape) in mixer}
    norms, projections = _norms(config).items(), _attention(config).items()
    return {
        **{f"{name}.weight": (Type.F32, (width,)) for name, width in norms},
        **{f"{name}.weight": (body, shape) for name, shape in projections},
    }


def _norms(config: Mapping[str, Any]) -> dict[str, int]:
    """Width of each norm of a layer."""
    hidden, head_dim, inner = config["hidden_size"], _head_dim(config), _inner(config)
    further: dict[str, dict[str, int]] = {
        "bitnet": {"attn_sub_norm": inner, "ffn_sub_norm": config["intermediate_size"]},
        "olmoe": {"attn_q_norm": inner, "attn_k_norm": head_dim * config["num_key_value_heads"]},
        "qwen3_moe": {"attn_q_norm": head_dim, "attn_k_norm": head_dim},
    }
    own = {"attn_norm": hidden}
    if config["model_type"] != "phi":  # both parts of a layer read the same
        own["ffn_norm"] = hidden
    return own | further.get(config["model_type"], {})


def _attention(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Rows and columns of the projections of attention."""
    hidden, inner = config["hidden_size"], _inner(config)
    kv = _head_dim(config) * config["num_key_value_heads"]
    return {
        "attn_q": (inner, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, inner),
    }


def _feed_forward(config: Mapping[str, Any], body: Type) -> dict[str, Stored]:
    """Type and shape of the projections of the feed-forward layer, dense or of experts."""
    hidden, experts = config["hidden_size"], config.get("num_experts", 0)
    width = _width(config)
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    if config["model_type"] in BIASED:
        del shapes["gate"]
    if not experts:
        return {f"ffn_{name}.weight": (body, shape) for name, shape in shapes.items()}
    stacks = {
        f"ffn_{name}_exps.weight": (body, (experts, *shape)) for name, shape in shapes.items()
    }
    return {"ffn_gate_inp.weight": (Type.F32, (experts, hidden)), **stacks}


def token_bytes(path: Path) -> int:
    """Bytes of weights that one token reads of a file, which has a head unless that is tied."""
    reader = gguf.GGUFReader(path)
    fields = {name.partition(".")[2]: field for name, field in reader.fields.items()}
    share = 1.0
    if "expert_count" in fields:
        count, used = (fields[name].contents() for name in ("expert_count", "expert_used_count"))
        share = used / count
    names = {tensor.name for tensor in reader.tensors}
    unread = {"token_embd.weight"} if "output.weight" in names else set()
    total = sum(
        tensor.n_bytes * (share if "_exps." in tensor.name else 1)
        for tensor in reader.tensors
        if tensor.name not in unread
    )
    return round(total)


def tensor(kind: Type, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Makes one tensor whose products keep the size of what they multiply."""
    if kind == Type.F32 and len(shape) > 1:  # a router, which is to choose evenly
        return generator.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
    if kind == Type.F32:
        return np.ones(shape, np.float32)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = int(np.prod(shape)) // weights
    data: U8 = _codes(kind)(generator, blocks * size).reshape(blocks, size)
    scale = np.float16(shape[-1] ** -0.5 / CODE_SPREAD[kind])
    at = SCALE_AT[kind]
    data[:, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    stored: tuple[int, ...] = gguf.quant_shape_to_byte_shape(shape, kind)
    return data.reshape(stored)


def _codes(kind: Type) -> Callable[[np.random.Generator, int], U8]:
    return _ternary_bytes if kind == Type.TQ2_0 else _random_bytes


def _random_bytes(generator: np.random.Generator, count: int) -> U8:
    return np.frombuffer(generator.bytes(count), np.uint8).copy()


def _ternary_bytes(generator: np.random.Generator, count: int) -> U8:
    """Bytes of four codes 0, 1 or 2 each."""
    digits = np.arange(81)
    valid = sum((digits // 3**place % 3) << (2 * place) for place in range(4))
    table: U8 = np.asarray(valid, np.uint8)
    return table[generator.integers(0, 81, count, np.uint8)]


def _add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config.get("intermediate_size") or _width(config))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "layer_norm_eps" in config:
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = {**config, **config.get("rope_parameters", {})}
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * _head_dim(config)))
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    _add_metadata(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Writes what files of some families say besides, in the place of what all say."""
    family = FAMILIES.get(config["model_type"])
    for key, value in family.metadata(config).items() if family else ():
        name = f"{ARCHITECTURES[config['model_type']]}.{key}"
        writer.kv_data[0].pop(name, None)
        kind = gguf.GGUFValueType.get_type(value)
        is_count = kind == gguf.GGUFValueType.INT32  # counts have no sign
        writer.add_key_value(name, value, gguf.GGUFValueType.UINT32 if is_count else kind)


def _width(config: Mapping[str, Any]) -> int:
    """Of networks, or of each expert."""
    names = ("moe_intermediate_size", "intermediate_size", "shared_intermediate_size")
    return int(next(config[name] for name in names if name in config))


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _inner(config: Mapping[str, Any]) -> int:
    return _head_dim(config) * int(config["num_attention_heads"])
