"""DeepSeek's kind of attention and experts: what configurations say, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.architectures.decoder.layer import ExpertGroups
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN, config_of


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        (
            "deepseek_v2",
            {"topk_method": "by_chance", "n_group": 2},
            UnsupportedError,
            "topk_method of 'by_chance' are not supported; those with greedy or group_limited",
        ),
        ("deepseek_v2", {"scoring_func": "sigmoid"}, UnsupportedError, "with softmax are"),
        ("deepseek_v2", {"moe_layer_freq": 2}, UnsupportedError, "a moe_layer_freq of 2"),
        ("deepseek_v2-groups", {"n_group": 5}, CheckpointError, "of 12 experts .* in 5 groups"),
        ("deepseek_v2-groups", {"n_group": 13}, CheckpointError, "'n_group' is 13 .* 1 to 12"),
        ("deepseek_v2-groups", {"topk_group": 5}, CheckpointError, "'topk_group' is 5 .* 1 to 4"),
        ("deepseek_v2-groups", {"topk_group": 0}, CheckpointError, "'topk_group' is 0"),
        (
            "deepseek_v2-groups",
            {"num_experts_per_tok": 7},
            CheckpointError,
            r"in 4 groups .* 7 \(num_experts_per_tok\) of 2 groups \(topk_group\) are chosen",
        ),
        ("deepseek_v2", {"norm_topk_prob": True}, UnsupportedError, "with norm_topk_prob"),
        ("deepseek_v2", {"attention_bias": True}, UnsupportedError, "attention with biases"),
        ("deepseek_v2", {"v_head_dim": 40}, UnsupportedError, "v_head_dim 40 .* key heads of 32"),
        ("deepseek_v2", {"v_head_dim": 1 << 20}, CheckpointError, "whole number from 1 to 4096"),
        ("deepseek_v2", {"qk_rope_head_dim": 7}, CheckpointError, "expected even numbers"),
        ("deepseek_v2", {"kv_lora_rank": None}, CheckpointError, "'kv_lora_rank' is None"),
        ("deepseek_v2", {"q_lora_rank": 0}, CheckpointError, "'q_lora_rank' is 0"),
        ("deepseek_v2", {"first_k_dense_replace": 3}, CheckpointError, "replace' is 3 .* 0 to 2"),
        ("deepseek_v2", {"num_experts_per_tok": 7}, CheckpointError, "n_routed_experts 6"),
        ("deepseek_v2", {"n_shared_experts": -1}, CheckpointError, "'n_shared_experts' is -1"),
        (
            "deepseek_v3-groups",
            {"n_group": 12, "num_experts_per_tok": 2},
            CheckpointError,
            "in 12 groups .* of 2 experts or",
        ),
        ("deepseek_v3", {"n_group": None}, CheckpointError, "'n_group' is 8 .* from 1 to 6"),
        ("deepseek_v3", {"scoring_func": "softmax"}, UnsupportedError, "with sigmoid are"),
        ("deepseek_v3", {"routed_scaling_factor": None}, CheckpointError, "_factor' is None"),
        ("deepseek_v3", {"num_nextn_predict_layers": -1}, CheckpointError, "_layers' is -1"),
        ("exaone_moe", {"mlp_layer_types": ["dense"]}, CheckpointError, "must be 2 times 'dense'"),
        ("exaone_moe", {"mlp_layer_types": ["moe"] * 2}, CheckpointError, r"not \['moe', 'moe'\]"),
        ("exaone_moe", {"mlp_layer_types": None, "is_moe_layer": [1]}, CheckpointError, "as many"),
        ("exaone_moe", {"n_group": 3}, CheckpointError, "of 8 experts .* in 3 groups"),
        ("exaone_moe", {"num_experts": None}, CheckpointError, "'n_routed_experts' is None"),
        ("solar_open", {"use_qk_norm": True}, UnsupportedError, "with use_qk_norm"),
        ("solar_open", {"first_k_dense_replace": 1}, UnsupportedError, "a first_k_dense_replace"),
        ("solar_open", {"partial_rotary_factor": 0.5}, UnsupportedError, "partial rotary"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, CheckpointError, "must be 2 times 'de"),
        ("glm4_moe_lite", {"mlp_layer_types": ["moe"] * 2}, CheckpointError, r"not \['moe', 'moe"),
    ],
)
def test_configurations_of_another_kind_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def groups_of(name: str, **changes: Any) -> ExpertGroups | None:
    part = describe(config_of(name, **changes)).layers[-1].feed_forward
    assert isinstance(part, Experts)
    return part.groups


def test_groups_are_those_that_the_configuration_says() -> None:
    greedy = {"topk_method": "greedy"}  # which V2 Lite says beside its groups
    assert groups_of("deepseek_v2-groups") == ExpertGroups(4, 2, best=1)
    assert groups_of("deepseek_v3-groups") == ExpertGroups(4, 2, best=2)
    assert groups_of("deepseek_v2-groups", **greedy) is None
    for name in ("deepseek_v2-groups", "deepseek_v3-groups"):
        assert groups_of(name, topk_group=4) is groups_of(name, n_group=1, topk_group=1) is None
    usual = {"n_group": None, "topk_group": None, "n_routed_experts": 64}
    assert groups_of("deepseek_v2-groups", **usual) is None
    assert groups_of("deepseek_v3-groups", **usual) == ExpertGroups(8, 4, best=2)
    assert groups_of("glm4_moe", **usual) is None
    assert groups_of("dots1", n_group=3, topk_group=2) == ExpertGroups(3, 2, best=2)


def test_one_group_is_no_choice_of_groups() -> None:
    changes = {"topk_method": "group_limited_greedy", "n_group": 1}
    others = describe(config_of("deepseek_v2")).layers
    assert describe(config_of("deepseek_v2", **changes)).layers == others


def test_scores_are_scaled_by_what_all_dimensions_are() -> None:
    config = config_of("deepseek_v2")
    growth = 1 + 0.1 * 0.5 * math.log(8)
    assert describe(config).attention_scale(0) == pytest.approx(32**-0.5 * growth**2)
    # Where cosines and sines have the same factor it stays one of the scores.
    ratio = (1 + 0.1 * 0.7 * math.log(8)) / growth
    turned = describe(config).storage.head_rows.factors[:4]
    np.testing.assert_allclose(turned, ratio, rtol=1e-6)
    del config["rope_parameters"]["mscale_all_dim"]
    assert describe(config).attention_scale(0) == 32**-0.5
    plain = {"rope_theta": 10000.0, "rope_type": "default"}
    assert describe({**config, "rope_parameters": plain}).attention_scale(0) == 32**-0.5


def test_halves_of_a_head_may_be_turned_together_instead_of_neighbours() -> None:
    orders = [
        describe(config_of("deepseek_v3", rope_interleave=flag)).storage.head_rows.order.tolist()
        for flag in (True, False)
    ]
    assert orders[0][:4] == [24, 26, 28, 30] and orders[0][16:20] == [25, 27, 29, 31]
    assert orders[1][:4] == [24, 25, 26, 27] and orders[1][16:20] == [28, 29, 30, 31]
    assert all(sorted(order) == [*range(32)] for order in orders)


def test_layers_of_experts_are_those_that_the_configuration_names() -> None:
    def counts(name: str, **changes: Any) -> list[int]:
        layers = describe(config_of(name, num_hidden_layers=3, **changes)).layers
        return [getattr(layer.feed_forward, "count", 0) for layer in layers]

    assert counts("deepseek_v2") == [0, 6, 6]
    assert counts("deepseek_v3", first_k_dense_replace=2) == [0, 0, 6]
    assert counts("deepseek_v3", first_k_dense_replace=None) == [0, 0, 0]
    listed = {"layer_types": None, "mlp_layer_types": None}
    assert counts("exaone_moe", **listed) == [0, 8, 8]
    assert counts("exaone_moe", **listed, first_k_dense_replace=2) == [0, 0, 8]
    assert counts("exaone_moe", **listed, is_moe_layer=[True, False, True]) == [8, 0, 8]
    assert counts("solar_open") == counts("solar_open", intermediate_size=None) == [6, 6, 6]
    assert counts("glm4_moe_lite", mlp_layer_types=None) == [0, 6, 6]
    assert counts("glm4_moe_lite", mlp_layer_types=["sparse", "dense", "sparse"]) == [6, 0, 6]
    part = describe(config_of("glm4_moe_lite")).layers[1].feed_forward
    assert isinstance(part, Experts) and part.shared is not None
    assert (part.scale, part.normalise, part.shared.width) == (1.5, True, 80)


def test_layers_of_k_exaone_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "with"
    shutil.copytree(GOLDEN / "exaone_moe", folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"mtp.norm.weight": np.ones(64, "f")}, folder / "model.safetensors")
    result = export(folder, tmp_path / "out", ExportOptions(weights="int4"))
    assert any("(MTP) are left out" in said for said in result.warnings)
    assert not describe(config_of("exaone_moe", num_nextn_predict_layers=1)).notes


def test_layers_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "with"
    shutil.copytree(GOLDEN / "glm4_moe_lite", folder)
    tensors = load_file(folder / "model.safetensors")
    behind = {
        k.replace("layers.1.", "layers.2."): v for k, v in tensors.items() if "rs.1.self" in k
    }
    save_file(tensors | behind, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="has no place in the glm4_moe_lite"):
        export(folder, tmp_path / "out", ExportOptions(weights="int4"))
    config = config_of("glm4_moe_lite", num_nextn_predict_layers=1)
    (folder / "config.json").write_text(json.dumps(config))
    result = export(folder, tmp_path / "out", ExportOptions(weights="int4"))
    assert any("(MTP) are left out" in said for said in result.warnings)


def test_the_part_of_keys_that_is_turned_may_have_offsets(tmp_path: Path) -> None:
    options = ExportOptions(
        weights="int4", rules=("*.k_rope_proj=int4_offset:16",), activations="fp32", verify=True
    )
    manifest = export(GOLDEN / "deepseek_v2", tmp_path / "out", options).manifest
    assert manifest["recipe"]["tensors"]["model.layers.0.self_attn.k_rope_proj"]
    assert manifest["quality"]["max_error"] < 1e-3
