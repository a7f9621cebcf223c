"""GLM 4.5: what its configurations say, how its heads are read, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.weights import SourceWeights
from tests.support.bundles import GOLDEN

SOURCE = GOLDEN / "glm4_moe"
QUARTER = {"rope_type": "yarn", "factor": 8.0, "partial_rotary_factor": 0.25}


def config_of(**changes: Any) -> dict[str, Any]:
    return {**json.loads((SOURCE / "config.json").read_text()), **changes}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_group": 4, "topk_group": 2}, CheckpointError, "of 6 experts .* in 4 groups"),
        ({"first_k_dense_replace": 3}, CheckpointError, "_replace' is 3 .* from 0 to 2"),
        ({"first_k_dense_replace": -1}, CheckpointError, "'first_k_dense_replace' is -1"),
        ({"n_routed_experts": None}, CheckpointError, "'n_routed_experts' is None"),
        ({"num_experts_per_tok": 7}, CheckpointError, "n_routed_experts 6"),
        ({"n_shared_experts": -1}, CheckpointError, "'n_shared_experts' is -1"),
        ({"moe_intermediate_size": 0}, CheckpointError, "'moe_intermediate_size' is 0"),
        ({"routed_scaling_factor": 0}, CheckpointError, "'routed_scaling_factor' is 0"),
        ({"rms_norm_eps": "1e-5"}, CheckpointError, "'rms_norm_eps' is '1e-5'"),
        ({"num_nextn_predict_layers": -1}, CheckpointError, "'num_nextn_predict_layers' is -1"),
        ({"rope_parameters": {"rope_type": "spiral"}}, UnsupportedError, "'spiral' is not"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, CheckpointError, "of 32 .* 3 would"),
        ({"rope_parameters": {"partial_rotary_factor": 2}}, CheckpointError, "of 32 .* 64 would"),
        ({"rope_parameters": {"partial_rotary_factor": 0}}, CheckpointError, "_factor' is 0 and"),
        ({"rope_parameters": {"partial_rotary_factor": "x"}}, CheckpointError, "is 'x' and must"),
        ({"hidden_act": "gelu"}, UnsupportedError, "activation 'gelu' is not supported"),
    ],
)
def test_configurations_that_are_none_are_refused(
    changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    with pytest.raises(error, match=message):
        describe(config_of(**changes))


def test_configurations_without_such_keys_have_those_of_transformers() -> None:
    keys = (
        "n_group",
        "first_k_dense_replace",
        "n_shared_experts",
        "norm_topk_prob",
        "rms_norm_eps",
    )
    spec = describe(config_of(**dict.fromkeys((*keys, "routed_scaling_factor", "rope_parameters"))))
    expected = describe(config_of(routed_scaling_factor=1.0))
    assert spec.layers == expected.layers and spec.norm_eps == 1e-5
    np.testing.assert_array_equal(spec.ropes[0].inv_freq, expected.ropes[0].inv_freq)
    plain = describe(config_of(use_qk_norm=None, attention_bias=None))
    assert (plain.q_norm, plain.k_norm, plain.biases) == (None, None, frozenset())


def test_the_part_that_is_turned_may_stand_beside_the_other_keys() -> None:
    """As configurations of transformers 4 have it."""
    old = {"rope_parameters": None, "rope_scaling": None, "rope_theta": 10000}
    first, second = (
        describe(config_of(**changes))
        for changes in (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            {**old, "partial_rotary_factor": 0.25},
        )
    )
    np.testing.assert_array_equal(first.ropes[0].inv_freq, second.ropes[0].inv_freq)
    assert np.count_nonzero(first.ropes[0].inv_freq) == 4
    whole = describe(config_of(**old, partial_rotary_factor=1.0))
    assert whole.storage.head_rows is None and whole.ropes[0].inv_freq.all()


def test_layers_of_experts_come_after_dense_ones() -> None:
    parts = [
        layer.feed_forward
        for layer in describe(config_of(num_hidden_layers=4, first_k_dense_replace=2)).layers
    ]
    assert [isinstance(part, Experts) for part in parts] == [False, False, True, True]
    part = parts[2]
    assert isinstance(part, Experts) and part.shared is not None
    assert (part.scoring, part.scale, part.normalise) == ("sigmoid", 2.5, True)
    assert (part.shared.width, part.shared.gate) == (40, "")


def test_biases_are_those_of_queries_keys_and_values() -> None:
    names = describe(config_of()).tensors().keys()
    assert sorted(name for name in names if name.endswith("proj.bias") and "s.0." in name) == [
        f"model.layers.0.self_attn.{each}_proj.bias" for each in "kqv"
    ]


@pytest.mark.parametrize("is_normed", [False, True])
def test_factors_of_turned_elements_are_where_no_norm_undoes_them(is_normed: bool) -> None:
    """YaRN's factor on cosines and sines, of elements 0 and 4 of a head that are a pair."""
    spec = describe(config_of(rope_parameters=QUARTER, use_qk_norm=is_normed))
    order, growth = [0, 1, 2, 3, *range(8, 20), 4, 5, 6, 7, *range(20, 32)], 0.1 * math.log(8) + 1
    factors = np.where(np.isin(order, range(8)), growth, 1).astype(np.float32)
    stored = load_file(SOURCE / "model.safetensors")
    with open_checkpoint(str(SOURCE)) as checkpoint:
        source = SourceWeights(checkpoint, spec)
        for each in "qk":
            at = f"model.layers.1.self_attn.{each}"
            bias = stored[f"{at}_proj.bias"].reshape(-1, 32)[:, order].astype(np.float32)
            norm = stored[f"{at}_norm.weight"][order].astype(np.float32)
            rows = stored[f"{at}_proj.weight"].reshape(-1, 32, 64)[:, order].astype(np.float32)
            of_rows = 1 if is_normed else factors
            close = {"rtol": 1e-6, "atol": 0}
            loaded = source.vector(f"{at}_proj.bias").reshape(-1, 32)
            np.testing.assert_allclose(loaded, bias * of_rows, **close)
            loaded = source.matrix(f"{at}_proj.weight").reshape(-1, 32, 64)
            np.testing.assert_allclose(loaded, rows * np.reshape(of_rows, (-1, 1)), **close)
            if is_normed:
                loaded = source.vector(f"{at}_norm.weight")
                np.testing.assert_allclose(loaded, norm * factors, **close)


def test_layers_that_predict_several_tokens_are_left_out(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SOURCE, tmp_path / "with"))
    tensors = load_file(folder / "model.safetensors")
    behind = {k.replace("layers.1.", "layers.2."): v for k, v in tensors.items() if "rs.1.s" in k}
    save_file(tensors | behind, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="has no place in the glm4_moe"):
        export(folder, tmp_path / "out", ExportOptions(weights="int4"))
    (folder / "config.json").write_text(json.dumps(config_of(num_nextn_predict_layers=1)))
    result = export(folder, tmp_path / "out", ExportOptions(weights="int4"))
    assert any("(MTP) are left out" in said for said in result.warnings)
