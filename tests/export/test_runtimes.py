"""One bundle, unmodified, in every runtime: the same 32 greedy tokens."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from edgerun.formats.base import unpack_bits
from edgerun_export.calibrate.step import CalibrationOptions
from tests.support.peers import needs_bounds_of_onnxruntime, onnxruntime_genai_tokens

pytestmark = [pytest.mark.peers, needs_bounds_of_onnxruntime]

TOKENS = 32
# The profile that all five runtimes open; without OpenVINO, the three others can still be compared.
HAS_OPENVINO = importlib.util.find_spec("openvino_tokenizers") is not None
PROFILE = "openvino" if HAS_OPENVINO else "portable"
Feeds = Mapping[str, NDArray[Any]]
CALIBRATION = CalibrationOptions((Path(__file__),), windows=8, tokens=32, threads=1)
# Bundles with exact kernels: random models have near ties that rounded activations would decide.
TINY = [
    ("llama", {"weights": "fp32"}),
    ("llama", {"weights": "int4"}),
    ("mistral", {"weights": "int2"}),
    ("qwen2", {"weights": "int4", "rules": ("*.down_proj=int8:16", "layers.1.*=int2")}),
    (
        "llama",
        {"weights": "int4_asym", "rules": ("*.down_proj=int2_asym:16", "layers.1.*=int8_asym")},
    ),
    (
        "qwen2",
        {
            "weights": "int4_offset",
            "rules": ("*.down_proj=int2_offset:16", "layers.1.*=int8_offset"),
        },
    ),
    ("qwen3", {"weights": "int4", "head_weights": "int4", "embedding_weights": "int4"}),
    ("qwen3", {"weights": "int4", "scales": "fp16", "calibration": CALIBRATION}),
    ("bitnet-packed", {"weights": "ternary"}),
    ("olmoe", {"weights": "ternary"}),
    ("qwen2_moe", {"weights": "int4"}),
    ("gpt_oss", {"weights": "int4"}),
    ("deepseek_v3-groups", {"weights": "int4"}),
    ("glm4_moe_lite", {"weights": "int8"}),
    (
        "olmoe",
        {"weights": "int4_asym", "rules": ("*.down_proj=int2_asym:16", "layers.1.*=int8_asym")},
    ),
    ("smollm3", {"weights": "int4"}),
    ("gemma2", {"weights": "int4"}),
    ("gemma3_text", {"weights": "int4"}),
    ("gemma3n_text", {"weights": "int4", "embedding_weights": "int4"}),
    ("gemma4_text-experts", {"weights": "int4"}),
    ("lfm2", {"weights": "int4"}),
    ("qwen3_5_text", {"weights": "int4"}),
    ("falcon_h1", {"weights": "int4"}),
    ("nemotron_h-experts", {"weights": "int4"}),
    ("hunyuan_v1_dense", {"weights": "int4"}),
    ("phi", {"weights": "int4"}),
]
# Every mixture in every format takes minutes: those above stand for them as a rule.
MIXTURES = [
    pytest.param(name, {"weights": weights}, marks=pytest.mark.slow)
    for name in ("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss", "lfm2_moe", "granitemoe")
    + ("ernie4_5_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "glm4_moe", "glm4_moe-yarn")
    + ("deepseek_v2-groups", "deepseek_v3-groups", "flex_olmo", "minimax_m2")
    + ("exaone_moe", "hunyuan_v1_moe", "sarvam_moe", "solar_open")
    + ("cohere2_moe", "hy_v3", "mistral4", "phimoe")
    + ("afmoe", "flint", "kolibri1", "laguna", "granitemoeshared", "granitemoe_swa", "mellum")
    + ("dots1", "gemma4_text-experts", "qwen3_5_moe_text", "qwen3_next")
    + ("granitemoehybrid-experts", "nemotron_h-experts")
    for weights in ("ternary", "int4", "int8")
    if (name, {"weights": weights}) not in TINY
]
# Of families whose graph has no form of its own, those above stand for the others.
FAMILIES = [
    pytest.param(name, {"weights": weights}, marks=pytest.mark.slow)
    for name in ("smollm3", "olmo2", "olmo3", "granite", "granitemoehybrid", "phi3", "ministral3")
    + (
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gemma4_text",
        "gemma4_text-per-layer",
        "lfm2",
        "qwen3_5_text",
        "olmo_hybrid",
        "granitemoehybrid-mamba",
        "bamba",
        "nemotron_h",
        "falcon_h1",
        "exaone4",
        "hunyuan_v1_dense",
        "seed_oss",
        "glm",
        "glm4",
        "ernie4_5",
        "apertus",
        "apertus1p5_text",
        "arcee",
        "cohere",
        "cohere-norms",
        "cohere2",
        "cwm",
        "exaone",
        "gemma",
        "gpt_neox",
        "granite_swa",
        "helium",
        "hyperclovax",
        "internlm2",
        "internlm3",
        "iquestcoder",
        "jais2",
        "lfm3",
        "minicpm",
        "minicpm3",
        "muse_glimmer_text",
        "nanochat",
        "nemotron",
        "olmo",
        "phi",
        "stablelm",
        "stablelm-norms",
        "starcoder2",
        "vaultgemma",
        "youtu",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
    )
    for weights in ("ternary", "int4", "int8")
    if (name, {"weights": weights}) not in TINY
]
# What those above have, too: a model that is turned has the weights of another and no other form,
# and gemma3n_text has inputs of each layer.
OTHERS = [
    pytest.param("qwen2", {"weights": "int4", "transforms": ("rotate",)}, marks=pytest.mark.slow),
    pytest.param(
        "gemma4_text-per-layer",
        {"weights": "int4", "embedding_weights": "int4"},
        marks=pytest.mark.slow,
    ),
]
# Their own weights are ternary.
TERNARY = [
    pytest.param(name, {"weights": "ternary"}, marks=pytest.mark.slow)
    for name in ("bitnet-master", "bitnet-offline", "bitnet_moe")
]
CASES = [*TINY, *MIXTURES, *FAMILIES, *OTHERS, *TERNARY]
FEW_BITS = [case for case in TINY if case[1]["weights"] in ("int2", "int4")]
FEW_BITS += [
    case for case in (*MIXTURES, *FAMILIES, *OTHERS) if case.values[1]["weights"] == "int4"
]
# What OpenVINO computes in by default is bfloat16 with rounded activations.
EXACT_OPENVINO = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "KV_CACHE_PRECISION": "f32",
    # Two threads that wait for each other take minutes on a machine that is busy.
    "INFERENCE_NUM_THREADS": 1,
}


def facts(bundle: Path) -> dict[str, Any]:
    model: dict[str, Any] = json.loads((bundle / "manifest.json").read_text())["model"]
    return model


def nothing_cached(bundle: Path) -> dict[str, NDArray[Any]]:
    """What layers remember before the first token."""
    inputs = onnx.load(str(bundle / "model.onnx"), load_external_data=False).graph.input
    return {
        value.name: np.zeros([1, *(d.dim_value for d in value.type.tensor_type.shape.dim[1:])], "f")
        for value in inputs
        if value.name.startswith("past_key_values")
    }


def greedy(run: Callable[[Feeds], dict[str, NDArray[Any]]], bundle: Path, ids: list[int]):
    cache = nothing_cached(bundle)
    tokens: list[int] = []
    fed, total = list(ids), 0
    while len(tokens) < TOKENS:
        start, total = total, total + len(fed)
        feeds = {
            "input_ids": np.array([fed], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(start, total, dtype=np.int64)[None],
        }
        values = run(feeds | cache)
        fed = [int(values.pop("logits")[0, -1].argmax())]
        tokens += fed
        cache = {k.replace("present", "past_key_values"): v for k, v in values.items()}
    return tokens


@cache
def onnxruntime_tokens(bundle: Path, ids: tuple[int, ...]) -> list[int]:
    """What the others are compared with."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(bundle / "model.onnx"), settings)
    names = [value.name for value in session.get_outputs()]
    return greedy(
        lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)), bundle, [*ids]
    )


