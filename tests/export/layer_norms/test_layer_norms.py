"""Decoders whose norms subtract the mean, and whose parts may lie beside each other."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun_export.architectures import describe
from edgerun_export.architectures.decoder.layer import Dense
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.calibrate.taps import all_groups, observe
from edgerun_export.calibrate.weights import LayerWeights
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.numpy_ends import embedded
from tests.support.altered import AlteredBundle
from tests.support.bundles import GOLDEN, bundle_of, config_of, spec_without

FULL, SLIDING = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "factor": 2.0}


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("cohere2", {"use_qk_norm": True}, UnsupportedError, "cohere2 .* with use_qk_norm True"),
        ("cohere", {"logit_scale": 0}, CheckpointError, "'logit_scale' is 0"),
        (
            "cohere2_moe",
            {"rope_scaling": YARN},
            UnsupportedError,
            "'yarn', which transformers does",
        ),
        ("cohere2_moe", {"expert_selection_fn": "max"}, UnsupportedError, "fn of 'max' are not"),
        (
            "cohere2_moe",
            {"shared_expert_combination_strategy": "max"},
            UnsupportedError,
            "strategy of 'max' are not supported; those with average or sum are",
        ),
        ("cohere2_moe", {"num_experts": 1}, CheckpointError, "2 experts, .* num_experts 1"),
        ("cohere2_moe", {"mlp_layer_types": ["moe"]}, CheckpointError, "3 times 'dense' or"),
        ("cohere2_moe", {"num_shared_experts": -1}, CheckpointError, "'num_shared_experts' is -1"),
        ("cohere2", {"layer_types": [FULL]}, CheckpointError, "names 1 layers, the model has 3"),
        ("cohere2", {"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
        ("cohere2", {"sliding_window": None}, UnsupportedError, "'sliding_window' is null where"),
        ("cohere2_moe", {"sliding_window": None}, UnsupportedError, "'sliding_window' is null"),
        ("gpt_neox", {"hidden_act": "mish"}, UnsupportedError, "gpt_neox .* 'mish' .* with gelu,"),
        ("nemotron", {"hidden_act": "silu"}, UnsupportedError, "nemotron .* hidden_act of 'silu'"),
        ("olmo", {"clip_qkv": 8.0}, UnsupportedError, "olmo checkpoints with clip_qkv 8.0"),
        ("phi", {"qk_layernorm": True}, UnsupportedError, "phi checkpoints with qk_layernorm True"),
        ("phimoe", {"num_experts_per_tok": 1}, UnsupportedError, "num_experts_per_tok 1 are not"),
        ("phimoe", {"num_local_experts": 1}, CheckpointError, "2 experts, .* num_local_experts 1"),
        ("phimoe", {"router_jitter_noise": -1}, CheckpointError, "'router_jitter_noise' is -1"),
        ("phimoe", {"rope_parameters": YARN}, UnsupportedError, "rope of type 'yarn' are not"),
        ("phimoe", {"rope_scaling": {"type": "longrope"}}, CheckpointError, "'short_mscale' is N"),
        ("phi", {"layer_norm_eps": -1}, CheckpointError, "'layer_norm_eps' is -1"),
        ("stablelm", {"hidden_act": "elu"}, UnsupportedError, "activation 'elu'"),
        ("starcoder2", {"sliding_window": -4}, CheckpointError, "'sliding_window' is -4"),
        ("starcoder2", {"norm_epsilon": "x"}, CheckpointError, "'norm_epsilon' is 'x'"),
    ],
)
def test_configurations_that_are_none_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_keys_that_are_left_out_mean_what_transformers_takes_them_for() -> None:
    kinds = spec_without("cohere2", "layer_types", "sliding_window", num_hidden_layers=5)
    assert [layer.window for layer in kinds.layers] == [4096, 4096, 4096, None, 4096]
    assert [layer.rope for layer in kinds.layers] == [0, 0, 0, None, 0]
    mixed = spec_without("phimoe", "router_jitter_noise", "num_experts_per_tok", "sliding_window")
    assert mixed.layers[0].feed_forward.margin == 0.02  # type: ignore[union-attr]
    assert spec_without("cohere", "logit_scale").storage.factors == {"model.norm.weight": 0.0625}
    assert spec_without("starcoder2", "use_bias").biases >= {"q_proj", "o_proj", "down_proj"}
    assert spec_without("starcoder2", "sliding_window").layers[0].window is None
    assert spec_without("phi", "hidden_act").activation == "normal_cdf_tanh"
    assert spec_without("gpt_neox", "hidden_act").activation == "normal_cdf"
    assert spec_without("gpt_neox", "use_parallel_residual").parallel
    assert spec_without("nemotron", "hidden_act").activation == "relu"
    both = [spec_without(name, "rope_parameters") for name in ("stablelm", "phi")]
    turned = [np.count_nonzero(spec.ropes[0].inv_freq) for spec in both]
    assert turned == [both[0].head_dim // 8, both[1].head_dim // 4]


@pytest.mark.parametrize(
    ("keys", "windows", "ropes"),
    [
        ({}, [None, 8, 8, 8, None], [0, 0, 0, 0, None]),
        (
            {"prefix_dense_sliding_window_pattern": 2, "first_k_dense_replace": 2},
            [8, None, 8, 8, 8],
            [0, None, 0, 0, 0],
        ),
        ({"sliding_window_pattern": 2}, [None, 8, None, 8, None], [0, 0, None, 0, None]),
    ],
)
def test_dense_layers_before_experts_have_a_rope_and_no_window(
    keys: dict[str, Any], windows: list[int | None], ropes: list[int | None]
) -> None:
    said = {"first_k_dense_replace": 1, "num_hidden_layers": 5, **keys}
    spec = spec_without("cohere2_moe", "layer_types", "mlp_layer_types", **said)
    assert [layer.window for layer in spec.layers] == windows
    assert [layer.rope for layer in spec.layers] == ropes
    dense = [isinstance(layer.feed_forward, Dense) for layer in spec.layers]
    assert dense == [layer < said["first_k_dense_replace"] for layer in range(5)]


def test_experts_of_command_a_count_as_much_as_their_strategy_says() -> None:
    spec = describe(config_of("cohere2_moe"))
    name = "model.layers.1.mlp.shared_experts.down_proj.weight"
    assert (spec.layers[1].feed_forward.scale, spec.storage.factors[name]) == (0.5, 0.5)  # type: ignore[union-attr]
    spec = describe(config_of("cohere2_moe", shared_expert_combination_strategy="sum"))
    assert spec.layers[1].feed_forward.scale == 1.0  # type: ignore[union-attr]
    assert {*spec.storage.factors} == {"model.norm.weight"}
    spec = describe(config_of("cohere2_moe", num_shared_experts=0, rms_norm_eps=1e-6))
    assert spec.layers[1].feed_forward.scale == 1.0  # type: ignore[union-attr]
    assert (spec.centres, spec.norm_eps) == (False, 1e-6)
    assert not spec_without("cohere2_moe", "norm_topk_prob", num_shared_experts=0).biases


@pytest.mark.parametrize(("original", "context"), [(64, 64), (128, 128), (None, 128)])
def test_phimoe_has_the_context_of_its_first_divisors(original: int | None, context: int) -> None:
    spec = describe(config_of("phimoe", original_max_position_embeddings=original))
    assert spec.context_length == context
    assert [note[:25] for note in spec.notes] == ["the context is 64 tokens:"] * (context == 64)
    assert spec.ropes[0].attention_factor == 1.25


def test_old_and_new_names_of_the_rope_of_gpt_neox_are_the_same() -> None:
    said = {"rotary_emb_base": 500, "rotary_pct": 0.5}
    old = spec_without("gpt_neox", "rope_parameters", **said).ropes[0]
    parameters = {"rope_type": "default", "rope_theta": 500, "partial_rotary_factor": 0.5}
    new = describe(config_of("gpt_neox", rope_parameters=parameters)).ropes[0]
    np.testing.assert_array_equal(old.inv_freq, new.inv_freq)


def operators(name: str, **options: Any) -> Counter[str]:
    model = onnx.load(bundle_of(name, **options) / "model.onnx", load_external_data=False)
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize(("name", "norms"), [("cohere2", 4), ("phi", 3), ("gpt_neox", 5)])
def test_a_norm_that_both_parts_read_is_computed_once(name: str, norms: int) -> None:
    counts = operators(name, weights="int4")
    assert (counts["LayerNormalization"], counts["RMSNormalization"]) == (norms, 0)


def changed(folder: Path, name: str, tensors: dict[str, np.ndarray]) -> Path:
    """A golden checkpoint with other tensors."""
    copy = Path(shutil.copytree(GOLDEN / name, folder / "checkpoint"))
    stored = load_file(copy / "model.safetensors")
    save_file(stored | tensors, copy / "model.safetensors")
    return copy


def test_buffers_of_old_checkpoints_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    mask = np.ones((1, 1, 8, 8), np.uint8)
    at = "gpt_neox.layers.0.attention"
    tensors = {f"{at}.bias": mask, f"{at}.masked_bias": np.full(1, -1e9, np.float32)}
    tensors[f"{at}.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    folder = changed(tmp_path, "gpt_neox", tensors)
    assert export(folder, tmp_path / "out", ExportOptions()).manifest
    more = changed(tmp_path / "more", "gpt_neox", {f"{at}.extra": np.ones(2, np.float32)})
    with pytest.raises(CheckpointError, match=r"attention\.extra' has no place"):
        export(more, tmp_path / "no", ExportOptions())


def test_norms_without_weights_must_have_none(tmp_path: Path) -> None:
    weight = {"model.layers.0.input_layernorm.weight": np.ones(64, np.float32)}
    with pytest.raises(CheckpointError, match=r"input_layernorm\.weight' has no place"):
        export(changed(tmp_path, "olmo", weight), tmp_path / "out", ExportOptions())


def test_what_a_rope_multiplies_by_is_for_layers_that_have_one() -> None:
    """YaRN's factor of cosines and sines, which is in the rows of queries and keys."""
    scaling = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16}
    with open_checkpoint(str(GOLDEN / "cohere2")) as checkpoint:
        plain, _ = interpret(checkpoint)
        checkpoint.config = config_of("cohere2", rope_parameters={**scaling, "rope_theta": 1e4})
        scaled, _ = interpret(checkpoint)
        for layer, ratio in enumerate((1.2079, 1.0, 1.2079)):
            name = f"model.layers.{layer}.self_attn.k_proj.weight"
            ratios = scaled.matrix(name) / plain.matrix(name)
            np.testing.assert_allclose(ratios, ratio, rtol=1e-4)


