"""Configurations of large mixtures as they are released, without what concerns no computation.

As quoted in public code, model cards and copies of config.json: DeepSeek V2.5 and V3 by trainers'
recipes, Kimi K2 by inspectors of checkpoints, Ling mini 2.0 by tests of SGLang, K-EXAONE
by vLLM's, Solar Open by those of loaders for it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgerun_export.architectures import Experts, describe
from edgerun_export.architectures.decoder.layer import ExpertGroups
from edgerun_export.pipeline import ExportOptions, export
from tests.export.checkpoint.fp8.schemes import SCHEMES, fp8_model
from tests.support.bundles import GOLDEN, config_of, error_of, runner

_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
_DEEPSEEK: dict[str, Any] = {
    "attention_bias": False,
    "ep_size": 1,
    "hidden_act": "silu",
    "kv_lora_rank": 512,
    "moe_layer_freq": 1,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": _YARN,
    "tie_word_embeddings": False,
}
_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
_V3 = {
    **_DEEPSEEK,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "quantization_config": _FP8,
}
RELEASED: dict[str, dict[str, Any]] = {
    "deepseek-v2.5": {
        **_DEEPSEEK,
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_group": 8,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 60,
        "routed_scaling_factor": 16.0,
        "scoring_func": "softmax",
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
        "vocab_size": 102400,
    },
    "deepseek-v3": {
        **_V3,
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 3,
        "n_group": 8,
        "n_routed_experts": 256,
        "num_nextn_predict_layers": 1,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
        "vocab_size": 129280,
    },
    "kimi-k2": {
        **_V3,
        "model_type": "kimi_k2",
        "first_k_dense_replace": 1,
        "max_position_embeddings": 262144,
        "n_group": 1,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "rope_scaling": {**_YARN, "beta_fast": 1.0, "beta_slow": 1.0, "factor": 64.0},
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.827,
        "topk_group": 1,
        "vocab_size": 163840,
    },
    "ling-mini-2.0": {
        "architectures": ["BailingMoeV2ForCausalLM"],
        "model_type": "bailing_moe",
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 512,
        "moe_router_enable_expert_bias": True,
        "moe_shared_expert_intermediate_size": 512,
        "n_group": 8,
        "norm_topk_prob": True,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 20,
        "num_key_value_heads": 4,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 600000,
        "routed_scaling_factor": 2.5,
        "router_dtype": "fp32",
        "score_function": "sigmoid",
        "tie_word_embeddings": False,
        "topk_group": 4,
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "vocab_size": 157184,
    },
    "k-exaone": {
        "model_type": "exaone_moe",
        "first_last_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 6144,
        "intermediate_size": 18432,
        "is_moe_layer": [False] + [True] * 47,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"] * 12,
        "max_position_embeddings": 262144,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_shared_experts": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "sliding_window": 128,
        "sliding_window_pattern": "LLLG",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "vocab_size": 153600,
    },
    "solar-open-100b": {
        "model_type": "solar_open",
        "first_k_dense_replace": 0,
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 10240,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1280,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 2.0,
            "original_max_position_embeddings": 65536,
            "type": "yarn",
        },
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "vocab_size": 196608,
    },
}
# Layers, those without experts, experts, those of a token, groups, factor, width of what all share.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "deepseek-v2.5": (60, 1, 160, 6, ExpertGroups(8, 3, best=1), 16.0, 3072),
    "deepseek-v3": (61, 3, 256, 8, ExpertGroups(8, 4, best=2), 2.5, 2048),
    "kimi-k2": (61, 1, 384, 8, None, 2.827, 2048),
    "ling-mini-2.0": (20, 1, 256, 8, ExpertGroups(8, 4, best=2), 2.5, 512),
    "k-exaone": (48, 1, 128, 8, None, 2.5, 2048),
    "solar-open-100b": (48, 0, 128, 8, None, 1.0, 1280),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_configurations_are_taken(name: str) -> None:
    spec = describe(RELEASED[name])
    part = spec.layers[-1].feed_forward
    assert isinstance(part, Experts) and part.shared is not None
    dense = sum(not isinstance(layer.feed_forward, Experts) for layer in spec.layers)
    numbers = part.count, part.top_k, part.groups, part.scale, part.shared.width
    assert (spec.num_layers, dense, *numbers) == EXPECTED[name]
    assert spec.architecture == RELEASED[name]["model_type"]


def test_layers_of_k_exaone_have_rope_where_they_have_a_window() -> None:
    layers = describe(RELEASED["k-exaone"]).layers
    assert [(layer.window, layer.rope) for layer in layers] == [*[(128, 0)] * 3, (None, None)] * 12


def test_scores_of_deepseek_grow_with_its_context() -> None:
    """By both keys of YaRN, which are 1: once in scores, and not in cosines and sines."""
    for name, factor in (("deepseek-v2.5", 40), ("deepseek-v3", 40), ("kimi-k2", 64)):
        spec = describe(RELEASED[name])
        expected = 192**-0.5 * (1 + 0.1 * math.log(factor)) ** 2
        assert spec.attention_scale(0) == pytest.approx(expected)
        assert spec.storage.head_rows is not None and (spec.storage.head_rows.factors == 1).all()
        turned = spec.ropes[0].inv_freq
        assert np.count_nonzero(turned) == 32 and turned[31] == pytest.approx(
            RELEASED[name]["rope_theta"] ** (-62 / 64) / factor
        )


@pytest.mark.parametrize("name", ["deepseek_v3", "kimi_k2"])
def test_a_checkpoint_as_v3_is_released_computes_what_its_weights_say(
    name: str, tmp_path: Path
) -> None:
    """In FP8 by blocks, with a layer for multi-token prediction and keys that say nothing new."""
    folder, plain = tmp_path / "fp8", tmp_path / "plain"
    exact = fp8_model(folder, SCHEMES["deepseek"], "deepseek_v3-groups", with_prediction)
    own = json.loads((folder / "config.json").read_text())
    said = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, "ep_size": 1}
    own |= said | {"model_type": name, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(own))
    result = export(folder, tmp_path / "out", ExportOptions(weights="fp32"))
    assert any("(MTP) are left out" in said for said in result.warnings)
    write_plain(plain, exact)
    export(plain, tmp_path / "expected", ExportOptions(weights="fp32"))
    ids = [7, 80, 200, 3, 9, 100]
    with (
        runner(tmp_path / "out", "reference") as model,
        runner(tmp_path / "expected", "reference") as expected,
    ):
        assert error_of(model.run(ids), expected.run(ids)) < 1e-6


def with_prediction(tensors: dict[str, Any]) -> None:
    """Adds a layer behind the others, as it is stored in FP8, and what only such layers have."""
    behind = {
        key.replace("layers.1.", "layers.2."): value
        for key, value in tensors.items()
        if "layers.1." in key
    }
    tensors |= behind | {"model.layers.2.eh_proj.weight": np.ones((64, 128), np.float32)}


def write_plain(folder: Path, tensors: dict[str, Any]) -> None:
    """Writes the golden checkpoint with other weights."""
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((GOLDEN / "deepseek_v3-groups" / name).read_bytes())
    arrays = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    save_file(arrays, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "own", "alias"),
    [
        ("mixtral", "num_local_experts", "num_experts"),
        ("gpt_oss", "num_local_experts", "num_experts"),
        ("olmoe", "num_experts", "num_local_experts"),
        ("hy_v3", "num_experts", "num_local_experts"),
        ("deepseek_v2", "n_routed_experts", "num_experts"),
        ("deepseek_v3", "n_routed_experts", "num_local_experts"),
        ("ernie4_5_moe", "moe_num_experts", "num_experts"),
        ("ernie4_5_moe", "moe_k", "num_experts_per_tok"),
        ("hunyuan_v1_moe", "moe_topk", "num_experts_per_tok"),
    ],
)
def test_other_names_of_numbers_of_experts_mean_the_same(name: str, own: str, alias: str) -> None:
    config = config_of(name)
    spec = describe(config)
    said = {key: value for key, value in config.items() if key not in (own, alias)}
    assert describe({**said, alias: config[own]}).layers == spec.layers
    assert describe({**config, alias: None}).layers == spec.layers
