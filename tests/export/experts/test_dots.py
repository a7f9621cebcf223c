"""dots.llm1: which layers have experts and windows, what GGUF files say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.checkpoint import open_checkpoint
from tests.support.bundles import GOLDEN
from tests.support.gguf_model import difference, source_of, write_gguf, write_metadata

gguf = pytest.importorskip("gguf")


def config_of(**changes: Any) -> dict[str, Any]:
    return {**json.loads((GOLDEN / "dots1" / "config.json").read_text()), **changes}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_group": 4, "topk_group": 2}, CheckpointError, "of 6 experts .* in 4 groups"),
        ({"first_k_dense_replace": 3}, CheckpointError, "_replace' is 3 .* from 0 to 2"),
        ({"n_routed_experts": None}, CheckpointError, "'n_routed_experts' is None"),
        ({"num_experts_per_tok": 7}, CheckpointError, "n_routed_experts 6"),
        ({"routed_scaling_factor": 0}, CheckpointError, "'routed_scaling_factor' is 0"),
        ({"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
        ({"max_window_layers": -1}, CheckpointError, "'max_window_layers' is -1"),
        ({"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ({"layer_types": ["mamba"] * 2}, UnsupportedError, "'mamba', which is not supported"),
        ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial rotary"),
    ],
)
def test_configurations_that_are_none_are_refused(
    changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(**changes))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [None, 8]),
        ({"layer_types": None}, [None, 8]),
        ({"layer_types": ["sliding_attention", "full_attention"]}, [8, None]),
        ({"layer_types": None, "max_window_layers": 0}, [8, 8]),
        ({"layer_types": None, "max_window_layers": None}, [None, None]),
        ({"sliding_window": None}, [None, None]),
    ],
)
def test_windows_are_those_of_transformers(changes: dict[str, Any], windows: list[Any]) -> None:
    assert [layer.window for layer in describe(config_of(**changes)).layers] == windows


def test_configurations_without_such_keys_have_those_of_transformers() -> None:
    keys = ("first_k_dense_replace", "norm_topk_prob", "routed_scaling_factor", "layer_types")
    config = {key: value for key, value in config_of().items() if key not in keys}
    del config["sliding_window"], config["n_group"]
    for said in (config, {**config, **dict.fromkeys(keys)}):
        spec = describe({**said, "max_window_layers": 1})
        part = spec.layers[0].feed_forward
        assert isinstance(part, Experts) and spec.layers[1].feed_forward == part
        assert (part.normalise, part.scale, part.scoring) == (False, 1.0, "sigmoid")
        assert [layer.window for layer in spec.layers] == [None, 4096]


def test_all_projections_of_attention_have_a_bias_or_none() -> None:
    assert describe(config_of()).biases == frozenset()
    biases = describe(config_of(attention_bias=True)).biases
    assert biases == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_experts_come_after_dense_layers() -> None:
    layers = describe(config_of(num_hidden_layers=3, layer_types=None)).layers
    assert [isinstance(each.feed_forward, Experts) for each in layers] == [False, True, True]
    part = layers[2].feed_forward
    assert isinstance(part, Experts) and part.shared is not None
    assert (part.scale, part.normalise, part.shared.width) == (2.5, True, 80)


def write(folder: Path, **keys: Any) -> tuple[Path, dict[str, Any]]:
    """Writes a GGUF file with other metadata, None for none; returns it with the configuration."""
    config, tensors = source_of("dots1", sliding_window=None)  # which such files cannot say
    metadata = {
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        **keys,
    }

    def extra(writer: Any) -> None:
        write_metadata(writer, "dots1", metadata)

    return write_gguf(folder / "model.gguf", "dots1", config, tensors, extra=extra), config


def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(tmp_path: Path) -> None:
    path, config = write(tmp_path)
    assert difference(path, "dots1", config) < 2e-6
    with open_checkpoint(str(path)) as checkpoint:
        spec = describe({**checkpoint.config, "max_window_layers": 0})
    assert [layer.window for layer in spec.layers] == [None, None]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_gating_func": 1}, "'expert_gating_func' is 1, .* dots1 .*; expected 2 for"),
        ({"expert_gating_func": None}, "lacks 'dots1.expert_gating_func'"),
        ({"expert_weights_norm": False}, "'expert_weights_norm' is False"),
        ({"expert_weights_norm": None}, "lacks 'dots1.expert_weights_norm', which says whether"),
        ({"expert_group_count": 2}, "lacks 'dots1.expert_group_used_count'"),
        ({"expert_group_count": 0.5}, "'dots1.expert_group_count' is 0.5"),
        ({"rope.dimension_count": 8}, "heads of 16 with 8 rotated .* in dots1"),
    ],
)
def test_what_such_a_file_cannot_have_is_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path, _ = write(tmp_path, **keys)
    with pytest.raises(EdgerunError, match=message):
        open_checkpoint(str(path)).close()
