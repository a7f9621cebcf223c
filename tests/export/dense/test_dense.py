"""EXAONE 4.0, Seed-OSS, GLM-4, ERNIE 4.5, Hunyuan and others: what configurations say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, Rope, describe
from edgerun_export.architectures.decoder.rope import partial
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN, config_of, spec_without

QKV = {"q_proj", "k_proj", "v_proj"}


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("exaone4", {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ("exaone4", {"layer_types": ["mamba"] * 3}, UnsupportedError, "'mamba', which is not"),
        ("exaone4", {"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
        (
            "exaone4",
            {"layer_types": None, "sliding_window_pattern": "LLLG"},
            CheckpointError,
            "'sliding_window_pattern' is 'LLLG'",
        ),
        ("seed_oss", {"head_dim": 31}, CheckpointError, "head_dim 31 is odd"),
        ("seed_oss", {"partial_rotary_factor": 0.5}, UnsupportedError, "partial rotary"),
        (
            "glm",
            {"rope_parameters": {"partial_rotary_factor": 0.1}},
            CheckpointError,
            "3 would be turned; expected an even number",
        ),
        ("glm4", {"rms_norm_eps": 0}, CheckpointError, "'rms_norm_eps' is 0"),
        ("ernie4_5", {"rope_parameters": {"rope_type": "spiral"}}, UnsupportedError, "'spiral'"),
        (
            "hunyuan_v1_dense",
            {"rope_parameters": {"rope_type": "dynamic", "alpha": -1.0}},
            CheckpointError,
            "'alpha' is -1.0",
        ),
        ("hunyuan_v1_moe", {"moe_topk": [2, 3]}, UnsupportedError, r"moe_topk of \['2', '3'\]"),
        ("hunyuan_v1_moe", {"moe_topk": []}, CheckpointError, "'moe_topk' is None"),
        ("hunyuan_v1_moe", {"num_experts": [6, 5]}, UnsupportedError, "layers have num_experts of"),
        ("hunyuan_v1_moe", {"moe_topk": 7}, CheckpointError, "moe_topk 7 experts"),
        ("flex_olmo", {"num_experts_per_tok": 6}, CheckpointError, "6 experts, .* num_experts 5"),
        (
            "minimax_m2",
            {"qk_norm_type": "per_head"},
            UnsupportedError,
            "of 'per_head' .* per_layer",
        ),
        ("minimax_m2", {"scoring_func": "softmax"}, UnsupportedError, "with sigmoid are"),
        ("minimax_m2", {"use_qk_norm": False}, UnsupportedError, "without use_qk_norm"),
        ("minimax_m2", {"use_routing_bias": False}, UnsupportedError, "without use_routing_bias"),
        ("minimax_m2", {"rotary_dim": 33}, CheckpointError, "'rotary_dim' is 33 .* from 1 to 32"),
        ("minimax_m2", {"num_local_experts": None}, CheckpointError, "'num_local_experts' is None"),
    ],
)
def test_configurations_that_are_none_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [8, None, 8]),
        # As the released model of 32B says it: by a pattern that nothing needs, and by a list.
        ({"sliding_window_pattern": "LLLG"}, [8, None, 8]),
        ({"layer_types": None, "sliding_window_pattern": None}, [8, 8, 8]),
        ({"layer_types": None, "sliding_window_pattern": 3}, [8, 8, None]),
        # As that of 1.2B.
        ({"sliding_window": None, "layer_types": ["full_attention"] * 3}, [None] * 3),
    ],
)
def test_layers_of_exaone_have_rope_where_they_have_a_window(
    changes: dict[str, Any], windows: list[int | None]
) -> None:
    spec = describe(config_of("exaone4", **changes))
    assert [layer.window for layer in spec.layers] == windows
    has_windows = any(windows)
    assert [layer.rope is None for layer in spec.layers] == [
        has_windows and window is None for window in windows
    ]


def test_exaone_has_windows_unless_its_configuration_says_null() -> None:
    spec = spec_without("exaone4", "sliding_window", "layer_types", "sliding_window_pattern")
    assert [layer.window for layer in spec.layers] == [4096] * 3
    assert (spec.norm_eps, spec.biases, spec.q_row_norm) == (1e-5, frozenset(), None)


def test_biases_are_those_that_configurations_say() -> None:
    mlp = {"gate_proj", "up_proj", "down_proj"}
    assert describe(config_of("seed_oss")).biases == QKV | {"o_proj"}
    assert spec_without("seed_oss", "attention_bias", "attention_out_bias").biases == QKV
    spec = describe(config_of("seed_oss", attention_bias=False, mlp_bias=True))
    assert spec.biases == mlp | {"o_proj"}
    assert spec_without("glm", "attention_bias").biases == QKV
    assert describe(config_of("glm4")).biases == frozenset()
    assert describe(config_of("ernie4_5")).biases == QKV | mlp | {"o_proj"}
    assert spec_without("ernie4_5", "use_bias").biases == frozenset()


def test_what_configurations_leave_out_is_what_transformers_takes() -> None:
    for name in ("seed_oss", "glm", "glm4", "ernie4_5", "minimax_m2"):
        assert spec_without(name, "head_dim").head_dim == 128
    for name, theta in (("ernie4_5", 5e5), ("flex_olmo", 5e5), ("glm4", 1e4)):
        spec = spec_without(name, "rope_parameters", "rms_norm_eps")
        size = 2 * np.count_nonzero(spec.ropes[0].inv_freq)
        assert spec.ropes[0].inv_freq[1] == pytest.approx(theta ** (-2 / size))
    assert spec_without("glm4", "rms_norm_eps").norm_eps == 1.5625e-7
    assert spec_without("ernie4_5", "rms_norm_eps").norm_eps == 1e-5
    assert spec_without("flex_olmo", "rms_norm_eps").norm_eps == 1e-6
    assert spec_without("ernie4_5", "tie_word_embeddings").tied
    assert not describe(config_of("ernie4_5", tie_word_embeddings=False)).tied


def test_a_part_of_heads_is_turned_by_either_name() -> None:
    spec = spec_without("minimax_m2", "rope_parameters", rotary_dim=24, head_dim=32)
    assert np.count_nonzero(spec.ropes[0].inv_freq) == 12
    assert spec.ropes[0].inv_freq[1] == pytest.approx(5e6 ** (-2 / 24))
    assert spec_without("minimax_m2", "rope_parameters").storage.head_rows is None
    assert np.count_nonzero(spec_without("glm", "rope_parameters").ropes[0].inv_freq) == 8


def test_alpha_of_hunyuan_stretches_the_base() -> None:
    """As released configurations say it, among keys that nothing reads."""
    scaling = {"alpha": 1000.0, "beta_fast": 32, "factor": 1.0, "mscale": 1.0, "type": "dynamic"}
    changes = {"rope_parameters": None, "rope_scaling": scaling, "rope_theta": 10000.0}
    spec = describe(config_of("hunyuan_v1_dense", **changes))
    theta = 10000 * 1000 ** (32 / 30)
    np.testing.assert_allclose(spec.ropes[0].inv_freq, theta ** -(np.arange(16) / 16), rtol=1e-6)
    linear = {"rope_type": "linear", "factor": 2.0, "alpha": 50.0}  # which it says nothing to
    spec = describe(config_of("hunyuan_v1_dense", rope_parameters=linear))
    assert spec.ropes[0].inv_freq[1] == pytest.approx(1e4 ** (-1 / 16) / 2)
    plain = spec_without("hunyuan_v1_dense", "rope_parameters", "rms_norm_eps")
    assert plain.ropes[0].inv_freq[1] == pytest.approx(1e4 ** (-1 / 16))
    assert (plain.norm_eps, plain.biases) == (1e-5, frozenset())


def test_experts_of_hunyuan_may_be_listed_layer_by_layer() -> None:
    spec = describe(config_of("hunyuan_v1_moe", moe_topk=[2, 2], num_experts=[6, 6]))
    assert spec.layers == describe(config_of("hunyuan_v1_moe")).layers


@pytest.mark.parametrize("name", ["hunyuan_v1_dense", "hunyuan_v1_moe"])
def test_norms_after_ropes_have_no_form_in_the_genai_profile(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"of {name} come after the rope, .*; leave it out"):
        export(GOLDEN / name, tmp_path / "out", ExportOptions(profile="genai"))


def test_neighbours_in_a_part_of_a_head_are_pairs() -> None:
    rope = Rope(np.float32([1, 0.5]), 1.5)
    turning, rows = partial(rope, 8, interleaved=True)
    assert turning.inv_freq.tolist() == [1, 0.5, 0, 0] and rows is not None
    assert rows.order.tolist() == [0, 2, 4, 5, 1, 3, 6, 7]
    assert rows.factors.tolist() == [1.5, 1.5, 1, 1] * 2
    _, rows = partial(rope, 4, interleaved=True)
    assert rows is not None and rows.order.tolist() == [0, 2, 1, 3]
    assert partial(rope, 4) == (rope, None)


def test_experts_are_weighed_as_configurations_say() -> None:
    part = describe(config_of("flex_olmo", norm_topk_prob=True)).layers[0].feed_forward
    assert isinstance(part, Experts) and part.normalise and part.scoring == "softmax"
    assert not spec_without("flex_olmo", "norm_topk_prob").layers[0].feed_forward.normalise  # type: ignore[union-attr]
    part = describe(config_of("minimax_m2")).layers[1].feed_forward
    assert isinstance(part, Experts)
    assert (part.scoring, part.normalise, part.groups, part.shared) == ("sigmoid", True, None, None)
