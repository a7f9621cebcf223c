"""Flint, Kolibri 1 and Laguna: what configurations say of experts that sigmoids choose."""

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
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.compare import relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN, bundle_of, config_of, spec_without

HEADS, ROPES = "num_attention_heads_per_layer", "rope_parameters"
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


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
        ("kolibri1", {"sliding_window": None}, UnsupportedError, "a sliding_window of null, which"),
        ("kolibri1", {"sliding_window": 0}, CheckpointError, "'sliding_window' is 0"),
        ("kolibri1", {"num_experts_per_tok": 7}, CheckpointError, "7 experts, .*local_experts 6"),
        ("kolibri1", {"layer_types": ["mamba"] * 2}, UnsupportedError, "'mamba'"),
        ("kolibri1", {"moe_intermediate_size": 0}, CheckpointError, "'moe_intermediate_size' is 0"),
        ("kolibri1", {"hidden_act": "gelu"}, UnsupportedError, "activation 'gelu'"),
        ("laguna", {"moe_router_logit_softcapping": -5.0}, CheckpointError, "capping' is -5.0"),
        ("laguna", {"moe_apply_router_weight_on_input": True}, UnsupportedError, "on_input True"),
        ("laguna", {"gating": False}, UnsupportedError, "a gating of False are not supported"),
        ("laguna", {"gating": "per-row"}, UnsupportedError, "a gating of 'per-row'"),
        ("laguna", {HEADS: [4]}, CheckpointError, "must be 2 multiples of num_key_value_heads 2"),
        ("laguna", {HEADS: [4, 5]}, CheckpointError, r"2, not \[4, 5\]"),
        ("laguna", {HEADS: [4, True]}, CheckpointError, r"not \[4, True\]"),
        ("laguna", {HEADS: "4"}, CheckpointError, "2, not 4"),
        ("laguna", {HEADS: [4, 1 << 17]}, CheckpointError, "131072 heads of 16 have 2097152"),
        ("laguna", {ROPES: {"full_attention": ROPE}}, CheckpointError, "no object 'sliding_att"),
        ("laguna", {ROPES: ROPE}, CheckpointError, "no object 'full_attention' with a rope_theta"),
        ("laguna", {ROPES: [1]}, CheckpointError, "'rope_parameters' must be an object"),
        ("laguna", {"mlp_layer_types": ["dense"]}, CheckpointError, "must be 2 times 'dense'"),
        ("laguna", {"layer_types": ["mamba"] * 2}, UnsupportedError, "'mamba'"),
        ("laguna", {"moe_routed_scaling_factor": -1}, CheckpointError, "scaling_factor' is -1"),
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


def test_keys_that_kolibri_leaves_out_mean_what_its_class_takes_them_for() -> None:
    keys = ("layer_types", "sliding_window", "num_local_experts", "num_experts_per_tok")
    keys += ("intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob")
    spec = spec_without("kolibri1", *keys, num_hidden_layers=6)
    windows = [513, 513, 513, 513, None, 513]
    assert [layer.window for layer in spec.layers] == windows
    assert [layer.rope for layer in spec.layers] == [0 if window else None for window in windows]
    experts = spec.layers[0].feed_forward
    assert isinstance(experts, Experts) and experts.shared is not None
    assert (experts.count, experts.top_k, experts.normalise) == (384, 6, False)
    assert (experts.shared.width, experts.shared.gate, experts.biased) == (512, "", "logits")
    counted = spec_without("kolibri1", "num_local_experts", num_experts=5).layers[0].feed_forward
    assert isinstance(counted, Experts) and counted.count == 5


def test_keys_that_laguna_leaves_out_mean_what_its_class_takes_them_for() -> None:
    keys = ("layer_types", "mlp_layer_types", HEADS, ROPES, "gating", "sliding_window")
    spec = spec_without("laguna", *keys, num_hidden_layers=3, head_dim=16)
    assert [layer.window for layer in spec.layers] == [None] * 3
    assert [spec.num_heads_of(layer) for layer in range(3)] == [4] * 3
    assert [isinstance(layer.feed_forward, Experts) for layer in spec.layers] == [False, True, True]
    (turning,) = spec.ropes
    assert turning.inv_freq.tolist()[4:] == [0] * 4
    assert turning.inv_freq[1] == pytest.approx(500000 ** (-1 / 4))
    assert {*spec.storage.own_head_rows} == {0, 1, 2}


def test_every_layer_of_laguna_turns_as_much_of_its_heads_as_its_type_says() -> None:
    spec = describe(config_of("laguna"))
    assert [layer.rope for layer in spec.layers] == [0, 1]
    assert [int((each.inv_freq > 0).sum()) for each in spec.ropes] == [4, 8]
    assert {*spec.storage.own_head_rows} == {0}  # all of a head is turned in the other
    shapes = [spec.attention(layer)["attention_gate"].out_features for layer in range(2)]
    assert shapes == [4, 6]


@pytest.mark.parametrize(("gating", "rows"), [("per-head", 6), ("per-element", 96)])
def test_gates_of_laguna_have_a_row_for_each_head_or_element(
    gating: str, rows: int, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "laguna", tmp_path / "checkpoint"))
    (folder / "config.json").write_text(json.dumps(config_of("laguna", gating=gating)))
    stored = load_file(folder / "model.safetensors")
    if gating == "per-element":  # the same gates, all of them written out
        for layer in range(2):
            name = f"model.layers.{layer}.self_attn.g_proj.weight"
            stored[name] = np.repeat(stored[name], 16, axis=0)
    save_file(stored, folder / "model.safetensors")
    with open_checkpoint(str(folder)) as checkpoint:
        assert checkpoint.tensors()["model.layers.1.self_attn.g_proj.weight"].shape[0] == rows
        source, _ = interpret(checkpoint)
        with np.load(GOLDEN / "laguna" / "golden.npz") as golden:
            logits = forward(source.spec, source, golden["ids"].astype(np.int64))
            assert relative_error(logits, golden["logits"]) < 1e-5


def test_a_bundle_says_that_heads_differ_in_number() -> None:
    manifest = json.loads((bundle_of("laguna", weights="int4") / "manifest.json").read_text())
    sizes = {key: manifest["model"][key] for key in ("num_heads", "num_kv_heads", "head_dim")}
    assert sizes == {"num_heads": 0, "num_kv_heads": 2, "head_dim": 16}


@pytest.mark.parametrize("bound", [None, 0, 0.0])
def test_logits_of_laguna_are_bounded_if_a_bound_is_said(bound: float | None) -> None:
    key = "moe_router_logit_softcapping"
    parts = [describe(config_of("laguna", **{key: each})).layers[1] for each in (bound, 2.5)]
    softcaps = [
        part.feed_forward.softcap for part in parts if isinstance(part.feed_forward, Experts)
    ]
    assert softcaps == [None, 2.5]
