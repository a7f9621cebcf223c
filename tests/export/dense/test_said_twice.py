"""What config.json says in an older and in a newer form, or in a form that other versions had."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun_export.architectures import describe
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN

SAVED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "configs.json").read_text())["configs"]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "mistral", "ministral3", "deepseek_v3", "gpt_oss"]
)
def test_a_scaling_that_was_added_replaces_the_newer_parameters(name: str) -> None:
    """As people add YaRN to what transformers 5 saved, and as it reads that."""
    both = describe({**SAVED[name], "rope_scaling": YARN})
    older = {key: value for key, value in SAVED[name].items() if key != "rope_parameters"}
    alone, before = describe({**older, "rope_scaling": YARN}), describe(SAVED[name])
    assert np.array_equal(both.ropes[0].inv_freq, alone.ropes[0].inv_freq)
    assert (both.score_scale, both.context_length) == (alone.score_scale, alone.context_length)
    assert not np.array_equal(both.ropes[0].inv_freq, before.ropes[0].inv_freq)


def test_of_layers_of_types_those_without_a_window_are_scaled() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    before = describe(SAVED["gemma3_text"]).ropes
    after = describe({**SAVED["gemma3_text"], "rope_scaling": scaling}).ropes
    assert np.allclose(after[0].inv_freq * 8, before[0].inv_freq)
    assert np.array_equal(after[1].inv_freq, before[1].inv_freq)


def test_ministral_3_may_have_the_older_keys() -> None:
    older = {key: value for key, value in SAVED["ministral3"].items() if key != "rope_parameters"}
    linear = {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}}
    spec = describe({**older, **linear, "max_position_embeddings": 4096})
    llama = describe({**SAVED["llama"], "head_dim": spec.head_dim})
    assert np.allclose(spec.ropes[0].inv_freq * 2, llama.ropes[0].inv_freq)
    assert (spec.context_length, spec.notes) == (4096, ())


def test_a_dynamic_rope_is_the_usual_one_within_the_context() -> None:
    said = {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}
    spec, usual = describe({**SAVED["llama"], **said}), describe(SAVED["llama"])
    assert np.array_equal(spec.ropes[0].inv_freq, usual.ropes[0].inv_freq)
    assert spec.context_length == usual.context_length


def test_layers_of_mistral_may_have_types() -> None:
    """Ministral 8B, whose model_type is Mistral's; parts of larger models are all alike."""
    types = (["full_attention"] + ["sliding_attention"] * 3) * 8
    spec = describe({**SAVED["mistral"], "sliding_window": 4, "layer_types": types})
    assert [layer.window for layer in spec.layers][:5] == [None, 4, 4, 4, None]
    text = {"model_type": "mistral", "sliding_window": 4, "layer_types": types}
    spec = describe({"model_type": "llava", "text_config": text})
    assert {layer.window for layer in spec.layers} == {4}


def test_every_other_layer_of_qwen2_moe_has_the_window() -> None:
    said = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}
    spec = describe({**SAVED["qwen2_moe"], **said, "layer_types": None})
    assert [layer.window for layer in spec.layers][:5] == [64, None, 64, None, None]


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen2_moe"])
def test_a_window_without_a_size_has_the_usual_one(name: str) -> None:
    said = {"use_sliding_window": True, "max_window_layers": 2, "layer_types": None}
    config = {key: value for key, value in SAVED[name].items() if key != "sliding_window"}
    assert {layer.window for layer in describe({**config, **said}).layers} == {None, 4096}


Tensors = dict[str, np.ndarray]


def rewritten(name: str, folder: Path, change: Callable[[Tensors], Tensors], **keys: Any) -> Path:
    """A golden checkpoint with other tensors and keys."""
    copy = Path(shutil.copytree(GOLDEN / name, folder / "checkpoint"))
    save_file(change(load_file(copy / "model.safetensors")), copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | keys))
    return copy


def weights_of(folder: Path, out: Path) -> bytes:
    export(folder, out, ExportOptions(weights="int8"))
    return (out / "model.onnx.data").read_bytes()


def test_experts_in_stacks_are_those_one_by_one(tmp_path: Path) -> None:
    """As transformers 5 holds them: ``[experts, 2 I, K]``, gate before up."""

    def stack(tensors: Tensors) -> Tensors:
        kept = {key: value for key, value in tensors.items() if ".experts." not in key}
        for layer in {key.partition(".experts.")[0] for key in tensors.keys() - kept.keys()}:
            module, count = (
                f"{layer}.experts",
                sum(key.startswith(f"{layer}.experts.") and "down" in key for key in tensors),
            )
            parts = {
                part: np.stack([tensors[f"{module}.{n}.{part}.weight"] for n in range(count)])
                for part in ("gate_proj", "up_proj", "down_proj")
            }
            both = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
            kept |= {f"{module}.gate_up_proj": both, f"{module}.down_proj": parts["down_proj"]}
        return kept

    plain = weights_of(GOLDEN / "qwen3_moe", tmp_path / "plain")
    stacked = rewritten("qwen3_moe", tmp_path, stack)
    assert weights_of(stacked, tmp_path / "stacked") == plain


def test_a_head_of_nemotron_h_that_is_said_to_be_tied_is_the_one_stored(tmp_path: Path) -> None:
    plain = weights_of(GOLDEN / "nemotron_h", tmp_path / "plain")
    tied = rewritten("nemotron_h", tmp_path, dict, tie_word_embeddings=True)
    assert weights_of(tied, tmp_path / "tied") == plain
