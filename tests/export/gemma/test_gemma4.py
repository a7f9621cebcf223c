"""Gemma 4: how its configuration and checkpoints are read, and what of them is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

import edgerun
from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.architectures.decoder.multimodal import PICTURES_AND_SOUND
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.sizes import weight_bytes
from edgerun_export.source.model import interpret
from edgerun_export.verify.compare import relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN, config_of

DENSE, PER_LAYER, EXPERTS = "gemma4_text", "gemma4_text-per-layer", "gemma4_text-experts"
FULL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}
SLIDING = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        (DENSE, {"enable_moe_block": True}, CheckpointError, "'num_experts' is None"),
        (EXPERTS, {"top_k_experts": 7}, CheckpointError, "top_k_experts 7 .* num_experts 6"),
        (EXPERTS, {"moe_intermediate_size": None}, CheckpointError, "'moe_intermediate_size'"),
        (DENSE, {"use_bidirectional_attention": "all"}, UnsupportedError, "bidirectional"),
        (DENSE, {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        (DENSE, {"layer_types": ["mamba"] * 3}, UnsupportedError, "'mamba'"),
        (DENSE, {"final_logit_softcapping": 0}, CheckpointError, "'final_logit_softcapping' is 0"),
        (DENSE, {"final_logit_softcapping": "5"}, CheckpointError, "softcapping' is '5'"),
        (DENSE, {"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
        (DENSE, {"num_kv_shared_layers": -1}, CheckpointError, "'num_kv_shared_layers' is -1"),
        (DENSE, {"num_kv_shared_layers": 4}, CheckpointError, "whole number from 0 to 3"),
        (
            DENSE,
            {"num_kv_shared_layers": 2},
            CheckpointError,
            "by num_kv_shared_layers 2 layer 1 attends to keys and values of an earlier layer",
        ),
        (
            DENSE,
            {"per_layer_config": {"1": {"head_dim": 32, "num_attention_heads": 2}}},
            UnsupportedError,
            "layer 1 a 'num_attention_heads' of its own",
        ),
        (
            DENSE,
            {"per_layer_config": {"1": {"num_key_value_heads": 3}}},
            CheckpointError,
            "layer 1 has 4 query heads for 3 key heads of 16 elements",
        ),
        (
            DENSE,
            {"per_layer_config": {"1": {"head_dim": 31}}},
            CheckpointError,
            "layer 1 has 4 query heads for 2 key heads of 31 elements",
        ),
        (
            DENSE,
            {"per_layer_config": {"1": {"head_dim": 32}}},
            UnsupportedError,
            r"layers of full_attention have heads of \[16, 32\] elements",
        ),
        (
            DENSE,
            {"per_layer_config": {"3": {"head_dim": 32}}},
            CheckpointError,
            "names layer '3', and there are layers 0 to 2",
        ),
        (DENSE, {"per_layer_config": [32]}, CheckpointError, "'per_layer_config' must be an obj"),
        (
            PER_LAYER,
            {"per_layer_config": {"1": {"head_dim": 32}, "3": {"head_dim": 32}, "5": {}}},
            CheckpointError,
            "layer 5 has 1 key heads of 16 elements and attends to those of layer 1, which has 1",
        ),
        (PER_LAYER, {"vocab_size_per_layer_input": 300}, UnsupportedError, "is 300 and vocab_size"),
        (PER_LAYER, {"hidden_size_per_layer_input": -1}, CheckpointError, "_input' is -1"),
        (
            DENSE,
            {"rope_parameters": {"full_attention": FULL}},
            CheckpointError,
            "'rope_parameters' has no object for sliding_attention",
        ),
        (DENSE, {"rope_parameters": FULL}, CheckpointError, "no object for full_attention"),
        (
            DENSE,
            {"rope_parameters": {"full_attention": {**FULL, "rope_type": "spiral"}}},
            UnsupportedError,
            "partial rotary",
        ),
        (
            DENSE,
            {"rope_parameters": {"full_attention": {**FULL, "partial_rotary_factor": 1.5}}},
            CheckpointError,
            "of the 16 pairs of a head 24 would be turned",
        ),
        (
            DENSE,
            {"rope_parameters": {"full_attention": {**FULL, "partial_rotary_factor": 0.01}}},
            CheckpointError,
            "of the 16 pairs of a head 0 would be turned",
        ),
        ("gemma4_text", {"model_type": "gemma4"}, CheckpointError, "an object 'text_config'"),
    ],
)
def test_odd_configurations_are_refused(name, changes, error, message):
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_released_models_say_the_same_of_all_global_layers():
    """Transformers writes it layer by layer."""
    released = {"global_head_dim": 32, "num_global_key_value_heads": 1, "per_layer_config": None}
    assert shape_of(config_of(DENSE, **released)) == shape_of(config_of(DENSE))
    released["num_global_key_value_heads"] = None
    assert shape_of(config_of(PER_LAYER, **released)) == shape_of(config_of(PER_LAYER))
    # As without keys that are values.
    own = config_of(PER_LAYER, **{**released, "num_global_key_value_heads": 4})
    assert shape_of(own) == shape_of(config_of(PER_LAYER))


def shape_of(config):
    spec = describe(config)
    return spec.layers, spec.tensors(), spec.storage.unused


def test_what_a_configuration_leaves_out_is_as_transformers_has_it():
    """E2B's, of which every layer without a window is the sixth."""
    config = {
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 14,
        "num_attention_heads": 8,
    }
    spec = describe(config)
    windows = [layer.window for layer in spec.layers]
    assert windows == [*([512] * 5 + [None]) * 2, 512, None]  # the last one, whatever its number
    assert {spec.head_dim_of(layer) for layer in range(14)} == {256, 512}
    assert [spec.head_dim_of(layer) for layer in (0, 5, 13)] == [256, 512, 512]
    assert (spec.num_kv_heads, spec.context_length, spec.tied) == (4, 131072, True)
    assert spec.per_layer is not None and spec.per_layer.width == 256
    assert [len(rope.inv_freq) for rope in spec.ropes] == [256, 128]
    assert np.count_nonzero(spec.ropes[0].inv_freq) == 64
    assert spec.softcap is None
    unified = describe({**config, "model_type": "gemma4_unified_text"})
    assert unified.per_layer is None and unified.context_length == 262144
    assert unified.layers[0].window == 1024


