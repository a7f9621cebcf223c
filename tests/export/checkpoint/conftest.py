"""Writers of tiny checkpoints, by means that share nothing with the readers under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Tensors = dict[str, np.ndarray]
SIZES = {"dim": 16, "hidden": 24, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 260, "ctx": 8}


def llama_tensors(seed: int = 0, tied: bool = False) -> Tensors:
    """A random Llama in Hugging Face names and layout (half-split rotary)."""
    draw = np.random.default_rng(seed)
    dim, hidden, vocab = SIZES["dim"], SIZES["hidden"], SIZES["vocab"]
    kv = dim // SIZES["heads"] * SIZES["kv_heads"]
    shapes = {"model.embed_tokens.weight": (vocab, dim), "model.norm.weight": (dim,)}
    for layer in range(SIZES["layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (dim,),
                "post_attention_layernorm": (dim,),
                "self_attn.q_proj": (dim, dim),
                "self_attn.k_proj": (kv, dim),
                "self_attn.v_proj": (kv, dim),
                "self_attn.o_proj": (dim, dim),
                "mlp.gate_proj": (hidden, dim),
                "mlp.up_proj": (hidden, dim),
                "mlp.down_proj": (dim, hidden),
            }.items()
        }
    if not tied:
        shapes["lm_head.weight"] = (vocab, dim)
    return {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def interleave(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows from half-split to interleaved, one at a time: the definition, spelled out."""
    out = np.empty_like(weight)
    for head in range(len(weight) // head_dim):
        for pair in range(head_dim // 2):
            for half in range(2):
                source = head * head_dim + half * (head_dim // 2) + pair
                out[head * head_dim + 2 * pair + half] = weight[source]
    return out


@pytest.fixture
def tensors() -> Tensors:
    return llama_tensors()


@pytest.fixture
def make_tensors() -> Callable[..., Tensors]:
    return llama_tensors


@pytest.fixture
def hf_folder(tmp_path: Path, tensors: Tensors) -> Path:
    """A folder with config.json, tokenizer.json and one safetensors file."""
    from safetensors.numpy import save_file

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 16}))
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Tiny\n")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def llama2c_tokenizer(vocab: int = SIZES["vocab"]) -> bytes:
    """A tokenizer.bin with the 256 bytes and one letter."""
    texts = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % i for i in range(256)), b"a"]
    assert len(texts) == vocab
    pieces = [struct.pack("<fi", -float(i), len(text)) + text for i, text in enumerate(texts)]
    return struct.pack("<i", 7) + b"".join(pieces)


def llama2c_bytes(tensors: Tensors, version: int) -> bytes:
    """A llama2.c file of a Hugging Face model, after ``legacy_export`` and ``version1_export``."""
    tied = "lm_head.weight" not in tensors
    head_dim = SIZES["dim"] // SIZES["heads"]
    sizes = [SIZES[name] for name in ("dim", "hidden", "layers", "heads", "kv_heads", "vocab")]
    sizes.append(SIZES["ctx"])
    paired = ("self_attn.q_proj", "self_attn.k_proj")

    def layers(*names: str) -> bytes:
        out = b""
        for name in names:
            for layer in range(SIZES["layers"]):
                weight = tensors[f"model.layers.{layer}.{name}.weight"]
                weight = interleave(weight, head_dim) if name in paired else weight
                out += weight.astype("<f4").tobytes()
        return out

    def plain(name: str) -> bytes:
        return tensors[name].astype("<f4").tobytes()

    attention = [f"self_attn.{name}_proj" for name in "qkvo"]
    mlp = ["mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    head = b"" if tied else plain("lm_head.weight")
    embedding, norm = plain("model.embed_tokens.weight"), plain("model.norm.weight")
    if version == 1:
        start = struct.pack("<Ii7iB", 0x616B3432, 1, *sizes, tied).ljust(256, b"\0")
        return start + layers(*norms) + norm + embedding + layers(*attention, *mlp) + head
    sizes[5] *= 1 if tied else -1
    tables = np.ones(SIZES["ctx"] * head_dim, "<f4").tobytes()
    body = layers(norms[0], *attention, norms[1], *mlp)
    return struct.pack("<7i", *sizes) + embedding + body + norm + tables + head


@pytest.fixture
def make_llama2c(tmp_path: Path) -> Callable[..., Path]:
    """Write a llama2.c file with its tokenizer beside it."""

    def make(tensors: Tensors, version: int) -> Path:
        path = tmp_path / f"model_v{version}.bin"
        path.write_bytes(llama2c_bytes(tensors, version))
        (tmp_path / "tokenizer.bin").write_bytes(llama2c_tokenizer())
        return path

    return make


def spm_metadata() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "a"]
    return {
        "tokens": tokens,
        "scores": [-float(i) for i in range(260)],
        "types": [2, 3, 3] + [6] * 256 + [1],
    }


GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, suffix = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_LAYER[part]}.{suffix}"


def write_gguf(
    path: Path,
    tensors: Tensors,
    arch: str = "llama",
    extra: Callable[[Any], None] | None = None,
    raw: dict[str, tuple[np.ndarray, Any]] | None = None,
) -> None:
    """Write a GGUF file with the gguf package."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, arch)
    writer.add_context_length(SIZES["ctx"])
    writer.add_embedding_length(SIZES["dim"])
    writer.add_block_count(SIZES["layers"])
    writer.add_feed_forward_length(SIZES["hidden"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_license("mit")
    spm = spm_metadata()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(spm["tokens"])
    writer.add_token_scores(spm["scores"])
    writer.add_token_types(spm["types"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if extra:
        extra(writer)
    head_dim = SIZES["dim"] // SIZES["heads"]
    for key, weight in tensors.items():
        paired = arch == "llama" and ("q_proj" in key or "k_proj" in key)
        weight = interleave(weight, head_dim) if paired else weight
        writer.add_tensor(gguf_name(key), np.ascontiguousarray(weight))
    for key, (data, kind) in (raw or {}).items():
        writer.add_tensor(key, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file into the test's folder."""

    def make(
        tensors: Tensors,
        arch: str = "llama",
        *,
        extra: Callable[[Any], None] | None = None,
        raw: dict[str, tuple[np.ndarray, Any]] | None = None,
        name: str = "tiny.gguf",
    ) -> Path:
        write_gguf(tmp_path / name, tensors, arch, extra, raw)
        return tmp_path / name

    return make
