"""Weights that a source stores as integers and scales keep both, whatever the sign of the scale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import UnsupportedError
from edgerun.formats import dense, format_named
from edgerun.formats.base import PackedWeight
from edgerun.model.bundle import open_bundle
from edgerun_export.architectures import describe
from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.step import CalibrationOptions
from edgerun_export.calibrate.text import CalibrationText
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import Affine
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.quantize import block_layout, encode_integers, fits
from edgerun_export.recipe import make_recipe
from edgerun_export.rules import check_offsets
from edgerun_export.source.model import interpret
from edgerun_export.source.weights import SourceWeights
from edgerun_export.verify.bundle_weights import BundleWeights
from tests.support.gguf_model import write_gguf

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NAME = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    """Writes the golden qwen3 with projections of a type, each type once."""
    folder = GOLDEN / "qwen3"
    config = json.loads((folder / "config.json").read_text())
    with open_checkpoint(str(folder)) as source:
        tensors = {name: source.read(name) for name in source.tensors()}
    written = {}

    def write(kind):
        if kind not in written:
            path = tmp_path_factory.mktemp("gguf") / f"{kind}.gguf"
            written[kind] = write_gguf(path, "qwen3", config, tensors, kind)
        return written[kind]

    return write


def differences(path, out, **options):
    """Exports; returns the error in the manifest, and the largest change of a weight."""
    result = export(path, out, ExportOptions(**options))
    with open_checkpoint(str(path)) as source:
        weights = BundleWeights(result.folder, describe(source.config, source.tensors()))
        change = max(
            float(np.abs(weights.matrix(name) - source.read(name)).max()) for name in (NAME, DOWN)
        )
    return result.manifest["quality"]["relative_weight_error"], change


@pytest.mark.parametrize(
    ("kind", "weights", "group"),
    [("Q4_0", "int4", 32), ("Q4_0", "int4", 16), ("Q4_0", "int8", 32), ("Q5_0", "int8", 32)]
    + [("Q8_0", "int8", 32)],
)
def test_integers_that_the_format_can_hold_are_kept(kind, weights, group, gguf_file, tmp_path):
    error, change = differences(
        gguf_file(kind), tmp_path / "out", weights=weights, group_size=group, verify=True
    )
    assert error == 0
    assert change == 0


@pytest.mark.parametrize(
    ("kind", "weights", "group"), [("Q4_0", "int4", 64), ("Q8_0", "int4", 32), ("Q4_1", "int4", 32)]
)
def test_those_that_it_cannot_are_rounded_and_the_loss_is_told(
    kind, weights, group, gguf_file, tmp_path
):
    out = tmp_path / "out"
    error, change = differences(gguf_file(kind), out, weights=weights, group_size=group)
    assert 0.01 < error < 0.2
    assert change > 0


KINDS = {"q_proj": "Q4_0", "k_proj": "Q5_0", "up_proj": "Q8_0", "down_proj": "Q4_1"}


def write_mixed(path, kinds):
    config = json.loads((GOLDEN / "qwen3/config.json").read_text())
    with open_checkpoint(str(GOLDEN / "qwen3")) as source:
        tensors = {name: source.read(name) for name in source.tensors()}
    return write_gguf(path, "qwen3", config, tensors, kinds)


@pytest.fixture(scope="module")
def mixed_export(tmp_path_factory):
    """A file of several types, and what ``--weights source`` makes of it."""
    folder = tmp_path_factory.mktemp("kept")
    path = write_mixed(folder / "mixed.gguf", KINDS)
    return path, export(path, folder / "out", ExportOptions(weights="source", verify=True))


def test_source_keeps_every_projection_as_it_is_stored(mixed_export):
    path, result = mixed_export
    assert result.warnings == []
    expected = {"q_proj": ("int4", 32), "k_proj": ("int8", 32), "up_proj": ("int8", 32)}
    expected["down_proj"] = ("int4_offset", 32)
    with open_checkpoint(str(path)) as source:
        weights = BundleWeights(result.folder, describe(source.config, source.tensors()))
        for name in source.tensors():
            if "_proj" not in name:
                continue
            kind = result.recipe.tensor(name.removesuffix(".weight"))
            assert (kind.weights, kind.group_size) == expected.get(
                name.split(".")[-2], ("fp32", 32)
            )
            if "down_proj" not in name:
                np.testing.assert_array_equal(weights.matrix(name), source.read(name))
    assert result.manifest["quality"]["relative_weight_error"] < 1e-5


@pytest.mark.parametrize(("kinds", "is_kept"), [(KINDS, True), ({"q_proj": "Q4_0"}, False)])
def test_integers_stay_unasked_where_most_projections_have_them(kinds, is_kept, tmp_path):
    """Of seven they are four, or one."""
    recipe = export(write_mixed(tmp_path / "mixed.gguf", kinds), tmp_path / "out").recipe
    assert recipe.rules == (("*=source",) if is_kept else ())
    assert is_kept or (recipe.weights, recipe.tensors) == ("int4", {})


@pytest.mark.parametrize(
    "option", [{"group_size": 64}, {"method": "rtn"}, {"transforms": ("rotate",)}]
)
def test_who_asks_how_to_round_has_integers_rounded(option, mixed_export, tmp_path):
    recipe = export(mixed_export[0], tmp_path / "out", ExportOptions(**option)).recipe
    assert (recipe.weights, recipe.rules) == ("int4", ())


def test_who_gives_texts_has_integers_rounded(mixed_export, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("There is a text here, of a few words. " * 200)
    options = ExportOptions(calibration=CalibrationOptions((text,), 2, 16))
    assert export(mixed_export[0], tmp_path / "out", options).recipe.weights == "int4"


def test_scales_that_are_no_halves_are_mentioned(mixed_export, tmp_path, monkeypatch):
    """As those of Q4_K, which are a half times six bits; the first row is one of halves."""
    read = SourceWeights.affine

    def finer(self, name, rows):
        stored = read(self, name, rows)
        factor = np.float32(1.003 if rows.start else 1)
        return stored and Affine(stored.values, stored.scales * factor, stored.offsets)

    monkeypatch.setattr(SourceWeights, "affine", finer)
    (warning,) = export(mixed_export[0], tmp_path / "out", ExportOptions(weights="source")).warnings
    assert warning.startswith("2 projections are stored as Q4_1, whose scales are products")


def test_source_keeps_the_codes_of_minima_to_the_bit(mixed_export):
    path, result = mixed_export
    model = open_bundle(result.folder).graph
    stored = {
        name.partition(".codes")[0]: each
        for name, each in model.constants.items()
        if isinstance(each, PackedWeight) and each.offsets is not None
    }
    assert sorted(stored) == [f"model.layers.{n}.mlp.down_proj.weight" for n in range(2)]
    with open_checkpoint(str(path)) as source:
        for name, packed in stored.items():
            values, scales, offsets = source.affine(name)
            np.testing.assert_array_equal(block_layout("int4").integers(packed), values)
            np.testing.assert_array_equal(packed.scales, scales)
            np.testing.assert_array_equal(packed.offsets, offsets.T.astype(np.float16))
            np.testing.assert_allclose(dense(packed), source.read(name), atol=1e-4)


def test_minima_that_are_kept_need_no_fitting_and_those_that_are_rounded_do(gguf_file, tmp_path):
    ids = np.random.default_rng(0).integers(0, 256, (2, 16))
    with open_checkpoint(str(gguf_file("Q4_1"))) as checkpoint:
        source, _ = interpret(checkpoint)
        for group, is_fitted in ((32, False), (64, True)):
            store = FittedLayers(tmp_path / str(group), {})
            recipe = make_recipe("int4_offset", group)
            LayerFitter(source, recipe, CalibrationText(("",), ids, ()), store, 1).run()
            assert (store.packed(NAME) is not None) is is_fitted


def test_text_that_nothing_is_fitted_to_is_mentioned(gguf_file, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a house. " * 60, encoding="utf-8")
    calibration = CalibrationOptions((text,), 2, 16, 1)
    for group, is_fitted in ((32, False), (64, True)):
        given = ExportOptions(weights="int4", group_size=group, calibration=calibration)
        warnings = export(gguf_file("Q4_0"), tmp_path / f"{group}", given).warnings
        assert any("nothing is fitted to the" in each for each in warnings) is not is_fitted


def test_weights_too_large_for_half_precision_are_refused(tmp_path):
    config = json.loads((GOLDEN / "qwen3/config.json").read_text())
    with open_checkpoint(str(GOLDEN / "qwen3")) as source:
        tensors = {name: source.read(name) for name in source.tensors()}
    tensors[DOWN] = tensors[DOWN] * np.float32(1e6)
    path = write_gguf(tmp_path / "large.gguf", "qwen3", config, tensors)
    with pytest.raises(
        UnsupportedError, match=f"'{DOWN}' has weights that are too large for offsets"
    ):
        export(path, tmp_path / "out", ExportOptions(weights="int4_offset"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weights": "int4_offset", "group_size": 256}, "sums whole groups of inputs: the rows of"),
        ({"weights": "int4_offset", "method": "mse"}, "the method mse makes no offsets"),
    ],
)
def test_offsets_where_there_can_be_none(options, sentence, tmp_path):
    with pytest.raises(UnsupportedError, match=sentence):
        export(GOLDEN / "llama", tmp_path / "out", ExportOptions(**options))


@pytest.mark.parametrize(
    ("width", "fitting"), [(48, "groups of 16 fit"), (172, "no group size fits")]
)
def test_what_helps_where_offsets_have_no_whole_groups_is_said(width, fitting):
    config = json.loads((GOLDEN / "llama/config.json").read_text())
    spec = describe(config | {"intermediate_size": width})
    said = f"have {width} weights, .* of 32; {fitting}; a --rule such as '\\*.down_proj=int4' gives"
    with pytest.raises(UnsupportedError, match=said):
        check_offsets(make_recipe("int4_offset"), spec)


def test_experts_have_no_offsets(tmp_path):
    with pytest.raises(UnsupportedError, match=r"experts have no offsets, so 'model.layers.0.*'"):
        export(GOLDEN / "olmoe", tmp_path / "out", ExportOptions(weights="int4_offset"))


@pytest.mark.parametrize(
    ("name", "weights", "group"),
    [("bitnet-packed", "ternary", 128), ("bitnet-master", "ternary", 128), ("llama", "fp32", 32)],
)
def test_source_is_ternary_or_floats_where_the_checkpoint_is(name, weights, group, exported):
    result = exported(name, weights="source")
    assert (result.recipe.weights, result.recipe.group_size) == (weights, group)
    assert result.recipe.tensors == {}
    assert result.recipe.rules == ("*=source",)
    assert result.manifest["quality"]["relative_weight_error"] == 0


def test_large_blocks_keep_their_groups(tmp_path):
    config = json.loads((GOLDEN / "qwen3/config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 512, "head_dim": 128}
    draw = np.random.default_rng(3)
    tensors = {
        name: draw.integers(-1, 2, shape).astype(np.float32)
        for name, shape in describe(config).tensors().items()
    }
    path = write_gguf(tmp_path / "large.gguf", "qwen3", config, tensors, "TQ2_0")
    result = export(path, tmp_path / "out", ExportOptions(weights="source"))
    assert (result.recipe.weights, result.recipe.group_size) == ("ternary", 256)
    assert result.manifest["quality"]["relative_weight_error"] == 0


@pytest.mark.parametrize(
    "option", [{"group_size": 64}, {"method": "rtn"}, {"transforms": ("rotate",)}]
)
def test_source_takes_nothing_that_would_round_anew(option, tmp_path):
    with pytest.raises(UnsupportedError, match="--weights source keeps what the checkpoint has"):
        export(GOLDEN / "llama", tmp_path / "out", ExportOptions(weights="source", **option))


def test_rules_come_after_source(exported):
    result = exported("llama", weights="source", rules=("*.up_proj=int8",))
    assert result.recipe.tensor("model.layers.0.mlp.up_proj").weights == "int8"
    assert result.recipe.tensor("model.layers.0.mlp.down_proj").weights == "fp32"


def test_q4_0_has_scales_of_both_signs(gguf_file):
    """Or the tests above would say nothing about them."""
    with open_checkpoint(str(gguf_file("Q4_0"))) as source:
        values, scales = source.integers(NAME)
        assert (scales < 0).any() and (scales > 0).any()
        assert values.min() == -8
        tensor = source.read(NAME)
    np.testing.assert_array_equal(values * np.repeat(scales, 32, axis=1), tensor)


def test_a_format_takes_only_what_it_can_hold():
    layout, scales = format_named("int4"), np.ones((1, 2), np.float32)
    values = np.zeros((1, 64), np.int8)
    assert fits(values, scales, layout, 32) and fits(values, scales, layout, 16)
    assert fits(values, scales[:, :1], layout, 128)
    assert not fits(values, scales, layout, 64)
    for extreme, good in ((-9, False), (-8, True), (7, True), (8, False)):
        values[0, 5] = extreme
        assert fits(values, scales, layout, 32) is good


def test_integers_in_a_format_with_offsets_have_offsets_of_zero():
    """Where half precision holds their scales, for it is what the format has."""
    layout, scales = format_named("int4_offset"), np.full((3, 2), 0.5, np.float32)
    values = np.tile(np.arange(-8, 8, dtype=np.int8), (3, 4))
    assert fits(values, scales, layout, 32)
    assert not fits(values, scales / 3, layout, 32)
    packed = encode_integers(values, scales, layout, 16)
    np.testing.assert_array_equal(packed.offsets, np.zeros((4, 3), np.float16))
    np.testing.assert_array_equal(layout.unpack(packed), values * np.float32(0.5))


def test_a_matrix_of_which_some_pieces_keep_their_integers_has_offsets_in_all(
    tmp_path, monkeypatch
):
    config = json.loads((GOLDEN / "qwen3/config.json").read_text())
    with open_checkpoint(str(GOLDEN / "qwen3")) as source:
        tensors = {name: source.read(name) for name in source.tensors()}
    tensors[DOWN] = np.concatenate([np.zeros_like(tensors[DOWN][:16]), tensors[DOWN][16:]])
    path = write_gguf(tmp_path / "zeros.gguf", "qwen3", config, tensors, "Q8_0")
    monkeypatch.setattr("edgerun_export.source.weights._SLAB_WEIGHTS", 16 * tensors[DOWN].shape[1])
    _, change = differences(path, tmp_path / "out", weights="int4_offset", verify=True)
    assert change < 0.2 * np.abs(tensors[DOWN]).max()


@pytest.mark.parametrize("name", ["int2", "int4", "int8", "int8_asym"])
def test_the_ends_of_the_range_survive(name):
    """Of integers of 8 bits -128 as well, which rounding does without."""
    layout = format_named(name)
    lowest = -(1 << (layout.bits - 1))
    values = np.tile(np.array([lowest, layout.high, 0, -1], np.int8), (2, 8))
    scales = np.array([[-0.5], [0.25]], np.float32)
    assert fits(values, scales, layout, 16)
    packed = encode_integers(values, scales, layout, 16)
    np.testing.assert_array_equal(layout.unpack(packed), values * scales)