def test_layers_share_keys_with_the_last_of_their_kind():
    spec = describe(config_of(PER_LAYER))
    assert [layer.kv_source for layer in spec.layers] == [None, None, None, 1, 2, 1]
    assert [spec.layers[each].feed_forward.width for each in (2, 3)] == [64, 128]
    assert sorted(spec.attention(3)) == ["o_proj", "q_proj"]
    assert "self_attn.k_norm" not in spec.norms(3)
    dense = describe(config_of(DENSE))
    assert [layer.keys_are_values for layer in dense.layers] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (DENSE, "model.layers.1.layer_scalar"),
        (DENSE, "model.layers.0.self_attn.v_proj.weight"),
        (PER_LAYER, "model.embed_tokens_per_layer.weight"),
        (PER_LAYER, "model.per_layer_model_projection.weight"),
        (PER_LAYER, "model.per_layer_projection_norm.weight"),
        (PER_LAYER, "model.layers.4.per_layer_input_gate.weight"),
        (PER_LAYER, "model.layers.4.per_layer_projection.weight"),
        (PER_LAYER, "model.layers.4.post_per_layer_input_norm.weight"),
        (EXPERTS, "model.layers.0.router.scale"),
        (EXPERTS, "model.layers.0.router.proj.weight"),
        (EXPERTS, "model.layers.0.pre_feedforward_layernorm_2.weight"),
        (EXPERTS, "model.layers.0.post_feedforward_layernorm_1.weight"),
        (EXPERTS, "model.layers.0.post_feedforward_layernorm_2.weight"),
    ],
)
def test_missing_tensors_are_named(name, tensor, altered, tmp_path):
    folder = altered(name, lambda tensors: {k: v for k, v in tensors.items() if k != tensor})
    with pytest.raises(CheckpointError, match=f"no tensor '{tensor}', which gemma4_text needs"):
        export(folder, tmp_path / "out", ExportOptions())


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (DENSE, "model.layers.1.self_attn.v_proj.weight"),  # whose values are keys
        (DENSE, "model.layers.0.self_attn.v_norm.weight"),
        (DENSE, "model.layers.0.router.proj.weight"),
        (DENSE, "model.layers.0.per_layer_input_gate.weight"),
        (PER_LAYER, "model.layers.2.self_attn.v_norm.weight"),
        (PER_LAYER, "model.vision_tower.weight"),
    ],
)
def test_tensors_without_a_place_are_refused(name, tensor, altered, tmp_path):
    folder = altered(name, lambda tensors: {**tensors, tensor: np.ones(64, np.float32)})
    with pytest.raises(CheckpointError, match=f"'{tensor}' has no place in the gemma4_text"):
        export(folder, tmp_path / "out", ExportOptions())


