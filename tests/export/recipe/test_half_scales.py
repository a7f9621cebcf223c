"""Scales in half precision: half the bytes, the same codes, and weights that a Cast makes."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from edgerun.backends.cpu.weights import WeightStore
from edgerun.errors import UnsupportedError
from edgerun.formats.base import has_half_scales
from edgerun.kernels.isa import selected_isa
from edgerun.model.bundle import open_bundle
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import quantise_rows
from edgerun_export.quantize.blocks import are_halves, halved
from edgerun_export.sizes import scale_bytes, size_warnings, weight_bytes
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.compare import relative_error
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import error_of, runner

PROJECTIONS = range(2 * 7)
DOWN = "model.layers.1.mlp.down_proj.weight"


def types_of(folder):
    """By name the type of every initializer that is a scale."""
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    return {
        tensor.name: tensor.data_type
        for tensor in model.graph.initializer
        if tensor.name.endswith(".scales")
    }


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("weights", ["int2", "int4", "int8"])
def test_bundles_compute_with_the_halved_scales(name, weights, golden, exported):
    options = {"weights": weights, "activations": "fp32", "verify": True}
    result = exported(name, scales="fp16", **options)
    tiny = golden(name)
    assert set(types_of(result.folder).values()) == {onnx.TensorProto.FLOAT16}
    assert not any("scales" in warning for warning in result.warnings)
    reference = forward(tiny.spec, BundleWeights(result.folder, tiny.spec), tiny.ids)
    for backend in ("reference", "cpu", "onnxruntime"):
        with runner(result.folder, backend) as model:
            assert error_of(model.run(tiny.ids), reference) < 1e-5
    plain = exported(name, **options)
    both = (BundleWeights(each.folder, tiny.spec).matrix(DOWN) for each in (result, plain))
    halved, whole = both
    assert 0 < np.abs(halved - whole).max() <= np.abs(whole).max() * 2.0**-11
    errors = [each.manifest["quality"]["relative_weight_error"] for each in (result, plain)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-2)
    assert result.manifest["recipe"]["scales"] == "fp16"


def test_the_file_loses_what_was_reckoned(golden, exported):
    pair = [exported("qwen3", weights="int4", scales=each) for each in ("fp32", "fp16")]
    sizes = [(each.folder / "model.onnx.data").stat().st_size for each in pair]
    reckoned = [weight_bytes(golden("qwen3").spec, each.recipe) for each in pair]
    assert sizes[0] - sizes[1] == pytest.approx(
        reckoned[0] - reckoned[1], abs=64 * len(PROJECTIONS)
    )


def test_scales_that_halves_cannot_hold_stay_as_they_are(exported):
    """Of BitNet's weights none is rounded, and here the scale is one of float32."""
    result = exported("bitnet-master", scales="fp16", head_weights="fp32", activations="fp32")
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert onnx.TensorProto.FLOAT in types_of(result.folder).values()


def test_tiny_scales_stay_as_they_are(golden, tmp_path):
    folder = shutil.copytree(golden("qwen3").folder, tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    tensors[DOWN] = tensors[DOWN] * np.float32(1e-7)
    save_file(tensors, folder / "model.safetensors")
    result = export(folder, tmp_path / "out", ExportOptions(weights="int4", scales="fp16"))
    types = types_of(result.folder)
    assert types.pop(f"{DOWN}.scales") == onnx.TensorProto.FLOAT
    assert set(types.values()) == {onnx.TensorProto.FLOAT16}
    (warning,) = (each for each in result.warnings if "scales" in each)
    assert warning.startswith(f"scales of 1 tensors, first {DOWN}, stay float32: half precision")


@pytest.mark.parametrize("factor", [1e-5, 1e-7])
def test_tiny_scales_among_others_are_halves_with_fewer_bits(factor):
    rows = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    rows[3] *= factor
    packed = quantise_rows(rows, "int4", 32, "mse")
    half = halved(packed)
    assert are_halves(half.scales) and not are_halves(packed.scales)
    np.testing.assert_array_equal(half.codes, packed.codes)
    moved = np.abs(half.scales - packed.scales)
    assert (moved <= np.maximum(np.abs(packed.scales) * 2.0**-11, 2.0**-25)).all()


def test_a_bundle_above_its_budget_is_mentioned(golden, tmp_path, monkeypatch):
    """Halves are counted on, and found too narrow when all is done."""
    monkeypatch.setattr("edgerun_export.calibrate.step.overhead_bytes", lambda spec: 0)
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 400, encoding="utf-8")
    calibration = CalibrationOptions((text,), 16, 32, 1, 100_000)
    given = ExportOptions(weights="int2", scales="fp16", calibration=calibration)
    result = export(golden("qwen3").folder, tmp_path / "out", given)
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    (warning,) = (each for each in result.warnings if "--budget" in each)
    assert f"has {size:,} bytes, more than the 100,000 of --budget" in warning
    assert f"lower it by {size - 100_000:,} to" in warning
    assert not size_warnings(100_000, 100_000, [])


