"""Muse Glimmer: what configurations say, and what is in the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, config_of, spec_without

NAME = "muse_glimmer_text"
THETAS = "layer_rope_theta"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tie_word_embeddings": True}, UnsupportedError, "whose head is the embedding"),
        ({"hidden_activation": "gelu"}, UnsupportedError, "activation 'gelu'"),
        ({"layer_types": ["mamba"] * 2}, UnsupportedError, "'mamba'"),
        ({THETAS: [500.0, 0]}, UnsupportedError, "layer_rope_theta of 500 .* which is 10000.0"),
        ({THETAS: [10**400, 0]}, CheckpointError, "'layer_rope_theta' holds .*; expected 0 or a"),
        ({THETAS: [float("nan"), 0]}, CheckpointError, "'layer_rope_theta' holds nan; expected"),
        ({THETAS: [0]}, CheckpointError, "'layer_rope_theta' has 1 numbers, the model has 2"),
        ({THETAS: [True, 0]}, CheckpointError, "must be a list of numbers"),
        ({"post_norm_eps": 0}, CheckpointError, "'post_norm_eps' is 0"),
        ({"qk_scale_factor": -1}, CheckpointError, "'qk_scale_factor' is -1"),
        ({"output_multiplier": "1"}, CheckpointError, "'output_multiplier' is '1'"),
        ({"final_logit_softcapping": 0}, CheckpointError, "'final_logit_softcapping' is 0"),
        ({"sliding_window": None}, UnsupportedError, "'sliding_window' is null"),
        ({"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
    ],
)
def test_configurations_that_are_none_are_refused(
    changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(NAME, **changes))


def test_keys_that_are_left_out_mean_what_their_class_takes_them_for() -> None:
    keys = ("layer_types", THETAS, "sliding_window", "qk_scale_factor", "post_norm_eps")
    spec = spec_without(NAME, *keys, "output_multiplier", num_hidden_layers=5)
    assert [layer.window for layer in spec.layers] == [None, 2048, 2048, 2048, None]
    assert [layer.rope for layer in spec.layers] == [None, 0, 0, 0, None]
    assert spec.score_scale == pytest.approx(3.87 * 32**-0.5)
    factors = spec.storage.factors
    assert factors["model.layers.4.mlp.down_proj.weight"] == pytest.approx(1000)
    assert factors[spec.final_norm_weight] == pytest.approx(0.19611613513818404)


def test_layers_have_rope_as_they_are_told_whatever_their_windows() -> None:
    spec = describe(config_of(NAME, **{THETAS: [0, 10000]}))
    assert [layer.rope for layer in spec.layers] == [None, 0]
    assert [layer.window for layer in spec.layers] == [8, None]


def test_of_the_norms_those_of_layers_alone_are_stored_less_one() -> None:
    layer = "model.layers.0."
    with open_checkpoint(str(GOLDEN / NAME)) as checkpoint:
        source, _ = interpret(checkpoint)
        read = {
            name: source.vector(f"{name}.weight") - stored
            for name in (f"{layer}input_layernorm", f"{layer}post_feedforward_layernorm")
            for stored in [checkpoint.read(f"{name}.weight").astype(np.float32)]
        }
        last = checkpoint.read("model.norm.weight").astype(np.float32)
        np.testing.assert_array_equal(source.vector("model.norm.weight"), last * 8)
        np.testing.assert_array_equal(source.vector(f"{layer}self_attn.k_norm.weight"), np.ones(32))
    for values in read.values():
        np.testing.assert_allclose(values, 1, rtol=1e-6)
