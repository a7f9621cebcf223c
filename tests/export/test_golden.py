"""Exported models against golden files (``tools/golden``) and against NumPy on their weights."""

import numpy as np
import pytest

from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import relative_error, run_onnx
from edgerun_export.verify.numpy_model import forward
from tests.support.peers import by_onnxruntime, marks_of, needs_complete_onnxruntime

# Those whose forms differ: layers without rope or attention, norms after, factors, joined rows,
# partial rope.
FAMILIES = [
    "smollm3",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "granite",
    "granitemoehybrid",
    "granitemoehybrid-mamba",
    "granitemoehybrid-experts",
    "nemotron_h-experts",
    "falcon_h1",
    "phi3",
    "ministral3",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_text-per-layer",
    "gemma4_text-experts",
    "lfm2",
    "qwen3_5_text",
    "exaone4",
    "hunyuan_v1_dense",
    "seed_oss",
    "glm",
    "glm4",
    "ernie4_5",
    "apertus",
    "arcee",
    "cohere-norms",
    "cohere2",
    "cohere2_moe",
    "gpt_neox",
    "granite_swa",
    "hyperclovax",
    "lfm3",
    "minicpm3",
    "nanochat",
    "phi",
    "phimoe",
    "stablelm",
    "stablelm-norms",
    "starcoder2",
    "youtu",
]
NAMES = [
    "llama",
    "llama-linear",
    "llama-llama3",
    "llama-yarn",
    "mistral",
    "qwen2",
    "qwen3",
    "bitnet-master",
    "bitnet-packed",
    "bitnet-offline",
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "bitnet_moe",
    "gpt_oss",
    "lfm2_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
    "granitemoe",
    "ernie4_5_moe",
    "deepseek_v2",
    "deepseek_v2-query-rank",
    "deepseek_v3",
    "deepseek_v2-groups",
    "deepseek_v3-groups",
    "glm4_moe_lite",
    "glm4_moe",
    "glm4_moe-yarn",
    "dots1",
    "bamba",
    "nemotron_h",
    "falcon_h1-norm",
    "flex_olmo",
    "minimax_m2",
    "exaone_moe",
    "hunyuan_v1_moe",
    "solar_open",
    "cohere",
    "cwm",
    "exaone",
    "gemma",
    "helium",
    "internlm3",
    "hy_v3",
    "mistral4",
    "nemotron",
    "olmo",
    "iquestcoder",
    "internlm2",
    "jais2",
    "minicpm",
    "sarvam_moe",
    "vaultgemma",
    "afmoe",
    "granitemoeshared",
    "granitemoe_swa",
    "mellum",
    "apertus1p5_text",
    "muse_glimmer_text",
    "flint",
    "kolibri1",
    "laguna",
    *FAMILIES,
]
BITNET = [name for name in NAMES if name.startswith("bitnet")]
EXPERTS = ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss", "lfm2_moe", "ernie4_5_moe"]
EXPERTS += ["qwen3_next", "deepseek_v2", "glm4_moe_lite", "glm4_moe", "glm4_moe-yarn", "dots1"]
EXPERTS += ["deepseek_v2-groups", "deepseek_v3-groups", "flex_olmo", "minimax_m2", "sarvam_moe"]
# For layers that attend to keys of others there is no fused attention, nor for norms after ropes.
NOT_FUSED = ["gemma3n_text", "gemma4_text-per-layer", "hunyuan_v1_dense", "hunyuan_v1_moe"]
NOT_FUSED += ["nanochat"]
EXACT = 1e-4
FORMATS = ["ternary", "int2", "int4", "int8"]
# Matrices, stacks of experts with and without biases, and what is read by rows, in all formats; the
# others are put together from these.
ALL_FORMATS = ["llama", "qwen2", "bitnet-packed", "mixtral", "gpt_oss", "gemma3n_text", "lfm2"]
FEW_FORMATS = ["ternary", "int4"]


@pytest.mark.parametrize("name", by_onnxruntime(NAMES))
def test_fp32_bundle_computes_what_transformers_computes(name, golden, exported):
    model = golden(name)
    bundle = exported(name, weights="fp32").folder
    logits = run_onnx(bundle, model.spec, model.ids, decode_steps=0)
    assert relative_error(logits, model.logits) <= EXACT


@pytest.mark.parametrize("name", by_onnxruntime(NAMES))
def test_decoding_token_by_token_gives_the_same_logits(name, golden, exported):
    model = golden(name)
    bundle = exported(name, weights="fp32").folder
    logits = run_onnx(bundle, model.spec, model.ids, decode_steps=len(model.ids) - 1)
    assert relative_error(logits, model.logits) <= EXACT


