"""Checkpoints with parts for pictures export to what their text models export to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerun
from edgerun.errors import CheckpointError
from edgerun_export.architectures.decoder.multimodal import PICTURES, PICTURES_AND_SOUND
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.export.checkpoint.fp8.schemes import SCHEMES, fp8_model
from tests.export.multimodal.wrapped import (
    BESIDE,
    CASES,
    HEAD,
    INSIDE,
    PAIRS,
    QWEN,
    Case,
    Config,
    Layout,
    Tensors,
    exported_to,
    same_bytes,
    text_config,
    wrap,
)

MODULE = "model.language_model.layers.1.mlp.experts"


@pytest.mark.parametrize(("name", "layout"), PAIRS, ids=lambda value: getattr(value, "text", value))
def test_the_text_model_is_what_it_is_alone(
    name: str, layout: Layout, exported: Any, tmp_path: Path
) -> None:
    case = CASES[name]
    plain = exported(case.text, weights="fp32")
    result = exported_to(wrap(tmp_path / "checkpoint", case, layout), tmp_path / "bundle")
    assert same_bytes(result, plain)
    left_out = PICTURES_AND_SOUND if name == "apertus1p5" else PICTURES
    assert result.warnings == [*plain.warnings, left_out]
    model = result.manifest["model"]
    assert model["architecture"] == case.architecture.replace("-", "_")
    assert model == {**plain.manifest["model"], "architecture": model["architecture"]}
    written = json.loads((result.folder / "config.json").read_text())
    tied = {"tie_word_embeddings": text_config(case)["tie_word_embeddings"]}
    assert written == text_config(case) | tied
    generation = (result.folder / "generation_config.json").read_bytes()
    assert generation == (plain.folder / "generation_config.json").read_bytes()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_keys_of_the_text_model_may_stand_beside_the_others(
    name: str, exported: Any, tmp_path: Path
) -> None:
    """As in releases of Qwen2-VL and Qwen2.5-VL."""

    def flat(config: Config) -> Config:
        return config.pop("text_config") | config

    case = CASES[name]
    folder = wrap(tmp_path / "checkpoint", case, QWEN, config=flat)
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported(case.text, weights="fp32"))
    assert json.loads((result.folder / "config.json").read_text()) == text_config(case)


def stacked(by_output: bool, tensors: Tensors) -> None:
    """Puts experts into stacks, as releases have them or as transformers computes with them."""
    layers = {name.partition(".mlp.experts.")[0] for name in tensors if ".mlp.experts." in name}
    for layer in layers:
        module = f"{layer}.mlp.experts"
        count = sum(name.startswith(f"{module}.") for name in tensors) // 3
        singles = [
            [tensors.pop(f"{module}.{expert}.{part}_proj.weight") for expert in range(count)]
            for part in ("gate", "up", "down")
        ]
        gate, up, down = map(np.stack, singles)
        stacks = {"gate_up_proj": np.concatenate([gate, up], axis=1), "down_proj": down}
        for part, stack in stacks.items():
            tensors[f"{module}.{part}"] = stack if by_output else stack.transpose(0, 2, 1)


@pytest.mark.parametrize(
    ("name", "by_output"), [("qwen3_vl_moe", False), ("qwen3_vl_moe", True), ("qwen3_5_moe", True)]
)
def test_stacks_of_experts_may_lie_either_way(
    name: str, by_output: bool, exported: Any, tmp_path: Path
) -> None:
    case = CASES[name]
    folder = wrap(tmp_path / "checkpoint", case, alter=lambda each: stacked(by_output, each))
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported(case.text, weights="fp32"))


def test_keys_of_experts_may_be_those_of_transformers_5(exported: Any, tmp_path: Path) -> None:
    def renamed(config: Config) -> None:
        text = config["text_config"]
        text["num_local_experts"] = text.pop("num_experts")
        assert text.pop("norm_topk_prob")

    case = CASES["qwen3_vl_moe"]
    folder = wrap(tmp_path / "checkpoint", case, config=renamed)
    assert same_bytes(exported_to(folder, tmp_path / "bundle"), exported(case.text, weights="fp32"))


@pytest.mark.parametrize(
    ("part", "change", "shape"),
    [
        ("gate_up_proj", lambda stack: stack[:, :, :-2], r"gate_proj.weight' has .*\[47, 64\];"),
        ("gate_up_proj", lambda stack: stack[:, :-2], r"gate_proj.weight' has .*\[48, 62\];"),
        ("down_proj", lambda stack: stack[:, :-2], r"down_proj.weight' has shape \[64, 46\];"),
        ("down_proj", lambda stack: stack[0], r"down_proj' has shape .*expected 3 axes"),
        ("down_proj", lambda stack: None, r"no tensor '.*experts.0.down_proj.weight', which"),
    ],
)
def test_stacks_of_other_sizes_are_refused(
    part: str, change: Any, shape: str, tmp_path: Path
) -> None:
    def damage(tensors: Tensors) -> None:
        stacked(False, tensors)
        stack = change(tensors.pop(f"{MODULE}.{part}"))
        tensors |= {} if stack is None else {f"{MODULE}.{part}": stack}

    folder = wrap(tmp_path / "checkpoint", CASES["qwen3_vl_moe"], alter=damage)
    with pytest.raises(CheckpointError, match=shape):
        exported_to(folder, tmp_path / "bundle")


@pytest.mark.parametrize("layout", [BESIDE, INSIDE], ids=["beside", "inside"])
def test_weights_in_fp8_are_read_wherever_they_lie(
    layout: Layout, exported: Any, tmp_path: Path
) -> None:
    """As Ministral 3 is released: one scale for each matrix of the text model."""
    case, left_out = CASES["ministral3"], ["vision_tower", "multi_modal_projector", "lm_head"]
    scaled: Tensors = {}
    fp8_model(tmp_path / "text", SCHEMES["ministral3"], case.text, scaled.update)
    plain = exported_to(tmp_path / "text", tmp_path / "plain")

    def alter(tensors: Tensors) -> None:
        tensors |= {layout.renamed(name): value for name, value in scaled.items()}

    def config(content: Config) -> None:
        settings = SCHEMES["ministral3"].settings
        content["quantization_config"] = {**settings, "modules_to_not_convert": left_out}

    folder = wrap(tmp_path / "checkpoint", case, layout, alter, config)
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, plain)
    scales = next(each for each in plain.warnings if each.startswith("scales of activations"))
    text = scales.replace("'model.", f"'{layout.text}")
    assert result.warnings == [plain.warnings[0], PICTURES, text]


def test_biases_that_no_key_states_are_read_and_declared(exported: Any, tmp_path: Path) -> None:
    def silent(config: Config) -> None:
        del config["text_config"]["attention_bias"]

    folder = wrap(tmp_path / "checkpoint", CASES["llava"], config=silent)
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported("llama", weights="fp32"))
    assert json.loads((result.folder / "config.json").read_text())["attention_bias"] is True


def test_frequencies_that_are_stored_as_well_are_not_read(exported: Any, tmp_path: Path) -> None:
    def alter(tensors: Tensors) -> None:
        name = f"{BESIDE.text}layers.1.self_attn.rotary_emb.inv_freq"
        tensors[name] = np.ones(8, np.float32)

    folder = wrap(tmp_path / "checkpoint", CASES["llava"], alter=alter)
    assert same_bytes(exported_to(folder, tmp_path / "bundle"), exported("llama", weights="fp32"))


def test_keys_that_a_layer_does_not_compute_with_may_be_stored(
    exported: Any, tmp_path: Path
) -> None:
    """Those of layers that attend to the keys of others."""

    def alter(tensors: Tensors) -> None:
        tensors[f"{INSIDE.text}layers.5.self_attn.k_proj.weight"] = np.ones((4, 4), np.float32)

    layout = Layout(INSIDE.text, HEAD, ("model.embed_vision.embedding_projection.weight",))
    case = Case("gemma4", "gemma4_text-per-layer", "gemma4_text", (layout,))
    folder = wrap(tmp_path / "checkpoint", case, alter=alter, config=stating(None, None))
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported(case.text, weights="fp32"))
    assert result.warnings == [PICTURES_AND_SOUND]


@pytest.mark.parametrize(
    ("inside", "beside", "expected"),
    [
        ({}, {}, {}),
        ({"eos_token_id": 7}, {}, {"eos_token_ids": [7, 257]}),
        ({"eos_token_id": 7}, {"eos_token_id": [1, 106]}, {"eos_token_ids": [1, 106, 257]}),
        ({"bos_token_id": 2, "pad_token_id": 0}, {"pad_token_id": 3, "eos_token_id": None}, None),
    ],
)
def test_tokens_that_end_a_text_may_be_said_in_both_places(
    inside: Config, beside: Config, expected: Config | None, tmp_path: Path
) -> None:
    """Those beside ``text_config`` count, as transformers makes its generation_config.json.

    The tokenizer's own does as well.
    """

    def config(content: Config) -> Config:
        content["text_config"] |= inside
        return content | beside

    folder = wrap(tmp_path / "checkpoint", CASES["gemma3"], config=config)
    result = exported_to(folder, tmp_path / "bundle")
    usual = {"bos_token_id": 256, "eos_token_ids": [257], "pad_token_id": 0}
    if expected is None:
        expected = {"bos_token_id": 2, "pad_token_id": 3}
    tokens = {key: result.manifest["model"][key] for key in usual}
    assert tokens == usual | expected
    generation = json.loads((result.folder / "generation_config.json").read_text())
    eos = generation["eos_token_id"]
    assert (eos if isinstance(eos, list) else [eos]) == tokens["eos_token_ids"]


HEAD_CASES = [
    # beside, inside, the head that is stored; whether it is the embedding, and what is said
    (None, None, None, True, False),
    (None, None, "other", False, False),
    (None, False, "other", False, False),
    (None, True, None, True, False),
    (True, False, None, True, False),
    (False, True, None, True, False),
    (False, True, "other", False, False),
    (True, None, "same", True, False),
    (True, None, "other", False, True),
    (None, True, "other", False, True),
]


@pytest.mark.parametrize("layout", [BESIDE, INSIDE], ids=["beside", "inside"])
@pytest.mark.parametrize(("beside", "inside", "head", "tied", "warns"), HEAD_CASES)
def test_a_head_that_is_stored_counts_more_than_keys(
    beside: bool | None,
    inside: bool | None,
    head: str | None,
    tied: bool,
    warns: bool,
    layout: Layout,
    tmp_path: Path,
) -> None:
    def alter(tensors: Tensors) -> None:
        embedding = tensors[f"{layout.text}embed_tokens.weight"]
        if head:
            tensors[layout.head] = embedding if head == "same" else embedding[::-1]

    folder = wrap(
        tmp_path / "checkpoint", CASES["mistral3"], layout, alter, stating(beside, inside)
    )
    with open_checkpoint(str(folder)) as checkpoint:
        weights, warnings = interpret(checkpoint)
        assert weights.spec.tied is tied
        said = [each for each in warnings if f"'{layout.head}' with other weights" in each]
        assert len(said) == warns
        embedding = weights.matrix("model.embed_tokens.weight")
        expected = embedding[::-1] if head == "other" else embedding
        np.testing.assert_array_equal(weights.matrix(weights.head_name()), expected)


def stating(beside: bool | None, inside: bool | None) -> Any:
    """Changes what a configuration says of the head."""

    def config(content: Config) -> Config:
        content["text_config"].pop("tie_word_embeddings")
        for part, value in ((content, beside), (content["text_config"], inside)):
            if value is not None:
                part["tie_word_embeddings"] = value
        return content

    return config


@pytest.mark.parametrize("layout", [BESIDE, INSIDE], ids=["beside", "inside"])
def test_the_embedding_may_be_stored_as_the_head_alone(
    layout: Layout, exported: Any, tmp_path: Path
) -> None:
    def alter(tensors: Tensors) -> None:
        tensors[layout.head] = tensors.pop(f"{layout.text}embed_tokens.weight")

    folder = wrap(tmp_path / "checkpoint", CASES["gemma3"], layout, alter)
    result = exported_to(folder, tmp_path / "bundle")
    assert same_bytes(result, exported("gemma3_text", weights="fp32"))


@pytest.mark.parametrize(("beside", "inside"), [(None, False), (False, None), (False, False)])
def test_a_head_that_is_missing_is_named(
    beside: bool | None, inside: bool | None, tmp_path: Path
) -> None:
    folder = wrap(tmp_path / "checkpoint", CASES["mistral3"], config=stating(beside, inside))
    message = "has no tensor 'language_model.lm_head.weight', which mistral3 needs"
    with pytest.raises(CheckpointError, match=message):
        exported_to(folder, tmp_path / "bundle")


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_lfm2_says_of_the_head_by_a_key_of_its_own(place: str, tmp_path: Path) -> None:
    def config(content: Config) -> Config:
        del content["text_config"]["tie_word_embeddings"]
        part = content if place == "beside" else content["text_config"]
        part["tie_embedding"] = False
        return content

    folder = wrap(tmp_path / "checkpoint", CASES["lfm2_vl"], config=config)
    with pytest.raises(CheckpointError, match=r"no tensor 'lm_head.weight', which lfm2_vl needs"):
        exported_to(folder, tmp_path / "bundle")


@pytest.mark.parametrize("name", ["lfm2_vl", "idefics3", "qwen3_vl"])
def test_families_differ_in_what_silence_says_of_the_head(name: str, tmp_path: Path) -> None:
    """By the defaults of transformers' configurations."""
    folder = wrap(tmp_path / "checkpoint", CASES[name], config=stating(None, None))
    if name == "lfm2_vl":
        bundle = exported_to(folder, tmp_path / "bundle").folder
        assert json.loads((bundle / "config.json").read_text())["tie_word_embeddings"] is True
        return
    with pytest.raises(CheckpointError, match=f"no tensor '{HEAD}', which {name} needs"):
        exported_to(folder, tmp_path / "bundle")


def test_a_chat_goes_through_the_template_of_the_processor(tmp_path: Path) -> None:
    """Which reads content in parts, as in SmolVLM."""
    template = (
        "{% for m in messages %}{{ m.role }}:{% for part in m.content %}{% if part.type == 'image' "
        "%}<image>{% else %}{{ part.text }}{% endif %}{% endfor %};{% endfor %}assistant:"
    )
    folder = wrap(tmp_path / "checkpoint", CASES["smolvlm"])
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    result = exported_to(folder, tmp_path / "bundle")
    chatted = [{"role": "user", "content": "Hello"}]
    with edgerun.load(result.folder, threads=1) as llm:
        assert llm.has_chat_template
        reply = llm.chat(chatted, max_tokens=4, temperature=0)
        prompt = llm.generate("user:Hello;assistant:", max_tokens=4, temperature=0)
        assert reply.ids == prompt.ids