FACTORS = "model.layers.0.router.per_expert_scale"


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (None, f"'{FACTORS}' are none; expected one for each"),
        (np.ones(5, np.float32), rf"'{FACTORS}' are of shape \[5\]; expected"),
        (np.ones(7, np.float32), rf"'{FACTORS}' are of shape \[7\]; expected"),
        (np.ones((6, 1), np.float32), rf"'{FACTORS}' are of shape \[6, 1\]; expected"),
        (np.array([1, 2, np.nan, 4, 5, 6], np.float32), f"'{FACTORS}' holds NaN or Inf"),
    ],
)
def test_experts_without_their_factors_are_refused(factors, message, altered):
    def change(tensors):
        others = {name: value for name, value in tensors.items() if name != FACTORS}
        return others if factors is None else {**others, FACTORS: factors}

    folder = altered(EXPERTS, change)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(str(folder))


def test_factors_of_experts_are_in_their_down_projections():
    with open_checkpoint(str(GOLDEN / EXPERTS)) as checkpoint:
        stored = load_file(GOLDEN / EXPERTS / "model.safetensors")
        factors = stored[FACTORS].astype(np.float32)
        for kind, factor in (("down", factors[4]), ("gate", 1), ("up", 1)):
            rows = checkpoint.read(f"model.layers.0.experts.4.{kind}_proj.weight")
            joined = stored[
                f"model.layers.0.experts.{'down' if kind == 'down' else 'gate_up'}_proj"
            ]
            own = {"gate": joined[4][:48], "up": joined[4][48:], "down": joined[4]}[kind]
            np.testing.assert_array_equal(rows, own.astype(np.float32) * factor)
        assert FACTORS not in checkpoint.tensors()


def test_keys_of_layers_that_share_them_may_be_there(altered, tmp_path):
    """Released checkpoints have them, and transformers does not read them."""
    others = {
        f"model.layers.{layer}.self_attn.{part}.weight": np.full((16, 64), 7, np.float32)
        for layer in (3, 4, 5)
        for part in ("k_proj", "v_proj", "k_norm")
    }
    folder = altered(PER_LAYER, lambda tensors: {**tensors, **others})
    with open_checkpoint(str(folder)) as checkpoint:
        weights, _ = interpret(checkpoint)
        assert (
            relative_error(forward(weights.spec, weights, ids(PER_LAYER)), logits(PER_LAYER)) < 1e-4
        )


def ids(name):
    with np.load(GOLDEN / name / "golden.npz") as data:
        return data["ids"].astype(np.int64)


def logits(name):
    with np.load(GOLDEN / name / "golden.npz") as data:
        return data["logits"]


