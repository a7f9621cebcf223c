"""What families have that Llama has not: how it is read, and what of it is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.architectures import Experts, Rope, describe
from edgerun_export.architectures.decoder.rope import partial
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN, config_of


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("smollm3", {"no_rope_layers": [1]}, CheckpointError, "1 entries for 2 layers"),
        ("smollm3", {"no_rope_layers": [1, 2]}, CheckpointError, "expected 0 or 1"),
        ("smollm3", {"no_rope_layers": "all"}, CheckpointError, "must be a list of 0 and 1"),
        ("olmo3", {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ("olmo3", {"layer_types": ["mamba"] * 2}, UnsupportedError, "'mamba'"),
        ("granite", {"residual_multiplier": 0}, CheckpointError, "'residual_multiplier' is 0"),
        ("granite", {"logits_scaling": "8"}, CheckpointError, "'logits_scaling' is '8'"),
        (
            "granitemoe",
            {"num_local_experts": 1},
            CheckpointError,
            "2 experts, and .* num_local_experts 1",
        ),
        ("granitemoe", {"num_local_experts": None}, CheckpointError, "'num_local_experts' is None"),
        ("granitemoe", {"residual_multiplier": 0}, CheckpointError, "'residual_multiplier' is 0"),
        ("granitemoehybrid", {"layer_types": ["attention"]}, CheckpointError, "names 1 layers"),
        ("phi3", {"rope_parameters": {"rope_type": "llama3"}}, CheckpointError, "factor"),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1, -1]}},
            CheckpointError,
            "'short_factor' must be a list of 8 positive numbers",
        ),
        (
            "phi3",
            {"rope_parameters": {"partial_rotary_factor": 0.2}},
            CheckpointError,
            "3 would be turned; expected an even number",
        ),
        ("lfm2", {"conv_bias": True}, UnsupportedError, "biases in convolutions"),
        ("lfm2", {"layer_types": ["conv", "mamba", "conv"]}, UnsupportedError, "of 'mamba'"),
        ("lfm2", {"layer_types": ["conv"] * 3}, UnsupportedError, "without a layer of attention"),
        ("lfm2", {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ("lfm2", {"layer_types": None, "full_attn_idxs": "1"}, CheckpointError, "list of layers'"),
        (
            "lfm2",
            {"layer_types": None, "full_attn_idxs": [1, 3]},
            CheckpointError,
            "names layer 3, and there are layers 0 to 2",
        ),
        ("lfm2", {"layer_types": None, "full_attn_idxs": [-1]}, CheckpointError, "layer -1, and"),
        ("lfm2", {"conv_L_cache": 65}, CheckpointError, "'conv_L_cache' is 65"),
        ("lfm2", {"conv_L_cache": 1}, UnsupportedError, "a conv_L_cache of 1"),
        ("lfm2_moe", {"conv_bias": True}, UnsupportedError, "lfm2_moe .*biases in convolutions"),
        ("lfm2_moe", {"conv_L_cache": 1}, UnsupportedError, "lfm2_moe .* a conv_L_cache of 1"),
        ("lfm2_moe", {"layer_types": ["conv"] * 4}, UnsupportedError, "lfm2_moe .*without a layer"),
        ("lfm2_moe", {"layer_types": ["mamba"] * 4}, UnsupportedError, "lfm2_moe .*of 'mamba'"),
        ("lfm2_moe", {"num_dense_layers": 5}, CheckpointError, "_layers' is 5 .* from 0 to 4"),
        ("lfm2_moe", {"num_dense_layers": -1}, CheckpointError, "'num_dense_layers' is -1"),
        ("lfm2_moe", {"num_dense_layers": True}, CheckpointError, "'num_dense_layers' is True"),
        ("lfm2_moe", {"num_dense_layers": 1.0}, CheckpointError, "'num_dense_layers' is 1.0"),
        (
            "lfm2_moe",
            {"num_experts_per_tok": 7},
            CheckpointError,
            "7 experts, and .* num_experts 6",
        ),
        (
            "lfm2_moe",
            {"routed_scaling_factor": -1},
            CheckpointError,
            "'routed_scaling_factor' is -1",
        ),
        ("lfm2_moe", {"moe_intermediate_size": None}, CheckpointError, "'moe_intermediate_size'"),
        ("gemma2", {"use_bidirectional_attention": True}, UnsupportedError, "bidirectional"),
        ("gemma2", {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ("gemma2", {"query_pre_attn_scalar": 0}, CheckpointError, "'query_pre_attn_scalar' is 0"),
        *(
            (
                "gemma2",
                {f"{part}_logit_softcapping": bound},
                CheckpointError,
                f"{part}_.* is {bound!r}",
            )
            for part in ("attn", "final")
            for bound in (0, -50.0, float("nan"), float("inf"), "50", True)
        ),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, UnsupportedError, "final_logit"),
        ("gemma3_text", {"use_bidirectional_attention": True}, UnsupportedError, "bidirectional"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {"rope_type": "spiral"}}},
            UnsupportedError,
            "'spiral' is not supported",
        ),
    ],
)
def test_variants_without_an_implementation_are_refused(name, changes, error, message):
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_bounds_of_gemma2_are_those_of_released_models_unless_null():
    config = config_of("gemma2", layer_types=None, query_pre_attn_scalar=None)
    keys = ("attn_logit_softcapping", "final_logit_softcapping")
    left_out = (*keys, "sliding_window")
    spec = describe({key: value for key, value in config.items() if key not in left_out})
    assert (spec.score_softcap, spec.softcap) == (50.0, 30.0)
    assert [layer.window for layer in spec.layers] == [4096, None, 4096]
    assert spec.attention_scale(0) == 256**-0.5
    spec = describe({**config, **dict.fromkeys(keys)})
    assert (spec.score_softcap, spec.softcap) == (None, None)


def test_biases_and_ropes_of_gemma2_are_read():
    ropes = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}
    spec = describe(config_of("gemma2", attention_bias=True, hidden_activation="silu", **ropes))
    assert spec.biases == {"q_proj", "k_proj", "v_proj", "o_proj"} and spec.activation == "silu"
    assert spec.ropes[0].inv_freq[1] == pytest.approx(500**-0.0625 / 4)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, 64),
        ({"block_ff_dim": 192}, 128),
        ({"block_ffn_dim_multiplier": 1.3}, 96),
        ({"block_ffn_dim_multiplier": None, "intermediate_size": 100}, 66),
        ({"block_auto_adjust_ff_dim": False}, 96),
    ],
)
def test_lfm2_derives_the_width_of_its_feed_forward_part(changes, width):
    """As transformers' ``Lfm2MLP`` does."""
    assert describe(config_of("lfm2", **changes)).intermediate_size == width


