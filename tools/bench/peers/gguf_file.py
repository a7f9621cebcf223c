"""Writes a GGUF file with random weights in the shape of a BitNet b1.58 or Llama model.

The blocks are made of random bytes directly (llama.cpp, ``ggml-common.h``): how fast a file runs
does not depend on what its weights are. What is stored in which type follows llama.cpp's own
quantiser for a tied model (``llama-quant.cpp``): the embedding, which is the head too, in Q6_K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
Type = gguf.GGMLQuantizationType
ARCHITECTURES = ("bitnet", "llama")  # by model_type
BODY_TYPES = {"tq2_0": Type.TQ2_0, "tq1_0": Type.TQ1_0, "q4_0": Type.Q4_0}
HEAD_TYPE = Type.Q6_K
# Bytes of a block after (or before) which its float16 scale lies, and the range of its codes.
SCALE_AT = {Type.TQ2_0: 64, Type.TQ1_0: 52, Type.Q4_0: 0, Type.Q6_K: 208}
CODE_SPREAD = {Type.TQ2_0: 0.8, Type.TQ1_0: 0.8, Type.Q4_0: 4.6, Type.Q6_K: 18.5 * 74}


def write(config: Mapping[str, Any], path: Path, body: str, seed: int = 0) -> None:
    """Writes the file, a tensor at a time; it appears when complete.

    Args:
        config: the ``config.json`` of a BitNet or Llama model with a tied head.
        path: file to make.
        body: storage of the projections, a key of ``BODY_TYPES``.
        seed: of the random bytes.
    """
    partial = path.with_suffix(".partial")
    assert config["model_type"] in ARCHITECTURES, config["model_type"]
    assert config["tie_word_embeddings"], "an untied head"
    writer = gguf.GGUFWriter(partial, config["model_type"])
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
    for kind, shape in shapes.values():
        writer.write_tensor_data(tensor(kind, shape, generator))
    writer.close()
    partial.rename(path)


def tensor_shapes(config: Mapping[str, Any], body: Type) -> dict[str, tuple[Type, tuple[int, ...]]]:
    """Returns type and shape (rows, columns) of every tensor, in file order."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    inner = _head_dim(config) * config["num_attention_heads"]
    kv = _head_dim(config) * config["num_key_value_heads"]
    sub_norms = config["model_type"] == "bitnet"
    shapes: dict[str, tuple[Type, tuple[int, ...]]] = {
        "token_embd.weight": (HEAD_TYPE, (config["vocab_size"], hidden)),
        "output_norm.weight": (Type.F32, (hidden,)),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"blk.{layer}."
        norms = {"attn_norm": hidden, "ffn_norm": hidden}
        if sub_norms:
            norms |= {"attn_sub_norm": inner, "ffn_sub_norm": ffn}
        for name, width in norms.items():
            shapes[f"{at}{name}.weight"] = (Type.F32, (width,))
        for name, rows in (("attn_q", inner), ("attn_k", kv), ("attn_v", kv)):
            shapes[f"{at}{name}.weight"] = (body, (rows, hidden))
        shapes[f"{at}attn_output.weight"] = (body, (hidden, inner))
        for name, rows, columns in (
            ("ffn_gate", ffn, hidden),
            ("ffn_up", ffn, hidden),
            ("ffn_down", hidden, ffn),
        ):
            shapes[f"{at}{name}.weight"] = (body, (rows, columns))
    return shapes


def tensor(kind: Type, shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    """Makes one tensor whose products keep the size of what they multiply."""
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
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