def with_pictures(tensors):
    renamed = {f"model.language_model.{k.removeprefix('model.')}": v for k, v in tensors.items()}
    renamed["model.vision_tower.patch.weight"] = np.ones((4, 4), np.float32)
    renamed["model.embed_audio.weight"] = np.ones(4, np.float32)
    if "lm_head.weight" in tensors:
        renamed["lm_head.weight"] = renamed.pop("model.language_model.lm_head.weight")
    return renamed


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_unified"])
@pytest.mark.parametrize("name", [DENSE, PER_LAYER, EXPERTS])
def test_a_model_with_pictures_becomes_that_of_its_text(
    name, model_type, altered, exported, tmp_path
):
    def nested(text):
        parts = {"text_config": text, "vision_config": {"hidden_size": 8}, "audio_config": None}
        return {"model_type": model_type, "eos_token_id": [1, 106], **parts}

    plain = exported(name, weights="int4")
    result = export(
        altered(name, with_pictures, nested), tmp_path / "out", ExportOptions(weights="int4")
    )
    assert result.warnings == [*plain.warnings, PICTURES_AND_SOUND]
    for file in ("model.onnx", "model.onnx.data"):
        assert (result.folder / file).read_bytes() == (plain.folder / file).read_bytes()
    written = json.loads((result.folder / "config.json").read_text())
    own = json.loads((plain.folder / "config.json").read_text())
    assert written == {**own, "eos_token_id": [1, 106], "model_type": "gemma4_text"}
    assert result.manifest["model"]["architecture"] == model_type
    assert result.manifest["model"]["eos_token_ids"] == [1, 106, 257]  # the last: the tokenizer's


def test_other_parts_of_a_model_with_pictures_are_refused(altered, tmp_path):
    def more(tensors):
        return {**with_pictures(tensors), "model.something.weight": np.ones(4, np.float32)}

    def nested(text):
        return {"model_type": "gemma4", "text_config": text}

    folder = altered(DENSE, more, nested)
    with pytest.raises(CheckpointError, match=r"'model.something.weight' has no place"):
        export(folder, tmp_path / "out", ExportOptions())


def test_the_genai_profile_has_no_form_for_shared_keys(tmp_path):
    with pytest.raises(UnsupportedError, match="--profile genai: layers of this gemma4_text"):
        export(GOLDEN / PER_LAYER, tmp_path / "out", ExportOptions(profile="genai"))


@pytest.mark.parametrize("embedding", ["int8", "int4", "fp32"])
def test_tables_of_inputs_are_stored_as_the_embedding_is(embedding, exported, golden):
    options = {"weights": "int4", "embedding_weights": embedding}
    result = exported(PER_LAYER, **options)
    graph = onnx.load(str(result.folder / "model.onnx"), load_external_data=False).graph
    stored = {each.name: tuple(each.dims) for each in graph.initializer}
    table = "model.embed_tokens_per_layer.weight"
    if embedding == "fp32":
        assert stored[table] == (264, 96)
    else:
        assert stored[f"{table}.codes"] == (264, 3, 32 if embedding == "int8" else 16)
    needed = weight_bytes(golden(PER_LAYER).spec, result.recipe)
    size = (result.folder / "model.onnx.data").stat().st_size
    assert needed <= size <= needed + 64 * len(stored)


@pytest.mark.parametrize("name", [DENSE, PER_LAYER, EXPERTS])
@pytest.mark.parametrize("transforms", [(), ("awq",)])
def test_weights_may_be_fitted_to_text(name, transforms, exported):
    """What later layers read of earlier ones goes with the text through the layers."""
    text = CalibrationOptions((Path(__file__),), windows=4, tokens=32, threads=1)
    options = {"weights": "int4", "activations": "fp32", "calibration": text, "verify": True}
    quality = exported(name, transforms=transforms, **options).manifest["quality"]
    assert quality["max_error"] < 1e-4


def test_manifests_state_no_size_in_which_layers_differ(exported):
    dense, per_layer = (exported(name, weights="int4") for name in (DENSE, PER_LAYER))
    model = dense.manifest["model"]
    assert (model["num_layers"], model["num_kv_heads"], model["head_dim"]) == (3, 0, 0)
    assert model["intermediate_size"] == 64
    assert per_layer.manifest["model"]["num_kv_heads"] == 1
    assert per_layer.manifest["model"]["intermediate_size"] == 0


def test_experts_may_be_read_from_disk(exported):
    """Their choice is not foreseen: the router reads another value than they do."""
    bundle = exported(EXPERTS, weights="int4").folder
    replies = []
    for memory in (None, "40KB"):
        with edgerun.load(bundle, threads=1, expert_memory=memory) as llm:
            reply = llm.generate(ids(EXPERTS).tolist(), temperature=0, max_tokens=16)
            replies.append(reply.ids)
    assert replies[0] == replies[1]
