"""Layers that GPTQ and AWQ checkpoints pack, written one number after the other."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.rules import rounded_source
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from tests.export.checkpoint.integers.layouts import (
    AWQ,
    GPTQ,
    GROUP,
    MODULE,
    NAME,
    Tensors,
    pack_awq,
    pack_gptq,
    packed_model,
)
from tests.support.bundles import GOLDEN

FORMS = [
    (AWQ, pack_awq, 4, "int4"),
    (GPTQ, pack_gptq, 4, "int4"),
    (GPTQ | {"checkpoint_format": "gptq_v2"}, lambda c, p: pack_gptq(c, p, 4, 0), 4, "int4"),
    (GPTQ | {"bits": 2}, lambda c, p: pack_gptq(c, p, 2), 2, "int2"),
    (GPTQ | {"bits": 8}, lambda c, p: pack_gptq(c, p, 8), 8, "int8"),
]
SYMMETRIC = GPTQ | {"sym": True}


@pytest.mark.parametrize("is_true", [True, False])
def test_zero_points_that_are_all_the_middle_are_left_out(is_true, tmp_path):
    """Where config.json says so, and it is so."""

    def beside(tensors: Tensors) -> None:
        if not is_true:
            tensors[f"{MODULE}.qzeros"][0, 0] ^= 1

    packed_model(tmp_path / "packed", GPTQ | {"sym": True}, pack_gptq, alter=beside)
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        assert checkpoint.tensors()[NAME].dtype == ("GPTQ4 symmetric" if is_true else "GPTQ4")
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.recipe.tensor(MODULE).weights == ("int4" if is_true else "int4_asym")


@pytest.mark.parametrize(("settings", "pack", "bits", "stored"), FORMS, ids=list("abcde"))
def test_codes_scales_and_zero_points_are_kept(settings, pack, bits, stored, tmp_path):
    weights = packed_model(tmp_path / "packed", settings, pack, bits)
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        for rows in (slice(None), slice(3, 21), slice(5, 5)):
            np.testing.assert_array_equal(checkpoint.read(NAME, rows), weights[NAME][rows])
        values, scales = checkpoint.integers(NAME, slice(3, 21))
        np.testing.assert_array_equal(
            values * np.repeat(scales, GROUP, axis=1), weights[NAME][3:21]
        )
        spec = interpret(checkpoint)[0].spec
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.recipe.tensor(MODULE).weights == f"{stored}_asym"
    bundle = BundleWeights(result.folder, spec)
    for name, weight in weights.items():
        np.testing.assert_array_equal(bundle.matrix(name), weight)


@pytest.mark.parametrize("sym", [True, False])
def test_codes_of_eight_bits_need_no_zero_points_if_all_are_the_middle(sym, tmp_path):
    """Whatever config.json says; codes of 0, which are -128, are among them."""

    def centred(codes: NDArray, points: NDArray) -> Tensors:
        return pack_gptq(codes, np.full_like(points, 128), 8)

    settings = GPTQ | {"bits": 8, "sym": sym}
    packed_model(tmp_path / "packed", settings, centred, 8)
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor(MODULE).weights == "int8"
    assert result.manifest["quality"]["relative_weight_error"] == 0


def turned(groups: NDArray) -> Callable[[NDArray, NDArray], Tensors]:
    """GPTQ's layout with the group of each input."""
    return lambda codes, points: pack_gptq(codes, points) | {"g_idx": groups.astype(np.int32)}


def test_inputs_in_another_order_are_rounded_anew(tmp_path):
    order = np.random.default_rng(1).permutation(64) // GROUP
    packed_model(tmp_path / "packed", GPTQ | {"desc_act": True}, turned(order))
    parts = load_file(tmp_path / "packed" / "model.safetensors")
    scale = parts[f"{MODULE}.scales"]
    code = int(parts[f"{MODULE}.qweight"].view(np.uint32)[1, 5]) >> 12 & 15  # of input 11
    zero = int(parts[f"{MODULE}.qzeros"].view(np.uint32)[order[11], 0]) >> 20 & 15
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        assert checkpoint.tensors()[NAME].dtype == "GPTQ4 reordered"
        assert checkpoint.integers(NAME) is None
        expected = (code - (zero + 1) % 16) * np.float32(scale[order[11], 5])
        assert checkpoint.read(NAME)[5, 11] == np.float32(expected)
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor(MODULE).weights == "int8"
    assert result.warnings == [
        "14 projections are stored as GPTQ4 reordered, whose groups are no runs of inputs of one "
        "length, as after desc_act, and are rounded to int8"
    ]


