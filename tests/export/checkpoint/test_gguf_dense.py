"""GGUF files of dense families, of Hunyuan and MiniMax M2: what is read is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import EdgerunError
from edgerun_export.architectures import describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.support.gguf_model import difference, source_of, write_gguf, write_metadata

gguf = pytest.importorskip("gguf")

# Of each, what the converter writes beside what it writes of every model, and what such files
# cannot say.
METADATA: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "exaone": {"rope__dimension_count": 16},
    "gemma": {},
    "exaone4": {
        "attention__sliding_window": 8,
        "attention__sliding_window_pattern": [True, False, True],
    },
    "seed_oss": {},
    "glm4": {"rope__dimension_count": 16},
    "ernie4_5": {},
    "hunyuan-dense": {"rope__scaling__type": "none"},
    "hunyuan-moe": {"expert_shared_count": 1},
    "command-r": {"logit_scale": 0.25, "rope__scaling__type": "none"},
    "cohere2": {"logit_scale": 0.5, "attention__sliding_window": 8},
    "internlm2": {},
    "jais2": {},
    "minicpm": {
        "embedding_scale": 12.0,
        "residual_scale": 1.4 / 2**0.5,
        "logit_scale": 4.0,
        "rope__scaling__type": "longrope",
        "rope__scaling__attn_factor": (1 + np.log(2) / np.log(64)) ** 0.5,
        "rope__scaling__original_context_length": 64,
    },
    "qwen2vl": {"rope__dimension_sections": [2, 3, 3, 0]},
    "qwen3vl": {"rope__dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 0},
    "nemotron": {"rope__dimension_count": 8},
    "olmo": {},
    "phi2": {"rope__dimension_count": 8},
    "stablelm": {"rope__dimension_count": 4, "use_parallel_residual": False},
    "starcoder2": {},
    "minimax-m2": {
        "rope__dimension_count": 16,
        "expert_gating_func": 2,
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 8.0,
        "rope__scaling__original_context_length": 16,
    },
}
CHANGES: dict[str, dict[str, Any]] = {
    "apertus": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "rope_theta": 500.0,
    },
    "cohere2": {"rope_parameters": None, "rope_theta": 10000.0, "layer_types": None},
    "command-r": {"rope_parameters": None, "rope_theta": 10000.0},
    "exaone": {"rope_parameters": None, "rope_theta": 500000.0},
    "exaone4": {"rope_parameters": None, "rope_theta": 10000.0},
    "ernie4_5": {"rope_parameters": None, "rope_theta": 10000.0},
    "starcoder2": {"sliding_window": None},
    "qwen2vl": {"use_sliding_window": False},
    # As the converter does, with the base that alpha makes.
    "hunyuan-dense": {"rope_parameters": None, "rope_theta": 1e4 * 50 ** (32 / 30)},
}
GOLDEN_OF = {name: name.replace("-", "_").replace("hunyuan", "hunyuan_v1") for name in METADATA}
GOLDEN_OF |= {"command-r": "cohere", "phi2": "phi", "internlm2": "llama"}
GOLDEN_OF |= {"qwen2vl": "qwen2", "qwen3vl": "qwen3"}


def curves_of(tensors: dict[str, np.ndarray]) -> dict[str, list[float]]:
    """Takes those that llama.cpp has as metadata."""
    curves: dict[str, list[float]] = {}
    for name in sorted(each for each in tensors if ".act_fn." in each):
        curves.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(tensors.pop(name).item())
    return curves


def write(folder: Path, name: str, **keys: Any) -> tuple[Path, dict[str, Any]]:
    """Writes a golden checkpoint as llama.cpp's converter does.

    Args:
        folder: where to.
        name: of the architecture in such files.
        keys: metadata that is another; None for none.

    Returns:
        the file, and the configuration.
    """
    config, stored = source_of(GOLDEN_OF[name], **CHANGES.get(name, {}))
    tensors = {key.replace("gate.wg", "gate"): stored[key] for key in stored}
    if name in ("gemma", "nemotron"):
        norms = (key for key in tensors if key.endswith("norm.weight"))
        tensors |= {key: tensors[key] + 1 for key in norms}

    curves = curves_of(tensors)

    def extra(writer: Any) -> None:
        own_keys = {key: value for key, value in keys.items() if not key.startswith("xielu")}
        write_metadata(writer, name, {**METADATA[name], **own_keys})
        for key, values in curves.items():
            writer.add_array(key, keys.get(key.replace(".", "__"), values))
        for part in ("long", "short"):
            divisors = (config.get("rope_scaling") or {}).get(f"{part}_factor")
            if divisors:
                writer.add_tensor(f"rope_factors_{part}.weight", np.array(divisors, np.float32))

    path = write_gguf(folder / "model.gguf", name, config, tensors, extra=extra)
    return path, config


@pytest.mark.parametrize("name", METADATA)
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    path, config = write(tmp_path, name)
    assert difference(path, GOLDEN_OF[name], config) < 2e-6


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({}, [8, None, 8]),
        ({"attention__sliding_window_pattern": None}, [8, 8, 8]),
        ({"attention__sliding_window": None}, [None] * 3),
    ],
)
def test_layers_of_exaone_have_rope_where_they_have_a_window(
    keys: dict[str, Any], windows: list[int | None], tmp_path: Path
) -> None:
    path, _ = write(tmp_path, "exaone4", **keys)
    with open_checkpoint(str(path)) as checkpoint:
        spec = describe(checkpoint.config)
    assert [layer.window for layer in spec.layers] == windows
    has_windows = any(windows)
    ropes = [0 if window or not has_windows else None for window in windows]
    assert [layer.rope for layer in spec.layers] == ropes


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (None, [8, 8, 8]),
        (2, [8, None, 8]),
        ([False, True, True], [None, 8, 8]),
    ],
)
def test_layers_of_command_a_have_the_windows_that_a_file_says(
    pattern: Any, windows: list[int | None], tmp_path: Path
) -> None:
    path, _ = write(tmp_path, "cohere2", attention__sliding_window_pattern=pattern)
    with open_checkpoint(str(path)) as checkpoint:
        spec = describe(checkpoint.config)
    assert [layer.window for layer in spec.layers] == windows


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("apertus", {"xielu__alpha_n": [0.5]}, "'xielu.alpha_n' is .* number for each of 2 layers"),
        ("apertus", {"xielu__alpha_p": [0.5, float("inf")]}, "'xielu.alpha_p' is .* finite"),
        ("exaone4", {"attention__sliding_window": -1}, "sliding_window' is -1; expected 0 to"),
        ("exaone4", {"attention__sliding_window_pattern": [True]}, "a truth value for each of 3"),
        ("glm4", {"rope__dimension_sections": [2, 3, 3]}, "glm4 that see pictures"),
        ("minimax-m2", {"expert_gating_func": 1}, "'expert_gating_func' is 1, which minimax_m2"),
        ("minimax-m2", {"expert_gating_func": None}, "lacks 'minimax-m2.expert_gating_func'"),
        ("minimax-m2", {"expert_weights_norm": False}, "'expert_weights_norm' is False"),
        ("hunyuan-moe", {"expert_shared_count": 2}, "without one network for all tokens"),
        ("hunyuan-dense", {"expert_shared_count": 2}, "'expert_shared_count' is 2"),
        ("seed_oss", {"rope__dimension_count": 16}, "heads of 32 with 16 rotated .* seed_oss"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    name: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = write(tmp_path, name, **keys)
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path)).close()


def test_a_slope_that_is_another_is_refused(tmp_path: Path) -> None:
    path, _ = write(tmp_path, "apertus", xielu__beta=[0.5, 0.25])
    with (
        open_checkpoint(str(path)) as checkpoint,
        pytest.raises(EdgerunError, match=r"layers\.1\.mlp\.act_fn\.beta' holds 0\.25 where 0\.5"),
    ):
        interpret(checkpoint)


@pytest.mark.parametrize("name", ["exaone4", "apertus"])
def test_divisors_of_frequencies_are_those_of_llama_3(name: str, tmp_path: Path) -> None:
    """Which converters write in their place, of the released models' original context."""
    scaling = {"rope_type": "llama3", "factor": 16.0, "rope_theta": 1e6}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    parameters = {**scaling, "original_max_position_embeddings": 8192}
    config, tensors = source_of(name, rope_parameters=parameters, rope_theta=1e6)
    frequencies = 1e6 ** -(np.arange(8) / 8)
    turned, curves = describe(config).ropes[0].inv_freq, curves_of(tensors)

    def extra(writer: Any) -> None:
        write_metadata(writer, name, METADATA[name])
        for key, values in curves.items():
            writer.add_array(key, values)
        writer.add_tensor("rope_freqs.weight", (frequencies / turned).astype(np.float32))

    path = write_gguf(tmp_path / "model.gguf", name, config, tensors, extra=extra)
    assert difference(path, name, config) < 2e-6