def test_experts_of_lfm2_begin_after_its_dense_layers():
    assert experts_of("lfm2_moe") == [False, True, True, True]
    assert experts_of("lfm2_moe", num_dense_layers=0) == [True] * 4
    assert experts_of("lfm2_moe", num_dense_layers=None) == [False, False, True, True]
    assert experts_of("lfm2_moe", num_dense_layers=4) == [False] * 4


def experts_of(name, **changes):
    layers = describe(config_of(name, **changes)).layers
    return [isinstance(layer.feed_forward, Experts) for layer in layers]


def test_experts_of_lfm2_are_weighed_as_its_configuration_says():
    """As transformers' ``Lfm2MoeTopKRouter`` does."""
    part = describe(config_of("lfm2_moe")).layers[3].feed_forward
    assert part == Experts(
        count=6,
        top_k=2,
        width=48,
        normalise=True,
        scoring="sigmoid",
        selection_bias="feed_forward.expert_bias",
        epsilon=1e-6,
        scale=1.5,
        module="feed_forward",
        names=("w1", "w3", "w2"),
    )
    plain = {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": None}
    changed = describe(config_of("lfm2_moe", **plain)).layers[3].feed_forward
    assert changed == replace(part, selection_bias="", normalise=False, epsilon=0.0, scale=1.0)


def test_lfm2_names_layers_of_attention_in_two_ways():
    old = config_of("lfm2", layer_types=None, full_attn_idxs=[1])
    assert [layer.conv is None for layer in describe(old).layers] == [False, True, False]
    every = describe(config_of("lfm2", layer_types=None, full_attn_idxs=None))
    assert all(map(every.attends, range(3)))


@pytest.mark.parametrize(
    ("config", "rotated"),
    [
        ({"no_rope_layers": None, "num_hidden_layers": 5}, [0, 0, 0, None, 0]),
        ({"no_rope_layers": None, "no_rope_layer_interval": 2}, [0, None]),
        ({"no_rope_layers": [0, 1, 1]}, [None, 0]),
    ],
)
def test_smollm3_says_by_layer_whether_it_has_a_rope(config, rotated):
    spec = describe(config_of("smollm3", **config))
    assert [layer.rope for layer in spec.layers] == rotated


def test_old_and_new_spellings_of_gemmas_ropes_mean_the_same():
    new = describe(config_of("gemma3_text"))
    old = config_of("gemma3_text", rope_parameters=None, rope_theta=1000000.0)
    old |= {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_local_base_freq": 10000.0}
    for first, second in zip(new.ropes, describe(old).ropes, strict=True):
        np.testing.assert_array_equal(first.inv_freq, second.inv_freq)
    assert [layer.window for layer in new.layers] == [8, None]
    usual = describe({**old, "layer_types": None, "num_hidden_layers": 7})
    assert [layer.window for layer in usual.layers] == [8, 8, 8, 8, 8, None, 8]


def test_half_turned_heads_are_written_as_whole_ones():
    """Scores of random queries and keys, rotated by the definition and by the written form."""
    draw = np.random.default_rng(5)
    heads, positions = draw.normal(size=(2, 9, 16)), np.arange(9)
    small = Rope((10.0 ** -np.arange(6)).astype(np.float32), 1.25)

    def turn(values, frequencies):
        angles = positions[:, None] * frequencies.astype(np.float64)
        first, second = np.split(values, 2, axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    expected = np.concatenate([1.25 * turn(heads[..., :12], small.inv_freq), heads[..., 12:]], -1)
    whole, rows = partial(small, 16)
    assert whole.attention_factor == 1 and sorted(rows.order) == list(range(16))
    rotated = turn((heads[..., rows.order] * rows.factors), whole.inv_freq)
    scores = [values[0] @ values[1].T for values in (expected, rotated)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-6)
    assert partial(Rope(np.ones(8, np.float32)), 16)[1] is None


@pytest.mark.parametrize(
    ("name", "context"), [("phi3", 64), ("ministral3", 64), ("smollm3", 128), ("gemma3_text", 128)]
)
def test_contexts_with_other_rules_beyond_are_cut_and_that_is_said(name, context, exported):
    result = exported(name, weights="fp32")
    assert result.manifest["model"]["context_length"] == context
    assert any("the context is 64 tokens" in each for each in result.warnings) == (context == 64)


def test_long_and_short_divisors_that_agree_leave_the_context_as_it_is():
    parameters = config_of("phi3")["rope_parameters"]
    parameters["long_factor"] = parameters["short_factor"]
    spec = describe(config_of("phi3", rope_parameters=parameters))
    assert spec.context_length == 128 and not spec.notes


def test_olmo3s_keys_of_old_mean_the_same():
    new = config_of("olmo3")
    old = {**new, "rope_theta": 500000.0, "rope_parameters": None}
    scaling = new["rope_parameters"]["full_attention"]
    old["rope_scaling"] = {key: value for key, value in scaling.items() if key != "rope_theta"}
    for first, second in zip(describe(new).ropes, describe(old).ropes, strict=True):
        np.testing.assert_array_equal(first.inv_freq, second.inv_freq)
        assert first.attention_factor == second.attention_factor
    windows = describe({**old, "layer_types": None, "num_hidden_layers": 5}).layers
    assert [layer.window for layer in windows] == [8, 8, 8, None, 8]


def test_phis_keys_of_old_mean_the_same():
    new = config_of("phi3")
    parameters = dict(new.pop("rope_parameters"))
    old = {**new, "rope_theta": parameters["rope_theta"], "partial_rotary_factor": 0.75}
    lists = {key: parameters[key] for key in ("short_factor", "long_factor")}
    first = describe(config_of("phi3"))
    for name in ("longrope", "su", "yarn"):
        second = describe({**old, "rope_scaling": {"type": name, **lists}})
        np.testing.assert_array_equal(first.ropes[0].inv_freq, second.ropes[0].inv_freq)
        rows = [spec.storage.head_rows for spec in (first, second)]
        np.testing.assert_array_equal(rows[0].factors, rows[1].factors)
        assert second.context_length == 64


@pytest.mark.parametrize("first", [0, 5, 24, 63])
def test_rows_come_in_any_pieces(first):
    """Rows of joined tensors, in an order of their own, read from anywhere."""
    with open_checkpoint(str(GOLDEN / "phi3")) as checkpoint:
        source, _ = interpret(checkpoint)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj"):
            full = f"model.layers.1.{name}.weight"
            whole = source.matrix(full)
            part = slice(min(first, len(whole) - 1), first + 7)
            np.testing.assert_array_equal(source.rows(full, part), whole[part])


@pytest.fixture
def copied(tmp_path):
    """Copies a golden checkpoint, with tensors changed."""

    def make(name, change):
        folder = Path(shutil.copytree(GOLDEN / name, tmp_path / name))
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("smollm3", "model.layers.1.self_attn.rotary.weight"),
        ("olmo2", "model.layers.0.input_layernorm.weight"),
        ("granite", "model.layers.0.mlp.gate.weight"),
        ("granitemoe", "model.layers.0.shared_mlp.input_linear.weight"),
        ("granitemoehybrid", "model.layers.0.mamba.A_log"),
        ("phi3", "model.layers.0.self_attn.q_proj.weight"),
        ("ministral3", "vision_tower.patch_conv.weight"),
        ("gemma3_text", "multi_modal_projector.mm_soft_emb_norm.weight"),
        ("lfm2_moe", "model.layers.0.feed_forward.expert_bias"),
    ],
)
def test_tensors_without_a_place_are_refused(name, tensor, copied, tmp_path):
    def add(tensors):
        tensors[tensor] = np.zeros(64, next(iter(tensors.values())).dtype)

    with pytest.raises(CheckpointError, match=f"'{tensor}' has no place in the {name}"):
        export(copied(name, add), tmp_path / "out", ExportOptions())


EXPERT_BIAS = "model.layers.2.feed_forward.expert_bias"


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (None, f"no tensor '{EXPERT_BIAS}', which lfm2_moe needs"),
        (np.ones(5, "f"), rf"'{EXPERT_BIAS}' has shape \[5\]; config.json asks for \[6\]"),
        (np.ones((1, 6), "f"), rf"'{EXPERT_BIAS}' has shape \[1, 6\]"),
        (np.array([1, 2, 3, 4, 5, np.nan], "f"), f"'{EXPERT_BIAS}' holds NaN or Inf"),
        (np.array([1, 2, 3, np.inf, 5, 6], "f"), f"'{EXPERT_BIAS}' holds NaN or Inf"),
    ],
)
def test_biases_of_choices_that_are_none_are_refused(bias, message, copied, tmp_path):
    def change(tensors):
        del tensors[EXPERT_BIAS]
        tensors.update({} if bias is None else {EXPERT_BIAS: bias})

    with pytest.raises(CheckpointError, match=message):
        export(copied("lfm2_moe", change), tmp_path / "out", ExportOptions())


def test_joined_tensors_of_another_height_are_refused(copied, tmp_path):
    def cut(tensors):
        name = "model.layers.1.self_attn.qkv_proj.weight"
        tensors[name] = tensors[name][:-1]

    with pytest.raises(CheckpointError, match=r"qkv_proj.*has shape \[127, 64\].*\[128, 64\]"):
        export(copied("phi3", cut), tmp_path / "out", ExportOptions())


def test_factors_are_what_they_are_said_to_be(golden):
    """Granite without factors is Llama; and each factor alone changes what is predicted."""
    ids = golden("granite").ids
    neutral = {
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
    }
    results = {}
    with open_checkpoint(str(GOLDEN / "granite")) as checkpoint:
        own = dict(checkpoint.config)
        for name in (None, *neutral):
            changed = {**own, **neutral} | ({name: own[name]} if name else {})
            checkpoint.config = changed
            results[name] = forward(describe(changed), interpret(checkpoint)[0], ids)
        checkpoint.config = {**own, "model_type": "llama"}
        plain = forward(describe(checkpoint.config), interpret(checkpoint)[0], ids)
    np.testing.assert_array_equal(results[None], plain)
    for name in neutral:
        assert np.abs(results[name] - plain).max() > 0.01 * np.ptp(plain), name
