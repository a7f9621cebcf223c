"""GGUF files of Gemma 4: what is read is what was written, and what they cannot have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import EdgerunError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.tokenizers import from_gguf
from tests.support.gguf_model import difference, source_of, stored_of, type_of, write_gguf

gguf = pytest.importorskip("gguf")

DENSE, PER_LAYER, EXPERTS = "gemma4_text", "gemma4_text-per-layer", "gemma4_text-experts"
TURNED = [1.0] * 4 + [1e30] * 12  # a quarter of 16 pairs


def written(
    tmp_path: Path,
    name: str,
    changes: dict[str, Any] | None = None,
    quantised: Any = None,
    without: tuple[str, ...] = (),
    tensors: dict[str, Any] | None = None,
    more: Any = lambda writer: None,
) -> tuple[Path, dict[str, Any]]:
    """As llama.cpp's converter writes a golden checkpoint, but for some keys."""
    config, own_tensors = source_of(name)
    tensors = own_tensors if tensors is None else tensors
    own = config["per_layer_config"]
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    heads = [own.get(str(layer), {}) for layer in range(len(slides))]
    shared = config["num_kv_shared_layers"]
    wide = [
        1 + (config["use_double_wide_mlp"] and k >= len(slides) - shared)
        for k in range(len(slides))
    ]
    keys = {
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": shared,
        "attention.head_count_kv": [
            each.get("num_key_value_heads", config["num_key_value_heads"]) for each in heads
        ],
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base": 1000000.0,
        "rope.freq_base_swa": 10000.0,
        "feed_forward_length": [64 * factor for factor in wide],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": 5.0,
        "rope_freqs": TURNED,
        **(changes or {}),
    }

    def extra(writer: Any) -> None:
        more(writer)
        divisors = keys.pop("rope_freqs")
        if divisors is not None:
            writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
        for key, value in keys.items():
            if value is not None:
                kind = type_of(value)
                writer.add_key_value(f"gemma4.{key}", value, kind)

    tensors = {key: value for key, value in tensors.items() if key not in without}
    plain = {**config, "rope_parameters": None, "rope_theta": 1000000.0}
    path = tmp_path / "model.gguf"
    return write_gguf(path, "gemma4", plain, tensors, quantised, extra), config


@pytest.mark.parametrize("name", [DENSE, PER_LAYER])
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    path, config = written(tmp_path, name)
    assert difference(path, name, config) < 2e-6


def test_sizes_of_all_layers_may_be_one_number(tmp_path: Path) -> None:
    uniform = {"attention.head_count_kv": 1, "embedding_length_per_layer_input": 16}
    path, config = written(tmp_path, PER_LAYER, uniform)
    assert difference(path, PER_LAYER, config) < 2e-6


