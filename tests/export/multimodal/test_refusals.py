"""What is neither a text model nor a part that is left out refuses the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.errors import CheckpointError, InputError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.export.multimodal.wrapped import (
    BESIDE,
    CASES,
    INSIDE,
    QWEN,
    QWEN_INSIDE,
    Tensors,
    nested,
    text_config,
    wrap,
)


def interpreted(folder: Path) -> Any:
    with open_checkpoint(str(folder)) as checkpoint:
        return interpret(checkpoint)


@pytest.mark.parametrize(
    ("name", "layout", "tensor"),
    [
        ("gemma3", BESIDE, "language_model.vision_tower.patch_conv.weight"),
        ("gemma3", BESIDE, "language_model.model.vision_tower.patch_conv.weight"),
        ("gemma3", BESIDE, "model.vision_tower.patch_conv.weight"),
        ("gemma3", BESIDE, "image_newline"),
        ("gemma3", BESIDE, "vision_model.patch_conv.weight"),
        ("gemma3", INSIDE, "model.language_model.vision_tower.patch_conv.weight"),
        ("gemma3", INSIDE, "vision_tower.patch_conv.weight"),
        ("gemma3", INSIDE, "language_model.model.norm.weight"),
        ("gemma3", INSIDE, "language_model.lm_head.weight"),
        ("gemma3", BESIDE, "lm_head.weight"),
        ("gemma3", BESIDE, "language_model.model.layers.9.input_layernorm.weight"),
        ("qwen2_5_vl", QWEN, "model.visual.blocks.0.norm1.weight"),
        ("qwen2_5_vl", QWEN, "model.language_model.norm.weight"),
        ("qwen2_5_vl", QWEN_INSIDE, "visual.blocks.0.norm1.weight"),
        ("qwen2_5_vl", QWEN_INSIDE, "model.norm.weight"),
        ("qwen3_vl", QWEN_INSIDE, "model.visuals.norm.weight"),
        ("apertus1p5", None, "model.vision_tower.norm.weight"),
        ("exaone4_5", None, "model.mtp.norm.weight"),
        ("idefics3", None, "model.perceiver.norm.weight"),
        ("llava", None, "image_newline"),
        ("muse_glimmer", None, "model.perception_emb_norm.weight"),
        ("muse_glimmer", None, "model.language_model.layers.0.self_attn.q_norm.weight"),
    ],
)
def test_a_tensor_of_neither_part_is_named(
    name: str, layout: Any, tensor: str, tmp_path: Path
) -> None:
    def alter(tensors: Tensors) -> None:
        tensors[tensor] = np.ones(3, np.float32)

    folder = wrap(tmp_path / "checkpoint", CASES[name], layout, alter)
    with pytest.raises(CheckpointError, match=f"tensor '{tensor}' has no place in the {name}"):
        interpreted(folder)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("gemma3", BESIDE, INSIDE),
        ("qwen2_vl", QWEN, QWEN_INSIDE),
    ],
)
def test_layers_in_two_places_are_refused(
    name: str, first: Any, second: Any, tmp_path: Path
) -> None:
    def alter(tensors: Tensors) -> None:
        moved = "layers.1.input_layernorm.weight"
        tensors[f"{second.text}{moved}"] = tensors.pop(f"{first.text}{moved}")

    folder = wrap(tmp_path / "checkpoint", CASES[name], first, alter)
    places = f"below '{first.text}layers.' and '{second.text}layers.'"
    with pytest.raises(CheckpointError, match=places):
        interpreted(folder)


def test_layers_in_no_known_place_are_refused(tmp_path: Path) -> None:
    def alter(tensors: Tensors) -> None:
        for name in [each for each in tensors if each.startswith(BESIDE.text)]:
            tensors[f"text_model.{name.removeprefix(BESIDE.text)}"] = tensors.pop(name)

    folder = wrap(tmp_path / "checkpoint", CASES["gemma3"], BESIDE, alter)
    message = (
        "no layers of a text model, whose names begin with 'language_model.model.layers.' or "
        "'model.language_model.layers.' in a gemma3"
    )
    with pytest.raises(CheckpointError, match=message):
        interpreted(folder)


def test_a_tensor_that_is_missing_is_named_as_it_would_be_stored(tmp_path: Path) -> None:
    name = f"{BESIDE.text}layers.1.self_attn.q_norm.weight"
    folder = wrap(tmp_path / "checkpoint", CASES["gemma3"], alter=lambda each: each.pop(name))
    with pytest.raises(CheckpointError, match=f"no tensor '{name}', which gemma3 needs"):
        interpreted(folder)
    joined = "model.language_model.layers.0.conv.in_proj.weight"
    folder = wrap(tmp_path / "joined", CASES["lfm2_vl"], alter=lambda each: each.pop(joined))
    with pytest.raises(CheckpointError, match=f"no tensor '{joined}', which lfm2_vl needs"):
        interpreted(folder)


@pytest.mark.parametrize("text", [None, {}])
@pytest.mark.parametrize("name", ["gemma3", "qwen3_vl", "llava"])
def test_a_configuration_without_a_text_model_is_refused(name: str, text: Any) -> None:
    with pytest.raises(CheckpointError, match=f"a {name} has an object 'text_config'"):
        describe({**nested(CASES[name]), "text_config": text})


def test_a_text_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'text_config' must be an object"):
        describe({**nested(CASES["gemma3"]), "text_config": "gemma3_text"})


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("llava", "gpt2", "'llava' with a text model of 'gpt2' is not supported; supported"),
        ("mistral3", "qwen2", r"'qwen2' is not supported.*: mistral, ministral3, mistral4$"),
        ("llava", "mamba2", "'mamba2' is not supported: a bundle has no form for linear recur"),
        ("llava_next", "granite", "'llava_next' with a text model of 'granite' is not supported"),
        ("exaone4_5", "exaone_moe", "of 'exaone_moe' is not.*: exaone4, exaone4_5_text$"),
        ("muse_glimmer", "gemma2", "with a text model of 'gemma2' is not supported"),
        ("gemma3", "llama", "'gemma3' with a text model of 'llama' is not supported"),
        ("gemma3", 3, "'gemma3' with a text model of 3 is not supported"),
        ("gemma3", ["gemma3_text"], "'gemma3' with a text model of .* is not supported"),
    ],
)
def test_a_text_model_of_another_architecture_is_refused(name: str, kind: Any, words: str) -> None:
    config = nested(CASES[name])
    config["text_config"]["model_type"] = kind
    with pytest.raises(UnsupportedError, match=words):
        describe(config)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3", {"use_bidirectional_attention": True}, "bidirectional"),
        ("qwen3_vl_moe", {"norm_topk_prob": False}, "norm_topk_prob of false"),
        ("qwen2_5_vl", {"rope_parameters": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ("lfm2_vl", {"conv_bias": True}, "biases in convolutions"),
    ],
)
def test_text_models_that_compute_something_else_are_refused(
    name: str, changes: Any, words: str
) -> None:
    config = nested(CASES[name])
    config["text_config"] |= changes
    with pytest.raises(UnsupportedError, match=words):
        describe(config)


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_a_method_of_quantisation_counts_where_it_is_stated(place: str) -> None:
    config = nested(CASES["gemma3"])
    part = config if place == "beside" else config["text_config"]
    part["quantization_config"] = {"quant_method": "bitsandbytes"}
    with pytest.raises(UnsupportedError, match="quantised with 'bitsandbytes'"):
        describe(config)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers()),
    st.sampled_from(["mrope", "llama", "text_config", 2**63]),
)
NAMES = st.lists(
    st.sampled_from(
        [f"{layout.text}layers.0.x" for layout in (BESIDE, INSIDE, QWEN)] + ["x", "lm_head.weight"]
    ),
    max_size=3,
)


@given(st.sampled_from(sorted(CASES)), st.data(), NAMES)
@settings(deadline=None, max_examples=200)
def test_any_configuration_is_described_or_refused(name: str, data: Any, tensors: Any) -> None:
    config, text = nested(CASES[name]), text_config(CASES[name])
    for key in data.draw(st.lists(st.sampled_from([*text, "mlp_only_layers"]), max_size=2)):
        text[key] = data.draw(JUNK)
    config["text_config"] = text
    for key in data.draw(st.lists(st.sampled_from([*config, "tie_word_embeddings"]), max_size=1)):
        config[key] = data.draw(JUNK)
    try:
        spec = describe(config, tensors)
    except InputError:
        return
    assert spec.num_layers == len(spec.layers) > 0
