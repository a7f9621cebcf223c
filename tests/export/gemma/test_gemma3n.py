"""Gemma 3n: how its configuration and checkpoints are read, and what of them is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.architectures.decoder.multimodal import PICTURES_AND_SOUND
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.sizes import weight_bytes
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import relative_error, run_onnx
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN, bundle_of, runner

NAME = "gemma3n_text"
TABLE = "model.embed_tokens_per_layer.weight"


def config_of(**changes):
    return {**json.loads((GOLDEN / NAME / "config.json").read_text()), **changes}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"altup_active_idx": 1}, UnsupportedError, "by altup_active_idx 1 layers see another"),
        ({"altup_num_inputs": 1}, UnsupportedError, "'altup_num_inputs' is 1"),
        ({"altup_num_inputs": 0}, CheckpointError, "'altup_num_inputs' is 0"),
        ({"altup_num_inputs": 1 << 20}, CheckpointError, "from 1 to 16"),
        ({"laurel_rank": 0}, CheckpointError, "'laurel_rank' is 0"),
        ({"laurel_rank": "64"}, CheckpointError, "'laurel_rank' is '64'"),
        ({"intermediate_size": [64] * 5}, CheckpointError, "names 5 layers, the model has 6"),
        ({"intermediate_size": []}, CheckpointError, "'intermediate_size' is None"),
        ({"intermediate_size": [64] * 5 + [0]}, CheckpointError, "'intermediate_size' is 0"),
        ({"intermediate_size": None}, CheckpointError, "'intermediate_size' is None"),
        ({"activation_sparsity_pattern": 0.5}, CheckpointError, "must be a list of 6 shares"),
        ({"activation_sparsity_pattern": [0.5]}, CheckpointError, "must be a list of 6 shares"),
        ({"activation_sparsity_pattern": [0.5] * 5 + [1]}, CheckpointError, "has 1; expected"),
        ({"activation_sparsity_pattern": [-0.1] * 6}, CheckpointError, "has -0.1; expected"),
        ({"activation_sparsity_pattern": [True] * 6}, CheckpointError, "has True; expected"),
        ({"activation_sparsity_pattern": [float("nan")] * 6}, CheckpointError, "has nan; expect"),
        ({"num_kv_shared_layers": 7}, CheckpointError, "whole number from 0 to 6"),
        ({"num_kv_shared_layers": None}, CheckpointError, "'num_kv_shared_layers' is 15"),
        ({"num_kv_shared_layers": 5}, CheckpointError, "layer 1 attends to keys and values of an"),
        ({"vocab_size_per_layer_input": 265}, UnsupportedError, "is 265 and vocab_size 264"),
        ({"vocab_size_per_layer_input": 0}, CheckpointError, "'vocab_size_per_layer_input' is 0"),
        ({"hidden_size_per_layer_input": 0}, CheckpointError, "_per_layer_input' is 0"),
        ({"final_logit_softcapping": -1}, CheckpointError, "'final_logit_softcapping' is -1"),
        ({"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ({"model_type": "gemma3n"}, CheckpointError, "an object 'text_config'"),
    ],
)
def test_odd_configurations_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        describe(config_of(**changes))


def test_what_a_configuration_leaves_out_is_as_transformers_has_it():
    """E2B's, and old keys of ropes."""
    spec = describe(
        {
            "model_type": "gemma3n_text",
            "vocab_size": 262400,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 30,
            "num_attention_heads": 8,
            "num_kv_shared_layers": 10,
        }
    )
    assert [layer.window for layer in spec.layers] == [512, 512, 512, 512, None] * 6
    assert [layer.kv_source for layer in spec.layers[19:]] == [None] + [18, 18, 18, 18, 19] * 2
    assert (spec.num_kv_heads, spec.head_dim, spec.context_length) == (2, 256, 32768)
    assert (spec.tied, spec.softcap, spec.norm_eps) == (True, 30.0, 1e-6)
    cut = [layer.feed_forward.deviations for layer in spec.layers]
    assert cut == [pytest.approx(1.6448536)] * 10 + [None] * 20
    assert spec.altup.count == 4 and spec.altup.scales_output
    assert (spec.laurel.rank, spec.per_layer.width) == (64, 256)
    assert spec.storage.rows == {TABLE: 262144}
    turned = [rope.inv_freq[1] for rope in spec.ropes]
    np.testing.assert_allclose(turned, [0.8976871, 0.9305722], rtol=1e-6)
    old = {"rope_theta": 500000.0, "rope_local_base_freq": 20000.0}
    spec = describe(config_of(**old, rope_parameters=None))
    np.testing.assert_allclose(
        [rope.inv_freq[1] for rope in spec.ropes], [500000.0**-0.125, 20000.0**-0.125]
    )