def openvino_tokens(bundle: Path, ids: list[int]) -> list[int]:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(bundle / "model.onnx"), "CPU", EXACT_OPENVINO)

    def run(feeds: Feeds) -> dict[str, NDArray[Any]]:
        results = compiled(feeds)
        return {port.any_name: results[port].copy() for port in compiled.outputs}

    return greedy(run, bundle, ids)


def openvino_genai_tokens(bundle: Path, ids: list[int]) -> list[int]:
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(str(bundle), "CPU", **EXACT_OPENVINO)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample, config.ignore_eos = TOKENS, False, True
    config.eos_token_id = 0
    prompt = genai.TokenizedInputs(
        openvino.Tensor(np.array([ids], np.int64)),
        openvino.Tensor(np.ones((1, len(ids)), np.int64)),
    )
    return list(pipeline.generate(prompt, config).tokens[0])


def edgerun_tokens(bundle: Path, ids: list[int]) -> list[int]:
    import edgerun

    options = {"backend": "cpu", "threads": 1, "kv_cache": "fp32"}
    with edgerun.load(bundle, **options) as model:
        return list(model.generate(ids, temperature=0, max_tokens=TOKENS, ignore_eos=True).ids)


RUNTIMES = {
    "edgerun": edgerun_tokens,
    "openvino": openvino_tokens,
    "onnxruntime_genai": onnxruntime_genai_tokens,
    "openvino_genai": openvino_genai_tokens,
}


