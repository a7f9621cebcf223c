"""Every architecture against logits that transformers computed, on every back-end."""

import numpy as np
import pytest

from tests.support.bundles import GOLDEN, NAMES, bundle_of, error_of, runner
from tests.support.peers import marks_of

BACKENDS = ("reference", "cpu", "onnxruntime")
# onnxruntime gives back too little of what convolutions read; by itself it runs such bundles.
RECURRENT = (
    "lfm2",
    "lfm3",
    "qwen3_5",
    "qwen3_next",
    "olmo_hybrid",
    "granitemoehybrid-",
    "bamba",
    "nemotron_h",
    "falcon",
)
PAIRS = [
    pytest.param(name, backend, marks=marks_of(name, backend))
    for name in NAMES
    for backend in BACKENDS
    if not (name.startswith(RECURRENT) and backend == "onnxruntime")
]


def golden(name):
    with np.load(GOLDEN / name / "golden.npz") as data:
        return data["ids"].reshape(-1), data["logits"].reshape(-1, data["logits"].shape[-1])


@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_fp32_logits_equal_transformers(name, backend):
    """Of one prefill, and of chunks and single tokens in the place of the sequence before."""
    ids, logits = golden(name)
    pieces = [ids[:5], ids[5:6], ids[6:17], *([token] for token in ids[17:])]
    with runner(bundle_of(name, weights="fp32"), backend) as model:
        assert error_of(model.run(ids), logits) <= 1e-4
        model.restart()
        computed = np.concatenate([model.run(piece) for piece in pieces])
        assert error_of(computed, logits) <= 1e-4


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "llama-yarn",
        "mistral",
        "qwen3",
        "bitnet-packed",
        "gpt_oss",
        "smollm3",
        "gemma2",
        "gemma3_text",
        "gemma4_text",
        "lfm2",
        "lfm2_moe",
        "qwen3_5_text",
        "granitemoehybrid-mamba",
    ],
)
def test_the_genai_profile_computes_the_same(name):
    ids, _ = golden(name)
    portable, genai = (bundle_of(name, profile=profile) for profile in ("portable", "genai"))
    with runner(portable, "cpu") as expected, runner(genai, "cpu") as model:
        # To the last bit: frequencies are found in tables of cosines and sines.
        np.testing.assert_array_equal(model.run(ids), expected.run(ids))


@pytest.mark.parametrize("backend", BACKENDS)
def test_replies_equal_transformers(backend):
    ids, _ = golden("gpt_oss")
    with np.load(GOLDEN / "gpt_oss" / "golden.npz") as data:
        start = int(data["prompt"])
    assert len(ids) - start == 64
    assert reply_of("gpt_oss", backend, ids[:start], 64) == ids[start:].tolist()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    "name",
    [
        "lfm2",
        "lfm2_moe",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "qwen3_next",
        "olmo_hybrid",
        "granitemoehybrid-mamba",
        "granitemoehybrid-experts",
        "bamba",
        "nemotron_h",
        "nemotron_h-experts",
        "falcon_h1",
        "falcon_h1-norm",
        "glm4_moe_lite",
        "glm4_moe",
        "dots1",
        "deepseek_v2-groups",
        "deepseek_v3-groups",
        "exaone4",
        "seed_oss",
        "glm",
        "glm4",
        "flex_olmo",
        "minimax_m2",
        "exaone_moe",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "solar_open",
        "gemma2",
        "gemma4_text",
        "apertus",
        "arcee",
        "cohere-norms",
        "cohere2",
        "cohere2_moe",
        "gpt_neox",
        "granite_swa",
        "lfm3",
        "minicpm3",
        "nanochat",
        "phi",
        "phimoe",
        "youtu",
        "afmoe",
        "hy_v3",
        "granitemoe_swa",
        "mellum",
        "apertus1p5_text",
        "muse_glimmer_text",
        "flint",
        "kolibri1",
        "laguna",
    ]
    + ["gemma3n_text", "gemma4_text-per-layer", "gemma4_text-experts"],
)
def test_replies_by_a_cache_equal_those_of_transformers(name, backend):
    ids, _ = golden(name)
    with np.load(GOLDEN / name / "golden.npz") as data:
        expected = data["reply"].tolist()
    assert len(expected) == 64
    assert reply_of(name, backend, ids, 64) == expected


def reply_of(name, backend, prompt, length):
    """So many tokens, each the most likely one after those before."""
    reply = []
    with runner(bundle_of(name, weights="fp32"), backend, max_rows=32) as model:
        logits = model.run(prompt)
        while len(reply) < length:
            reply.append(int(logits[-1].argmax()))
            logits = model.run(reply[-1:])
    return reply


# In all formats; those below are put together in the same way in each, and are run in two.
ALL_FORMATS = ("llama", "qwen2", "qwen3", "gpt_oss", "lfm2_moe", "deepseek_v2", "gemma3n_text")
FEW_FORMATS = ("int4", "ternary")
OTHERS = ("smollm3", "granite", "phi3", "gemma3_text", "lfm2", "qwen3_5_text")
OTHERS += ("granitemoehybrid-experts", "ernie4_5_moe", "deepseek_v2-groups", "deepseek_v3-groups")
OTHERS += ("glm4_moe", "gemma2", "gemma4_text", "hunyuan_v1_moe")
OTHERS += ("gemma4_text-per-layer", "gemma4_text-experts")
QUANTISED = [
    pytest.param(
        name,
        weights,
        marks=[] if name in ALL_FORMATS or weights in FEW_FORMATS else pytest.mark.slow,
    )
    for name in (*ALL_FORMATS, *OTHERS)
    for weights in ("int8", "int4", "int2", "ternary")
]


@pytest.mark.parametrize(("name", "weights"), QUANTISED)
def test_quantised_logits_equal_the_dequantised_reference(name, weights):
    ids, _ = golden(name)
    folder = bundle_of(name, weights=weights, activations="fp32")
    with runner(folder, "reference") as expected, runner(folder, "cpu") as cpu:
        assert error_of(cpu.run(ids), expected.run(ids)) <= 1e-4
        assert error_of(cpu.run([7]), expected.run([7])) <= 1e-4


@pytest.mark.parametrize("name", ["bitnet-master", "bitnet-offline", "bitnet-packed"])
def test_natively_ternary_logits_equal_transformers(name):
    """The int8 head and embedding are the only difference that a ternary export makes."""
    ids, logits = golden(name)
    folder = bundle_of(name, weights="ternary", head_weights="fp32")
    with runner(folder, "cpu") as cpu, runner(folder, "reference") as reference:
        assert error_of(cpu.run(ids), logits) <= 1e-4
        assert error_of(reference.run(ids), logits) <= 1e-4


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_small_caches_change_little(kv_cache):
    ids, logits = golden("llama")
    folder = bundle_of("llama", weights="fp32")
    with runner(folder, "cpu", kv_cache=kv_cache) as cpu:
        logits_cpu = cpu.run(ids)
    with runner(folder, "reference", kv_cache=kv_cache) as reference:
        # Over int8, attention rounds queries and weights to 16 bits.
        bound = {"fp16": 1e-4, "int8": 1e-3}[kv_cache]
        assert error_of(logits_cpu, reference.run(ids)) <= bound
    assert error_of(logits_cpu, logits) <= {"fp16": 1e-3, "int8": 2e-2}[kv_cache]
