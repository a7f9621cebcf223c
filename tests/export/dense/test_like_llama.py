"""Arcee, CWM, EXAONE 3, Granite with windows, LFM3 and others: what configurations say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import DecoderSpec, Experts, describe
from tests.support.bundles import config_of, spec_without

CONV, FULL, SLIDING = "conv", "full_attention", "sliding_attention"
PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}


def windows_of(spec: DecoderSpec) -> list[int | None]:
    return [layer.window for layer in spec.layers]


def theta_of(spec: DecoderSpec, number: int = 0) -> float:
    """The base of a rope that turns whole heads."""
    inv_freq = spec.ropes[number].inv_freq
    return float(inv_freq[1]) ** -len(inv_freq)


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("apertus", {"hidden_act": "relu2"}, UnsupportedError, "of 'relu2' .* with xielu are"),
        ("arcee", {"hidden_act": "silu"}, UnsupportedError, "a hidden_act of 'silu' .* relu2 are"),
        ("cwm", {"sliding_window": -1}, CheckpointError, "'sliding_window' is -1"),
        ("exaone", {"activation_function": "gelu", "hidden_act": None}, UnsupportedError, "'gelu'"),
        ("gemma", {"use_bidirectional_attention": True}, UnsupportedError, "bidirectional"),
        ("gemma", {"hidden_act": "elu"}, UnsupportedError, "activation 'elu'"),
        ("granite_swa", {"layer_rope_theta": [0]}, CheckpointError, "has 1 numbers, .* 3 layers"),
        ("granite_swa", {"layer_rope_theta": 5}, CheckpointError, "is 5 and must be a list"),
        ("granite_swa", {"layer_rope_theta": [0, True, 5]}, CheckpointError, "a list of numbers"),
        ("granite_swa", {"layer_rope_theta": [0, 1, 5]}, CheckpointError, "is 1 and must exceed 1"),
        ("granite_swa", {"layer_types": ["conv"] * 3}, UnsupportedError, "names 'conv'"),
        ("granitemoeshared", {"shared_intermediate_size": -1}, CheckpointError, "size' is -1"),
        ("hyperclovax", {"residual_multiplier": 0}, CheckpointError, "'residual_multiplier' is 0"),
        ("internlm3", {"mlp_bias": False}, UnsupportedError, "biases in attention alone"),
        ("lfm3", {"conv_bias": True}, UnsupportedError, "lfm3 .* biases in convolutions"),
        ("lfm3", {"layer_types": ["mamba"] * 3}, UnsupportedError, "layers of 'mamba'"),
        ("lfm3", {"layer_types": [FULL]}, CheckpointError, "names 1 layers, the model has 3"),
        ("lfm3", {"layer_types": [CONV] * 3}, UnsupportedError, "without a layer of attention"),
        ("mellum", {"mlp_layer_types": ["dense"]}, CheckpointError, "must be 2 times 'dense'"),
        ("afmoe", {"num_shared_experts": 0}, CheckpointError, "must be a whole number from 1"),
        ("afmoe", {"num_dense_layers": 4}, CheckpointError, "'num_dense_layers' is 4"),
        ("afmoe", {"global_attn_every_n_layers": 0, "layer_types": None}, CheckpointError, "is 0"),
        ("youtu", {"attention_bias": True}, UnsupportedError, "latent attention with biases"),
    ],
)
def test_configurations_that_are_none_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_windows_and_ropes_are_those_that_transformers_takes() -> None:
    five = spec_without("cwm", "layer_types", num_hidden_layers=5)
    assert windows_of(five) == [None, 8, 8, 8, None]
    assert windows_of(describe(config_of("cwm", sliding_window=0))) == [None]
    cwm = spec_without("cwm", "rope_parameters", "rms_norm_eps")
    assert (theta_of(cwm), cwm.norm_eps) == (pytest.approx(1e6, rel=1e-4), 1e-5)
    for name, theta in (("helium", 1e5), ("exaone", 5e5), ("internlm3", 1e4)):
        assert theta_of(spec_without(name, "rope_parameters")) == pytest.approx(theta, rel=1e-4)
    mellum = spec_without("mellum", "rope_parameters")
    assert [theta_of(mellum, n) for n in (0, 1)] == pytest.approx([5e5, 1e4], rel=1e-4)
    assert [(layer.window, layer.rope) for layer in mellum.layers] == [(8, 1), (None, 0)]
    afmoe = spec_without("afmoe", "layer_types")
    assert [(layer.window, layer.rope) for layer in afmoe.layers] == [(8, 0), (8, 0), (None, None)]


def test_ropes_of_granite_are_those_of_each_layer() -> None:
    spec = describe(config_of("granite_swa"))
    assert [layer.rope for layer in spec.layers] == [0, None, 1]
    np.testing.assert_allclose(spec.ropes[0].inv_freq, 1e4 ** -(np.arange(8) / 8) / 2, rtol=1e-6)
    np.testing.assert_allclose(spec.ropes[1].inv_freq, 1e2 ** -(np.arange(8) / 8) / 2, rtol=1e-6)
    assert windows_of(spec_without("granite_swa", "layer_types")) == [None, 8, 8]
    plain = spec_without("granite_swa", "layer_rope_theta", "rms_norm_eps", "tie_word_embeddings")
    assert [layer.rope for layer in plain.layers] == [0, 0, 0]
    assert plain.tied and plain.norm_eps == pytest.approx(1e-5 / 0.22**2)


def test_layers_of_lfm3_are_every_fourth_time_of_a_kind() -> None:
    absent = ("layer_types", "sliding_window", "rope_parameters", "conv_L_cache")
    spec = spec_without("lfm3", *absent, num_hidden_layers=9)
    convolutions = [layer.conv is not None for layer in spec.layers]
    assert convolutions == [True, True, False, True, False, True, False, True, False]
    assert windows_of(spec) == [None] * 4 + [256] + [None] * 3 + [256]
    assert spec.layers[0].conv.taps == 7  # type: ignore[union-attr]
    assert np.count_nonzero(spec.ropes[0].inv_freq) == 8  # of 16 pairs
    assert theta_of(spec, 1) == pytest.approx(1e4, rel=1e-4)
    assert windows_of(describe(config_of("lfm3", sliding_window=None))) == [None] * 3
    plain = describe(config_of("lfm3", use_sandwich_norm=False, use_attention_gate=False))
    assert (plain.attention_out_norm, plain.feed_forward_out_norm) == (None, None)
    assert not plain.gates_attention and not plain.storage.picked


def test_keys_of_released_configurations_are_read() -> None:
    """EXAONE's and InternLM3's own, which transformers reads as Llama's."""
    said = {"num_layers": 1, "layer_norm_epsilon": 0.01, "activation_function": "relu"}
    exaone = spec_without("exaone", "num_hidden_layers", "rms_norm_eps", "hidden_act", **said)
    assert (exaone.num_layers, exaone.norm_eps, exaone.activation) == (1, 0.01, "relu")
    assert spec_without("exaone", "max_position_embeddings").context_length == 4096
    biased = spec_without("internlm3", "attention_bias", "mlp_bias", qkv_bias=True, bias=True)
    assert biased.biases == PARTS | {"gate_proj", "up_proj", "down_proj"}
    assert spec_without("internlm3", "attention_bias", "mlp_bias").biases == frozenset()
    assert describe(config_of("gemma", hidden_act="gelu")).activation == "gelu_tanh"
    assert describe(config_of("helium", attention_bias=True)).biases == PARTS - {"o_proj"}


