"""Export of a model that is larger than what may be in memory at once."""

import tracemalloc

import pytest

from edgerun_export.pipeline import ExportOptions, export
from tests.support.peers import needs_complete_onnxruntime
from tools.bench import random_model

MB = 1 << 20


@pytest.mark.parametrize("weights", ["int8", "fp32"])
def test_memory_does_not_grow_with_the_largest_tensor(weights, tmp_path):
    config = {
        **random_model.PRESETS["tinyllama"],
        "vocab_size": 100_000,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    random_model.write(config, tmp_path / "checkpoint")
    tracemalloc.start()
    export(tmp_path / "checkpoint", tmp_path / "out", ExportOptions(weights=weights))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "checkpoint" / "model.safetensors").stat().st_size > 48 * MB
    assert peak < 48 * MB  # the embedding alone is 98 MB of float32


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param("bitnet-2b-4t", marks=needs_complete_onnxruntime),
        "llama-3.2-1b",
        "qwen3-0.6b",
        "tinyllama",
    ],
)
def test_presets_make_models_that_verify(preset, tmp_path):
    config = {
        **random_model.PRESETS[preset],
        **{"bos_token_id": 256, "eos_token_id": 257},
        **{"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256},
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        "head_dim": 32,
    }
    random_model.write(config, tmp_path / "checkpoint")
    result = export(tmp_path / "checkpoint", tmp_path / "out", ExportOptions(verify=True))
    assert result.manifest["model"]["eos_token_ids"] == [257]
    assert (result.recipe.weights == "ternary") == (preset == "bitnet-2b-4t")