def test_an_order_with_static_groups_is_none(tmp_path):
    """``static_groups`` makes groups of runs whatever the order; ``g_idx`` says so."""
    settings = SYMMETRIC | {"desc_act": True, "static_groups": True}
    packed_model(tmp_path / "packed", settings, turned(np.arange(64) // GROUP))
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor(MODULE).weights == "int4"
    assert result.manifest["quality"]["relative_weight_error"] == 0
    assert result.warnings == []


def test_experts_of_a_layer_are_reordered_alike(tmp_path):
    """One whose inputs happen to be in order is rounded as the others are."""

    def in_order(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.experts.2.up_proj.g_idx"].sort()

    def swapped(codes: NDArray, points: NDArray) -> Tensors:
        groups = np.arange(codes.shape[1]) // 16
        return turned(groups[::-1])(codes, points)

    packed_model(
        tmp_path / "packed", GPTQ | {"group_size": 16}, swapped, 4, in_order, "qwen3_moe", 16
    )
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.weights == "int8"
    assert "reordered" in result.warnings[0]


def test_groups_that_no_block_has_are_rounded_and_the_export_says_so(tmp_path):
    settings, group = GPTQ | {"group_size": 8}, 8
    weights = packed_model(tmp_path / "packed", settings, pack_gptq, group=group)
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(NAME), weights[NAME])
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor(MODULE).weights == "int8"
    assert "GPTQ4, whose groups are no whole blocks of 16 inputs" in result.warnings[0]


@pytest.mark.parametrize("dynamic", [None, {"+:.*gate_proj": {"bits": 8, "group_size": 64}}])
def test_layers_of_other_bits_are_read_where_config_json_has_such(dynamic, tmp_path):
    rng, expected = np.random.default_rng(2), {}

    def finer(tensors: Tensors) -> None:
        n = tensors[f"{MODULE}.scales"].shape[1]
        groups = 1 if dynamic else 2  # of 32, as those of the other layers
        codes, points = rng.integers(0, 256, (n, 64)), rng.integers(0, 256, (n, groups))
        scales = rng.uniform(0.5, 1.5, (groups, n)).astype(np.float16)
        tensors |= {f"{MODULE}.{part}": each for part, each in pack_gptq(codes, points, 8).items()}
        tensors[f"{MODULE}.scales"] = scales
        integers = codes - points.repeat(64 // groups, axis=1)
        expected[NAME] = integers * scales.T.astype(np.float32).repeat(64 // groups, axis=1)

    packed_model(tmp_path / "packed", GPTQ | {"dynamic": dynamic}, pack_gptq, alter=finer)
    if dynamic is None:
        with pytest.raises(CheckpointError, match=f"layer '{MODULE}' is packed as"):
            open_checkpoint(str(tmp_path / "packed"))
        return
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(NAME), expected[NAME])
    result = export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor(MODULE).weights == "int8_asym"
    assert result.manifest["quality"]["relative_weight_error"] == 0


@pytest.mark.parametrize("value", [0, 1])
def test_biases_of_layers_without_are_left_out_if_zero(value, tmp_path):
    def biased(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.up_proj.bias"] = np.zeros(64, np.float16)
        tensors["model.layers.1.mlp.gate_proj.bias"] = np.full(64, value, np.float16)

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=biased)
    options = ExportOptions(weights="source")
    if value:
        with pytest.raises(CheckpointError, match="^tensor '.*1.mlp.gate_proj.bias' has no place"):
            export(tmp_path / "packed", tmp_path / "out", options)
    else:
        result = export(tmp_path / "packed", tmp_path / "out", options)
        assert result.manifest["quality"]["relative_weight_error"] == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (AWQ | {"version": "marlin"}, "form 'marlin'; supported are awq, gemm"),
        (AWQ | {"version": "GEMV"}, "form 'gemv'"),
        (AWQ | {"backend": "llm-awq"}, "form 'llm-awq'"),
        (AWQ | {"bits": 8}, "awq weights of 8 bits; supported are AWQ4"),
        (GPTQ | {"bits": 3}, "gptq weights of 3 bits; supported are GPTQ2, GPTQ4, GPTQ8"),
        (GPTQ | {"bits": "four"}, "'four' bits"),
        (GPTQ | {"bits": "4"}, "'4' bits"),
        (GPTQ | {"is_marlin_format": True}, "form 'marlin'; supported are gptq, gptq_v2"),
        (GPTQ | {"checkpoint_format": "gptq_p"}, "form 'gptq_p'"),
        (GPTQ | {"format": "bitblas"}, "form 'bitblas'"),
        (GPTQ | {"pack_dtype": "int16"}, "packed in 'int16'; supported is int32"),
        (GPTQ | {"group_size": 0}, "group_size is 0; expected"),
        (GPTQ | {"group_size": "128"}, "group_size is '128'; expected"),
    ],
)
def test_other_packings_are_refused_by_name(settings, named, tmp_path):
    packed_model(tmp_path / "packed", settings, pack_gptq)
    with pytest.raises(UnsupportedError, match=named):
        open_checkpoint(str(tmp_path / "packed"))


@pytest.mark.parametrize("settings", [{}, None])
def test_packed_layers_of_which_config_json_says_nothing_are_refused(settings, tmp_path):
    packed_model(tmp_path / "packed", settings or {}, pack_gptq)
    if settings is None:
        config = json.loads((tmp_path / "packed" / "config.json").read_text())
        del config["quantization_config"]
        (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    sentence = "qweight' is packed, and config.json has no quantization_config that says how"
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(str(tmp_path / "packed"))


def without_zeros(tensors: Tensors) -> None:
    del tensors[f"{MODULE}.qzeros"]


def too_few_scales(tensors: Tensors) -> None:
    tensors[f"{MODULE}.scales"] = tensors[f"{MODULE}.scales"][:, 8:].copy()


def of_floats(tensors: Tensors) -> None:
    tensors[f"{MODULE}.qzeros"] = tensors[f"{MODULE}.qzeros"].astype(np.float32)


def uneven_groups(tensors: Tensors) -> None:
    for part in ("scales", "qzeros"):
        whole = tensors[f"{MODULE}.{part}"]
        tensors[f"{MODULE}.{part}"] = np.concatenate([whole, whole[:1]])


def part_of_a_word(tensors: Tensors) -> None:
    for part in ("qweight", "scales"):
        tensors[f"{MODULE}.{part}"] = tensors[f"{MODULE}.{part}"][:, :12].copy()
    tensors[f"{MODULE}.qzeros"] = tensors[f"{MODULE}.qzeros"][:, :1].copy()


def groups_of_all(tensors: Tensors) -> None:
    for part in ("scales", "qzeros"):
        tensors[f"{MODULE}.{part}"] = tensors[f"{MODULE}.{part}"][:1]


def inputs_less(tensors: Tensors) -> None:
    tensors[f"{MODULE}.g_idx"] = np.zeros(63, np.int32)


def scales_of_bytes(tensors: Tensors) -> None:
    tensors[f"{MODULE}.scales"] = np.ones(tensors[f"{MODULE}.scales"].shape, np.uint8)


@pytest.mark.parametrize(
    "alter",
    [
        without_zeros,
        too_few_scales,
        of_floats,
        uneven_groups,
        part_of_a_word,
        scales_of_bytes,
        groups_of_all,
        inputs_less,
    ],
)
def test_parts_that_do_not_fit_together_are_refused_by_name(alter, tmp_path):
    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=alter)
    with pytest.raises(CheckpointError, match=rf"layer '{MODULE}' is packed as qweight I32"):
        open_checkpoint(str(tmp_path / "packed"))


def test_weights_that_are_there_twice_are_refused(tmp_path):
    def twice(tensors: Tensors) -> None:
        tensors[f"{MODULE}.weight"] = np.zeros((8, 8), np.float32)

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=twice)
    with pytest.raises(CheckpointError, match=f"^layer '{MODULE}' has its weights twice"):
        open_checkpoint(str(tmp_path / "packed"))


