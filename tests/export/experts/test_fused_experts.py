"""Experts as one operator of onnxruntime, in the genai profile: when, and that nothing changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from edgerun.formats import dense
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun_export.architectures import describe, registry
from edgerun_export.graph import fused_experts
from edgerun_export.graph.fused_experts import obstacle
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.recipe import make_recipe
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import relative_error, run_onnx
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN
from tests.support.peers import needs_complete_onnxruntime, onnxruntime_genai_tokens

FUSED = [
    ("olmoe", {"weights": "int4"}),
    ("qwen3_moe", {"weights": "int4", "group_size": 16}),
    ("gpt_oss", {"weights": "int4"}),
    ("olmoe", {"weights": "int4_asym", "group_size": 16}),
    ("lfm2_moe", {"weights": "int4", "group_size": 16}),
    ("ernie4_5_moe", {"weights": "int4", "group_size": 16}),
    ("deepseek_v2-groups", {"weights": "int4", "group_size": 16}),
    ("deepseek_v3-groups", {"weights": "int4", "group_size": 16}),
]
# Every mixture in every format: those above stand for them as a rule.
MIXTURES = [
    pytest.param(name, {"weights": weights}, marks=pytest.mark.slow)
    for name in ("mixtral", "olmoe", "qwen3_moe", "gpt_oss")
    for weights in ("ternary", "int4", "int8")
    if (name, {"weights": weights}) not in FUSED
]
REPLY = 32


def operators(folder: Path) -> list[str]:
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    return [node.op_type for node in model.graph.node]


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def constants(graph: Graph) -> list[NDArray[Any]]:
    """What the experts of all layers multiply by and add, as float32."""
    matrices: list[NDArray[Any]] = []
    for node in graph.nodes:
        for name in node.inputs[2:] if node.op == "experts" else ():
            stack = graph.constants[name]
            assert isinstance(stack, ExpertStack)
            matrices += (m if isinstance(m, np.ndarray) else dense(m) for m in stack.matrices)
    return matrices


@pytest.mark.parametrize(("name", "options"), FUSED)
def test_edgerun_reads_the_same_model_from_both_forms(name, options, exported):
    bundles = [
        exported(name, activations="fp32", profile=profile, **options)
        for profile in ("portable", "genai")
    ]
    assert not any("experts" in said for result in bundles for said in result.warnings)
    assert "QMoE" in operators(bundles[1].folder)
    assert "ScatterND" not in operators(bundles[1].folder)
    written, fused = (lowered(result.folder) for result in bundles)
    for op in ("route", "experts", "attention", "rotary", "rms_norm", "linear", "add"):
        attributes = [
            [dict(node.attrs) for node in graph.nodes if node.op == op]
            for graph in (written, fused)
        ]
        assert attributes[0] == attributes[1], op
    for first, second in zip(constants(written), constants(fused), strict=True):
        np.testing.assert_array_equal(first, second)
    angles = [
        {graph.array(node.inputs[2]).tobytes() for node in graph.nodes if node.op == "rotary"}
        for graph in (written, fused)
    ]
    assert angles[0] == angles[1]  # to the last bit, out of tables of cosines and sines


@needs_complete_onnxruntime
@pytest.mark.parametrize("decode_steps", [0, 8])
@pytest.mark.parametrize(("name", "options"), FUSED)
def test_onnxruntime_computes_with_the_dequantised_weights(
    name, options, decode_steps, golden, exported
):
    model = golden(name)
    bundle = exported(name, activations="fp32", profile="genai", **options).folder
    expected = forward(model.spec, BundleWeights(bundle, model.spec), model.ids)
    assert relative_error(run_onnx(bundle, model.spec, model.ids, decode_steps), expected) <= 1e-4


@pytest.mark.peers
@needs_complete_onnxruntime
@pytest.mark.parametrize(("name", "options"), [*FUSED, *MIXTURES])
def test_replies_are_the_same_in_onnxruntime_genai_and_edgerun(name, options, golden, exported):
    """With experts as one operator, or written out where that cannot compute them."""
    pytest.importorskip("onnxruntime_genai")
    import edgerun

    ids = golden(name).ids[:24].tolist()
    result = exported(name, activations="fp32", profile="genai", **options)
    bundle = result.folder
    assert ("QMoE" in operators(bundle)) != any("experts" in said for said in result.warnings)
    with edgerun.load(bundle, backend="cpu", threads=1, kv_cache="fp32") as model:
        reply = model.generate(ids, temperature=0, max_tokens=REPLY, ignore_eos=True)
        expected = list(reply.ids)
    tokens = onnxruntime_genai_tokens(bundle, ids, REPLY)
    assert tokens == expected[: len(tokens)]
    ends = json.loads((bundle / "manifest.json").read_text())["model"]["eos_token_ids"]
    assert len(tokens) == REPLY or tokens[-1] in ends


@needs_complete_onnxruntime
def test_the_operator_takes_the_softmax_of_experts_in_groups(tmp_path, monkeypatch):
    """With scores that add up to 1 and no factor, as no architecture has them with groups."""
    name = "deepseek_v2-groups"
    spec = describe(json.loads((GOLDEN / name / "config.json").read_text()))
    parts = [layer.feed_forward for layer in spec.layers]
    parts[1] = replace(parts[1], normalise=True, scale=1.0)
    spec = spec.with_feed_forward(parts)
    monkeypatch.setitem(registry._architectures(), "deepseek_v2", lambda config: spec)
    ids = np.arange(20)
    for profile in ("portable", "genai"):
        folder = tmp_path / profile
        options = ExportOptions(weights="int4", profile=profile, group_size=16, activations="fp32")
        export(GOLDEN / name, folder, options)
        expected = forward(spec, BundleWeights(folder, spec), ids)
        assert relative_error(run_onnx(folder, spec, ids), expected) <= 1e-4
        (route,) = (node for node in lowered(folder).nodes if node.op == "route")
        assert (route.attrs["normalise"], route.attrs["scale"], route.attrs["groups"]) == (1, 1, 4)
    assert "QMoE" in operators(folder)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("olmoe", {"weights": "int8"}, "with int8 weights in groups it always rounds"),
        ("mixtral", {"weights": "int4"}, "rows of 40 weights are no whole groups of 32"),
        ("olmoe", {"weights": "fp32"}, "it takes quantised weights only"),
    ],
)
def test_what_the_operator_cannot_compute_is_written_out_and_said(name, options, reason, exported):
    result = exported(name, profile="genai", **options)
    (warning,) = result.warnings
    assert "QMoE" in warning and reason in warning
    assert "QMoE" not in operators(result.folder)
    assert "ScatterND" in operators(result.folder)


@pytest.mark.parametrize(("profile", "warns"), [("portable", True), ("genai", False)])
def test_very_many_experts_written_out_are_warned_of(profile, warns, monkeypatch, tmp_path):
    options = ExportOptions(weights="int4", profile=profile)
    monkeypatch.setattr(fused_experts, "MANY_EXPERTS", 15)  # the model has 16
    warnings = export(GOLDEN / "olmoe", tmp_path / "many", options).warnings
    assert [each.split(":")[0] for each in warnings] == ["16 experts are written out one by one"][
        : int(warns)
    ]
    monkeypatch.setattr(fused_experts, "MANY_EXPERTS", 16)
    assert not export(GOLDEN / "olmoe", tmp_path / "few", options).warnings


def test_dense_models_are_not_warned_of(exported):
    assert exported("llama", profile="genai", weights="int8").warnings == []


def test_other_obstacles(golden):
    from dataclasses import replace

    spec, recipe = golden("olmoe").spec, make_recipe("int4", profile="genai")
    assert obstacle(spec, recipe) == ""
    assert "activation relu2" in obstacle(replace(spec, activation="relu2"), recipe)
    assert "natively ternary" in obstacle(replace(spec, ternary="master"), recipe)
