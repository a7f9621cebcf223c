"""Integers of compressed-tensors are kept, or read as the weights that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.model.bundle import open_bundle
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from edgerun_export.verify.numpy_model import forward
from tests.export.checkpoint.fp8.schemes import E4M3, write
from tests.export.checkpoint.integers.layouts import (
    BF16,
    MODULE,
    NAME,
    Layout,
    Tensors,
    compressed,
    in_bytes,
    integer_model,
    pack_compressed,
)

ROWS = {"strategy": "channel"}
W4 = Layout(compressed(), pack_compressed(has_zeros=False), dtype=BF16, is_centred=True)
W4_ZEROS = Layout(compressed(symmetric=False), pack_compressed())
W8_ZEROS = Layout(compressed(num_bits=8, symmetric=False), pack_compressed(8), 8)
W8A8 = Layout(
    compressed("int-quantized", num_bits=8, **ROWS), in_bytes(), 8, None, BF16, is_centred=True
)
BYTES = {"num_bits": 8, "symmetric": False}
LAYOUTS = {
    "w4a16": (W4, "int4", 32),
    "w4a16-asym": (W4_ZEROS, "int4_asym", 32),
    "w4-rows": (replace(W4, settings=compressed(**ROWS), group=None), "int4", 64),
    "w2": (Layout(compressed(num_bits=2, symmetric=False), pack_compressed(2), 2), "int2_asym", 32),
    "w8a16": (
        Layout(compressed(num_bits=8), pack_compressed(8, has_zeros=False), 8, is_centred=True),
        "int8",
        32,
    ),
    "w8a16-asym": (W8_ZEROS, "int8_asym", 32),
    "w8a8": (W8A8, "int8", 64),
    "w8a8-asym": (
        Layout(
            compressed("int-quantized", **BYTES, **ROWS), in_bytes(has_zeros=True), 8, None, BF16
        ),
        "int8_asym",
        64,
    ),
    "naive-w4a8": (
        Layout(compressed("naive-quantized"), in_bytes(4), dtype=np.float32, is_centred=True),
        "int4",
        32,
    ),
}


@pytest.mark.parametrize(("layout", "weights", "group"), LAYOUTS.values(), ids=LAYOUTS)
def test_codes_scales_and_zero_points_are_kept(
    layout: Layout, weights: str, group: int, tmp_path: Path
) -> None:
    expected = integer_model(tmp_path / "integers", layout)
    with open_checkpoint(str(tmp_path / "integers")) as checkpoint:
        assert checkpoint.tensors().keys() == expected.keys()
        for name, weight in expected.items():
            np.testing.assert_array_equal(checkpoint.read(name), weight)
            for some in (slice(3, len(weight) - 5), slice(5, 5)):
                np.testing.assert_array_equal(checkpoint.read(name, some), weight[some])
        assert checkpoint.read_to_the_end() == expected.keys()
        spec = interpret(checkpoint)[0].spec
    options = ExportOptions(weights="source", activations="fp32", head_weights="fp32")
    result = export(tmp_path / "integers", tmp_path / "out", options)
    kind = result.recipe.tensor(MODULE)
    assert (kind.weights, kind.group_size) == (weights, group)
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert not any("rounded" in warning for warning in result.warnings)
    bundle = BundleWeights(result.folder, spec)
    for name in expected:
        if "_proj" in name:
            np.testing.assert_array_equal(bundle.matrix(name), expected[name])


@pytest.mark.parametrize("layout", [W4, W8_ZEROS, W8A8], ids=["w4a16", "w8a16-asym", "w8a8"])
def test_bundles_compute_what_the_weights_in_float32_do(layout: Layout, tmp_path: Path) -> None:
    """As floats in the same bytes, and as integers in the same logits."""
    weights = integer_model(tmp_path / "integers", layout)
    write(tmp_path / "plain", "llama", weights, {})
    for option in ({"weights": "fp32"}, {"weights": "int2", "method": "rtn"}):
        first, second = (
            export(
                tmp_path / source,
                tmp_path / f"{source}-{option['weights']}",
                ExportOptions(**option),
            ).folder
            for source in ("integers", "plain")
        )
        for name in ("model.onnx", "model.onnx.data"):
            assert (first / name).read_bytes() == (second / name).read_bytes()
    options = ExportOptions(weights="source", activations="fp32", head_weights="fp32", verify=True)
    result = export(tmp_path / "integers", tmp_path / "out", options)
    quality, ids = result.manifest["quality"], np.arange(24) * 7 % 256
    assert quality["max_error"] < 1e-5 and quality["kl_divergence"] < 1e-9
    with open_checkpoint(str(tmp_path / "plain")) as checkpoint:
        source, _ = interpret(checkpoint)
        logits, kept = (
            forward(source.spec, each, ids)
            for each in (source, BundleWeights(result.folder, source.spec))
        )
    np.testing.assert_allclose(kept, logits, atol=1e-6 * np.ptp(logits))


def reordered(codes: NDArray, points: NDArray, scales: NDArray) -> Tensors:
    """Codes of groups whose inputs lie apart."""
    groups = (np.arange(codes.shape[1]) % scales.shape[1]).astype(np.int32)
    order = np.argsort(groups, kind="stable")
    parts = pack_compressed()(codes[:, np.argsort(order)], points, scales)
    return parts | {"weight_g_idx": groups}


def test_groups_of_inputs_that_lie_apart_are_rounded_anew_and_the_export_says_so(
    tmp_path: Path,
) -> None:
    layout = replace(W4_ZEROS, settings=compressed(symmetric=False, actorder="group"))
    runs = integer_model(tmp_path / "runs", layout)
    integer_model(tmp_path / "apart", replace(layout, pack=reordered))
    weights = dict(runs)
    for name in weights:
        if name.endswith("_proj.weight"):
            inputs = np.arange(weights[name].shape[1])
            order = np.argsort(inputs % (len(inputs) // 32), kind="stable")
            weights[name] = weights[name][:, np.argsort(order)]
    write(tmp_path / "plain", "llama", weights, {})
    with open_checkpoint(str(tmp_path / "apart")) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(NAME, slice(2, 9)), weights[NAME][2:9])
        assert checkpoint.integers(NAME) is None
    results = [
        export(tmp_path / source, tmp_path / source / "out", ExportOptions(weights=kind))
        for source, kind in (("apart", "source"), ("plain", "int8"))
    ]
    first, second = ((each.folder / "model.onnx.data").read_bytes() for each in results)
    assert first == second
    assert results[0].warnings[:1] == [
        "14 projections are stored as compressed-tensors INT4 reordered, whose groups are no runs "
        "of inputs of one length, as after desc_act, and are rounded to int8"
    ]


def test_groups_that_were_not_reordered_after_all_are_kept(tmp_path: Path) -> None:
    def unused(codes: NDArray, points: NDArray, scales: NDArray) -> Tensors:
        own = {"weight_g_idx": np.full(codes.shape[1], -1, np.int32)}
        return pack_compressed()(codes, points, scales) | own

    weights = integer_model(tmp_path / "integers", replace(W4_ZEROS, pack=unused))
    with open_checkpoint(str(tmp_path / "integers")) as checkpoint:
        values, scales = checkpoint.integers(NAME) or (0, 0)
        np.testing.assert_array_equal(np.repeat(scales, 32, axis=1) * values, weights[NAME])


@pytest.mark.parametrize(
    ("model", "layout", "stored"),
    [("qwen3_moe", W4, "int4"), ("olmoe", W8_ZEROS, "int8_asym"), ("mixtral", W8A8, "int8")],
)
def test_experts_are_kept(model: str, layout: Layout, stored: str, tmp_path: Path) -> None:
    if layout.group is not None and model == "qwen3_moe":
        sizes = compressed(group_size=16)
        layout = replace(layout, settings=sizes, group=16)
    integer_model(tmp_path / "integers", layout, model)
    result = export(
        tmp_path / "integers",
        tmp_path / "out",
        ExportOptions(weights="source", activations="fp32", verify=True),
    )
    quality = result.manifest["quality"]
    assert quality["relative_weight_error"] == 0 and quality["max_error"] < 1e-4
    # Rows of no whole groups stay floats.
    kinds = {kind.weights for kind in result.recipe.tensors.values()}
    assert result.recipe.weights == stored and kinds <= {stored, "fp32"}


def test_integers_may_lie_beside_8_bit_floats_and_scales_of_activations(tmp_path: Path) -> None:
    """As ``mixed-precision`` has them."""
    settings = compressed("mixed-precision")
    settings["config_groups"]["group_0"]["format"] = "pack-quantized"
    floats = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    settings["config_groups"]["group_1"] = {"weights": floats, "format": "float-quantized"}
    down = "model.layers.1.mlp.down_proj"

    def of_floats(tensors: Tensors) -> None:
        shape = tensors[f"{down}.weight_packed"].shape[0], tensors[f"{down}.weight_packed"].shape[1]
        for part in ("weight_packed", "weight_shape"):
            del tensors[f"{down}.{part}"]
        tensors[f"{down}.weight"] = np.full((shape[0], shape[1] * 8), 1.5).astype(E4M3)
        tensors[f"{down}.weight_scale"] = np.float32([2])
        tensors[f"{MODULE}.input_scale"] = np.float32([1])
        tensors[f"{MODULE}.input_zero_point"] = np.int8([0])

    weights = integer_model(tmp_path / "mixed", replace(W4, settings=settings), alter=of_floats)
    with open_checkpoint(str(tmp_path / "mixed")) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(NAME), weights[NAME])
        assert (checkpoint.read(f"{down}.weight") == 3).all()
        assert "are left out (2, such as" in checkpoint.notes[0]
    result = export(tmp_path / "mixed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor(MODULE).weights == "int4"
    assert result.recipe.tensor(down).weights == "int8"


def of_the_text(settings: Any) -> dict[str, Any]:
    return {"text_config": {"quantization_config": settings}}


def as_until_2024(settings: Any) -> dict[str, Any]:
    return {"compression_config": {k: v for k, v in settings.items() if k != "quant_method"}}


@pytest.mark.parametrize("said", [of_the_text, as_until_2024])
def test_what_is_said_of_weights_in_other_places_is_read(
    said: Callable[[Any], dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "integers"
    expected = integer_model(folder, W4)
    config = json.loads((folder / "config.json").read_text())
    elsewhere = said(config.pop("quantization_config"))
    (folder / "config.json").write_text(json.dumps({**config, **elsewhere}))
    with open_checkpoint(str(folder)) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(NAME), expected[NAME])


def test_scales_of_integers_are_halved_where_that_is_asked_for(tmp_path: Path) -> None:
    """A budget counts on it; codes stay."""
    integer_model(tmp_path / "integers", replace(W4, dtype=np.float32))
    weights = {}
    for scales in ("fp32", "fp16"):
        options = ExportOptions(weights="source", scales=scales)
        export(tmp_path / "integers", tmp_path / scales, options)
        bundle = open_bundle(tmp_path / scales)
        (weights[scales],) = (
            each for name, each in bundle.graph.constants.items() if MODULE in name
        )
    exact, halved = weights["fp32"], weights["fp16"]
    np.testing.assert_array_equal(halved.codes, exact.codes)
    half = exact.scales.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(halved.scales, half)
    assert (exact.scales != half).any()
