"""Integers of compressed-tensors that are damaged, or stored in ways that are not read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.pipeline import ExportOptions, export
from tests.export.checkpoint.fp8.schemes import E4M3
from tests.export.checkpoint.integers.layouts import (
    MODULE,
    NAME,
    Layout,
    Tensors,
    compressed,
    in_bytes,
    integer_model,
    pack_compressed,
)

PACKED = Layout(compressed(symmetric=False), pack_compressed())
SYMMETRIC = Layout(compressed(), pack_compressed(has_zeros=False), is_centred=True)
BYTES = Layout(
    compressed("int-quantized", symmetric=False), in_bytes(4, has_zeros=True), is_centred=True
)
Alter = Callable[[Tensors], None]


def without(part: str) -> Alter:
    """Removes a part of a layer."""

    def alter(tensors: Tensors) -> None:
        del tensors[f"{MODULE}.{part}"]

    return alter


def with_part(part: str, value: Any) -> Alter:
    """Replaces or adds a part of a layer; a function makes it of what is there."""

    def alter(tensors: Tensors) -> None:
        name = f"{MODULE}.{part}"
        tensors[name] = value(tensors[name]) if callable(value) else value

    return alter


def put(part: str, at: tuple[int, ...], value: float) -> Alter:
    """Writes one number into a part of a layer."""

    def alter(tensors: Tensors) -> None:
        tensors[f"{MODULE}.{part}"][at] = value

    return alter


SHAPE = np.array([64, 64], np.int64)
STORED = rf"layer '{MODULE}' is stored as .*; expected int32 weight_packed of 4 bits, int64 "
GROUPS = (np.arange(64) // 32).astype(np.int32)
DAMAGED = [
    (PACKED, without("weight_scale"), STORED + r"weight_shape and float weight_scale of the te"),
    (PACKED, without("weight_shape"), STORED),
    (PACKED, with_part("weight_shape", SHAPE.astype(np.int32)), r"weight_shape I32 \[2\]"),
    (PACKED, with_part("weight_shape", SHAPE - [1, 0]), STORED),
    (PACKED, with_part("weight_shape", SHAPE + [0, 1]), STORED),
    (PACKED, with_part("weight_shape", -SHAPE), STORED),
    (PACKED, with_part("weight_shape", np.array([64, 64, 1])), r"weight_shape I64 \[3\]"),
    (PACKED, with_part("weight_packed", lambda old: old.astype(np.int64)), "weight_packed I64"),
    (PACKED, with_part("weight_packed", lambda old: old[None]), r"weight_packed I32 \[1, 64, 8\]"),
    (SYMMETRIC, with_part("weight_scale", lambda old: old[:, :1].repeat(4, 1)), "of 32 inputs"),
    (SYMMETRIC, with_part("weight_scale", lambda old: old[:, :1].repeat(3, 1)), "of 32 inputs"),
    (PACKED, with_part("weight_scale", lambda old: old[1:]), r"weight_scale F16 \[63, 2\]"),
    (PACKED, with_part("weight_scale", lambda old: old.view(np.int16)), "weight_scale I16"),
    (PACKED, with_part("weight_zero_point", lambda old: old[1:]), r"zero_point I32 \[7, 2\]"),
    (PACKED, with_part("weight_zero_point", lambda old: old[:, :1]), r"point I32 \[8, 1\]"),
    (PACKED, with_part("weight_zero_point", np.zeros((64, 2), np.uint8)), "zero_point U8"),
    (PACKED, with_part("weight_g_idx", GROUPS[1:]), r"g_idx I32 \[63\]"),
    (PACKED, with_part("weight_g_idx", GROUPS.astype(np.int64)), "g_idx I64"),
    (PACKED, with_part("weight_g_idx", GROUPS + 1), r"weight_g_idx' has inputs of group 2, but"),
    (PACKED, with_part("weight_g_idx", GROUPS - 1), r"weight_g_idx' has inputs of group -1"),
    (PACKED, with_part("weight", np.zeros((64, 64), np.int8)), "has its weights twice, as '.*ked'"),
    (PACKED, put("weight_scale", (5, 1), np.nan), "'.*weight_scale' holds NaN or Inf"),
    (BYTES, without("weight_scale"), "stored as weight I8 .* expected int8 weight and float"),
    (BYTES, put("weight", (7, 3), 8), rf"'{NAME}' holds 8; expected -8 to 7, as .* has 4 bits"),
    (BYTES, put("weight", (7, 3), -9), "holds -9; expected -8 to 7"),
    (BYTES, put("weight_zero_point", (7, 1), 9), "weight_zero_point' holds 9; expected -8 to 7"),
    (BYTES, with_part("weight_shape", SHAPE), "weight_shape I64"),
]


@pytest.mark.parametrize(("layout", "alter", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_checkpoints_are_refused(
    layout: Layout, alter: Alter, message: str, tmp_path: Path
) -> None:
    integer_model(tmp_path / "integers", layout, alter=alter)
    refused(CheckpointError, message, tmp_path)


def test_weights_beyond_float32_are_refused(tmp_path: Path) -> None:
    scales = with_part("weight_scale", np.full((64, 2), 3e38, np.float32))
    integer_model(tmp_path / "integers", PACKED, alter=scales)
    with (
        open_checkpoint(str(tmp_path / "integers")) as checkpoint,
        pytest.raises(CheckpointError, match=f"'{NAME}' holds NaN or Inf"),
    ):
        checkpoint.read(NAME)


def test_scales_may_be_0(tmp_path: Path) -> None:
    """So float16 has those of weights that are next to nothing."""
    integer_model(tmp_path / "integers", PACKED, alter=put("weight_scale", (5, 1), 0))
    with open_checkpoint(str(tmp_path / "integers")) as checkpoint:
        assert not checkpoint.read(NAME)[5, 32:].any()


@pytest.mark.parametrize("part", ["weight_zero_point", "weight_g_idx", "weight_shape"])
def test_parts_of_no_layer_have_no_place(part: str, tmp_path: Path) -> None:
    def lost(tensors: Tensors) -> None:
        tensors[f"model.layers.9.mlp.gate_proj.{part}"] = np.zeros((2, 8), np.int32)

    integer_model(tmp_path / "integers", PACKED, alter=lost)
    refused(CheckpointError, f"gate_proj.{part}' has no place in", tmp_path)


def test_scales_beside_floats_are_refused(tmp_path: Path) -> None:
    """As a checkpoint has them that was saved before its weights were integers."""

    def unfinished(tensors: Tensors) -> None:
        for part in ("weight_packed", "weight_shape"):
            del tensors[f"{MODULE}.{part}"]
        tensors[NAME] = np.zeros((64, 64), np.float16)

    integer_model(tmp_path / "integers", PACKED, alter=unfinished)
    refused(
        CheckpointError, f"'{MODULE}.weight_scale' are scales of '{NAME}', which is F16", tmp_path
    )


UNSUPPORTED = [
    (
        compressed("marlin-24"),
        "integers of compressed-tensors in the format 'marlin-24'; supported",
    ),
    (compressed("dense"), "in the format 'dense'; supported are pack-quantized, int-quantized, na"),
    (compressed(num_bits=3), "in 3 bits; supported are 2, 4, 8"),
    (compressed(num_bits=4.0), "in 4.0 bits"),
    (compressed(num_bits=[4]), r"in \[4\] bits"),
    (
        compressed(strategy="block", block_structure=[32, 32]),
        "have the strategy 'block'; supported",
    ),
    (compressed(strategy=["group"]), r"have the strategy \['group'\]"),
    (compressed(group_size=-1), "group_size is -1; expected"),
    (compressed(group_size=True), "group_size is True; expected"),
    (compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "are sparse, which"),
    (compressed() | {"transform_config": {"config_groups": {"R1": {}}}}, "turned by a transform"),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        "'bitsandbytes' are not supported; its codes .* or its GPTQ, AWQ, .* let --weights int4 or",
    ),
    ({"quant_method": "torchao"}, "'torchao' are not supported; export the unquantised checkpoint"),
]


@pytest.mark.parametrize(("settings", "message"), UNSUPPORTED)
def test_what_is_not_read_is_refused_by_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    integer_model(tmp_path / "integers", replace(PACKED, settings=settings))
    refused(UnsupportedError, message, tmp_path)


def test_floats_where_integers_are_said_to_be_need_scales(tmp_path: Path) -> None:
    def of_floats(tensors: Tensors) -> None:
        for part in ("weight_packed", "weight_shape", "weight_zero_point", "weight_scale"):
            del tensors[f"{MODULE}.{part}"]
        tensors[NAME] = np.zeros((64, 64)).astype(E4M3)

    integer_model(tmp_path / "integers", PACKED, alter=of_floats)
    refused(CheckpointError, f"'{NAME}' is F8_E4M3 and has no scales beside it", tmp_path)


def refused(error: type[Exception], message: str, folder: Path) -> None:
    """Checks that an export ends with a sentence and leaves nothing behind."""
    with pytest.raises(error) as caught:
        export(folder / "integers", folder / "out", ExportOptions(weights="source"))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert [each.name for each in folder.iterdir()] == ["integers"]
