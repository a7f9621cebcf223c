"""Experts that a checkpoint stores in stacks: each tensor of each, from codes and from floats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from edgerun.errors import CheckpointError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.base import Checkpoint
from edgerun_export.checkpoint.views import stacked
from edgerun_export.checkpoint.views.stacked import StackedExperts
from edgerun_export.pipeline import ExportOptions, export
from edgerun_export.source.model import interpret
from edgerun_export.verify.numpy_model import forward
from tests.support.bundles import GOLDEN

Tensors = dict[str, NDArray]
SOURCE = GOLDEN / "gpt_oss"
AT = "model.layers.1.mlp.experts"
# OCP Microscaling Formats 1.0, table 5.
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def decoded(blocks: NDArray, scales: NDArray) -> NDArray:
    """Weights ``[experts, N, K]``, one code after the other."""
    experts, n, groups, _ = blocks.shape
    out = np.zeros((experts, n, groups, 32))
    for place in np.ndindex(*blocks.shape):
        byte, scale = int(blocks[place]), 2.0 ** (int(scales[place[:3]]) - 127)
        for half, code in enumerate((byte & 15, byte >> 4)):
            sign = -1 if code & 8 else 1
            out[(*place[:3], 2 * place[3] + half)] = sign * VALUES[code & 7] * scale
    return out.reshape(experts, n, groups * 32).astype(np.float32)


def altered(folder: Path, alter: Callable[[Tensors], None]) -> Path:
    """A copy of the golden checkpoint with other tensors."""
    shutil.copytree(SOURCE, folder)
    # bfloat16, which NumPy does not have, as float32.
    with open_checkpoint(str(SOURCE)) as checkpoint:
        inner = checkpoint._checkpoint if isinstance(checkpoint, StackedExperts) else checkpoint
        tensors = {name: inner.read(name) for name in inner.tensors()}
    alter(tensors)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def to_floats(tensors: Tensors) -> None:
    """As checkpoints that were never in MXFP4 have it, ``[experts, K, N]``."""
    for name in [name for name in tensors if name.endswith("_blocks")]:
        stack = name.removesuffix("_blocks")
        values = decoded(tensors.pop(name), tensors.pop(f"{stack}_scales"))
        tensors[stack] = values.transpose(0, 2, 1)


def parts(checkpoint: Checkpoint) -> dict[str, NDArray]:
    return {name: checkpoint.read(name) for name in checkpoint.tensors() if ".experts." in name}


def test_codes_and_floats_are_read_alike(tmp_path: Path) -> None:
    raw: Tensors = {}
    folder = altered(tmp_path / "floats", lambda tensors: (raw.update(tensors), to_floats(tensors)))
    with open_checkpoint(str(SOURCE)) as codes, open_checkpoint(str(folder)) as floats:
        first, second = parts(codes), parts(floats)
    assert first.keys() == second.keys()
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])
    both = decoded(raw[f"{AT}.gate_up_proj_blocks"], raw[f"{AT}.gate_up_proj_scales"])
    np.testing.assert_array_equal(first[f"{AT}.3.gate_proj.weight"], both[3, ::2])
    np.testing.assert_array_equal(first[f"{AT}.3.up_proj.weight"], both[3, 1::2])
    bias = raw[f"{AT}.gate_up_proj_bias"]
    np.testing.assert_array_equal(first[f"{AT}.2.up_proj.bias"], bias[2, 1::2])
    np.testing.assert_array_equal(first[f"{AT}.0.down_proj.bias"], raw[f"{AT}.down_proj_bias"][0])


def test_rows_and_integers_are_those_of_the_whole() -> None:
    name = f"{AT}.1.up_proj.weight"
    with open_checkpoint(str(SOURCE)) as checkpoint:
        whole = checkpoint.read(name)
        np.testing.assert_array_equal(checkpoint.read(name, slice(5, 9)), whole[5:9])
        stored = checkpoint.integers(name, slice(5, 9))
        assert stored is not None
        values, scales = stored
        assert values.dtype == np.int8 and np.abs(values).max() == 12
        np.testing.assert_array_equal(values * np.repeat(scales, 32, axis=1), whole[5:9])
        assert checkpoint.ternary(name) is None
        assert checkpoint.integers(f"{AT}.1.up_proj.bias") is None
        assert checkpoint.read("model.norm.weight").shape == (64,)


def test_what_was_read_is_known_part_by_part() -> None:
    with open_checkpoint(str(SOURCE)) as checkpoint:
        name = f"{AT}.0.gate_proj.weight"
        checkpoint.read(name, slice(0, 3))
        assert name not in checkpoint.read_to_the_end()
        checkpoint.read(name, slice(3, None))
        checkpoint.read("lm_head.weight")
        assert checkpoint.read_to_the_end() == {name, "lm_head.weight"}


@pytest.mark.parametrize("group_size", [16, 32])
def test_int8_keeps_every_weight(group_size: int, tmp_path: Path) -> None:
    """Twice the values are whole numbers up to 12."""
    options = ExportOptions(weights="int8", head_weights="fp32", group_size=group_size)
    result = export(SOURCE, tmp_path / "int8", options)
    assert 0 < result.manifest["quality"]["relative_weight_error"] < 0.003  # of attention alone
    from edgerun_export.verify.bundle_weights import BundleWeights

    with open_checkpoint(str(SOURCE)) as checkpoint:
        weights, _ = interpret(checkpoint)
        stored = BundleWeights(result.folder, weights.spec)
        for expert in range(4):
            for projection in ("gate_proj", "up_proj", "down_proj"):
                name = f"{AT}.{expert}.{projection}.weight"
                np.testing.assert_array_equal(stored.matrix(name), weights.matrix(name))


def test_checkpoints_in_floats_compute_the_same(tmp_path: Path) -> None:
    folder = altered(tmp_path / "floats", to_floats)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    ids = np.arange(20)
    with open_checkpoint(str(SOURCE)) as codes, open_checkpoint(str(folder)) as floats:
        (first, _), (second, _) = interpret(codes), interpret(floats)
        expected = forward(first.spec, first, ids)
        np.testing.assert_array_equal(forward(second.spec, second, ids), expected)


def without_scales(tensors: Tensors) -> None:
    del tensors[f"{AT}.down_proj_scales"]


def short_scales(tensors: Tensors) -> None:
    tensors[f"{AT}.down_proj_scales"] = tensors[f"{AT}.down_proj_scales"][:, 1:]


def two_axes(tensors: Tensors) -> None:
    blocks = tensors[f"{AT}.down_proj_blocks"]
    tensors[f"{AT}.down_proj_blocks"] = blocks.reshape(len(blocks), -1)


def five_axes(tensors: Tensors) -> None:
    tensors[f"{AT}.down_proj_blocks"] = tensors[f"{AT}.down_proj_blocks"][..., None]


def one_output_more(tensors: Tensors) -> None:
    for kind in ("blocks", "scales"):
        stack = tensors[f"{AT}.gate_up_proj_{kind}"]
        tensors[f"{AT}.gate_up_proj_{kind}"] = np.concatenate([stack, stack[:, :1]], axis=1)


def no_number(tensors: Tensors) -> None:
    tensors[f"{AT}.down_proj_scales"][2, 5] = 255


def too_large(tensors: Tensors) -> None:
    tensors[f"{AT}.down_proj_scales"][2, 5] = 254


def also_as_floats(tensors: Tensors) -> None:
    tensors[f"{AT}.down_proj"] = np.zeros((4, 32, 64), np.float32)


def also_alone(tensors: Tensors) -> None:
    tensors[f"{AT}.3.up_proj.bias"] = np.zeros(32, np.float32)


def one_expert_less(tensors: Tensors) -> None:
    tensors[f"{AT}.down_proj_bias"] = tensors[f"{AT}.down_proj_bias"][1:]


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (without_scales, "its scales are none; expected U8"),
        (short_scales, r"its scales are U8 \[4, 63, 1\]"),
        (two_axes, r"down_proj_blocks' has shape \[4, 1024\]; expected 4 axes"),
        (five_axes, r"down_proj_blocks' has shape \[.*, 16, 1\]; expected 4 axes"),
        (one_output_more, "65 outputs, which gate_proj and up_proj cannot share"),
        (no_number, r"experts.2.down_proj.weight' holds NaN or Inf in rows 0 to 63"),
        (too_large, r"experts.2.down_proj.weight' holds NaN or Inf in rows 0 to 63"),
        (also_as_floats, r"experts.0.down_proj.weight' is there twice, once in '.*down_proj"),
        (also_alone, r"experts.3.up_proj.bias' is there twice, once in '.*gate_up_proj_bias'"),
        (one_expert_less, r"no tensor 'model.layers.1.mlp.experts.3.down_proj.bias'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_stacks_that_do_not_fit_are_refused(
    alter: Callable[[Tensors], None], message: str, weights: str, tmp_path: Path
) -> None:
    folder = altered(tmp_path / "model", alter)
    with pytest.raises(CheckpointError, match=message):
        export(folder, tmp_path / "bundle", ExportOptions(weights=weights))


GRANITE, INPUT = GOLDEN / "granitemoe", "model.layers.1.block_sparse_moe.input_linear.weight"


def test_stacks_of_granite_have_the_outputs_of_gate_before_those_of_up() -> None:
    stack = load_file(GRANITE / "model.safetensors")[INPUT].astype(np.float32)
    at = INPUT.replace("input_linear.weight", "experts")
    with open_checkpoint(str(GRANITE)) as checkpoint:
        assert INPUT not in checkpoint.tensors()
        for expert in range(5):
            gate, up = (f"{at}.{expert}.{name}_proj.weight" for name in ("gate", "up"))
            assert checkpoint.tensors()[up].shape == (40, 64)
            np.testing.assert_array_equal(checkpoint.read(gate), stack[expert, :40])
            np.testing.assert_array_equal(checkpoint.read(up, slice(3, 9)), stack[expert, 43:49])
            assert checkpoint.integers(gate) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stack: stack[0], r"has shape \[80, 64\]; expected 3 axes"),
        (lambda stack: stack[:, 1:], "79 outputs, which gate_proj and up_proj cannot share"),
        (lambda stack: stack[1:], "no tensor '.*experts.4.gate_proj.weight'"),
        (lambda stack: stack[:, 2:], r"experts.0.gate_proj.weight' has shape \[39, 64\]"),
        (lambda stack: stack * np.float32(np.inf), "input_linear.weight' holds NaN or Inf"),
    ],
)
def test_stacks_of_granite_that_do_not_fit_are_refused(
    change: Callable[[NDArray], NDArray], message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(GRANITE, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors[INPUT] = np.ascontiguousarray(change(tensors[INPUT]))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        export(folder, tmp_path / "bundle", ExportOptions())


def test_stacks_together_have_no_more_tensors_than_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 layers of 4 experts, each with weight and bias of three projections."""
    monkeypatch.setattr(stacked, "MAX_TENSORS", 2 * 4 * 3 * 2)
    with open_checkpoint(str(SOURCE)):
        pass
    monkeypatch.setattr(stacked, "MAX_TENSORS", 2 * 4 * 3 * 2 - 1)
    with pytest.raises(CheckpointError, match="have more than 47 tensors"):
        open_checkpoint(str(SOURCE))


def test_other_checkpoints_are_left_as_they_are() -> None:
    with open_checkpoint(str(GOLDEN / "olmoe")) as checkpoint:
        assert not isinstance(checkpoint, StackedExperts)
        assert (
            load_file(GOLDEN / "olmoe" / "model.safetensors").keys() == checkpoint.tensors().keys()
        )
