"""What configurations of Bamba, Nemotron-H and Falcon H1 mean, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import DecoderSpec, describe
from edgerun_export.architectures.decoder.layer import Dense, Experts, LayerSpec, SharedExpert
from edgerun_export.architectures.decoder.state_space import StateSpace
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, config_of

BAMBA, NEMOTRON, EXPERTS = "bamba", "nemotron_h", "nemotron_h-experts"
FALCON, NORM = "falcon_h1", "falcon_h1-norm"
NANO_2 = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"


def test_released_bamba_9b() -> None:
    """Keys of ibm-ai-platform/Bamba-9B-v2 that say something of its form."""
    spec = describe(
        {
            "model_type": "bamba",
            "attn_layer_indices": [9, 18, 27],
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_heads": 128,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "vocab_size": 128256,
        }
    )
    assert [layer for layer in range(32) if spec.attends(layer)] == [9, 18, 27]
    assert spec.layers[0].space == StateSpace(128, 1, 64, 128, 4, 1e-5)
    assert spec.context_length == 262144
    assert np.count_nonzero(spec.ropes[0].inv_freq) == 32  # of 64 pairs


def test_released_nemotron_nano_2() -> None:
    """Keys of nvidia/NVIDIA-Nemotron-Nano-9B-v2 that say something of its form."""
    spec = describe(
        {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": NANO_2,
            "num_hidden_layers": 56,
            "hidden_size": 4480,
            "intermediate_size": 15680,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": False,
            "mamba_num_heads": 128,
            "mamba_head_dim": 80,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "time_step_limit": [0.0, float("inf")],
            "time_step_min": 0.001,
            "layer_norm_epsilon": 1e-5,
            "mlp_hidden_act": "relu2",
            "tie_word_embeddings": False,
            "vocab_size": 131072,
        }
    )
    space = StateSpace(128, 8, 80, 128, 4, 1e-5, module="mixer")
    layers = {
        "M": LayerSpec(None, space=space, rope=None),
        "*": LayerSpec(None, rope=None),
        "-": LayerSpec(Dense(15680, gated=False), mixes=False, rope=None),
    }
    assert spec.layers == tuple(layers[each] for each in NANO_2)
    assert [spec.attends(layer) for layer in range(56)] == [each == "*" for each in NANO_2]
    assert spec.num_states == 31
    assert [spec.state(layer) for layer in (0, 1, 2, 8, 14)] == [0, 1, 1, 5, 8]
    assert set(spec.mixer(1)) | set(spec.norms(0)) == {"input_layernorm", "mixer.norm"}
    assert list(spec.feed_forward(1)[0]) == ["up_proj", "down_proj"]
    assert spec.feed_forward(0) == [] and spec.intermediate_size == 0


def test_defaults_of_nemotron_are_those_of_transformers() -> None:
    spec = describe({"model_type": "nemotron_h", "hybrid_override_pattern": "M*E-"})
    space = StateSpace(128, 8, 64, 128, 4, 1e-5, module="mixer")
    assert (spec.layers[0].space, spec.hidden_size, spec.head_dim) == (space, 4096, 128)
    assert (spec.num_heads, spec.num_kv_heads, spec.vocab_size) == (32, 8, 131072)
    part = spec.layers[2].feed_forward
    assert isinstance(part, Experts) and not part.gated
    assert (part.count, part.top_k, part.width, part.scale) == (8, 2, 7688, 1.0)
    assert part.shared == SharedExpert(7688, "mixer.shared_experts", gate="")
    assert spec.layers[3].feed_forward == Dense(21504, gated=False)


def test_what_nemotron_predicts_more_with_is_left_out() -> None:
    spec = describe(config_of(NEMOTRON, num_nextn_predict_layers=1))
    assert spec.storage.unused == ("mtp.", "backbone.layers.5.")
    assert spec.notes == ("its layers for multi-token prediction (MTP) are left out",)


def test_factors_of_falcon_are_in_the_weights() -> None:
    with open_checkpoint(str(GOLDEN / FALCON)) as checkpoint:
        weights, _ = interpret(checkpoint)
        rows = checkpoint.read("model.layers.1.mamba.in_proj.weight") * np.float32(1.4)
        z, x, b, c, dt = np.split(rows, np.cumsum([96, 96, 32, 32]))
        parts = {
            "in_proj_z": 0.7 * z,
            "in_proj_xbc": np.concatenate([1.3 * x, 0.9 * b, 1.1 * c]),
            "in_proj_dt": 0.6 * dt,
        }
        for name, expected in parts.items():
            own = f"model.layers.1.mamba.{name}.weight"
            np.testing.assert_allclose(weights.matrix(own), expected, rtol=1e-6)
            np.testing.assert_allclose(weights.rows(own, slice(1, 3)), expected[1:3], rtol=1e-6)
        key = checkpoint.read("model.layers.0.self_attn.k_proj.weight") * np.float32(0.8 * 1.2)
        own = "model.layers.0.self_attn.k_proj.weight"
        np.testing.assert_allclose(weights.matrix(own), key, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "norm"),
    [
        ({"mamba_rms_norm": False}, ""),
        ({"mamba_norm_before_gate": True}, "before"),
        ({"mamba_norm_before_gate": None}, "behind"),
        ({"mamba_norm_before_gate": False}, "behind"),
    ],
)
def test_norms_of_falcon(changes: dict[str, Any], norm: str) -> None:
    spec = describe(config_of(NORM, **changes))
    assert {layer.space.norm for layer in spec.layers if layer.space} == {norm}
    assert inner(describe(config_of(NORM, mamba_d_ssm=None))) == 128
    assert inner(describe(config_of(NORM, mamba_d_ssm=96, mamba_d_head=24))) == 96


def inner(spec: DecoderSpec) -> int:
    space = spec.layers[0].space
    assert space is not None
    return space.inner


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (BAMBA, {"attn_layer_indices": []}, "without a layer of attention"),
        (BAMBA, {"mamba_conv_bias": False}, "without biases in convolutions"),
        (NEMOTRON, {"layers_block_type": ["linear_attention"]}, "without a layer of attention"),
        (NEMOTRON, {"layers_block_type": ["conv"]}, "layers of 'conv'"),
        (NEMOTRON, {"layers_block_type": None, "hybrid_override_pattern": "M*|"}, "of '|'"),
        (NEMOTRON, {"use_conv_bias": False}, r"\(use_conv_bias\)"),
        (NEMOTRON, {"use_bias": True}, r"\(use_bias\)"),
        (NEMOTRON, {"attention_bias": True}, "with attention_bias"),
        (NEMOTRON, {"mlp_bias": True}, "with mlp_bias"),
        (NEMOTRON, {"sliding_window": 64}, "with a sliding_window"),
        (NEMOTRON, {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu'"),
        (NEMOTRON, {"mamba_hidden_act": "relu2"}, "mamba_hidden_act 'relu2'"),
        (NEMOTRON, {"time_step_limit": [0.0, 0.1]}, "time_step_limit"),
        (EXPERTS, {"moe_latent_size": 32}, "with a moe_latent_size"),
        (EXPERTS, {"n_group": 5}, "a n_group of 5"),
        (EXPERTS, {"n_shared_experts": 2}, "a n_shared_experts of 2"),
        (FALCON, {"attention_bias": True}, "with attention_bias"),
        (FALCON, {"mlp_bias": True}, "with mlp_bias"),
        (FALCON, {"projectors_bias": True}, "with projectors_bias"),
        (FALCON, {"mamba_proj_bias": True}, r"\(mamba_proj_bias\)"),
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
        (BAMBA, {"attn_layer_indices": [3]}, "'attn_layer_indices' is .3. and must be a list"),
        (BAMBA, {"attn_layer_indices": "all"}, "'attn_layer_indices' is all"),
        (BAMBA, {"mamba_n_heads": 3}, "mamba_n_heads 3"),
        (NEMOTRON, {"layers_block_type": None}, "neither 'layers_block_type' nor"),
        (NEMOTRON, {"n_groups": 3}, "4 heads of state spaces are not a multiple of 3"),
        (NEMOTRON, {"mamba_head_dim": 0}, "'mamba_head_dim' is 0"),
        (NEMOTRON, {"num_nextn_predict_layers": -1}, "'num_nextn_predict_layers' is -1"),
        (EXPERTS, {"n_routed_experts": 1}, "2 experts, and there are"),
        (FALCON, {"ssm_multipliers": [1.0] * 4}, "'ssm_multipliers' is .* list of 5 numbers"),
        (FALCON, {"mlp_multipliers": 2.0}, "'mlp_multipliers' is 2.0"),
        (FALCON, {"ssm_multipliers": [1.0, "1", 1.0, 1.0, 1.0]}, "'ssm_multipliers' is '1'"),
        (FALCON, {"key_multiplier": 0}, "'key_multiplier' is 0"),
        (FALCON, {"mamba_d_ssm": 100}, "'mamba_d_ssm' is|not the 100 elements"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        describe(config_of(name, **changes))
