import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.errors import CheckpointError, InputError, UnsupportedError
from edgerun_export.architectures import architecture_names, describe
from edgerun_export.architectures.decoder.missing import MISSING

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 1024,
}


def test_unknown_architecture_names_the_supported_ones():
    with pytest.raises(UnsupportedError, match=r"'gpt2' is not supported; supported are: afmoe,"):
        describe({**CONFIG, "model_type": "gpt2"})


@pytest.mark.parametrize("name", ["mamba2", "falcon_mamba"])
def test_known_architectures_without_a_form_say_what_is_missing(name):
    said = f"'{name}' is not supported: a bundle has no form for linear recurrences; supported are:"
    with pytest.raises(UnsupportedError, match=said):
        describe({**CONFIG, "model_type": name})


@pytest.mark.parametrize(
    ("stated", "scaling", "expected"),
    [
        # As the cards of Qwen2.5 and Qwen3 say it, and as released models do.
        (32768, {"type": "yarn"}, 131072),
        (40960, {"rope_type": "yarn"}, 131072),
        (131072, {"rope_type": "yarn"}, 131072),
        (163840, {"rope_type": "yarn"}, 163840),
        (32768, {"rope_type": "yarn", "original_max_position_embeddings": None}, 32768),
        (32768, {"rope_type": "yarn", "factor": None}, 32768),
        (32768, {"rope_type": "linear"}, 32768),
    ],
)
def test_yarn_makes_the_context_as_much_longer_as_it_says(stated, scaling, expected):
    scaling = {"factor": 4.0, "original_max_position_embeddings": 32768, **scaling}
    config = {**CONFIG, "model_type": "qwen3", "head_dim": 64, "max_position_embeddings": stated}
    assert describe({**config, "rope_scaling": scaling}).context_length == expected


def test_yarn_by_an_absurd_factor_is_refused():
    scaling = {"type": "yarn", "factor": 1e9, "original_max_position_embeddings": 32768}
    with pytest.raises(CheckpointError, match=r"YaRN by 1000000000.0 makes a context of 327680"):
        describe({**CONFIG, "rope_scaling": scaling})


LINEAR = {"model_type": "qwen3_5_text", "head_dim": 16, "linear_key_head_dim": 4096}
SPACES = {"model_type": "falcon_h1", "mamba_d_ssm": 1 << 20, "mamba_n_heads": 256}
EXPERTS = {"model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"head_dim": 1 << 15}, "'head_dim' is 32768 and must be a whole number from 1 to 16384"),
        ({"num_attention_heads": 1 << 20, "head_dim": 2}, "heads of 2 have 2097152 elements"),
        ({**LINEAR, "linear_num_key_heads": 4096, "linear_num_value_heads": 4096}, "linear atten"),
        ({**SPACES, "num_key_value_heads": 4}, "and queries of state spaces have 1049088 elem"),
        ({**EXPERTS, "num_experts": 4096, "num_hidden_layers": 11}, "have 45056 experts together"),
    ],
)
def test_sizes_that_multiply_beyond_any_model_are_refused(config, message):
    with pytest.raises(CheckpointError, match=message):
        describe({**CONFIG, **config})


def test_nothing_that_is_supported_is_said_to_be_missing():
    assert not {*architecture_names()} & {*MISSING}


