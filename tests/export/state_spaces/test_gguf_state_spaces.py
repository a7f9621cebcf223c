"""GGUF files of models with state spaces, written as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, EdgerunError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from tests.support.gguf_model import difference, source_of, write_gguf

gguf = pytest.importorskip("gguf")

NAMES = ["granitemoehybrid-mamba", "granitemoehybrid-experts"]
Tensors = dict[str, np.ndarray]
Alteration = Callable[[Tensors], object]


def nothing(own: Tensors) -> None:
    """Alters nothing."""


def of_space(part: str, value: np.ndarray, groups: int) -> tuple[str, np.ndarray]:
    """What the file calls a tensor of a state space, and what it has."""
    forms = {
        "in_proj.weight": ("ssm_in.weight", value),
        "conv1d.weight": ("ssm_conv1d.weight", value.squeeze()),
        "conv1d.bias": ("ssm_conv1d.bias", value),
        "dt_bias": ("ssm_dt.bias", value),
        "A_log": ("ssm_a", -np.exp(value)[:, None]),
        "D": ("ssm_d", value[:, None]),
        "norm.weight": ("ssm_norm.weight", value.reshape(groups, -1)),
        "out_proj.weight": ("ssm_out.weight", value),
    }
    return forms[part]


def converted(config: dict[str, Any], tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Tensors that are called as elsewhere, and those that are not."""
    shared = "_shexp" if config["num_local_experts"] else ""
    others: Tensors = {}
    own: Tensors = {}
    for key, value in tensors.items():
        at, _, part = key.partition(".mamba.")
        layer = key.split(".")[2]
        if part:
            name, stored = of_space(part, value, config["mamba_n_groups"])
            own[f"blk.{layer}.{name}"] = stored
        elif key.endswith("shared_mlp.input_linear.weight"):
            for name, rows in zip(("gate", "up"), np.split(value, 2), strict=True):
                own[f"blk.{layer}.ffn_{name}{shared}.weight"] = rows
        elif key.endswith("shared_mlp.output_linear.weight"):
            own[f"blk.{layer}.ffn_down{shared}.weight"] = value
        else:
            others[key.replace("router.layer", "gate")] = value
    return others, own


def metadata(config: dict[str, Any]) -> dict[str, Any]:
    """What is said of state spaces, and Granite's factors."""
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": False,
        "attention.scale": config["attention_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


def written(
    path: Path,
    name: str,
    kinds: dict[str, str] | None = None,
    alter: Alteration = nothing,
    **changes: Any,
) -> Path:
    """Writes a golden checkpoint as a GGUF file; ``kinds`` are types of what has other names."""
    config, tensors = source_of(name)
    others, own = converted(config, tensors)
    alter(own)

    def extra(writer: Any) -> None:
        for key, value in {**metadata(config), **changes}.items():
            if value is not None:
                kind = gguf.GGUFValueType.get_type(value)
                writer.add_key_value(f"granitehybrid.{key}", value, kind)
        for key, value in own.items():
            kind = next((kind for part, kind in (kinds or {}).items() if part in key), "F32")
            raw = gguf.GGMLQuantizationType[kind]
            stored = gguf.quants.quantize(np.ascontiguousarray(value), raw)
            writer.add_tensor(key, stored, raw_dtype=raw)

    return write_gguf(path, "granitehybrid", config, others, extra=extra)


@pytest.mark.parametrize("name", NAMES)
def test_files_of_llama_cpp_compute_what_the_checkpoint_computes(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "model.gguf", name)
    assert difference(path, name, {}) < 2e-6
    result = export(path, tmp_path / "out", ExportOptions(verify=True))
    assert not result.warnings


def test_integers_of_such_files_are_kept(tmp_path: Path) -> None:
    """Also where a projection's rows begin behind others, or come of two tensors."""
    kinds = {"ssm_in": "Q8_0", "ffn_gate": "Q8_0", "ffn_up": "Q8_0", "ssm_out": "Q4_1"}
    path = written(tmp_path / "model.gguf", NAMES[0], kinds)
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
        NAMES[0],
        **{"expert_shared_feed_forward_length": None, "feed_forward_length": 96},
    )
    assert difference(path, NAMES[0], {}) < 2e-6


@pytest.mark.parametrize(
    ("alter", "changes", "message"),
    [
        (lambda own: own["blk.0.ssm_a"].__setitem__(1, 0.5), {}, "rate' holds 0.5; expected"),
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
            written(tmp_path / "model.gguf", NAMES[0], alter=alter, **changes),
            tmp_path / "out",
            ExportOptions(),
        )


def test_a_vector_of_another_shape_is_refused(tmp_path: Path) -> None:
    def flat(own: Tensors) -> None:
        own["blk.0.ssm_d"] = own["blk.0.ssm_d"][:4]

    path = written(tmp_path / "model.gguf", NAMES[0], alter=flat)
    with pytest.raises(CheckpointError, match=r"D' has shape \[4\]; config"):
        export(path, tmp_path / "out", ExportOptions())
