"""Checkpoints in FP8 that are damaged, or not read: a sentence, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.pipeline import ExportOptions, export
from tests.export.checkpoint.fp8.schemes import (
    BLOCKS,
    E4M3,
    E8M0,
    SCHEMES,
    Scheme,
    Tensors,
    compressed,
    fp8_model,
)

NAME = "model.layers.0.mlp.gate_proj.weight"
SCALES = f"{NAME}_scale_inv"


def without_scales(tensors: Tensors) -> None:
    del tensors[SCALES]


def scales_twice(tensors: Tensors) -> None:
    tensors[f"{NAME}_scale"] = tensors[SCALES]


def one_block_less(tensors: Tensors) -> None:
    tensors[SCALES] = tensors[SCALES][1:]


def one_number_less(tensors: Tensors) -> None:
    tensors[SCALES] = np.ones(95, np.float32)


def whole_numbers(tensors: Tensors) -> None:
    tensors[SCALES] = np.ones(tensors[SCALES].shape, np.int32)


def of_a_vector(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(E4M3)
    tensors["model.norm.weight_scale_inv"] = np.ones(1, np.float32)


def of_floats(tensors: Tensors) -> None:
    tensors[NAME] = tensors[NAME].astype(np.float32)


def of_integers(tensors: Tensors) -> None:
    tensors[NAME] = tensors[NAME].view(np.int8)


def of_no_weight(tensors: Tensors) -> None:
    tensors["model.layers.9.mlp.gate_proj.weight_scale_inv"] = np.ones(1, np.float32)


def with_zero_points(tensors: Tensors) -> None:
    tensors[f"{NAME}_zero_point"] = np.zeros(1, np.float32)


def holding(value: float) -> Callable[[Tensors], None]:
    def alter(tensors: Tensors) -> None:
        tensors[SCALES][-1, -1] = value

    return alter


def no_number(tensors: Tensors) -> None:
    tensors[NAME].view(np.uint8)[7, 3] = 0xFF


def too_large(tensors: Tensors) -> None:
    tensors[NAME][-1, -1] = 448
    tensors[SCALES][-1, -1] = 1e37


def no_power(tensors: Tensors) -> None:
    tensors[SCALES] = np.full(tensors[SCALES].shape, 255, np.uint8)


def no_power_of_e8m0(tensors: Tensors) -> None:
    tensors[SCALES] = np.full(tensors[SCALES].shape, 255, np.uint8).view(E8M0)


DAMAGED = [
    (
        without_scales,
        rf"'{NAME}' is F8_E4M3 and has no scales beside it; expected either '{NAME}_s",
    ),
    (scales_twice, rf"'{NAME}' is F8_E4M3 and has 2 scales beside it"),
    (
        one_block_less,
        r"are F32 \[2, 2\], which do not fit .* or \[3, 2\] with one for each 24 x 40",
    ),
    (
        one_number_less,
        r"are F32 \[95\], which do not fit .* \[64, 64\]; expected .* \[64, 1\] with",
    ),
    (
        whole_numbers,
        rf"scales '{SCALES}' are I32 \[3, 2\], which do not fit .* expected F32, F16, BF16,",
    ),
    (of_a_vector, "which do not fit 'model.norm.weight' .* matrices and stacks of them alone"),
    (of_floats, f"'{SCALES}' are scales of '{NAME}', which is F32; expected F8_E4M3 or"),
    (of_integers, f"'{SCALES}' are scales of '{NAME}', which is I8; expected F8_E4M3 or"),
    (of_no_weight, "'model.layers.9.mlp.gate_proj.weight_scale_inv' has no place in"),
    (with_zero_points, f"'{NAME}_zero_point' has no place in"),
    (holding(0), f"scales '{SCALES}' hold 0; expected numbers above 0"),
    (holding(-0.5), f"scales '{SCALES}' hold -0.5; expected numbers above 0"),
    (holding(np.nan), f"tensor '{SCALES}' holds NaN or Inf"),
    (holding(np.inf), f"tensor '{SCALES}' holds NaN or Inf"),
    (no_number, f"tensor '{NAME}' holds NaN or Inf"),
    (too_large, f"tensor '{NAME}' holds NaN or Inf"),
    (no_power, f"tensor '{SCALES}' holds NaN or Inf"),
    (no_power_of_e8m0, f"tensor '{SCALES}' holds NaN or Inf"),
]


@pytest.mark.parametrize(
    ("alter", "message"), DAMAGED, ids=lambda value: getattr(value, "__name__", "")
)
def test_damaged_checkpoints_are_refused(
    alter: Callable[[Tensors], None], message: str, tmp_path: Path
) -> None:
    fp8_model(tmp_path / "fp8", SCHEMES["deepseek"], alter=alter)
    refused(CheckpointError, message, tmp_path)


def test_every_expert_has_scales(tmp_path: Path) -> None:
    name = "model.layers.1.block_sparse_moe.input_linear.weight"

    def of_four(tensors: Tensors) -> None:
        tensors[f"{name}_scale_inv"] = tensors[f"{name}_scale_inv"][:4]

    fp8_model(tmp_path / "fp8", SCHEMES["deepseek"], "granitemoe", of_four)
    message = r"are F32 \[4, 4, 2\], which do not fit .* \[5, 80, 64\]; .* or \[5, 4, 2\] with"
    refused(CheckpointError, message, tmp_path)


def test_floats_without_any_scales_are_refused_where_config_json_promises_them(
    tmp_path: Path,
) -> None:
    def unscaled(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_scale_inv")]:
            del tensors[name]

    fp8_model(tmp_path / "fp8", SCHEMES["deepseek"], alter=unscaled)
    refused(CheckpointError, "is F8_E4M3 and has no scales beside it", tmp_path)


def test_blocks_that_nothing_tells_the_size_of_are_refused(tmp_path: Path) -> None:
    scheme = replace(SCHEMES["deepseek"], settings=SCHEMES["ministral3"].settings)
    fp8_model(tmp_path / "fp8", scheme)
    refused(CheckpointError, r"do not fit .* config.json names no size of blocks", tmp_path)


def test_scales_of_some_floats_alone_are_refused(tmp_path: Path) -> None:
    """Of a checkpoint whose configuration is silent: floats would be taken for weights."""
    fp8_model(tmp_path / "fp8", replace(SCHEMES["fbgemm"], settings={}), alter=unscaled)
    refused(CheckpointError, f"'{NAME}' is F8_E4M3 and has no scales beside it", tmp_path)


def unscaled(tensors: Tensors) -> None:
    del tensors[f"{NAME}_scale"]


FLOATS = {"strategy": "tensor"}
UNSUPPORTED = [
    (BLOCKS | {"weight_block_size": [0, 128]}, r"weight_block_size is \[0, 128\]; expected two"),
    (BLOCKS | {"weight_block_size": []}, r"weight_block_size is \[\]"),
    (BLOCKS | {"weight_block_size": [128]}, r"weight_block_size is \[128\]"),
    (BLOCKS | {"weight_block_size": [128, True]}, r"weight_block_size is \[128, True\]"),
    (BLOCKS | {"weight_block_size": "128x128"}, "weight_block_size is '128x128'"),
    (compressed(strategy="block"), "block_structure is None"),
    (compressed(strategy="group", group_size=-1), r"group_size is \[1, -1\]"),
    (compressed("pack-quantized", **FLOATS), "the format 'pack-quantized'; supported are float-q"),
    (compressed(None, **FLOATS), "the format None"),
    (compressed("naive-quantized", type="uint"), "of type 'uint' in 8 bits"),
    (compressed(num_bits=4, **FLOATS), "of type 'float' in 4 bits"),
    (
        compressed(**FLOATS) | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        "are sparse, which",
    ),
    (compressed(**FLOATS) | {"transform_config": {"config_groups": {"R1": {}}}}, "turned by a tra"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo 'NVFP4'; supported are FP8"),
    ({"quant_method": "quark"}, "quantised with 'quark' are not supported"),
    ({"quant_method": ["fp8"]}, "quantised with .* are not supported"),
]


@pytest.mark.parametrize(("settings", "message"), UNSUPPORTED)
def test_what_is_not_read_is_refused_by_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fp8_model(tmp_path / "fp8", Scheme(settings))
    refused(UnsupportedError, message, tmp_path)


def test_configurations_say_that_there_is_nothing_more(tmp_path: Path) -> None:
    """As llm-compressor writes it of dense models; groups may have formats of their own."""
    more = {"sparsity_config": {"format": "dense"}, "transform_config": {"config_groups": {}}}
    settings = compressed("mixed-precision", **FLOATS) | more
    settings["config_groups"]["group_0"]["format"] = "float-quantized"
    fp8_model(tmp_path / "fp8", Scheme(settings))
    export(tmp_path / "fp8", tmp_path / "out", ExportOptions(weights="int8"))


def test_blocks_of_two_sizes_are_refused(tmp_path: Path) -> None:
    settings = compressed(strategy="block", block_structure=[128, 128])
    other = compressed(strategy="group", group_size=32)["config_groups"]["group_0"]
    settings["config_groups"]["group_1"] = other
    fp8_model(tmp_path / "fp8", Scheme(settings))
    refused(UnsupportedError, r"blocks of \(1, 32\) and of \(128, 128\) weights", tmp_path)


@pytest.mark.parametrize(
    ("file", "error", "message"),
    [
        ({"quantization": {"quant_algo": "W4A16_AWQ"}}, UnsupportedError, "'W4A16_AWQ'; supported"),
        (["FP8"], CheckpointError, "'hf_quant_config.json' is not the JSON expected"),
    ],
)
def test_files_of_modelopt_are_read(
    file: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    fp8_model(tmp_path / "fp8", Scheme({}, file=file))
    refused(error, message, tmp_path)


def refused(error: type[Exception], message: str, folder: Path) -> None:
    """Checks that an export ends with a sentence and leaves nothing behind."""
    with pytest.raises(error, match=message) as caught:
        export(folder / "fp8", folder / "out", ExportOptions(weights="int8"))
    assert "\n" not in str(caught.value)
    assert [each.name for each in folder.iterdir()] == ["fp8"]
