"""GGUF files written by the gguf package: names, rotary order, types, configuration, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint

gguf = pytest.importorskip("gguf")
Type = gguf.GGMLQuantizationType
Make = Callable[..., Path]
Tensors = dict[str, np.ndarray]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_gives_back_the_model_it_was_made_from(
    make_gguf: Make, tensors: Tensors, arch: str
) -> None:
    with open_checkpoint(str(make_gguf(tensors, arch))) as checkpoint:
        assert set(checkpoint.tensors()) == set(tensors)
        for name, weight in tensors.items():
            assert checkpoint.tensors()[name].shape == weight.shape
            np.testing.assert_array_equal(checkpoint.read(name), weight, err_msg=name)
        assert checkpoint.config["model_type"] == arch
        assert checkpoint.source.kind == "gguf"
        assert checkpoint.source.licence == "mit"


@pytest.mark.parametrize(
    ("metadata", "licence", "url"),
    [
        ({}, "mit", None),
        ({"license": " Apache-2.0\n"}, "Apache-2.0", None),
        ({"license": "Llama 3 Community"}, "Llama 3 Community", None),
        ({"license": "x" * 101}, None, None),
        ({"license": "mit\nurl: https://elsewhere"}, None, None),
        ({"license": "mit\x1b[2J"}, None, None),
        ({"license": "tim\u202e"}, None, None),
        ({"license": 7}, None, None),
        ({"source.url": "https://a.example/m"}, "mit", "https://a.example/m"),
        (
            {"url": "https://b.example", "source.url": "https://a.example"},
            "mit",
            "https://b.example",
        ),
        ({"url": "javascript:alert(1)", "repo_url": "http://c.example"}, "mit", "http://c.example"),
        ({"url": "https://a b"}, "mit", None),
        ({"url": "https://\u0430.example"}, "mit", None),
        ({"url": "https://" + "a" * 493}, "mit", None),
        ({"url": ["https://a.example"]}, "mit", None),
    ],
)
def test_licence_and_url_are_lines_that_can_be_shown(
    make_gguf: Make, tensors: Tensors, metadata: dict[str, Any], licence: str, url: str
) -> None:
    """A file may say anything, which terminals are to show."""

    def extra(writer: Any) -> None:
        for key, value in metadata.items():
            name = f"general.{key}"
            writer.kv_data[0].pop(name, None)
            add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
            add[type(value)](name, value)

    with open_checkpoint(str(make_gguf(tensors, "llama", extra=extra))) as checkpoint:
        assert (checkpoint.source.licence, checkpoint.source.url) == (licence, url)
        assert checkpoint.source.location.endswith(".gguf")


def llama_cpp_permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """``LlamaModel.permute`` of llama.cpp's ``convert_hf_to_gguf.py``."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )


def test_undoes_the_permutation_of_llama_cpp(make_gguf: Make, tensors: Tensors) -> None:
    layer = "model.layers.{}.self_attn.{}_proj.weight"
    permuted = {
        layer.format(index, part): llama_cpp_permute(tensors[layer.format(index, part)], heads)
        for index in range(2)
        for part, heads in (("q", 4), ("k", 2))
    }
    # Written as another architecture, so that the helper's own interleaving stays out of it.
    path = make_gguf(tensors | permuted, "qwen2")
    data = path.read_bytes().replace(b"qwen2", b"llama")
    path.write_bytes(data)
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.config["model_type"] == "llama"
        for name in permuted:
            assert not np.array_equal(permuted[name], tensors[name])
            np.testing.assert_array_equal(checkpoint.read(name), tensors[name])


def test_any_rows_of_a_rotary_projection_come_in_half_split_order(
    make_gguf: Make, tensors: Tensors
) -> None:
    with open_checkpoint(str(make_gguf(tensors))) as checkpoint:
        for first in range(17):
            for end in range(first, 17):
                got = checkpoint.read(Q_PROJ, slice(first, end))
                np.testing.assert_array_equal(got, tensors[Q_PROJ][first:end])


def test_writes_the_configuration(make_gguf: Make, tensors: Tensors) -> None:
    def extra(writer: Any) -> None:
        writer.add_rope_freq_base(500000.0)

    with open_checkpoint(str(make_gguf(tensors, extra=extra))) as checkpoint:
        config = dict(checkpoint.config)
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "rope_scaling": None,
        "vocab_size": 260,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def test_a_file_without_output_matrix_is_tied(
    make_gguf: Make, make_tensors: Callable[..., Tensors]
) -> None:
    with open_checkpoint(str(make_gguf(make_tensors(tied=True)))) as checkpoint:
        assert checkpoint.config["tie_word_embeddings"] is True
        assert "lm_head.weight" not in checkpoint.tensors()


