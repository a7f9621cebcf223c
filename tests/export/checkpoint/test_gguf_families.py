"""GGUF files of families that have keys and tensors of their own: what is read is what was written.

Each file is compared by its logits with the checkpoint that it was made of, whose own are held
against transformers elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from tests.support.gguf_model import difference, source_of, stored_of, write_gguf

gguf = pytest.importorskip("gguf")

SMOLLM = {"no_rope_layers": None, "rope_parameters": None, "rope_theta": 5e6}
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def smollm3() -> Any:
    return ("smollm3", *source_of("smollm3", **SMOLLM), lambda _: None)


def olmo2() -> Any:
    return ("olmo2", *source_of("olmo2"), lambda _: None)


def granite() -> Any:
    config, tensors = source_of("granite")

    def extra(writer: Any) -> None:
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
        writer.add_bool("granite.rope.scaling.finetuned", True)

    return "granite", config, tensors, extra


def granitemoe() -> Any:
    """Whose converter takes gate and up projection apart, and whose keys are Granite's."""
    config, tensors = source_of("granitemoe")
    written = {name.replace("router.layer", "gate"): value for name, value in tensors.items()}

    def extra(writer: Any) -> None:
        granite()[3](writer)

    return "granitemoe", config, written, extra


def granite4() -> Any:
    """As the converter writes Granite 4 without Mamba layers: like Granite 3."""
    config, stored = source_of("granitemoehybrid")
    config = {**config, "model_type": "granite", "intermediate_size": 96}
    tensors = {}
    for name, value in stored.items():
        if name.endswith("shared_mlp.input_linear.weight"):
            at = name.removesuffix("shared_mlp.input_linear.weight") + "mlp."
            tensors[f"{at}gate_proj.weight"], tensors[f"{at}up_proj.weight"] = np.split(value, 2)
        else:
            tensors[name.replace("shared_mlp.output_linear", "mlp.down_proj")] = value
    return "granite", config, tensors, granite()[3]


def phi3() -> Any:
    config, tensors = source_of("phi3")
    factors = config["rope_parameters"]

    def extra(writer: Any) -> None:
        writer.add_rope_dimension_count(12)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(2) / np.log(64))))
        writer.add_tensor(LONG, np.array(factors["long_factor"], np.float32))
        writer.add_tensor(SHORT, np.array(factors["short_factor"], np.float32))

    return "phi3", config, tensors, extra


def mistral3() -> Any:
    config, tensors = source_of("ministral3")
    config["rope_parameters"] |= {"mscale": 1.0, "mscale_all_dim": 1.0}

    def extra(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(2.0)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_yarn_log_mul(1.0)
        writer.add_float32("mistral3.attention.temperature_scale", 0.1)

    return "mistral3", config, tensors, extra


def gemma3() -> Any:
    """Whose converter adds 1 to norms; scale of scores and theta follow from the sizes."""
    config, tensors = source_of("gemma3_text", query_pre_attn_scalar=16, rope_theta=1e6)
    written = {
        name: value + 1 if name.endswith("norm.weight") else value
        for name, value in tensors.items()
    }

    def extra(writer: Any) -> None:
        writer.add_sliding_window(8)
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    return "gemma3", config, written, extra


def gemma3_with_a_theta_of_windows() -> Any:
    architecture, config, tensors, plain = gemma3()
    config["rope_parameters"]["sliding_attention"]["rope_theta"] = 500.0

    def extra(writer: Any) -> None:
        plain(writer)
        writer.add_float32("gemma3.rope.freq_base_swa", 500.0)

    return architecture, config, tensors, extra


def lfm2() -> Any:
    """Whose converter writes key heads layer by layer, and the width as it is."""
    config, tensors = source_of("lfm2", rope_theta=1e6)
    config["intermediate_size"] = 64
    config["block_auto_adjust_ff_dim"] = False
    written = {
        name: value[:, 0] if name.endswith("conv.conv.weight") else value
        for name, value in tensors.items()
    }

    def extra(writer: Any) -> None:
        writer.add_shortconv_l_cache(3)

    return "lfm2", config, written, extra


def deepseek_v2() -> Any:
    """As newer converters write it: keys and values of heads apart, and sizes of rows beside."""
    config, tensors = stored_of("deepseek_v2")
    config["rope_parameters"] |= {"mscale": 0.5}
    for name in [name for name in tensors if "kv_b_proj" in name]:
        keys, values = np.split(tensors.pop(name).reshape(4, 40, 32), [24], axis=1)
        tensors[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.transpose(0, 2, 1))
        tensors[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)

    def extra(writer: Any) -> None:
        latent(writer, config)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(16)
        writer.add_rope_scaling_yarn_log_mul(0.05)
        writer.add_key_length_mla(32)
        writer.add_value_length_mla(16)

    return "deepseek2", config, tensors, extra


def deepseek_v2_of_ranks() -> Any:
    """As the first converter wrote it: both together, by a layer of dense networks."""
    config, tensors = stored_of("deepseek_v2-query-rank")

    def extra(writer: Any) -> None:
        latent(writer, config)
        writer.add_q_lora_rank(64)
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])

    return "deepseek2", config, tensors, extra