@pytest.mark.parametrize("name", [DENSE, PER_LAYER])
def test_integers_of_such_files_are_kept(name: str, tmp_path: Path) -> None:
    kinds = dict.fromkeys(("_proj.weight", "embed_tokens", "lm_head", "per_layer_model"), "Q8_0")
    kinds["per_layer_projection.weight"] = "F32"  # whose rows are no whole blocks
    path, _ = written(tmp_path, name, None, kinds)
    options = ExportOptions(weights="source", verify=True, activations="fp32")
    result = export(path, tmp_path / "out", options)
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.manifest["quality"]["kl_divergence"] < 1e-9


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (DENSE, {"rope_freqs": None}, "has no 'rope_freqs.weight', which gemma4 needs"),
        (DENSE, {"rope_freqs": [1.0] * 4 + [2.0] * 12}, "with divisors of 1 first"),
        (DENSE, {"rope_freqs": [1e30] * 4 + [1.0] * 12}, "with divisors of 1 first"),
        (DENSE, {"rope_freqs": [1.0] * 8}, "expected 16 positive factors"),
        (DENSE, {"attention.sliding_window_pattern": 2}, "expected a truth value for each of 3"),
        (DENSE, {"attention.sliding_window_pattern": [True]}, "for each of 3 layers"),
        (DENSE, {"attention.sliding_window_pattern": None}, "lacks 'gemma4.attention.sliding_w"),
        (DENSE, {"attention.head_count_kv": [2, 1]}, "for each of 3 layers"),
        (DENSE, {"attention.value_length_swa": 8}, "'gemma4.attention.value_length_swa' is 8 for"),
        (DENSE, {"rope.dimension_count": 16}, "of 32 with 16 rotated"),
        (DENSE, {"rope.dimension_count_swa": 8}, "dimension_count_swa' is 8 for heads of 16"),
        (DENSE, {"rope.dimension_count_swa": 32}, "dimension_count_swa' is 32 for heads of 16"),
        (DENSE, {"feed_forward_length": [64, 64, 128]}, r"is \[64, 64, 128\]; supported are"),
        (DENSE, {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50"),
        (DENSE, {"expert_count": 8}, "lacks 'gemma4.expert_used_count'"),
        (PER_LAYER, {"attention.shared_kv_layers": -1}, "shared_kv_layers' is -1; expected 0 to"),
        (PER_LAYER, {"attention.shared_kv_layers": 2}, "supported are layers of one width"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = written(tmp_path, name, changes)
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path)).close()


def with_experts(
    tmp_path: Path,
    changes: dict[str, Any] | None = None,
    *,
    joined: bool = True,
    kind: str = "F32",
) -> tuple[Path, dict[str, Any]]:
    """As the converter writes experts: in stacks, with scales beside some of them."""
    config, stored = stored_of(EXPERTS)
    stacks: dict[str, Any] = {}
    for layer in range(2):
        at = f"model.layers.{layer}"
        both = stored.pop(f"{at}.experts.gate_up_proj")
        parts = {"gate_up": both} if joined else {"gate": both[:, :48], "up": both[:, 48:]}
        parts["down"] = stored.pop(f"{at}.experts.down_proj")
        stacks |= {f"blk.{layer}.ffn_{k}_exps.weight": v for k, v in parts.items()}
        stacks[f"blk.{layer}.ffn_down_exps.scale"] = stored.pop(f"{at}.router.per_expert_scale")
        stacks[f"blk.{layer}.ffn_gate_inp.scale"] = stored.pop(f"{at}.router.scale")
    stacks |= changes or {}

    def add(writer: Any) -> None:
        for name, value in stacks.items():
            is_quantised = kind != "F32" and value is not None and value.ndim == 3
            if is_quantised and value.shape[2] % 32 == 0:
                dtype = gguf.GGMLQuantizationType[kind]
                writer.add_tensor(name, gguf.quants.quantize(value, dtype), raw_dtype=dtype)
            elif value is not None:
                writer.add_tensor(name, np.ascontiguousarray(value))

    return written(tmp_path, EXPERTS, tensors=stored, more=add)[0], config


@pytest.mark.parametrize("joined", [True, False])
def test_experts_are_those_of_the_checkpoint(joined: bool, tmp_path: Path) -> None:
    path, config = with_experts(tmp_path, joined=joined)
    assert difference(path, EXPERTS, config) < 2e-6


def test_integers_of_experts_are_kept(tmp_path: Path) -> None:
    """And their factors are in the scales."""
    _, stored = stored_of(EXPERTS)
    down = np.resize(stored["model.layers.0.experts.down_proj"], (6, 64, 64))
    path, _ = with_experts(tmp_path, {DOWN: down}, kind="Q8_0")
    factors = stored["model.layers.0.router.per_expert_scale"]
    gate_up = stored["model.layers.0.experts.gate_up_proj"]
    with open_checkpoint(str(path)) as checkpoint:
        for name, exact in (("up", gate_up[3][48:]), ("down", down[3] * factors[3])):
            whole = f"model.layers.0.experts.3.{name}_proj.weight"
            integers = checkpoint.integers(whole)
            assert integers is not None
            values, scales = integers
            weights = (values.reshape(*scales.shape, -1) * scales[..., None]).reshape(values.shape)
            np.testing.assert_array_equal(weights, checkpoint.read(whole))
            np.testing.assert_allclose(weights, exact, atol=np.abs(exact).max() / 200)


FACTORS, DOWN = "blk.0.ffn_down_exps.scale", "blk.0.ffn_down_exps.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({FACTORS: None}, f"'{DOWN}' has 6 experts, and their factors are none"),
        ({FACTORS: np.ones(5, np.float32)}, r"factors are of shape \[5\]; expected one"),
        ({FACTORS: np.full(6, np.nan, np.float32)}, f"'{FACTORS}' holds NaN or Inf"),
        (
            {"blk.0.ffn_gate_up_exps.weight": np.ones((6, 95, 64), np.float32)},
            "has 95 rows for each expert, which gate_proj and up_proj cannot share",
        ),
        ({FACTORS: np.ones(7, np.float32)}, r"factors are of shape \[7\]; expected one"),
        ({FACTORS: np.ones((6, 1), np.float32)}, r"factors are of shape \[6, 1\]; expected one"),
        *(
            (
                {"blk.0.ffn_gate_up_exps.weight": np.ones(shape, np.float32)},
                r"'blk\.0\.ffn_gate_up_exps\.weight' has shape .*; expected 3 axes, the first of",
            )
            for shape in ((96, 64), (6, 96, 64, 1))
        ),
    ],
)
def test_experts_that_are_none_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = with_experts(tmp_path, changes)
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path)).close()


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    lacking = "model.layers.2.layer_scalar"
    path, _ = written(tmp_path, DENSE, without=(lacking,))
    with pytest.raises(EdgerunError, match=f"no tensor '{lacking}'"):
        export(path, tmp_path / "out", ExportOptions())


def vocabulary() -> dict[str, Any]:
    """Merges beside pieces with spaces as sentencepiece has them, and turns."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
    pieces = ["▁", "a", "b", "ab", "▁ab", "\n", "\n\n"]
    tokens = [*control, *(f"<0x{value:02X}>" for value in range(256)), *pieces, "<|channel>"]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        "tokenizer.ggml.token_type": np.array([3] * 6 + [6] * 256 + [1] * 7 + [4], np.int32),
        "tokenizer.ggml.merges": ["a b", "▁ ab", "\n \n"],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": "{{ bos_token }}",
    }


def test_its_tokenizer_has_merges_and_sentencepiece_s_spaces() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    metadata = vocabulary()
    files = from_gguf(metadata)
    tokenizer = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    tokens = metadata["tokenizer.ggml.tokens"]

    def encoded(text: str) -> list[str]:
        return [tokens[index] for index in tokenizer.encode(text).ids]

    assert encoded("ab ab") == ["<bos>", "ab", "▁ab"]
    assert encoded("ba\n\n") == ["<bos>", "b", "a", "\n\n"]
    assert encoded("<|turn>ab<turn|>") == ["<bos>", "<|turn>", "ab", "<turn|>"]
    assert encoded("é") == ["<bos>", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab ab\n\né").ids) == "ab ab\n\né"
    assert json.loads(files["generation_config.json"])["eos_token_id"] == [1, 5]
    assert json.loads(files["tokenizer_config.json"])["chat_template"] == "{{ bos_token }}"


@pytest.mark.parametrize("merge", ["a", "a c", "ab ab"])
def test_merges_that_join_nothing_are_refused(merge: str) -> None:
    with pytest.raises(EdgerunError, match=f"merge '{merge}' does not join two tokens"):
        from_gguf({**vocabulary(), "tokenizer.ggml.merges": [merge]})
