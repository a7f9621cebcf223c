"""Formats of single projections: rules, what they come to, and bundles that are made by them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import UnsupportedError
from edgerun_export.cli import _summary
from edgerun_export.graph.fused_experts import obstacle
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.recipe import TensorRecipe, make_recipe, method_names
from edgerun_export.rules import parse_rule, with_rules
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import runner

RULES = ("*.down_proj=int8:16", "layers.1.*=int4:64", "layers.1.self_attn.o_proj=fp32")
DOWN, UP = "model.layers.{}.mlp.down_proj", "model.layers.{}.mlp.up_proj"
OUT = "model.layers.{}.self_attn.o_proj"


@given(
    st.sampled_from(["*", "layers.0.*", "*.down_proj", "a=b"]),
    st.sampled_from(["int2", "int4", "int8", "ternary"]),
    st.sampled_from([None, 16, 32, 64, 128, 256]),
    st.sampled_from([None, *method_names()]),
)
def test_rules_are_read_as_they_are_written(pattern, weights, group, method):
    text = f"{pattern}={weights}"
    if group or method:
        text += f":{group or ''}"
    if method:
        text += f":{method}"
    rule = parse_rule(text)
    assert (rule.pattern, rule.weights, rule.group_size, rule.method) == (
        pattern,
        weights,
        group,
        method,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("*.down_proj", "is no rule; expected PATTERN=FORMAT"),
        ("=int4", "is no rule"),
        ("*=", "is no rule"),
        ("*=int4:32:rtn:more", "is no rule"),
        ("*=int4:many", "is no rule"),
        pytest.param("*=int4:" + "9" * 5000, "is no rule", id="digits"),
        ("*=int3", r"--rule '\*=int3': int3 is not supported; choose one of: .*, source$"),
        ("*=int4:48", ": 48 is not supported; choose one of: 16, 32, 64, 128, 256"),
        ("*=fp32:64", "'*=fp32:64': fp32 is not rounded, so a group or a method has no effect"),
        ("*=fp32::gptq", "fp32 is not rounded"),
        ("*=int4:32:magic", ": magic is not supported; choose one of: .*, rtn"),
    ],
)
def test_what_is_no_rule_is_refused(text, reason):
    with pytest.raises(UnsupportedError, match=reason):
        parse_rule(text)


def test_the_last_rule_that_matches_counts(golden):
    recipe = with_rules(make_recipe("int4", method="rtn"), RULES, golden("llama").spec)
    assert recipe.rules == RULES
    assert recipe.tensor(DOWN.format(0)) == TensorRecipe("int8", 16, None)
    assert recipe.tensor(DOWN.format(1)) == TensorRecipe("int4", 64, "rtn")
    assert recipe.tensor(OUT.format(1)) == TensorRecipe("fp32", 32, None)
    assert recipe.tensor(UP.format(0)) == TensorRecipe("int4", 32, "rtn")
    assert len(recipe.tensors) == 1 + 7


def test_a_rule_that_says_what_is_so_anyway_changes_nothing(golden):
    recipe = with_rules(make_recipe("int4"), ["*=int4"], golden("llama").spec)
    assert recipe.tensors == {}


def test_a_group_size_for_all_is_not_one_for_other_formats(golden):
    recipe = with_rules(make_recipe("int4", 64), ["*.up_proj=ternary"], golden("llama").spec)
    assert recipe.tensor(UP.format(0)) == TensorRecipe("ternary", 128, None)


@pytest.mark.parametrize("pattern", ["*.down", "model.layers.2.*", "layers.*.Q_PROJ", "lm_head"])
def test_rules_that_match_nothing_are_refused(pattern, golden):
    with pytest.raises(UnsupportedError, match=r"matches no projection.*layers\.1.*mlp\.down_proj"):
        with_rules(make_recipe("int4"), ["*=int8", f"{pattern}=int8"], golden("llama").spec)


def test_groups_that_do_not_divide_are_refused_with_those_that_do(golden):
    spec = golden("llama").spec  # 64 wide
    with pytest.raises(UnsupportedError, match=r"64 weights, .*groups of 128; .* 16, 32, 64 fit"):
        with_rules(make_recipe("int8"), ["*.up_proj=int4:128"], spec)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_bundles_compute_with_what_the_rules_say(name, exported, golden):
    """Codes in the file, onnxruntime against NumPy (--verify), and edgerun against NumPy."""
    rules = RULES if name == "llama" else ("*.experts.*=int8", "layers.1.*.w2=int2")
    result = exported(name, rules=rules, activations="fp32", verify=True)
    model = onnx.load(str(result.folder / "model.onnx"), load_external_data=False)
    bits = {
        node.name: next(each.i for each in node.attribute if each.name == "bits")
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
    }
    tiny = golden(name)
    for layer in range(tiny.spec.num_layers):
        for projection in tiny.spec.projections(layer):
            module = f"model.layers.{layer}.{projection.path}"
            expected = result.recipe.tensor(module).bits
            at = "/" + module.replace(".", "/").replace("layers/", "layers.")
            at = at.replace("experts/", "experts.") + "/MatMulNBits"
            assert bits.get(at, 32) == expected
    reference = forward(tiny.spec, BundleWeights(result.folder, tiny.spec), tiny.ids)
    with runner(result.folder, "cpu") as model:
        assert relative_error(model.run(tiny.ids), reference) < 2e-5


def test_the_manifest_says_what_rules_come_to(exported):
    manifest = exported("llama", rules=RULES, activations="fp32", verify=True).manifest
    assert tuple(manifest["recipe"]["rules"]) == RULES
    tensors = manifest["recipe"]["tensors"]
    assert tensors[DOWN.format(0)] == {"weights": "int8", "group_size": 16, "method": None}
    assert "8 projections otherwise" in _summary(Path("x"), manifest)


def test_a_bundle_of_a_method_that_is_not_known_runs(exported, golden, tmp_path):
    """Codes are codes, whoever found them."""
    folder = exported("llama", rules=("layers.0.*=int8",)).folder
    shutil.copytree(folder, tmp_path / "later")
    path = tmp_path / "later" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["recipe"]["method"] = "of later"
    for kind in manifest["recipe"]["tensors"].values():
        kind["method"] = "of later"
    manifest["quality"] |= {"of_later": {"nats": 1}}
    path.write_text(json.dumps(manifest))
    logits = []
    for each in (folder, tmp_path / "later"):
        with runner(each, "reference") as model:
            logits.append(model.run(golden("llama").ids))
    np.testing.assert_array_equal(*logits)


def test_rules_decide_whether_experts_are_one_operator(golden):
    spec = golden("olmoe").spec
    usual = make_recipe("int8", profile="genai")
    assert "int8 weights" in obstacle(spec, usual)
    assert not obstacle(spec, with_rules(usual, ["*.experts.*=int4:32"], spec))
    mixed = with_rules(usual, ["*.experts.*=int4:32", "*.down_proj=int4:16"], spec)
    assert "several formats" in obstacle(spec, mixed)


def test_rules_that_tell_experts_apart_are_refused(golden):
    with pytest.raises(UnsupportedError, match=r"experts\.0\.gate_proj' and .*experts\.1\.gate_pr"):
        with_rules(make_recipe("int4"), ["*.experts.1.*=int8"], golden("olmoe").spec)


def test_experts_that_a_checkpoint_tells_apart_can_be_given_one_format(golden):
    def stored(module):
        return TensorRecipe("int8" if ".experts.1." in module else "int4", 32)

    rules, spec = ["*=source"], golden("olmoe").spec
    with pytest.raises(UnsupportedError, match=r"add a --rule .*such as '\*\.experts\.\*=int8'"):
        with_rules(make_recipe("int4"), rules, spec, stored)
    recipe = with_rules(make_recipe("int4"), [*rules, "*.experts.*=int8"], spec, stored)
    assert recipe.tensor("model.layers.0.mlp.experts.0.gate_proj").weights == "int8"


def test_experts_round_their_inputs_for_all_projections_or_for_none(golden):
    spec = golden("mixtral").spec
    rules = ["*.experts.*.w2=fp32"]
    with pytest.raises(UnsupportedError, match=r"0\.w2' would be fp32 and .*: take --activations"):
        with_rules(make_recipe("int4"), rules, spec)
    exact = make_recipe("int4", activations="fp32")
    assert with_rules(exact, rules, spec).tensors
    assert with_rules(make_recipe("int4"), ["*.experts.*=fp32"], spec).tensors


def test_fused_experts_have_the_format_of_their_rule(golden, tmp_path):
    options = ExportOptions(weights="int8", rules=("*.experts.*=int4:16",), profile="genai")
    folder = export(golden("olmoe").folder, tmp_path / "out", options).folder
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    fused = [node for node in model.graph.node if node.op_type == "QMoE"]
    assert fused
    for node in fused:
        values = {each.name: each.i for each in node.attribute}
        assert (values["expert_weight_bits"], values["block_size"]) == (4, 16)


def test_a_rule_of_two_bits_is_warned_of(tmp_path):
    source = Path(__file__).resolve().parents[2] / "golden/llama"
    options = ExportOptions(weights="int8", rules=("*.down_proj=int2",))
    result = export(source, tmp_path / "out", options)
    assert "not trained for int2 weights" in result.warnings[0]
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert manifest["quality"]["kl_divergence"] > 0


@pytest.mark.parametrize(
    ("weights", "rule", "nats"),
    [("int2", "*=int8", 9.0), ("int8", "layers.0.*.v_proj=int2", 0.01)],
)
def test_two_bits_that_nothing_has_or_that_do_no_harm_are_not_warned_of(
    weights, rule, nats, tmp_path, monkeypatch
):
    monkeypatch.setattr("edgerun_export.pipeline.damage", lambda *_: nats)
    source = Path(__file__).resolve().parents[2] / "golden/llama"
    result = export(source, tmp_path / "out", ExportOptions(weights=weights, rules=(rule,)))
    assert result.warnings == []