def latent(writer: Any, config: dict[str, Any]) -> None:
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def lfm2_moe() -> Any:
    """Whose converter writes nothing of a factor on experts, which is 1 in released models."""
    config, tensors = source_of("lfm2_moe", routed_scaling_factor=1.0)
    written = {
        name: value[:, 0] if name.endswith("conv.conv.weight") else value
        for name, value in tensors.items()
    }

    def extra(writer: Any) -> None:
        writer.add_shortconv_l_cache(3)
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    return "lfm2moe", config, written, extra


def ernie4_5_moe() -> Any:
    """Whose converter leaves out multi-token prediction."""
    config, tensors = source_of("ernie4_5_moe", rope_theta=500000.0)
    written = {name: value for name, value in tensors.items() if "mtp" not in name}
    bias = "model.layers.1.mlp.moe_statics.e_score_correction_bias"
    written[bias] = written[bias][0]  # with or without its axis of one

    def extra(writer: Any) -> None:
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])

    return "ernie4_5-moe", config, written, extra


CASES = [
    ernie4_5_moe,
    smollm3,
    olmo2,
    granite,
    granitemoe,
    granite4,
    phi3,
    mistral3,
    gemma3,
    gemma3_with_a_theta_of_windows,
    lfm2,
    lfm2_moe,
]


def glm4_moe_lite() -> Any:
    """As DeepSeek's second model with experts chosen by sigmoids, and a layer for MTP."""
    config, stored = stored_of("glm4_moe_lite")
    tensors = {name.replace("correction_bias", "correction.bias"): stored[name] for name in stored}

    def extra(writer: Any) -> None:
        latent(writer, {**config, "first_k_dense_replace": 1})
        writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(True)
        writer.add_uint32("deepseek2.nextn_predict_layers", 1)
        writer.add_tensor("blk.2.nextn.eh_proj.weight", np.ones((64, 128), np.float32))
        writer.add_tensor("blk.2.attn_q_a.weight", np.ones((48, 64), np.float32))

    return "deepseek2", {**config, "predicting": 1}, tensors, extra


CASES += [deepseek_v2, deepseek_v2_of_ranks, glm4_moe_lite]


@pytest.mark.parametrize("case", CASES)
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(case: Any, tmp_path: Path) -> None:
    architecture, config, tensors, extra = case()
    path = write_gguf(tmp_path / "model.gguf", architecture, config, tensors, extra=extra)
    name = case.__name__.replace("granite4", "granitemoehybrid").replace("mistral3", "ministral3")
    name = name.removesuffix("_with_a_theta_of_windows").replace("gemma3", "gemma3_text")
    name = name.replace("_of_ranks", "-query-rank")
    assert difference(path, name, config) < 2e-6


@pytest.mark.parametrize("case", [granite4, phi3, gemma3, deepseek_v2_of_ranks])
def test_integers_of_such_files_are_kept(case: Any, tmp_path: Path) -> None:
    """Q8_0 goes through joined rows, pairs, and factors without being rounded again."""
    architecture, config, tensors, extra = case()
    kinds = dict.fromkeys(("_proj.weight", "_mqa.weight", "embed_tokens", "lm_head"), "Q8_0")
    path = write_gguf(tmp_path / "model.gguf", architecture, config, tensors, kinds, extra)
    options = ExportOptions(weights="source", verify=True, activations="fp32")
    result = export(path, tmp_path / "out", options)
    assert result.recipe.weights == "int8" and result.recipe.tensors == {}
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.manifest["quality"]["kl_divergence"] < 1e-9


def change(case: Any, tmp_path: Path, key: str, value: Any) -> None:
    """Writes a case with one key more, and opens it."""
    architecture, config, tensors, extra = case()

    def more(writer: Any) -> None:
        extra(writer)
        adders = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32}
        adders[type(value)](f"{architecture}.{key}", value)

    path = write_gguf(tmp_path / "model.gguf", architecture, config, tensors, extra=more)
    open_checkpoint(str(path)).close()