def test_architectures_are_those_of_the_documentation():
    assert architecture_names() == [
        *("afmoe", "apertus", "apertus1p5", "apertus1p5_text", "arcee", "bailing_moe"),
        *("bailing_moe_v2", "bamba", "bitnet", "bitnet_moe", "cohere", "cohere2", "cohere2_moe"),
        *("cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone"),
        *("exaone4", "exaone4_5", "exaone_moe", "falcon_h1", "flex_olmo", "flint", "gemma"),
        *("gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text"),
        *("gemma4_unified", "gemma4_unified_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite"),
        *("gpt_neox", "gpt_oss", "granite", "granite_swa", "granitemoe", "granitemoe_swa"),
        *("granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe"),
        *("hy_v3", "hyperclovax", "idefics3", "internlm2", "internlm3", "internvl", "iquestcoder"),
        *("jais2", "kimi_k2", "kolibri1", "laguna", "lfm2", "lfm2_moe", "lfm2_vl", "lfm3"),
        *("lfm3_vl", "llama", "llava", "llava_next", "mellum", "minicpm", "minicpm3", "minimax_m2"),
        *("ministral", "ministral3", "mistral", "mistral3", "mistral4", "mixtral", "muse_glimmer"),
        *("muse_glimmer_text", "nanochat", "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3"),
        *("olmo_hybrid", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_moe"),
        *("qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
        *("qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "sarvam_moe", "seed_oss"),
        *("smollm3", "smolvlm", "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "'hidden_size' is None"),
        ({"hidden_size": -64}, "'hidden_size' is -64 and must be a whole number from 1 to"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_key_value_heads": 3}, "is not a multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 5}, "is not a multiple of num_attention_heads 5"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"rms_norm_eps": -1.0}, "'rms_norm_eps' is -1.0"),
        ({"num_hidden_layers": 10**9}, "from 1 to 1024"),
        ({"rope_theta": 0.5}, "'rope_theta' is 0.5 and must exceed 1"),
        ({"rope_scaling": [1]}, "'rope_scaling' must be an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'factor' is None"),
        ({"model_type": None}, "names no model_type"),
    ],
)
def test_bad_sizes_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        describe({**CONFIG, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantised with 'hqq'"),
        (
            {"quantization_config": {"quant_method": "bitnet", "use_rms_norm": True}},
            "use_rms_norm",
        ),
        (
            {
                "quantization_config": {
                    "quant_method": "bitnet",
                    "modules_to_not_convert": ["lm_head", "o_proj"],
                }
            },
            "o_proj",
        ),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral' is not supported"),
        ({"rope_scaling": LONG}, "differ for long texts"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between"),
    ],
)
def test_unsupported_variants_are_refused(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        describe({**CONFIG, **changes})


@pytest.mark.parametrize("name", ["llama-linear", "llama-llama3", "llama-yarn"])
def test_both_spellings_of_rope_scaling_mean_the_same(name):
    folder = Path(__file__).resolve().parents[1] / "golden" / name
    new = json.loads((folder / "config.json").read_text())
    old = dict(new)
    parameters = dict(old.pop("rope_parameters"))
    old["rope_theta"] = parameters.pop("rope_theta")
    parameters["type"] = parameters.pop("rope_type")
    old["rope_scaling"] = parameters
    first, second = describe(new).ropes[0], describe(old).ropes[0]
    np.testing.assert_array_equal(first.inv_freq, second.inv_freq)
    assert first.attention_factor == second.attention_factor


def test_yarn_temperature_follows_the_factor():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = {**CONFIG, "rope_scaling": scaling}
    assert describe(config).ropes[0].attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    scaling["attention_factor"] = 1.25
    assert describe(config).ropes[0].attention_factor == 1.25


@pytest.mark.parametrize(
    ("name", "theta", "epsilon"),
    [
        ("llama", 10000.0, 1e-6),
        ("mistral", 10000.0, 1e-6),
        ("qwen2", 10000.0, 1e-6),
        ("qwen3", 10000.0, 1e-6),
        ("bitnet", 500000.0, 1e-5),
    ],
)
def test_silence_about_theta_and_epsilon_means_what_transformers_takes(name, theta, epsilon):
    """The defaults of LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config and BitNetConfig."""
    for missing in ({}, {"rope_theta": None, "rms_norm_eps": None}):
        spec = describe({**CONFIG, "model_type": name, "head_dim": 16, **missing})
        assert spec.norm_eps == epsilon
        expected = [theta ** (-2 * index / 16) for index in range(8)]
        np.testing.assert_allclose(spec.ropes[0].inv_freq, expected, rtol=1e-6)


def windows(config):
    return tuple(layer.window for layer in describe(config).layers)


def test_windows_follow_each_architecture():
    window = {"sliding_window": 8}
    mistral = {**CONFIG, "model_type": "mistral"}
    assert windows({**mistral, **window}) == (8, 8)
    assert windows(mistral) == (4096, 4096)
    assert windows({**mistral, "sliding_window": None}) == (None, None)
    qwen = {**CONFIG, **window, "model_type": "qwen2"}
    assert windows(qwen) == (None, None)
    qwen["use_sliding_window"] = True
    assert windows({**qwen, "max_window_layers": 1}) == (None, 8)
    types = ["sliding_attention", "full_attention"]
    assert windows({**qwen, "layer_types": types}) == (8, None)
    with pytest.raises(CheckpointError, match="names 1 layers"):
        describe({**qwen, "layer_types": types[:1]})


MOE = {
    **CONFIG,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": None}, "'num_experts' is None"),
        ({"num_experts": 10**6}, "'num_experts' is 1000000 and must be a whole number from 1 to"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 experts, and there are num_experts 8"),
        ({"moe_intermediate_size": 0}, "'moe_intermediate_size' is 0"),
        ({"mlp_only_layers": [True]}, "'mlp_only_layers' is .* list of whole numbers"),
        ({"mlp_only_layers": 1}, "'mlp_only_layers' is 1 and must be a list"),
        ({"decoder_sparse_step": 0}, "'decoder_sparse_step' is 0"),
    ],
)
def test_bad_numbers_of_experts_are_named(changes, message):
    with pytest.raises(CheckpointError, match=message):
        describe({**MOE, **changes})


def test_some_layers_may_have_no_experts():
    def counts(**changes):
        spec = describe({**MOE, "num_hidden_layers": 4, **changes})
        return [len(spec.feed_forward(layer)) for layer in range(4)]

    assert counts() == [8, 8, 8, 8]
    assert counts(decoder_sparse_step=2) == [1, 8, 1, 8]
    assert counts(decoder_sparse_step=2, mlp_only_layers=[1]) == [1, 1, 1, 8]


def test_olmoe_does_not_clip():
    with pytest.raises(UnsupportedError, match="clip_qkv"):
        describe({**MOE, "model_type": "olmoe", "clip_qkv": 8.0})


GPT_OSS = {
    **CONFIG,
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
}


def test_gpt_oss_has_windows_in_every_other_layer():
    assert windows(GPT_OSS) == (128, None, 128, None)
    assert windows({**GPT_OSS, "sliding_window": 9}) == (9, None, 9, None)
    types = ["full_attention", "sliding_attention"] * 2
    assert windows({**GPT_OSS, "layer_types": types}) == (None, 128, None, 128)


def test_gpt_oss_has_biases_everywhere_unless_it_says_otherwise():
    assert describe(GPT_OSS).biases == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert describe({**GPT_OSS, "attention_bias": False}).biases == set()
    names = describe(GPT_OSS).tensors().keys()
    at = "model.layers.3"
    for name in ("self_attn.sinks", "mlp.router.bias", "mlp.experts.7.down_proj.bias"):
        assert f"{at}.{name}" in names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, "'linear_attention', which"),
        ({"swiglu_limit": 5.0}, "swiglu_limit of 5 are not supported; it must be 7"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'gptq' .*bfloat16 and mxfp4 are"),
    ],
)
def test_other_kinds_of_gpt_oss_are_refused(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        describe({**GPT_OSS, **changes})
    assert describe({**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}).ternary is None


def test_bitnet_knows_how_its_weights_are_stored():
    config = {**CONFIG, "model_type": "bitnet"}
    online = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
    assert describe(config).ternary == "master"
    assert describe({**config, "quantization_config": online}).ternary == "packed"
    online["quantization_mode"] = "online"
    assert describe({**config, "quantization_config": online}).ternary == "master"
    assert describe({**CONFIG, "quantization_config": online}).ternary == "master"
    assert describe(CONFIG).ternary is None


GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CONFIGS = [json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*/config.json"))]
JUNK = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    *(st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers())),
    st.sampled_from([0, -1, 2**63, 10**30, 1e-300, float("nan"), "yarn", "llama3", "default"]),
)
ROPE_KEYS = [
    *("factor", "rope_type", "rope_theta", "low_freq_factor", "high_freq_factor", "truncate"),
    *("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow"),
    "original_max_position_embeddings",
]
QUANTIZATION_KEYS = ["quant_method", "linear_class", "quantization_mode", "modules_to_not_convert"]


@given(st.sampled_from(CONFIGS), st.data())
@settings(deadline=None, max_examples=500)
def test_any_config_is_described_or_refused(config, data):
    config = dict(config)
    keys = [*config, "head_dim", "layer_types", "max_window_layers", "sliding_window"]
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=3)):
        config[key] = data.draw(JUNK)
    for part, names in (("rope_parameters", ROPE_KEYS), ("quantization_config", QUANTIZATION_KEYS)):
        if isinstance(config.get(part), dict):
            changes = data.draw(st.dictionaries(st.sampled_from(names), JUNK, max_size=2))
            config[part] = {**config[part], **changes}
    try:
        spec = describe(config)
    except InputError:
        return
    assert np.isfinite(spec.ropes[0].inv_freq).all()
    assert spec.num_layers == len(spec.layers) > 0
