"""What calibration leaves on disk, and who goes on with it."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgerun_export.calibrate.fitted import FORM, FittedLayers, Gaps
from edgerun_export.calibrate.step import CalibrationOptions, calibrate
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import quantise_rows
from edgerun_export.recipe import make_recipe
from tests.export.calibrate.fitting import contents, fitted, text_of


def test_what_was_stopped_goes_on_where_it_was(golden, source_weights, tmp_path):
    source = source_weights(golden("llama"))
    recipe = make_recipe("int4", method="gptaq")
    whole, _ = fitted(source, tmp_path / "whole", recipe)

    def stop(fraction):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(source, tmp_path / "parts", recipe, progress=stop)
    rest, _ = fitted(source, tmp_path / "parts", recipe)
    assert rest.resumed == 1
    assert contents(rest, source.spec) == contents(whole, source.spec)


def test_what_was_made_of_something_else_is_not_gone_on_with(
    golden, source_weights, tmp_path, monkeypatch
):
    source = source_weights(golden("llama"))
    recipe = make_recipe("int4", method="gptq")
    fitted(source, tmp_path / "a", recipe)
    again, _ = fitted(source, tmp_path / "a", recipe)
    assert again.resumed == source.spec.num_layers
    other, _ = fitted(source_weights(golden("llama-linear")), tmp_path / "a", recipe)
    assert other.resumed == 0  # other weights
    monkeypatch.setattr("edgerun_export.calibrate.fitted.FORM", FORM + 1)
    later, _ = fitted(source_weights(golden("llama-linear")), tmp_path / "a", recipe)
    assert later.resumed == 0  # fitted by another edition
    assert FittedLayers(tmp_path / "a", {"of": "others"}).load(0, "") is None
    (tmp_path / "a" / "layer-0000.npz").write_bytes(b"broken")
    mended, _ = fitted(source, tmp_path / "a", recipe)
    assert mended.resumed == 0


def test_an_export_that_was_stopped_goes_on_and_leaves_nothing(golden, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 400, encoding="utf-8")
    options = ExportOptions(calibration=CalibrationOptions((text,), 4, 16))

    def stop(step, fraction):
        if step == "calibrate" and fraction:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(golden("llama").folder, tmp_path / "stopped", options, stop)
    assert {path.name for path in tmp_path.iterdir()} == {
        "text.txt", ".stopped.edgerun-calibration"
    }  # fmt: skip
    manifests = [
        export(golden("llama").folder, tmp_path / name, options).manifest
        for name in ("stopped", "whole")
    ]
    assert manifests[0] == manifests[1]
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "stopped", "whole"}


def test_what_the_text_lacks_for_layers_that_are_taken_over_is_said(golden, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 40, encoding="utf-8")
    options = ExportOptions(calibration=CalibrationOptions((text,), 2, 16))

    def stop(step, fraction):
        if step == "calibrate" and fraction:
            raise KeyboardInterrupt

    model = golden("mixtral").folder
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "stopped", options, stop)
    goes_on, whole = (
        export(model, tmp_path / name, options).warnings for name in ("stopped", "whole")
    )
    assert any("hardly any token" in each and "layers.0" in each for each in whole)
    assert goes_on == whole


@pytest.mark.parametrize("what", ["rope_theta", "hidden_act", "embedding"])
def test_layers_that_were_fitted_to_another_model_are_not_gone_on_with(golden, tmp_path, what):
    text, model = tmp_path / "text.txt", tmp_path / "model"
    text.write_text("Once upon a time there was a house. " * 400, encoding="utf-8")
    shutil.copytree(golden("llama").folder, model)
    options = ExportOptions(calibration=CalibrationOptions((text,), 4, 16))

    def stop(step, fraction):
        if step == "calibrate" and fraction:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "stopped", options, stop)
    if what == "embedding":
        tensors = load_file(model / "model.safetensors")
        tensors["model.embed_tokens.weight"] *= 2
        save_file(tensors, model / "model.safetensors")
    else:
        config = json.loads((model / "config.json").read_text())
        config |= {what: {"rope_theta": 500.0, "hidden_act": "gelu_tanh"}[what]}
        config["rope_parameters"] = None
        (model / "config.json").write_text(json.dumps(config))
    goes_on, whole = (
        (export(model, tmp_path / name, options).folder / "model.onnx.data").read_bytes()
        for name in ("stopped", "whole")
    )
    assert goes_on == whole


def test_layers_of_another_text_or_other_options_are_not_gone_on_with(
    golden, source_weights, tmp_path
):
    """The other text has the same tokens, whose embeddings tell nothing of it."""
    source = source_weights(golden("llama"))
    text, options = text_of(source.spec), CalibrationOptions(windows=6, threads=1)
    turned = replace(text, windows=np.ascontiguousarray(text.windows[:, ::-1]))
    recipe = make_recipe("int4", method="gptq")

    def resumed(text, recipe):
        folder = tmp_path / "layers"
        return calibrate(source, recipe, text, options, folder, lambda part: None).fitted.resumed

    assert [resumed(text, recipe), resumed(text, recipe)] == [0, source.spec.num_layers]
    assert resumed(turned, recipe) == 0
    for changes in ({"method": "gptaq"}, {"group_size": 64}, {"scales": "fp16"}):
        assert resumed(turned, replace(recipe, **changes)) == 0


@pytest.mark.parametrize("weights", ["int8_offset", "int4_asym"])
def test_all_parts_of_fitted_weights_come_back(golden, source_weights, tmp_path, weights):
    recipe = make_recipe(weights, method="rtn")
    source = source_weights(golden("llama"))
    store, _ = fitted(source, tmp_path, recipe)
    name = "model.layers.1.mlp.down_proj.weight"
    store.packed("model.layers.0.mlp.down_proj.weight")  # so that the other comes from its file
    expected = quantise_rows(source.matrix(name), weights, 32, method="rtn")
    packed = store.packed(name)
    for part in ("codes", "scales", "zeros", "offsets"):
        ours, theirs = getattr(packed, part), getattr(expected, part)
        assert (ours is None) == (theirs is None)
        assert ours is None or np.array_equal(ours, theirs)


@pytest.mark.parametrize("damage", ["cut", "flipped", "key"])
def test_what_is_damaged_is_fitted_again(golden, source_weights, tmp_path, damage):
    source, recipe = source_weights(golden("llama")), make_recipe("int4", method="gptq")
    whole, _ = fitted(source, tmp_path, recipe)
    expected = contents(whole, source.spec)
    file = tmp_path / ("key.json" if damage == "key" else "layer-0000.npz")
    data = bytearray(file.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[len(data) // 2] ^= 255
    else:
        data[:2] = b"\xff\xfe"
    file.write_bytes(data)
    again, _ = fitted(source, tmp_path, recipe)
    assert again.resumed < source.spec.num_layers
    assert contents(again, source.spec) == expected


def test_gaps_of_the_text_come_back(tmp_path):
    gaps = Gaps(["layers.0.a"], {"layers.0.b": 3}, ["layers.0.c"])
    FittedLayers(tmp_path, {}).save(0, "digest", {}, gaps)
    stored = FittedLayers(tmp_path, {}).load(0, "digest")
    assert stored == ({}, gaps)
    later = Gaps(["layers.1.a"], {"layers.1.b": 1})
    gaps.add(later)
    assert gaps == Gaps(
        ["layers.0.a", "layers.1.a"], {"layers.0.b": 3, "layers.1.b": 1}, ["layers.0.c"]
    )
