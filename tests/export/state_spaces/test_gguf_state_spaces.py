"""GGUF files of models with state spaces, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from tests.export.state_spaces.written import (
    ARCHITECTURES,
    Alteration,
    Tensors,
    nothing,
    written,
)
from tests.support.gguf_model import difference

GRANITE = "granitemoehybrid-mamba"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", name)
    assert difference(path, name, {}) < 2e-6
    result = export(path, tmp_path / "out", ExportOptions(verify=True))
    assert not result.warnings


def test_integers_of_such_files_are_kept(tmp_path: Path) -> None:
    """Also where a projection's rows begin behind others, or come of two tensors."""
    kinds = {"ssm_in": "Q8_0", "ffn_gate": "Q8_0", "ffn_up": "Q8_0", "ssm_out": "Q4_1"}
    path = written(tmp_path / "model.gguf", GRANITE, kinds)
    with open_checkpoint(str(path)) as checkpoint:
        weights, _ = interpret(checkpoint)
        rows = slice(3, 40)
        for part in ("mamba.in_proj_xbc", "mamba.in_proj_z", "mlp.gate_proj", "mlp.up_proj"):
            own = f"model.layers.0.{part}.weight"
            stored = weights.integers(own, rows)
            assert stored is not None
            restored = stored[0] * np.repeat(stored[1], 32, axis=1)
            np.testing.assert_array_equal(restored, weights.rows(own, rows))
        own = "model.layers.0.mamba.out_proj.weight"
        affine = weights.affine(own, rows)
        assert affine is not None and weights.integers(own, rows) is None


def test_a_width_that_nothing_says_is_that_of_experts_or_of_the_network(tmp_path: Path) -> None:
    path = written(
        tmp_path / "model.gguf",
        GRANITE,
        **{"expert_shared_feed_forward_length": None, "feed_forward_length": 96},
    )
    assert difference(path, GRANITE, {}) < 2e-6


@pytest.mark.parametrize(
    ("alter", "changes", "message"),
    [
        (lambda own: own["blk.0.ssm_a"].__setitem__(1, 0.5), {}, "rate' holds 0.5; expected"),
        (lambda own: own["blk.0.ssm_a"].__setitem__(1, 0), {}, "rate' holds 0; expected"),
        (lambda own: own.pop("blk.2.ssm_dt.bias"), {}, "no tensor 'model.layers.2.*dt_bias'"),
        (lambda own: own.pop("blk.2.ssm_conv1d.bias"), {}, "no tensor '.*conv1d.bias'"),
        (lambda own: own.pop("blk.0.ffn_up.weight"), {}, "no tensor '.*shared_mlp.input_linear"),
        (nothing, {"ssm.group_count": 3}, "8 heads of state spaces are not a multiple of 3"),
        (nothing, {"ssm.inner_size": 130}, "130 elements of state spaces are not a multiple of 8"),
        (nothing, {"ssm.time_step_rank": 3}, "128 elements of state spaces .* of 3 heads"),
        (nothing, {"ssm.state_size": 24}, r"conv1d.weight' has shape \[256, 1, 4\]"),
        (nothing, {"ssm.conv_kernel": None}, "lacks 'granitehybrid.ssm.conv_kernel'"),
        (nothing, {"ssm.conv_kernel": 0}, "conv_kernel' is 0; expected 1"),
        (nothing, {"rope.scaling.finetuned": True}, "with rotary embedding"),
        (nothing, {"attention.head_count_kv": [0, 0, 0]}, "have no key heads"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    alter: Alteration, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgerunError, match=message):
        export(
            written(tmp_path / "model.gguf", GRANITE, alter=alter, **changes),
            tmp_path / "out",
            ExportOptions(),
        )


def test_a_vector_of_another_shape_is_refused(tmp_path: Path) -> None:
    def flat(own: Tensors) -> None:
        own["blk.0.ssm_d"] = own["blk.0.ssm_d"][:4]

    path = written(tmp_path / "model.gguf", GRANITE, alter=flat)
    with pytest.raises(CheckpointError, match=r"D' has shape \[4\]; config"):
        export(path, tmp_path / "out", ExportOptions())


def with_norm(own: Tensors) -> None:
    """A norm that no file says the place of."""
    own["blk.0.ssm_norm.weight"] = np.ones((2, 48), np.float32)


NEMOTRON, EXPERTS, FALCON = "nemotron_h", "nemotron_h-experts", "falcon_h1"


@pytest.mark.parametrize(
    ("name", "alter", "changes", "message"),
    [
        (NEMOTRON, nothing, {"ssm.inner_size": 97}, "97 elements of state spaces are not"),
        (NEMOTRON, nothing, {"attention.head_count_kv": [2] * 5}, "layer 1 has both attention and"),
        (NEMOTRON, nothing, {"feed_forward_length": [96]}, "for each of 5 layers"),
        (NEMOTRON, nothing, {"feed_forward_length": [0, 96, 96, 0, 96]}, "no tensor 'backbone.l"),
        (NEMOTRON, lambda own: own.pop("blk.1.ffn_up.weight"), {}, r"no tensor '.*mixer.up_proj"),
        (EXPERTS, nothing, {"moe_latent_size": 8}, "with a moe_latent_size"),
        (EXPERTS, nothing, {"expert_shared_count": 2}, "n_shared_experts of 2"),
        (EXPERTS, nothing, {"expert_weights_norm": False}, "'expert_weights_norm' is False"),
        (EXPERTS, nothing, {"expert_group_count": 2}, "'expert_group_count' is 2"),
        (FALCON, with_norm, {}, "ssm_norm.weight' has no known place"),
        (FALCON, nothing, {"ssm.time_step_rank": 5}, "96 elements of state spaces are not"),
    ],
)
def test_files_of_other_families_that_do_not_fit_are_refused(
    name: str, alter: Alteration, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EdgerunError, match=message):
        export(
            written(tmp_path / "model.gguf", name, alter=alter, **changes),
            tmp_path / "out",
            ExportOptions(),
        )


def test_layers_that_predict_more_tokens_are_left_out(tmp_path: Path) -> None:
    def one_more(own: Tensors) -> None:
        own["blk.5.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
        own["blk.5.attn_q.weight"] = np.ones((64, 64), np.float32)

    changes = {
        "block_count": 6,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 0, 0, 2, 0, 2],
        "feed_forward_length": [0, 96, 0, 0, 96, 0],
    }
    path = written(tmp_path / "model.gguf", NEMOTRON, alter=one_more, **changes)
    assert difference(path, NEMOTRON, {}) < 2e-6
    with open_checkpoint(str(path)) as checkpoint:
        _, warnings = interpret(checkpoint)
    assert warnings == ["its layers for multi-token prediction (MTP) are left out"]