@contextmanager
def unchanged(bundle: Path) -> Iterator[None]:
    """Checks that nothing in a folder is added, removed or altered."""

    def digests() -> dict[str, str]:
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in bundle.iterdir()}

    before = digests()
    yield
    assert digests() == before


def check(runtime: str, bundle: Path, ids: list[int]) -> None:
    if importlib.util.find_spec(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    with unchanged(bundle):
        expected = onnxruntime_tokens(bundle, tuple(ids))
        tokens = RUNTIMES[runtime](bundle, ids)
    assert tokens == expected[: len(tokens)]
    # onnxruntime-genai cannot be told to go on where the model ends its text.
    assert len(tokens) == TOKENS or tokens[-1] in facts(bundle)["eos_token_ids"]


def naming(value: Any) -> str:
    return str(value["weights"] if isinstance(value, dict) else value)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("name", "options"), CASES, ids=naming)
def test_tiny_models_continue_alike(name, options, runtime, exported, golden):
    bundle = exported(name, activations="fp32", profile=PROFILE, **options).folder
    check(runtime, bundle, golden(name).ids.tolist())


@pytest.mark.parametrize(("name", "options"), FEW_BITS)
def test_blocks_of_few_bits_have_scales_of_both_signs(name, options, exported, golden):
    """Or the test above would not show that all runtimes read them alike."""
    bundle = exported(name, activations="fp32", profile=PROFILE, **options).folder
    model = onnx.load(str(bundle / "model.onnx"))
    projections = [t for t in model.graph.initializer if t.name.endswith("_proj.weight.scales")]
    assert projections
    for tensor in projections:
        scales = onnx.numpy_helper.to_array(tensor)
        assert (scales < 0).any() and (scales > 0).any()


@pytest.mark.parametrize(("name", "count"), [("llama", 14), ("olmoe", 56)])
def test_blocks_have_zero_points_beside_the_middle(name, count, exported):
    (options,) = [o for each, o in TINY if (each, o["weights"]) == (name, "int4_asym")]
    bundle = exported(name, activations="fp32", profile=PROFILE, **options).folder
    model = onnx.load(str(bundle / "model.onnx"))
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    zeros = {name: array for name, array in stored.items() if name.endswith("_proj.weight.zeros")}
    assert len(zeros) == count
    for name, array in zeros.items():
        bits = 8 if "layers.1." in name else 2 if "down_proj" in name else 4
        assert (unpack_bits(array, bits) != 1 << (bits - 1)).any()


@pytest.mark.parametrize(
    "name",
    ["llama", "mistral", "qwen3", "bitnet-packed", "olmoe", "smollm3", "gemma3_text", "lfm2"]
    + ["lfm2_moe", "gemma2", "gemma4_text", "gemma4_text-experts", "qwen3_5_text"]
    + ["granitemoehybrid-mamba", "nemotron_h", "falcon_h1"],
)
def test_genai_profile_continues_like_the_portable_one(name, exported, golden):
    pytest.importorskip("onnxruntime_genai")
    ids = tuple(golden(name).ids[:8].tolist())
    options = {"weights": "fp32", "activations": "fp32"}
    portable = exported(name, **options).folder
    fused = exported(name, profile="genai", **options).folder
    expected = onnxruntime_tokens(portable, ids)
    assert onnxruntime_genai_tokens(fused, [*ids]) == expected


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "weights", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("fp32", "int8")), "int4"]
)
def test_stories260k_continues_alike(weights, runtime, shared_data, exported):
    source = shared_data / "models" / "stories260K" / "stories260K.bin"
    bundle = exported(source, weights=weights, activations="fp32", profile=PROFILE).folder
    check(runtime, bundle, [1, 403, 407, 261, 378])


def test_openvino_genai_continues_text_like_edgerun(shared_data, exported):
    genai = pytest.importorskip("openvino_genai")
    import edgerun

    source = shared_data / "models" / "stories260K" / "stories260K.bin"
    bundle = exported(source, weights="fp32", profile=PROFILE).folder
    prompts = ["Once upon a time", "Tom had a red ball and"]
    with edgerun.load(bundle, backend="cpu", threads=1, kv_cache="fp32") as model:
        expected = [str(model.generate(p, temperature=0, max_tokens=TOKENS)) for p in prompts]
    pipeline = genai.LLMPipeline(str(bundle), "CPU", **EXACT_OPENVINO)
    config = genai.GenerationConfig()
    config.max_new_tokens, config.do_sample = TOKENS, False
    with unchanged(bundle):
        texts = pipeline.generate(prompts, config).texts  # one batch, the shorter one padded
    # A text that is decoded by itself loses its first space, as in the tokenizers library.
    assert texts == [text.lstrip() for text in expected]
