"""ERNIE 4.5 with experts: which layers have some, what is left out, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.pipeline import ExportOptions, export
from tests.support.bundles import GOLDEN

SOURCE = GOLDEN / "ernie4_5_moe"
BIAS = "model.layers.1.mlp.moe_statics.e_score_correction_bias"


def config_of(**changes: Any) -> dict[str, Any]:
    return {**json.loads((SOURCE / "config.json").read_text()), **changes}


def copied(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Path:
    """The golden checkpoint with other tensors, none where they are empty."""
    shutil.copytree(SOURCE, folder)
    changed = load_file(folder / "model.safetensors") | tensors
    save_file({k: v for k, v in changed.items() if v.size}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(**changes)))
    return folder


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"use_bias": True}, UnsupportedError, "with use_bias True are not supported"),
        ({"moe_norm_min": 0.5}, UnsupportedError, "moe_norm_min of 0.5 .* at most 1e-09"),
        ({"moe_norm_min": "0"}, CheckpointError, "'moe_norm_min' is '0'"),
        ({"moe_k": 7}, CheckpointError, "moe_k 7 experts, and there are moe_num_experts 6"),
        ({"moe_k": None}, CheckpointError, "'moe_k' is None"),
        ({"moe_layer_start_index": 4}, CheckpointError, "_start_index' is 4 .* from 0 to 3"),
        ({"moe_layer_end_index": 3}, CheckpointError, "_end_index' is 3 .* layer, 0 to 2"),
        ({"moe_layer_end_index": -2}, CheckpointError, "_end_index' is -2 and"),
        ({"moe_layer_end_index": "2"}, CheckpointError, "_end_index' is '2' and"),
        ({"moe_layer_interval": 0}, CheckpointError, "'moe_layer_interval' is 0"),
        ({"moe_num_shared_experts": -1}, CheckpointError, "'moe_num_shared_experts' is -1"),
        ({"num_nextn_predict_layers": -1}, CheckpointError, "'num_nextn_predict_layers' is -1"),
    ],
)
def test_configurations_that_are_none_are_refused(
    changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(**changes))


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, [False, True, True]),
        ({"moe_layer_start_index": None, "moe_layer_end_index": None}, [False, True, True]),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": 1}, [True, True, False]),
        ({"moe_layer_start_index": 0, "moe_layer_interval": 2}, [False, True, False]),
        ({"moe_layer_start_index": 3}, [False] * 3),
    ],
)
def test_some_layers_have_experts(changes: dict[str, Any], layers: list[bool]) -> None:
    """As transformers' ``Ernie4_5_MoeDecoderLayer`` chooses them."""
    parts = [layer.feed_forward for layer in describe(config_of(**changes)).layers]
    assert [isinstance(part, Experts) for part in parts] == layers


def test_shared_experts_are_one_network_without_a_gate_or_none() -> None:
    spec = describe(config_of())
    shared = spec.shared_expert(1)
    assert shared is not None and shared.width == 96
    assert spec.shared_gate(1) is None and spec.experts == (6, 2)
    alone = describe(config_of(moe_num_shared_experts=0))
    assert alone.shared_expert(1) is None and alone.tensors().keys() < spec.tensors().keys()


def test_configurations_without_such_keys_have_those_of_transformers() -> None:
    keys = ("moe_norm_min", "moe_num_shared_experts", "rms_norm_eps", "tie_word_embeddings")
    changed = dict.fromkeys((*keys, "moe_layer_interval", "rope_theta"))
    spec, expected = describe(config_of(**changed)), describe(config_of())
    assert spec.layers == expected.layers and (spec.norm_eps, spec.tied) == (1e-5, True)
    np.testing.assert_array_equal(spec.ropes[0].inv_freq, expected.ropes[0].inv_freq)


def test_multi_token_prediction_is_left_out_where_the_configuration_tells_of_it(
    tmp_path: Path,
) -> None:
    more = {"model.mtp_block.0.mlp.gate_proj.weight": np.ones((4, 4), np.float16)}
    folder = copied(tmp_path / "some", more)
    result = export(folder, tmp_path / "out", ExportOptions(verify=True))
    assert any("(MTP) are left out" in said for said in result.warnings)
    folder = copied(tmp_path / "none", more, num_nextn_predict_layers=0)
    with pytest.raises(CheckpointError, match=r"'model.mtp_block.*' \(and 1 more\) has no place"):
        export(folder, tmp_path / "again", ExportOptions())


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (np.ones(0, "f"), f"no tensor '{BIAS}', which ernie4_5_moe needs"),
        (np.ones(6, "f"), rf"'{BIAS}' has shape \[6\]; config.json asks for \[1, 6\]"),
        (np.full((1, 6), np.nan, "f"), f"'{BIAS}' holds NaN or Inf"),
    ],
)
def test_biases_of_choices_that_are_none_are_refused(
    bias: np.ndarray, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        export(copied(tmp_path / "model", {BIAS: bias}), tmp_path / "out", ExportOptions())
