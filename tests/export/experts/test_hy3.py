"""Hy3, and Mistral Small 4: what configurations mean, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, EdgerunError, UnsupportedError
from edgerun_export.architectures import Experts, describe
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tests.support.bundles import GOLDEN, config_of, spec_without


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("hy_v3", {"mlp_bias": True}, UnsupportedError, "hy_v3 checkpoints with mlp_bias True"),
        ("hy_v3", {"num_shared_experts": 0}, CheckpointError, "'num_shared_experts' is 0 and must"),
        ("hy_v3", {"num_experts_per_tok": 7}, CheckpointError, "7 experts, .* num_experts 6"),
        ("hy_v3", {"mlp_layer_types": ["dense"]}, CheckpointError, "must be 2 times 'dense' or"),
        ("hy_v3", {"router_scaling_factor": 0}, CheckpointError, "'router_scaling_factor' is 0"),
        (
            "mistral4",
            {"n_group": 3, "topk_group": 1},
            UnsupportedError,
            "topk_group 1 of n_group 3 groups of experts",
        ),
        ("mistral4", {"attention_bias": True}, UnsupportedError, "latent attention with biases"),
        ("mistral4", {"partial_rotary_factor": 0.5}, CheckpointError, "0.5 turns others than the"),
        ("mistral4", {"n_routed_experts": 1}, CheckpointError, "n_routed_experts 1"),
        ("mistral4", {"first_k_dense_replace": 3}, CheckpointError, "from 0 to 2"),
    ],
)
def test_configurations_that_are_none_are_refused(
    name: str, changes: dict[str, Any], error: type[EdgerunError], message: str
) -> None:
    if "partial_rotary_factor" in changes:  # which stands among what is said of the rope
        changes = {"rope_parameters": {**config_of(name)["rope_parameters"], **changes}}
    with pytest.raises(error, match=message):
        describe(config_of(name, **changes))


def test_keys_that_are_left_out_mean_what_transformers_takes_them_for() -> None:
    keys = ("mlp_layer_types", "num_shared_experts", "router_scaling_factor", "rope_parameters")
    spec = spec_without("hy_v3", *keys)
    dense, sparse = (layer.feed_forward for layer in spec.layers)
    assert not isinstance(dense, Experts) and isinstance(sparse, Experts)
    assert sparse.shared is not None
    assert (sparse.scale, sparse.shared.width) == (2.826, sparse.width)
    assert spec.ropes[0].inv_freq[1] == np.float32(11158840.0 ** (-2 / 32))
    spec = spec_without("mistral4", "rope_parameters", "norm_topk_prob", "n_shared_experts")
    part = spec.layers[0].feed_forward
    assert isinstance(part, Experts) and part.normalise and part.shared is not None
    assert spec.context_length == 128  # the original one is longer


def test_scores_that_grow_with_positions_leave_the_original_context() -> None:
    spec = describe(config_of("mistral4"))
    assert spec.context_length == 64
    assert spec.notes[0].startswith("the context is 64 tokens: for longer ones, up to 128")


def test_a_layer_that_predicts_several_tokens_is_left_out_and_said_so(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "hy_v3", tmp_path / "checkpoint"))
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.2.eh_proj.weight"] = np.ones((2, 2), np.float32)
    save_file(stored, folder / "model.safetensors")
    with open_checkpoint(str(folder)) as checkpoint:
        _, notes = interpret(checkpoint)
    assert notes == ["its layers for multi-token prediction (MTP) are left out"]
    stored["model.layers.3.eh_proj.weight"] = np.ones((2, 2), np.float32)
    save_file(stored, folder / "model.safetensors")
    with (
        open_checkpoint(str(folder)) as checkpoint,
        pytest.raises(CheckpointError, match=r"layers\.3\.eh_proj\.weight' has no place"),
    ):
        interpret(checkpoint)