@needs_complete_onnxruntime
@pytest.mark.parametrize("name", BITNET)
def test_natively_ternary_models_keep_their_exact_weights(name, golden, exported):
    model = golden(name)
    result = exported(name, head_weights="fp32", activations="fp32")
    assert result.recipe.weights == "ternary"
    assert result.manifest["quality"]["relative_weight_error"] == 0
    logits = run_onnx(result.folder, model.spec, model.ids)
    assert relative_error(logits, model.logits) <= EXACT


@needs_complete_onnxruntime
@pytest.mark.parametrize("decode_steps", [0, 8])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_FUSED])
def test_genai_profile_computes_the_same(name, decode_steps, golden, exported):
    model = golden(name)
    bundle = exported(name, weights="fp32", profile="genai").folder
    logits = run_onnx(bundle, model.spec, model.ids, decode_steps)
    assert relative_error(logits, model.logits) <= EXACT


def quantised():
    """Each model with each format, of which some are run with ``-m slow``."""
    for name in [*EXPERTS, *FAMILIES, "llama", "mistral", "qwen2", "qwen3", "bitnet-packed"]:
        for weights in FORMATS:
            marks = [*marks_of(name)]
            if weights in ("ternary", "int2"):
                marks.append(needs_complete_onnxruntime)
            if name not in ALL_FORMATS and weights not in FEW_FORMATS:
                marks.append(pytest.mark.slow)
            yield pytest.param(name, weights, marks=marks)


@pytest.mark.parametrize(("name", "weights"), [*quantised()])
def test_quantised_bundle_computes_with_its_dequantised_weights(name, weights, golden, exported):
    model = golden(name)
    # The golden BitNet keeps clear of rounding boundaries only with its own embedding.
    head = "fp32" if name in BITNET else "int8"
    options = {"weights": weights, "head_weights": head, "activations": "fp32"}
    bundle = exported(name, **options).folder
    expected = forward(model.spec, BundleWeights(bundle, model.spec), model.ids)
    assert relative_error(run_onnx(bundle, model.spec, model.ids), expected) <= EXACT


def is_exact(model, bundle):
    expected = forward(model.spec, BundleWeights(bundle, model.spec), model.ids)
    return relative_error(run_onnx(bundle, model.spec, model.ids), expected) <= EXACT


@pytest.mark.parametrize("head", ["int4", "int8", "fp32"])
@pytest.mark.parametrize(
    "name",
    by_onnxruntime(
        ["llama", "qwen3", "granite", "granitemoehybrid", "gemma2", "gemma3_text", "gemma4_text"]
        + NOT_FUSED
    ),
)
def test_every_head_format_works_tied_and_untied(name, head, golden, exported):
    options = {"weights": "int4", "head_weights": head, "activations": "fp32"}
    assert is_exact(golden(name), exported(name, **options).folder)


@pytest.mark.parametrize("scales", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("head", "embedding"),
    [("int4", "int4"), ("int8", "int4"), ("int4", "fp32"), ("fp32", "int4"), ("fp32", "int8")],
)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_an_embedding_may_have_another_format(name, head, embedding, scales, golden, exported):
    options = {"head_weights": head, "embedding_weights": embedding, "scales": scales}
    bundle = exported(name, weights="int4", activations="fp32", **options).folder
    assert is_exact(golden(name), bundle)


@needs_complete_onnxruntime
@pytest.mark.parametrize("group_size", [16, 64, 128, 256])
def test_every_group_size_works_even_beyond_the_row(group_size, golden, exported):
    model = golden("bitnet-packed")  # rows of 64 and 96 weights
    options = {"weights": "ternary", "head_weights": "fp32", "activations": "fp32"}
    bundle = exported("bitnet-packed", group_size=group_size, **options).folder
    expected = forward(model.spec, BundleWeights(bundle, model.spec), model.ids)
    assert relative_error(run_onnx(bundle, model.spec, model.ids), expected) <= EXACT


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "bitnet-packed"])
def test_kernels_that_round_activations_stay_close(name, golden, exported):
    model = golden(name)
    bundle = exported(name, weights="int4").folder
    expected = forward(model.spec, BundleWeights(bundle, model.spec), model.ids)
    assert relative_error(run_onnx(bundle, model.spec, model.ids), expected) <= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_numpy_forward_agrees_with_transformers(name, golden, source_weights):
    model = golden(name)
    logits = forward(model.spec, source_weights(model), model.ids)
    assert relative_error(logits, model.logits) <= EXACT


@pytest.mark.parametrize("name", NAMES)
def test_rotary_frequencies_are_those_of_transformers(name, golden):
    model = golden(name)
    turned = len(model.inv_freq)
    if not turned:
        assert not any(map(model.spec.rope_of, range(model.spec.num_layers)))
        return
    np.testing.assert_allclose(model.spec.ropes[0].inv_freq[:turned], model.inv_freq, rtol=1e-6)
    assert not model.spec.ropes[0].inv_freq[turned:].any()