def test_scales_of_a_shared_expert_count_as_they_are_stored(golden, exported):
    """Those without a gate lie as any network does, and those with one as experts do."""
    for name, path in (
        ("deepseek_v2", "mlp.shared_experts.up_proj"),
        ("qwen2_moe", "mlp.shared_expert.up_proj"),
    ):
        result, module = exported(name, weights="int4", scales="fp16"), f"model.layers.1.{path}"
        is_half = types_of(result.folder)[f"{module}.weight.scales"] == onnx.TensorProto.FLOAT16
        assert scale_bytes(golden(name).spec, result.recipe, module) == (2 if is_half else 4)
        assert is_half == (name == "deepseek_v2")


@pytest.mark.parametrize("profile", ["portable", "genai"])
def test_experts_have_halves_in_four_bytes_each(profile, golden, exported):
    result = exported("olmoe", weights="int4", scales="fp16", profile=profile)
    types = types_of(result.folder)
    of_experts = {name: kind for name, kind in types.items() if "experts" in name}
    assert set(of_experts.values()) == {onnx.TensorProto.FLOAT}
    assert {types[name] for name in types.keys() - of_experts.keys()} == {onnx.TensorProto.FLOAT16}
    constants = open_bundle(result.folder).graph.constants.values()
    experts = [each for stack in constants for each in getattr(stack, "matrices", ())]
    assert experts
    assert all(map(has_half_scales, (each for each in experts if hasattr(each, "scales"))))
    pair = [result, exported("olmoe", weights="int4", scales="fp32", profile=profile)]
    sizes = [(each.folder / "model.onnx.data").stat().st_size for each in pair]
    reckoned = [weight_bytes(golden("olmoe").spec, each.recipe) for each in pair]
    gaps = 64 * (len(types) - len(of_experts))
    assert sizes[1] - sizes[0] == pytest.approx(reckoned[1] - reckoned[0], abs=gaps)
    assert sizes[1] - sizes[0] > gaps


def test_other_types_are_refused(golden, tmp_path):
    with pytest.raises(UnsupportedError, match="--scales bf16 is not supported; choose one of"):
        export(golden("qwen3").folder, tmp_path / "out", ExportOptions(scales="bf16"))


def test_the_genai_profile_reads_them_too(golden, exported):
    tiny = golden("qwen3")
    options = {"weights": "int4", "scales": "fp16", "activations": "fp32"}
    portable, fused = (exported("qwen3", profile=each, **options) for each in ("portable", "genai"))
    with runner(portable.folder, "cpu") as expected, runner(fused.folder, "cpu") as model:
        assert relative_error(model.run(tiny.ids), expected.run(tiny.ids)) < 1e-5


def test_zero_points_among_halves_compute_as_among_floats(golden, exported, monkeypatch):
    """The same bits, many rows at a time and one alone, of fewer bytes."""
    folder = exported("qwen3", weights="int4_asym", scales="fp16").folder
    outputs, sizes = [], []
    for _ in range(2):
        with runner(folder, "cpu") as model:
            many = model.run(golden("qwen3").ids)
        with runner(folder, "cpu") as model:
            alone = model.run(golden("qwen3").ids[:1])
        outputs.append(np.concatenate([np.ravel(many), np.ravel(alone)]))
        store = WeightStore(selected_isa())
        for each in open_bundle(folder).graph.constants.values():
            if getattr(each, "zeros", None) is not None:
                sizes.append(store.prepare(each, "int8_block").nbytes)
        monkeypatch.setattr("edgerun.backends.cpu.weights.has_half_scales", lambda packed: False)
    np.testing.assert_array_equal(*outputs)
    halved, whole = np.reshape(sizes, (2, -1))
    assert len(halved) == len(PROJECTIONS)
    assert (halved < whole).all()