def test_two_spellings_of_a_layer_are_not_one_tensor(make_gguf: Make, tensors: Tensors) -> None:
    raw = {"blk.01.attn_q.weight": (np.zeros((16, 16), np.float32), Type.F32)}
    with pytest.raises(UnsupportedError, match=r"'blk\.01\.attn_q\.weight' has no known place"):
        open_checkpoint(str(make_gguf(tensors, raw=raw)))


WRITTEN_TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]
BLOCK_TYPES = [Type[name] for name in WRITTEN_TYPES]


@pytest.mark.parametrize("kind", [13, 19, 20, 40], ids=lambda kind: Type(kind).name)
def test_decodes_rows_of_types_that_only_llama_cpp_writes(
    make_gguf: Make, tensors: Tensors, kind: int
) -> None:
    """Random blocks: rows in any order of reading are those of the whole."""
    block_weights, block_bytes = gguf.constants.GGML_QUANT_SIZES[Type(kind)]
    shape = (24, 512 // block_weights * block_bytes)
    data = np.random.default_rng(kind).integers(0, 90, shape, np.uint8)  # no scale is huge
    path = make_gguf(tensors, raw={"blk.0.ffn_sub_norm.weight": (data, Type(kind))})
    expected = gguf.quants.dequantize(data, Type(kind))
    name = "model.layers.0.mlp.ffn_sub_norm.weight"
    with open_checkpoint(str(path)) as checkpoint:
        assert checkpoint.tensors()[name].shape == (24, 512)
        np.testing.assert_array_equal(checkpoint.read(name), expected)
        np.testing.assert_array_equal(checkpoint.read(name, slice(7, 9)), expected[7:9])
        assert checkpoint.integers(name) is None


@pytest.mark.parametrize("kind", BLOCK_TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [None, slice(3, 9)])
def test_decodes_rows_of_every_type_in_the_file(
    make_gguf: Make, tensors: Tensors, kind: Any, rows: slice | None
) -> None:
    weight = np.random.default_rng(0).standard_normal((24, 512), np.float32)
    data = gguf.quants.quantize(weight, kind)
    raw = {"blk.0.ffn_sub_norm.weight": (data, kind)}
    expected = gguf.quants.dequantize(data, kind).reshape(weight.shape)
    with open_checkpoint(str(make_gguf(tensors, raw=raw))) as checkpoint:
        name = "model.layers.0.mlp.ffn_sub_norm.weight"
        assert checkpoint.tensors()[name].dtype == kind.name
        assert checkpoint.tensors()[name].shape == (24, 512)
        got = checkpoint.read(name, rows)
        np.testing.assert_array_equal(got, expected[rows or slice(None)])
        ternary = checkpoint.ternary(name, rows)
        if not kind.name.startswith("TQ"):
            assert ternary is None
            return
        assert ternary is not None
        values, scales = ternary
        assert set(np.unique(values)) == {-1, 0, 1}
        assert scales.shape == (len(got), 2)
        np.testing.assert_array_equal(values * np.repeat(scales, 256, axis=1), got)


def test_ternary_rows_of_a_rotary_projection_follow_their_weights(
    make_gguf: Make, tensors: Tensors
) -> None:
    """Also the scales move with their rows."""
    weight = np.random.default_rng(0).standard_normal((16, 256), np.float32)
    data = gguf.quants.quantize(weight, Type.TQ2_0)
    shrunk = {name: tensor for name, tensor in tensors.items() if "layers" not in name}
    path = make_gguf(shrunk, raw={"blk.0.attn_q.weight": (data, Type.TQ2_0)})
    name = "model.layers.0.self_attn.q_proj.weight"
    with open_checkpoint(str(path)) as checkpoint:
        whole = checkpoint.read(name)
        expected = gguf.quants.dequantize(data, Type.TQ2_0)
        assert not np.array_equal(whole, expected)
        np.testing.assert_array_equal(llama_cpp_permute(whole, 4), expected)
        for rows in (slice(None), slice(5, 11)):
            ternary = checkpoint.ternary(name, rows)
            assert ternary is not None
            np.testing.assert_array_equal(ternary[0] * ternary[1], whole[rows])


def test_refuses_a_ternary_code_that_is_no_trit(make_gguf: Make, tensors: Tensors) -> None:
    block = np.full((1, 66), 0xFF, np.uint8)
    block[:, 64:] = np.array([1.0], np.float16).view(np.uint8)
    path = make_gguf(tensors, raw={"blk.0.ffn_sub_norm.weight": (block, Type.TQ2_0)})
    with (
        open_checkpoint(str(path)) as checkpoint,
        pytest.raises(CheckpointError, match="ffn_sub_norm.weight' holds a TQ2_0 code for 2"),
    ):
        checkpoint.ternary("model.layers.0.mlp.ffn_sub_norm.weight")


def test_names_the_tensor_and_the_supported_types(make_gguf: Make, tensors: Tensors) -> None:
    data = np.zeros((4, 292), np.uint8)
    path = make_gguf(tensors, raw={"blk.0.ffn_sub_norm.weight": (data, Type.Q8_K)})
    message = (
        r"'blk.0.ffn_sub_norm.weight' has GGUF type 15 \(Q8_K\); supported: F32, F16, Q4_0.*; "
        "take a file of one of these, or the checkpoint that this one was made of"
    )
    with pytest.raises(UnsupportedError, match=message):
        open_checkpoint(str(path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("general.architecture", "mamba", "'mamba' is not .* recurrences; supported: llama"),
        ("llama.expert_count", 8, "metadata lacks 'llama.expert_used_count'"),
        ("split.count", 3, "one of 3 parts, and the others"),
        ("llama.rope.dimension_count", 2, "heads of 4 with 2 rotated"),
        ("llama.attention.key_length", 0, "expected 1 to"),
    ],
)
def test_refuses_what_it_cannot_represent(
    make_gguf: Make, tensors: Tensors, key: str, value: Any, message: str
) -> None:
    def extra(writer: Any) -> None:
        if isinstance(value, str):
            writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.STRING)
        else:
            writer.add_uint32(key, value)

    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(make_gguf(tensors, extra=extra)))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.ffn_gate_exps.weight",
        "output_norm.scale",
        "input_norm.weight",
        "blk.00.attn_q.weight",
    ],
)
def test_refuses_a_tensor_it_has_no_place_for(make_gguf: Make, tensors: Tensors, name: str) -> None:
    raw = {name: (np.zeros((2, 2), np.float32), Type.F32)}
    with pytest.raises(UnsupportedError, match=f"'{name}' has no known place"):
        open_checkpoint(str(make_gguf(tensors, raw=raw)))