@pytest.mark.parametrize("group", [2, -1])
def test_a_group_that_there_is_not_is_refused(group, tmp_path):
    def beyond(tensors: Tensors) -> None:
        tensors[f"{MODULE}.g_idx"] = np.array([0] * 63 + [group], np.int32)

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=beyond)
    sentence = f"'{MODULE}.g_idx' has inputs of group {group}, but there are 2 groups"
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(str(tmp_path / "packed"))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.nan, f"tensor '{MODULE}.scales' holds NaN or Inf"),
        (np.inf, f"tensor '{MODULE}.scales' holds NaN or Inf"),
    ],
)
@pytest.mark.parametrize("weights", ["source", "fp32"])
def test_scales_that_are_none_are_refused(value, sentence, weights, tmp_path):
    def damage(tensors: Tensors) -> None:
        tensors[f"{MODULE}.scales"][1, 7] = value

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=damage)
    with pytest.raises(CheckpointError, match=sentence):
        export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights=weights))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("settings", "pack"), [(AWQ, pack_awq), (SYMMETRIC, pack_gptq)])
def test_scales_of_either_sign_are_kept(settings, pack, tmp_path):
    """AutoRound's, where the weight of largest magnitude in a group is above 0."""

    def turned_over(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith(".scales"):
                tensors[name][:, ::2] *= -1

    weights = packed_model(tmp_path / "packed", settings, pack, alter=turned_over)
    options = ExportOptions(weights="source", verify=True)
    result = export(tmp_path / "packed", tmp_path / "out", options)
    assert result.manifest["quality"]["relative_weight_error"] == 0
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        spec = interpret(checkpoint)[0].spec
    bundle = BundleWeights(result.folder, spec)
    for name, weight in weights.items():
        weight[::2] *= -1
        np.testing.assert_array_equal(bundle.matrix(name), weight)


def test_scales_that_are_0_are_of_weights_that_are(tmp_path):
    """Those of float16 become 0 where weights are next to nothing."""

    def empty(tensors: Tensors) -> None:
        tensors[f"{MODULE}.scales"][1, 7] = 0

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=empty)
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        zeros = checkpoint.read(NAME) == 0
    assert zeros[7, 32:].all() and not zeros[8, 32:].all()
    export(tmp_path / "packed", tmp_path / "out", ExportOptions(weights="source", verify=True))


@pytest.mark.parametrize("part", ["qzeros", "g_idx", "scales"])
def test_parts_of_no_layer_have_no_place(part, tmp_path):
    def lost(tensors: Tensors) -> None:
        tensors[f"model.layers.9.mlp.gate_proj.{part}"] = np.zeros((2, 8), np.int32)

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=lost)
    with pytest.raises(CheckpointError, match=f"gate_proj.{part}' has no place in"):
        export(tmp_path / "packed", tmp_path / "out", ExportOptions())


def test_figures_say_that_the_source_was_rounded_before(tmp_path):
    def of_floats(tensors: Tensors) -> None:
        for part in ("qweight", "qzeros", "scales"):
            del tensors[f"{MODULE}.{part}"]
        tensors[NAME] = np.ones((64, 64), np.float16)

    packed_model(tmp_path / "packed", GPTQ, pack_gptq, alter=of_floats)
    for folder, sentence in (
        (tmp_path / "packed", "the source is rounded already: of its 14 projections 13 are GPTQ4;"),
        (GOLDEN / "llama", None),
    ):
        with open_checkpoint(str(folder)) as checkpoint:
            said = rounded_source(interpret(checkpoint)[0])
        assert said == sentence if sentence is None else str(said).startswith(sentence)