@pytest.mark.parametrize(
    "tensor",
    [
        TABLE,
        "model.altup_projections.2.weight",
        "model.altup_unembed_projections.0.weight",
        "model.layers.4.altup.router_norm.weight",
        "model.layers.4.altup.modality_router.weight",
        "model.layers.4.altup.prediction_coefs.weight",
        "model.layers.4.altup.correction_coefs.weight",
        "model.layers.4.altup.correct_output_scale",
        "model.layers.4.laurel.linear_left.weight",
        "model.layers.4.laurel.linear_right.weight",
        "model.layers.4.laurel.post_laurel_norm.weight",
    ],
)
def test_missing_tensors_are_named(tensor, altered, tmp_path):
    folder = altered(NAME, lambda tensors: {k: v for k, v in tensors.items() if k != tensor})
    with pytest.raises(CheckpointError, match=f"no tensor '{tensor}', which gemma3n_text needs"):
        export(folder, tmp_path / "out", ExportOptions())


@pytest.mark.parametrize(
    "tensor",
    [
        "model.altup_projections.3.weight",
        "model.layers.2.self_attn.v_norm.weight",
        "model.layers.2.altup.other.weight",
        "model.vision_tower.weight",
    ],
)
def test_tensors_without_a_place_are_refused(tensor, altered, tmp_path):
    folder = altered(NAME, lambda tensors: {**tensors, tensor: np.ones(64, np.float32)})
    with pytest.raises(CheckpointError, match=f"'{tensor}' has no place in the gemma3n_text"):
        export(folder, tmp_path / "out", ExportOptions())


def test_a_table_has_as_many_rows_as_the_configuration_says(altered, tmp_path):
    folder = altered(NAME, lambda tensors: {**tensors, TABLE: tensors[TABLE][:-1]})
    with pytest.raises(CheckpointError, match=r"has shape \[255, 96\]; config.json asks for"):
        export(folder, tmp_path / "out", ExportOptions())


def test_tokens_without_a_row_read_the_first(exported, golden):
    """As transformers has them, which the golden logits of the first token show as well."""
    bundle = exported(NAME, weights="fp32", embedding_weights="fp32").folder
    stored = BundleWeights(bundle, golden(NAME).spec).rows(TABLE, slice(None))
    assert len(stored) == 264
    np.testing.assert_array_equal(stored[256:], np.repeat(stored[:1], 8, axis=0))
    with open_checkpoint(str(GOLDEN / NAME)) as checkpoint:
        weights, _ = interpret(checkpoint)
        np.testing.assert_array_equal(weights.matrix(TABLE), stored)
        np.testing.assert_array_equal(weights.rows(TABLE, slice(260, 262)), stored[260:262])


def test_keys_of_layers_that_share_them_may_be_there(altered, golden):
    others = {
        f"model.layers.{layer}.self_attn.{part}.weight": np.full((32, 64), 7, np.float32)
        for layer in (4, 5)
        for part in ("k_proj", "v_proj", "k_norm")
    }
    folder = altered(NAME, lambda tensors: {**tensors, **others})
    with open_checkpoint(str(folder)) as checkpoint:
        weights, _ = interpret(checkpoint)
        logits = forward(weights.spec, weights, golden(NAME).ids)
    assert relative_error(logits, golden(NAME).logits) < 1e-4


def test_the_first_stream_may_open_gates_as_it_is(altered, golden, tmp_path):
    """With ones to scale it by it does, too; transformers writes tensors that it does not read."""
    scales = {f"model.layers.{layer}.altup.correct_output_scale" for layer in range(6)}
    ones = {name: np.ones(64, np.float32) for name in scales}
    variants = [
        (lambda stored: {**stored, **ones}, True),
        (lambda stored: stored, False),
        (without(scales), False),
    ]
    logits = []
    for number, (tensors, flag) in enumerate(variants):
        folder = altered(
            NAME, tensors, lambda config, flag=flag: {**config, "altup_correct_scale": flag}
        )
        bundle = export(folder, tmp_path / str(number), ExportOptions(weights="fp32")).folder
        shutil.rmtree(folder)
        with runner(bundle, "cpu") as model:
            logits.append(model.run(golden(NAME).ids.astype(np.int32)))
    np.testing.assert_array_equal(logits[0], logits[1])
    np.testing.assert_array_equal(logits[0], logits[2])


def without(names):
    return lambda stored: {name: value for name, value in stored.items() if name not in names}


def with_pictures(tensors):
    renamed = {f"model.language_model.{k.removeprefix('model.')}": v for k, v in tensors.items()}
    renamed["model.vision_tower.patch.weight"] = np.ones((4, 4), np.float32)
    renamed["model.embed_audio.embedding.weight"] = np.ones(4, np.float32)
    return renamed