@pytest.mark.parametrize("rows", [15, 17])
def test_refuses_pairs_of_rows_that_are_no_heads(
    make_gguf: Make, tensors: Tensors, rows: int
) -> None:
    """Rows of what comes next in the file would be taken for the last head's."""
    tensors[Q_PROJ] = np.resize(tensors[Q_PROJ], (rows, 16))
    with pytest.raises(CheckpointError, match=f"has {rows} rows; expected whole heads of 4"):
        open_checkpoint(str(make_gguf(tensors)))


def test_makes_the_tokenizer(make_gguf: Make, tensors: Tensors) -> None:
    with open_checkpoint(str(make_gguf(tensors))) as checkpoint:
        files = checkpoint.tokenizer_files()
    assert set(files) == {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
    }
    assert json.loads(files["generation_config.json"]) == {"bos_token_id": 1, "eos_token_id": 2}


def test_refuses_a_vocabulary_without_a_model(shared_data: Path) -> None:
    path = shared_data / "tokenizers" / "ggml-vocab-llama-spm.gguf"
    with pytest.raises(CheckpointError, match="holds no model"):
        open_checkpoint(str(path))


def test_reads_a_file_of_the_wild_as_the_gguf_package_does(shared_data: Path) -> None:
    path = shared_data / "models" / "gguf-tiny-random-llama" / "llama-2-tiny-random.gguf"
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    with open_checkpoint(str(path)) as checkpoint:
        assert len(checkpoint.tensors()) == len(theirs) == 12
        np.testing.assert_array_equal(
            checkpoint.read("model.embed_tokens.weight"), theirs["token_embd.weight"].data
        )
        q_proj = checkpoint.read("model.layers.0.self_attn.q_proj.weight")
        np.testing.assert_array_equal(
            llama_cpp_permute(q_proj, 2), theirs["blk.0.attn_q.weight"].data
        )
        assert checkpoint.config["vocab_size"] == 32000
