"""What configurations of models with state spaces mean, and what is refused."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.architectures.decoder.layer import Dense, Experts, SharedExpert
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, config_of

GRANITE, EXPERTS = "granitemoehybrid-mamba", "granitemoehybrid-experts"


def spaces(spec: DecoderSpec) -> list[StateSpace | None]:
    return [layer.space for layer in spec.layers]


def test_released_granite_4_h_tiny() -> None:
    """Keys of ibm-granite/granite-4.0-h-tiny that say something of its form."""
    kinds = ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)]
    spec = describe(
        {
            "model_type": "granitemoehybrid",
            "attention_multiplier": 0.0078125,
            "embedding_multiplier": 12,
            "hidden_size": 1536,
            "intermediate_size": 512,
            "layer_types": kinds,
            "logits_scaling": 6,
            "mamba_conv_bias": True,
            "mamba_d_conv": 4,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "mamba_n_heads": 48,
            "mamba_proj_bias": False,
            "num_attention_heads": 12,
            "num_experts_per_tok": 6,
            "num_hidden_layers": 40,
            "num_key_value_heads": 4,
            "num_local_experts": 64,
            "position_embedding_type": "nope",
            "residual_multiplier": 0.22,
            "rms_norm_eps": 1e-5,
            "shared_intermediate_size": 1024,
            "tie_word_embeddings": True,
            "time_step_limit": [0.0, math.inf],
            "vocab_size": 100352,
        }
    )
    space = StateSpace(48, 1, 64, 128, 4, 1e-5)
    assert spaces(spec) == [None if kind == "attention" else space for kind in kinds]
    assert [spec.attends(layer) for layer in range(40)] == [each is None for each in spaces(spec)]
    assert not any(map(spec.rope_of, range(40)))
    part = spec.layers[0].feed_forward
    assert isinstance(part, Experts)
    assert (part.count, part.top_k, part.width) == (64, 6, 512)
    assert part.shared == SharedExpert(1024, "shared_mlp", gate="")
    tensors = spec.tensors()
    assert tensors["model.layers.0.mamba.in_proj_xbc.weight"] == (3328, 1536)
    assert tensors["model.layers.0.mamba.conv1d.weight"] == (3328, 1, 4)


def test_defaults_are_those_of_transformers() -> None:
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32000}
    spec = describe({"model_type": "granitemoehybrid", **layers, **sizes})
    assert spaces(spec) == [StateSpace(128, 1, 64, 256, 4, 1e-6), None]
    part = spec.layers[0].feed_forward
    assert isinstance(part, Experts) and (part.count, part.top_k, part.width) == (8, 2, 11008)
    dense = describe({"model_type": "granitemoehybrid", **layers, **sizes, "num_local_experts": 0})
    assert dense.layers[0].feed_forward == Dense(1024)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (GRANITE, {"layer_types": ["mamba"] * 3}, "without a layer of attention"),
        (GRANITE, {"layer_types": None}, "without a layer of attention"),  # all by default
        (GRANITE, {"layer_types": ["conv", "mamba", "attention"]}, "layers of 'conv'"),
        (GRANITE, {"mamba_conv_bias": False}, r"without biases .* \(mamba_conv_bias\)"),
        (GRANITE, {"mamba_proj_bias": True}, r"projections of state .* \(mamba_proj_bias\)"),
        (GRANITE, {"hidden_act": "relu2"}, "hidden_act 'relu2'"),
        (GRANITE, {"time_step_limit": [0.001, 0.1]}, r"time_step_limit of \[0.001, 0.1\]"),
        (GRANITE, {"time_step_limit": [0.0, 0.1]}, "time_step_limit"),
        (GRANITE, {"time_step_limit": "all"}, "time_step_limit of all"),
        (GRANITE, {"time_step_limit": [None, {}]}, "time_step_limit"),
        (GRANITE, {"mamba_d_conv": 1}, "convolve by 1 tap"),
    ],
)
def test_variants_without_an_implementation_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        describe(config_of(name, **changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (GRANITE, {"layer_types": ["mamba"]}, "layer_types names 1 layers, the model has 3"),
        (GRANITE, {"layer_types": None, "layers_block_type": ["mamba"]}, "layers_block_type names"),
        (GRANITE, {"mamba_n_heads": 7}, "mamba_n_heads 7 of mamba_d_head 16 are not the 128"),
        (GRANITE, {"mamba_d_head": 32}, "of mamba_d_head 32 are not the 128"),
        (GRANITE, {"mamba_n_heads": 4096}, "mamba_n_heads 4096"),
        (GRANITE, {"mamba_n_heads": 0}, "'mamba_n_heads' is 0"),
        (GRANITE, {"mamba_n_groups": 3}, "8 heads of state spaces are not a multiple of 3"),
        (GRANITE, {"mamba_d_state": 5000}, "'mamba_d_state' is 5000"),
        (GRANITE, {"mamba_d_conv": 65}, "'mamba_d_conv' is 65"),
        (GRANITE, {"mamba_expand": 0.5}, "'mamba_expand' is 0.5"),
        (EXPERTS, {"num_experts_per_tok": 6}, "num_experts_per_tok 6 experts, and there are"),
        (EXPERTS, {"num_local_experts": -1}, "'num_local_experts' is -1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        describe(config_of(name, **changes))


def test_a_head_dim_that_follows_from_the_others() -> None:
    expected = spaces(describe(config_of(GRANITE)))
    for limit in ([0, math.inf], [-1.0, {"__float__": "Infinity"}], ["0", "inf"], None):
        config = config_of(GRANITE, mamba_d_head="auto", time_step_limit=limit)
        assert spaces(describe(config)) == expected


def test_tensors_are_stored_as_they_are_computed_with() -> None:
    with open_checkpoint(str(GOLDEN / GRANITE)) as checkpoint:
        weights, _ = interpret(checkpoint)
        stored = {name: checkpoint.read(name) for name in checkpoint.tensors()}
        module = "model.layers.0.mamba"
        parts = np.split(stored[f"{module}.in_proj.weight"], [128, 128 + 256])
        for name, rows in zip(("in_proj_z", "in_proj_xbc", "in_proj_dt"), parts, strict=True):
            np.testing.assert_array_equal(weights.matrix(f"{module}.{name}.weight"), rows)
        rates = -np.exp(stored[f"{module}.A_log"].astype(np.float32))
        assert weights.vector(f"{module}.rate") == pytest.approx(rates, rel=1e-6)


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("in_proj.weight", lambda each: each[:-1], r"has shape \[391, 64\]"),
        ("conv1d.bias", lambda each: None, "no tensor '.*conv1d.bias'"),
        ("conv1d.weight", lambda each: each[:, :, :2], r"has shape \[256, 1, 2\]"),
        ("A_log", lambda each: each + 100, "exponential is beyond"),
        ("D", lambda each: each[:1], r"D' has shape \[1\]"),
        ("norm.weight", lambda each: each[:64], r"norm.weight' has shape \[64\]"),
        ("dt_proj.weight", lambda each: np.ones(3, "f"), "has no place in"),
    ],
)
def test_tensors_that_are_not_what_they_should_be_are_refused(
    tensor: str, change: Any, message: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(GOLDEN / GRANITE, tmp_path / "checkpoint")
    stored = load_file(folder / "model.safetensors")
    own = f"model.layers.0.mamba.{tensor}"
    changed = change(stored.pop(own, None))
    if changed is not None:
        stored[own] = np.ascontiguousarray(changed)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(EdgerunError, match=message):
        export(folder, tmp_path / "out", ExportOptions())