def test_a_model_with_pictures_becomes_that_of_its_text(altered, exported, tmp_path):
    def nested(text):
        return {"model_type": "gemma3n", "text_config": text, "vision_config": {"hidden_size": 8}}

    plain = exported(NAME, weights="int4")
    folder = altered(NAME, with_pictures, nested)
    result = export(folder, tmp_path / "out", ExportOptions(weights="int4"))
    assert result.warnings == [*plain.warnings, PICTURES_AND_SOUND]
    for file in ("model.onnx", "model.onnx.data"):
        assert (result.folder / file).read_bytes() == (plain.folder / file).read_bytes()
    assert result.manifest["model"]["architecture"] == "gemma3n"


def test_the_genai_profile_has_no_form_for_shared_keys(tmp_path):
    with pytest.raises(UnsupportedError, match="--profile genai: layers of this gemma3n_text"):
        export(GOLDEN / NAME, tmp_path / "out", ExportOptions(profile="genai"))


def test_the_genai_profile_has_a_form_for_all_else(altered, tmp_path):
    """Where no layer shares keys, whose tensors are missing in the golden checkpoint."""

    def own_keys(tensors):
        parts = ("k_proj", "v_proj", "k_norm")
        names = [(4, 2, part) for part in parts] + [(5, 3, part) for part in parts]
        return tensors | {
            f"model.layers.{layer}.self_attn.{part}.weight": tensors[
                f"model.layers.{source}.self_attn.{part}.weight"
            ]
            for layer, source, part in names
        }

    folder = altered(NAME, own_keys, lambda config: {**config, "num_kv_shared_layers": 0})
    spec, logits = describe(config_of(num_kv_shared_layers=0)), []
    for profile in ("portable", "genai"):
        options = ExportOptions(weights="fp32", profile=profile)
        bundle = export(folder, tmp_path / profile, options).folder
        logits.append(run_onnx(bundle, spec, np.arange(20)))
    assert relative_error(*logits) < 1e-4


@pytest.mark.parametrize("embedding", ["int8", "int4", "fp32"])
def test_matrices_of_no_layer_are_stored_as_the_embedding_is(embedding, exported, golden):
    result = exported(NAME, weights="int4", embedding_weights=embedding)
    graph = onnx.load(str(result.folder / "model.onnx"), load_external_data=False).graph
    stored = {each.name: tuple(each.dims) for each in graph.initializer}
    for name in ("model.altup_projections.1.weight", "model.altup_unembed_projections.1.weight"):
        if embedding == "fp32":
            assert stored[f"{name}.transposed"] == (64, 64)
        else:
            assert stored[f"{name}.codes"] == (64, 2, 32 if embedding == "int8" else 16)
    needed = weight_bytes(golden(NAME).spec, result.recipe)
    size = (result.folder / "model.onnx.data").stat().st_size
    assert needed <= size <= needed + 64 * len(stored)


def test_routers_of_streams_are_never_rounded(exported):
    result = exported(NAME, weights="ternary", embedding_weights="int4")
    graph = onnx.load(str(result.folder / "model.onnx"), load_external_data=False).graph
    own = {each.name: each for each in graph.initializer if "layers.3.altup" in each.name}
    assert {name.split("altup.")[1].split(".")[0] for name in own} == {
        *("router_norm", "modality_router", "prediction_coefs", "correction_coefs"),
        "correct_output_scale",
    }
    assert {each.data_type for each in own.values()} == {onnx.TensorProto.FLOAT}
    with open_checkpoint(str(GOLDEN / NAME)) as checkpoint:
        weights, _ = interpret(checkpoint)
        bundle = BundleWeights(result.folder, weights.spec)
        name = "model.layers.3.altup.modality_router.weight"
        np.testing.assert_array_equal(bundle.matrix(name), weights.matrix(name))


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_decoding_gives_the_bits_of_a_prompt(weights, golden):
    ids = golden(NAME).ids.astype(np.int32)
    with runner(bundle_of(NAME, weights=weights), "cpu", threads=2) as model:
        prompt = model.run(ids)
    with runner(bundle_of(NAME, weights=weights), "cpu", threads=2) as model:
        single = np.concatenate([model.run(ids[each : each + 1]) for each in range(len(ids))])
    np.testing.assert_array_equal(single, prompt)


@pytest.mark.parametrize("transforms", [(), ("awq",)])
def test_weights_may_be_fitted_to_text(transforms, exported):
    """All streams go with the text through the layers."""
    text = CalibrationOptions((Path(__file__),), windows=4, tokens=32, threads=1)
    options = {"weights": "int4", "activations": "fp32", "calibration": text, "verify": True}
    quality = exported(NAME, transforms=transforms, **options).manifest["quality"]
    assert quality["max_error"] < 1e-4


def test_rotations_are_refused(tmp_path):
    text = CalibrationOptions((Path(__file__),), windows=4, tokens=32, threads=1)
    options = ExportOptions(weights="int4", transforms=("rotate",), calibration=text)
    with pytest.raises(UnsupportedError, match="norms behind their parts"):
        export(GOLDEN / NAME, tmp_path / "out", options)