@pytest.mark.parametrize(
    ("case", "key", "value", "message"),
    [
        (olmo2, "attention.sliding_window", 4096.0, r"sliding window \(OLMo 3\)"),
        (smollm3, "rope.dimension_count", 8.0, "heads of 16 with 8 rotated .* in smollm3"),
        (gemma3, "final_logit_softcapping", 30.0, "'final_logit_softcapping' is 30"),
        (smollm3, "logit_scale", 8.0, "'logit_scale' is 8"),
        (smollm3, "rope.freq_base_swa", 500.0, "'rope.freq_base_swa' is 500"),
        (olmo2, "rope.dimension_count", 3.0, "both must be even"),
        (phi3, "rope.scaling.attn_factor", -1.0, r"attn_factor' is -1"),
        (lfm2, "shortconv.l_cache", 0.0, r"l_cache' is 0.0; expected 1 to"),
        (deepseek_v2, "expert_gating_func", 3.0, "'expert_gating_func' is 3"),
        (deepseek_v2, "expert_shared_count", 0.5, "count' is 0.5; expected 0 to"),
        (deepseek_v2, "expert_group_count", 2.0, "lacks 'deepseek2.expert_group_used_count'"),
        (lfm2_moe, "expert_group_count", 2.0, "'expert_group_count' is 2"),
        (deepseek_v2, "attention.kv_lora_rank", 0.0, r"kv_lora_rank' is 0.0; expected 1 to"),
        (deepseek_v2, "attention.key_length_mla", 8.0, "8 elements and 8 of them are turned"),
        (lfm2_moe, "expert_gating_func", 1.0, "'expert_gating_func' is 1, .*; expected 2 for sig"),
        (lfm2_moe, "leading_dense_block_count", 0.5, "count' is 0.5; expected 0 to"),
        (lfm2_moe, "leading_dense_block_count", -1.0, "count' is -1.0; expected 0 to"),
        (lfm2_moe, "leading_dense_block_count", 2.0**31, "count' is 2147483648.0; expected 0 to"),
        (lfm2_moe, "expert_weights_scale", 2.5, "'expert_weights_scale' is 2.5"),
        (lfm2_moe, "expert_weights_norm", False, "'expert_weights_norm' is False"),
        (ernie4_5_moe, "expert_gating_func", 2.0, "'expert_gating_func' is 2"),
        (ernie4_5_moe, "leading_dense_block_count", 0.5, "count' is 0.5; expected 0 to"),
        (ernie4_5_moe, "expert_shared_count", -1.0, "count' is -1.0; expected 0 to"),
        (ernie4_5_moe, "interleave_moe_layer_step", 0.0, "step' is 0.0; expected 1 to"),
        (granitemoe, "expert_weights_norm", False, "'expert_weights_norm' is False"),
        (granitemoe, "expert_shared_count", 1.0, "'expert_shared_count' is 1"),
        (lfm2, "leading_dense_block_count", 1.0, "'leading_dense_block_count' is 1"),
        (lfm2, "attention.sliding_window", 8.0, "of lfm2 with a sliding window"),
        (lfm2_moe, "attention.sliding_window", 8.0, "of lfm2_moe with a sliding window"),
        (olmo2, "rope.scaling.attn_factor", 1.5, "attn_factor' is 1.5 without YaRN"),
        (olmo2, "attention.causal", False, "'attention.causal' is False"),
        (olmo2, "rope.scaling.type", "longrope", "'longrope' is not supported in olmo2"),
        (deepseek_v2, "attention.temperature_scale", 0.1, "temperature_scale' is 0.1"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    case: Any, key: str, value: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgerunError, match=message):
        change(case, tmp_path, key, value)


@pytest.mark.parametrize("case", [granite, granitemoe])
def test_granite_without_rope_is_refused(case: Any, tmp_path: Path) -> None:
    name, config, tensors, _ = case()

    def extra(writer: Any) -> None:
        writer.add_bool(f"{name}.rope.scaling.finetuned", False)

    path = write_gguf(tmp_path / "model.gguf", name, config, tensors, extra=extra)
    with pytest.raises(UnsupportedError, match=f"of {name} without rotary"):
        open_checkpoint(str(path))


def test_granite_without_factors_has_neutral_ones(tmp_path: Path) -> None:
    _, config, tensors, _ = granite()
    path = write_gguf(tmp_path / "model.gguf", "granite", config, tensors)
    with open_checkpoint(str(path)) as checkpoint:
        spec = describe(checkpoint.config)
    assert spec.attention_scale(0) == 0.25 and not spec.storage.factors


def test_sums_of_weights_of_experts_must_be_spoken_of(tmp_path: Path) -> None:
    _, config, tensors, _ = glm4_moe_lite()

    def extra(writer: Any) -> None:
        latent(writer, {**config, "first_k_dense_replace": 1})
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    path = write_gguf(tmp_path / "model.gguf", "deepseek2", config, tensors, extra=extra)
    with pytest.raises(CheckpointError, match="lacks 'deepseek2.expert_weights_norm'"):
        open_checkpoint(str(path))


def test_half_of_long_rope_is_refused(tmp_path: Path) -> None:
    _, config, tensors, _ = phi3()

    def extra(writer: Any) -> None:
        writer.add_rope_dimension_count(12)
        writer.add_tensor(SHORT, np.ones(6, np.float32))

    path = write_gguf(tmp_path / "model.gguf", "phi3", config, tensors, extra=extra)
    with pytest.raises(CheckpointError, match="expected both"):
        open_checkpoint(str(path))


def test_gemma_27b_scales_scores_by_another_size() -> None:
    from edgerun_export.checkpoint.gguf_architectures import ARCHITECTURES
    from edgerun_export.checkpoint.gguf_families import of_family
    from edgerun_export.checkpoint.kinds.keys import Keys

    sizes = {"hidden_size": 5376, "num_attention_heads": 32, "head_dim": 128}
    for layers, scalar in ((62, 168), (48, 128)):
        config = {**sizes, "num_hidden_layers": layers}
        family_config = of_family(Keys({}, "gemma3"), ARCHITECTURES["gemma3"], config, {})
        assert family_config["query_pre_attn_scalar"] == scalar
        assert family_config["sliding_window_pattern"] == 6