@pytest.mark.parametrize("name", ["cohere2", "gpt_neox", "starcoder2"])
def test_calibration_sees_what_projections_read(name: str) -> None:
    ids = np.arange(12)
    with open_checkpoint(str(GOLDEN / name)) as checkpoint:
        source, _ = interpret(checkpoint)
        spec, weights = source.spec, LayerWeights(source, 0)
        begin = embedded(spec, source, ids)
        seen = observe(spec, weights, 0, begin, all_groups(spec, 0)).inputs
        module = f"model.layers.0.{spec.feed_forward_norm}"
        rows = begin[:, : spec.hidden_size].astype(np.float64)
        rows -= rows.mean(axis=1, keepdims=True)
        rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + spec.norm_eps)
        rows *= source.vector(f"{module}.weight")
        if spec.norm_biases:
            rows += source.vector(f"{module}.bias")
    first = next(iter(spec.feed_forward(0)[0].values())).path
    is_same = np.abs(seen[first] - rows).max() < 1e-4
    assert is_same == spec.parallel


@pytest.mark.parametrize("name", ["cohere2", "phi"])
def test_fitted_weights_verify(name: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 100, encoding="utf-8")
    given = ExportOptions(
        weights="int8", method="gptq", verify=True, activations="fp32",
        calibration=CalibrationOptions((text,), 8, 16),
    )  # fmt: skip
    result = export(GOLDEN / name, tmp_path / "out", given)
    assert result.manifest["quality"]["max_error"] < 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axis": 1}, "is 'LayerNormalization', for which"),
        ({"stash_type": 10}, "is 'LayerNormalization with stash_type=10'"),
    ],
)
def test_other_norms_are_not_taken_for_it(
    change: dict[str, int], message: str, tmp_path: Path
) -> None:
    altered = AlteredBundle(bundle_of("phi", weights="int4"), tmp_path / "bundle")
    altered.set("layers.1/input_layernorm/LayerNormalization", **change)
    path = altered.save() / "model.onnx"
    with pytest.raises(UnsupportedError, match=message):
        lower(read_graph(path, path.read_bytes()))
