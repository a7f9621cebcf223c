"""Qwen3-Next and Qwen3.5: how they are read, and what of them is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.architectures.decoder.layer import Experts
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, config_of

NAMES = ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"]
LINEAR, FULL = "linear_attention", "full_attention"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention_bias": True}, UnsupportedError, "with biases in attention"),
        ({"hidden_act": "gelu"}, UnsupportedError, "with hidden_act 'gelu' .* with silu are"),
        ({"layer_types": [LINEAR, "mamba", FULL]}, UnsupportedError, "with layers of 'mamba'"),
        ({"layer_types": [LINEAR] * 3}, UnsupportedError, "without a layer of attention"),
        ({"layer_types": [FULL]}, CheckpointError, "names 1 layers, the model has 3"),
        ({"layer_types": None}, UnsupportedError, "without a layer of attention"),
        ({"layer_types": None, "full_attention_interval": 0}, CheckpointError, "_interval' is 0"),
        ({"linear_conv_kernel_dim": 1}, UnsupportedError, "a linear_conv_kernel_dim of 1, whose"),
        ({"linear_conv_kernel_dim": 65}, CheckpointError, "'linear_conv_kernel_dim' is 65"),
        ({"linear_num_value_heads": 6, "linear_num_key_heads": 4}, CheckpointError, "6 is not a"),
        ({"linear_num_key_heads": 0}, CheckpointError, "'linear_num_key_heads' is 0"),
        ({"linear_key_head_dim": True}, CheckpointError, "'linear_key_head_dim' is True"),
        ({"linear_value_head_dim": "128"}, CheckpointError, "'linear_value_head_dim' is '128'"),
        ({"rope_parameters": {"partial_rotary_factor": 2.0}}, CheckpointError, "64 would be"),
        ({"rope_parameters": {"rope_type": "spiral"}}, UnsupportedError, "rope type 'spiral'"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_variants_are_refused_by_name(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_every_fourth_layer_attends_unless_they_are_named() -> None:
    unnamed = {"layer_types": None, "num_hidden_layers": 5, "mlp_only_layers": []}
    for name in NAMES:
        spec = describe(config_of(name, **unnamed))
        assert [spec.attends(layer) for layer in range(5)] == [False] * 3 + [True, False]
        third = describe(config_of(name, **unnamed, full_attention_interval=3))
        assert [third.attends(layer) for layer in range(5)] == [False, False, True, False, False]


def test_experts_are_weighed_as_each_family_weighs_them() -> None:
    parts = {name: describe(config_of(name, norm_topk_prob=False)) for name in NAMES[1:]}
    experts = {name: spec.layers[0].feed_forward for name, spec in parts.items()}
    assert all(isinstance(part, Experts) and part.shared for part in experts.values())
    assert {name: part.normalise for name, part in experts.items()} == {
        "qwen3_5_moe_text": True,  # whatever its configuration says
        "qwen3_next": False,
    }
    mixed = describe(config_of("qwen3_next", mlp_only_layers=[1]))
    are_sparse = [isinstance(layer.feed_forward, Experts) for layer in mixed.layers]
    assert are_sparse == [True, False, True]
    usual = describe(config_of("qwen3_next", norm_topk_prob=None)).layers[0].feed_forward
    assert isinstance(usual, Experts)
    assert usual.normalise


def test_rows_that_are_stored_in_turns_are_put_together() -> None:
    """Of each key head of Qwen3-Next: query, key, two values, their gates; strengths and decays."""
    stored = load_file(GOLDEN / "qwen3_next" / "model.safetensors")
    module = "model.layers.0.linear_attn"
    both, gates = (
        stored[f"{module}.{name}.weight"].astype(np.float32)
        for name in ("in_proj_qkvz", "in_proj_ba")
    )
    heads = [np.split(each, [16, 32, 96]) for each in np.split(both, 2)]
    query, key, value, gate = (np.concatenate(each) for each in zip(*heads, strict=True))
    halves = [np.split(each, 2) for each in np.split(gates, 2)]
    write, decay = (np.concatenate(each) for each in zip(*halves, strict=True))
    expected = {
        "in_proj_qkv": np.concatenate([query, key, value]),
        "in_proj_z": gate,
        "in_proj_a": decay,
        "in_proj_b": write,
    }
    with open_checkpoint(str(GOLDEN / "qwen3_next")) as checkpoint:
        weights, _ = interpret(checkpoint)
        for name, rows in expected.items():
            own = f"{module}.{name}.weight"
            np.testing.assert_array_equal(weights.matrix(own), rows)
            np.testing.assert_array_equal(weights.rows(own, slice(1, 3)), rows[1:3])
        assert weights.vector(f"{module}.rate") == pytest.approx(
            -np.exp(stored[f"{module}.A_log"].astype(np.float32)), rel=1e-6
        )


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        (
            "qwen3_next",
            "linear_attn.in_proj_qkvz",
            lambda each: each[:-1],
            r"has shape \[319, 64\]",
        ),
        (
            "qwen3_next",
            "linear_attn.in_proj_ba",
            lambda each: None,
            "no tensor '.*in_proj_ba.weight'",
        ),
        (
            "qwen3_5_text",
            "linear_attn.conv1d",
            lambda each: each[:, :, :2],
            r"has shape \[192, 1, 2",
        ),
        ("qwen3_5_text", "linear_attn.A_log", lambda each: each[:1], r"A_log' has shape \[1\]"),
        ("qwen3_5_text", "linear_attn.A_log", lambda each: each + 100, "exponential is beyond"),
        ("qwen3_5_text", "linear_attn.dt_bias", lambda each: None, "no tensor '.*dt_bias', which"),
        ("qwen3_5_text", "linear_attn.in_proj_c", lambda each: np.ones(3, "f"), "has no place in"),
    ],
)
def test_tensors_that_are_not_what_they_should_be_are_refused(
    name: str, tensor: str, change: Any, message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(GOLDEN / name, tmp_path / "checkpoint")
    stored = load_file(folder / "model.safetensors")
    own = f"model.layers.0.{tensor}"
    own = own if own.endswith(("A_log", "dt_bias")) else f"{own}.weight"
    changed = change(stored.pop(own, None))
    if changed is not None:
        stored[own] = np.ascontiguousarray(changed)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        export(folder, tmp_path / "out", ExportOptions())
