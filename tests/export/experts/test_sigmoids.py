"""Flint: what configurations say of experts that sigmoids choose."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN, config_of, spec_without


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("flint", {"num_experts_per_tok": 7}, CheckpointError, "7 experts, .* num_experts 6"),
        ("flint", {"mlp_only_layers": "0"}, CheckpointError, "'mlp_only_layers' is '0'"),
        ("flint", {"layer_types": ["full_attention"]}, CheckpointError, "names 1 layers"),
        ("flint", {"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
        ("flint", {"shared_expert_intermediate_size": 0}, CheckpointError, "_size' is 0"),
        ("flint", {"hidden_act": "gelu"}, UnsupportedError, "activation 'gelu'"),
        ("flint", {"partial_rotary_factor": 0.5}, UnsupportedError, "partial rotary"),
    ],
)
def test_configurations_that_are_none_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_keys_that_flint_leaves_out_mean_what_its_class_takes_them_for() -> None:
    keys = ("layer_types", "mlp_only_layers", "num_experts", "num_experts_per_tok")
    keys += ("sliding_window", "shared_expert_intermediate_size", "norm_topk_prob", "head_dim")
    spec = spec_without("flint", *keys, num_hidden_layers=8)
    windows = [None, None, 513, 513, 513, None, 513, None]
    assert [layer.window for layer in spec.layers] == windows
    assert [layer.rope for layer in spec.layers] == [0 if window else None for window in windows]
    parts = [layer.feed_forward for layer in spec.layers]
    assert [isinstance(part, Experts) for part in parts] == [False] * 2 + [True] * 6
    experts = parts[-1]
    assert isinstance(experts, Experts) and experts.shared is not None
    assert (experts.count, experts.top_k, experts.normalise) == (256, 6, True)
    assert (experts.shared.width, experts.shared.gate, experts.selection_bias) == (1024, "", "")
    assert spec.head_dim == 128


def test_sinks_of_flint_are_those_of_released_files(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "flint", tmp_path / "checkpoint"))
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.softmax_offset"
    stored["model.layers.0.self_attn.sinks"] = stored.pop(name)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"has no tensor '{name}', which flint needs"):
        export(folder, tmp_path / "out", ExportOptions())
