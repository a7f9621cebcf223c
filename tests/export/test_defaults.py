"""Keys that config.json leaves out stand for transformers' defaults, in true sizes and forms."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.architectures.decoder.multimodal import Multimodal
from edgerun_export.architectures.decoder.usual_texts import USUAL
from edgerun_export.architectures.registry import _architectures
from edgerun_export.bundle_files import implied_generation, public_config
from tests.support.bundles import GOLDEN

SAVED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "configs.json").read_text())["configs"]
# Classes whose defaults are no model: without a layer of attention, without a number of experts, or
# with 96 heads in 4,096 columns.
NO_MODELS = {"bamba", "granitemoehybrid", "deepseek_v2", "dots1", "glm4_moe"}
# Whose residual stream is kept divided, and so are the epsilons of norms.
DIVIDED = {"minicpm3"}
NAMES = sorted(SAVED.keys() & _architectures().keys() - NO_MODELS)
PARTS = {name: kind for name, kind in _architectures().items() if isinstance(kind, Multimodal)}


def facts(spec: DecoderSpec) -> dict[str, Any]:
    """What a config.json says in one number each; the context unless it is cut, which is said."""
    whole = not any(note.startswith("the context is") for note in spec.notes)
    context = {"max_position_embeddings": spec.context_length} if whole else {}
    return {
        **context,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "rms_norm_eps": spec.norm_eps,
    }


@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_saves_is_read(name: str) -> None:
    spec, said = describe(SAVED[name]), SAVED[name].get("text_config", SAVED[name])
    read = {key: value for key, value in facts(spec).items() if said.get(key) is not None}
    if name in DIVIDED:
        read.pop("rms_norm_eps")
    assert read == {key: said[key] for key in read}
    rope = said.get("rope_parameters") or {}
    if rope.get("rope_type") == "default" and rope.get("partial_rotary_factor", 1) == 1:
        frequencies = np.sort(spec.ropes[0].inv_freq)
        frequencies = frequencies[frequencies > 0]  # of latent attention's heads a part is turned
        second = rope["rope_theta"] ** (-1 / len(frequencies))
        assert np.isclose(frequencies[-2], second, rtol=1e-5)


@pytest.mark.parametrize("name", sorted({*NAMES} - PARTS.keys()))
def test_a_head_is_tied_where_that_is_the_default(name: str) -> None:
    """Version 4 says nothing where it is."""
    silent = {key: value for key, value in SAVED[name].items() if key != "tie_word_embeddings"}
    assert describe(silent).tied == SAVED[name].get("tie_word_embeddings", False)


@pytest.mark.parametrize("name", sorted({*NAMES} - PARTS.keys()))
@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim"])
def test_heads_that_are_not_said_are_those_of_the_class(name: str, key: str) -> None:
    silent = {each: value for each, value in SAVED[name].items() if each != key}
    heads = [(spec.num_kv_heads, spec.head_dim) for spec in map(describe, (silent, SAVED[name]))]
    assert heads[0] == heads[1]


@pytest.mark.parametrize("text", sorted(USUAL))
def test_sizes_of_text_models_are_those_of_their_classes(text: str) -> None:
    """Version 4 writes no size of a part that has its default."""
    kept = {key: SAVED[text].get(key) for key in USUAL[text]}
    if text == "qwen3_vl_moe_text":
        kept["num_experts"] = SAVED[text]["num_local_experts"]
    if text == "gemma3n_text":  # one for each layer
        kept["intermediate_size"] = kept["intermediate_size"][0]
    assert USUAL[text] == kept
    for name, parts in PARTS.items():
        if text in parts.texts:
            spec = describe({"model_type": name, "text_config": {"model_type": text}})
            read = {key: value for key, value in facts(spec).items() if key in USUAL[text]}
            assert read == {key: USUAL[text][key] for key in read}


def test_sizes_that_are_said_replace_those_of_the_class() -> None:
    said = {"num_local_experts": 8, "num_hidden_layers": 2, "model_type": "qwen3_vl_moe_text"}
    spec = describe({"model_type": "qwen3_vl_moe", "text_config": said})
    assert (spec.num_layers, spec.layers[0].feed_forward.count) == (2, 8)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("gpt_oss", {"swiglu_alpha": 1.0}, UnsupportedError, "swiglu_alpha of 1"),
        (
            "exaone_moe",
            {"mlp_layer_types": None, "is_moe_layer": [[1]] * 32},
            CheckpointError,
            "truth",
        ),
        (
            "hunyuan_v1_dense",
            {"head_dim": 2, "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0}},
            CheckpointError,
            "expected a head_dim of 4 or more",
        ),
    ],
)
def test_values_without_a_meaning_here_are_refused(
    name: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe({**SAVED[name], **changes})


def test_dots1_as_it_is_released_has_sigmoids() -> None:
    said = {"n_routed_experts": 128, "num_experts_per_tok": 6, "scoring_func": "noaux_tc"}
    experts = describe({**SAVED["dots1"], **said}).layers[-1].feed_forward
    assert experts.scoring == "sigmoid"  # type: ignore[union-attr]


def test_a_limit_beyond_float32_is_none() -> None:
    config = {**SAVED["nemotron_h"], "time_step_limit": [0.0, 1e308]}
    assert describe(config).num_layers == describe(SAVED["nemotron_h"]).num_layers
    with pytest.raises(UnsupportedError, match="time_step_limit"):
        describe({**config, "time_step_limit": [0.0, 10.0]})


def test_numbers_that_json_lacks_are_spelled_as_transformers_does() -> None:
    config = {**SAVED["nemotron_h"], "time_step_limit": [0.0, math.inf]}
    public = public_config(config, describe(config))
    assert public["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    assert describe(public).num_layers == describe(config).num_layers


@pytest.mark.parametrize(
    ("ended", "eos_token", "ids"),
    [
        (7, "<|im_end|>", [7, 9]),
        ([7, 9], {"content": "<|im_end|>"}, [7, 9]),
        (None, "<|im_end|>", 9),
        (7, None, 7),
        (7, "<unknown>", 7),
    ],
)
def test_a_text_ends_where_the_tokenizer_says_it_too(
    ended: Any, eos_token: Any, ids: int | list[int]
) -> None:
    """Qwen3.5's configuration names the end of a document alone."""
    tokenizer = {"added_tokens": [{"id": 8}, {"id": 9, "content": "<|im_end|>"}]}
    config, settings = {"eos_token_id": ended}, {"eos_token": eos_token}
    assert implied_generation(config, settings, tokenizer) == {"eos_token_id": ids}


def test_gpt_oss_is_stretched_where_nothing_is_said() -> None:
    silent = {
        key: value
        for key, value in SAVED["gpt_oss"].items()
        if key not in ("rope_parameters", "head_dim")
    }
    assert describe(silent).head_dim == 64
    assert describe(silent).ropes[0].attention_factor == pytest.approx(1.3466, abs=1e-4)


def test_llava_of_mistral_states_four_sizes() -> None:
    """As llava-v1.6-mistral-7b has it."""
    text = {
        "model_type": "mistral",
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "vocab_size": 32064,
    }
    spec = describe({"model_type": "llava_next", "text_config": text})
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.hidden_size) == (
        32,
        32,
        8,
        4096,
    )
    assert (spec.context_length, spec.vocab_size) == (32768, 32064)