def test_granite_has_a_network_beside_experts_if_it_has_a_width() -> None:
    part = describe(config_of("granitemoeshared")).layers[0].feed_forward
    assert isinstance(part, Experts) and part.shared is not None and part.shared.width == 48
    alone = describe(config_of("granitemoeshared", shared_intermediate_size=0))
    assert all(layer.feed_forward.shared is None for layer in alone.layers)  # type: ignore[union-attr]


def test_what_layers_of_hyperclova_add_is_divided_before_its_norm() -> None:
    spec = describe(config_of("hyperclovax"))
    factors = spec.storage.factors
    assert factors["model.layers.1.mlp.down_proj.weight"] == pytest.approx(1 / 0.22)
    plain = describe(config_of("hyperclovax", use_post_norm=False))
    assert set(factors) - set(plain.storage.factors) == {
        f"model.layers.{layer}.{path}.{kind}"
        for layer in (0, 1)
        for path in ("self_attn.o_proj", "mlp.down_proj")
        for kind in ("weight", "bias")
    }
    usual = spec_without("hyperclovax", "attention_multiplier")
    assert usual.score_scale == pytest.approx(16**-0.5)


def test_the_embedding_of_trinity_is_scaled_if_it_says_so() -> None:
    tied = describe(config_of("afmoe", tie_word_embeddings=True)).storage.factors
    assert tied == {"model.embed_tokens.weight": 8.0, "model.norm.weight": 1 / 8}
    assert not describe(config_of("afmoe", mup_enabled=False)).storage.factors
