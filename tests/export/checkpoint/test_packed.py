"""Layers that GPTQ and AWQ checkpoints pack, written one number after the other."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.bundle_weights import BundleWeights
from tests.support.bundles import GOLDEN

Tensors = dict[str, NDArray]
MODULE = "model.layers.0.mlp.gate_proj"
NAME = f"{MODULE}.weight"
GROUP = 32
PROJECTION = re.compile(r"_proj\.weight$|experts\.\d+\.w[123]\.weight$")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
NIBBLES = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ: nibble i of an int32 is output NIBBLES[i]


def put(words: NDArray, row: int, column: int, bits: int, place: int, value: int) -> None:
    words[row, column] |= np.uint32(int(value) << (bits * place))


def pack_awq(codes: NDArray, points: NDArray) -> Tensors:
    """``qweight`` and ``qzeros`` of codes ``[N, K]`` and zero points ``[N, groups]``."""
    tensors = {}
    for part, numbers in (("qweight", codes), ("qzeros", points)):
        words = np.zeros((numbers.shape[1], len(numbers) // 8), np.uint32)
        for n, k in np.ndindex(*numbers.shape):
            put(words, k, n // 8, 4, NIBBLES.index(n % 8), numbers[n, k])
        tensors[part] = words.view(np.int32)
    return tensors


def pack_gptq(codes: NDArray, points: NDArray, bits: int = 4, less: int = 1) -> Tensors:
    """The same in GPTQ's order; version 1 stores zero points less one."""
    each = 32 // bits
    words = np.zeros((codes.shape[1] // each, len(codes)), np.uint32)
    for n, k in np.ndindex(*codes.shape):
        put(words, k // each, n, bits, k % each, codes[n, k])
    zeros = np.zeros((points.shape[1], len(points) // each), np.uint32)
    for n, g in np.ndindex(*points.shape):
        put(zeros, g, n // each, bits, n % each, (int(points[n, g]) - less) % (1 << bits))
    return {"qweight": words.view(np.int32), "qzeros": zeros.view(np.int32)}


def packed_model(
    folder: Path,
    settings: dict[str, Any],
    pack: Callable[[NDArray, NDArray], Tensors],
    bits: int = 4,
    alter: Callable[[Tensors], None] = lambda tensors: None,
    model: str = "llama",
    group: int = GROUP,
) -> dict[str, NDArray]:
    """A golden checkpoint with packed projections; returns what those are, by name.

    Zero points are the middle if the settings say so. Routers stay as they are, and so does what
    has rows of no whole groups.
    """
    shutil.copytree(GOLDEN / model, folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    tensors, rng = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    weights = {}
    for name in [name for name in tensors if PROJECTION.search(name)]:
        n, k = tensors[name].shape
        if k % group:
            continue
        del tensors[name]
        codes = rng.integers(0, 1 << bits, (n, k))
        points = rng.integers(0, 1 << bits, (n, k // group))
        if settings.get("sym"):
            points[:] = 1 << (bits - 1)
        scales = (rng.uniform(0.5, 1.5, points.shape) / 100).astype(np.float16)
        module = name.removesuffix(".weight")
        parts = pack(codes, points) | {"scales": scales.T.copy()}
        tensors |= {f"{module}.{part}": array for part, array in parts.items()}
        integers = codes - np.repeat(points, group, axis=1)
        factors = np.repeat(scales, group, axis=1).astype(np.float32)
        weights[name] = (integers * factors).astype("f4")
    alter(tensors)
    save_file(tensors, folder / "model.safetensors")
    return weights


FORMS = [
    (AWQ, pack_awq, 4, "int4"),
    (GPTQ, pack_gptq, 4, "int4"),
    (GPTQ | {"checkpoint_format": "gptq_v2"}, lambda c, p: pack_gptq(c, p, 4, 0), 4, "int4"),
    (GPTQ | {"bits": 2}, lambda c, p: pack_gptq(c, p, 2), 2, "int2"),
]


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


@pytest.mark.parametrize(("settings", "pack", "bits", "stored"), FORMS, ids=list("abcd"))
def test_codes_scales_and_zero_points_are_kept(settings, pack, bits, stored, tmp_path):
    weights = packed_model(tmp_path / "packed", settings, pack, bits)
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        for rows in (slice(None), slice(3, 21)):
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


def test_inputs_in_another_order_are_rounded_anew(tmp_path):
    order = np.random.default_rng(1).permutation(64).astype(np.int32) // GROUP

    def turned(codes: NDArray, points: NDArray) -> Tensors:
        return pack_gptq(codes, points) | {"g_idx": order}

    packed_model(tmp_path / "packed", GPTQ | {"desc_act": True}, turned)
    parts = load_file(tmp_path / "packed" / "model.safetensors")
    scale = parts[f"{MODULE}.scales"]
    code = int(parts[f"{MODULE}.qweight"].view(np.uint32)[1, 5]) >> 12 & 15  # of input 11
    zero = int(parts[f"{MODULE}.qzeros"].view(np.uint32)[order[11], 0]) >> 20 & 15
    with open_checkpoint(str(tmp_path / "packed")) as checkpoint:
        assert checkpoint.integers(NAME) is None
        expected = (code - (zero + 1) % 16) * np.float32(scale[order[11], 5])
        assert checkpoint.read(NAME)[5, 11] == np.float32(expected)


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
        (AWQ | {"version": "marlin"}, "'marlin'"),
        (GPTQ | {"bits": 3}, "3 bits"),
        (GPTQ | {"bits": "four"}, "'four' bits"),
    ],
)
def test_other_packings_are_refused_by_name(settings, named, tmp_path):
    packed_model(tmp_path / "packed", settings, pack_gptq)
    with pytest.raises(UnsupportedError, match=named):
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
