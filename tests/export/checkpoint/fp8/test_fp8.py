"""Checkpoints in FP8 are read, and exported, as what their floats and scales stand for."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.codecs import SAFETENSORS
from edgerun_export.checkpoint.files import ByteFile
from edgerun_export.checkpoint.views.fp8 import Fp8Weights
from edgerun_export.checkpoint.views.stacked import StackedExperts
from edgerun_export.pipeline import ExportOptions, export
from tests.export.checkpoint.fp8.schemes import (
    E4M3,
    SCHEMES,
    Scheme,
    Tensors,
    fp8_model,
    source_tensors,
    write,
)
from tests.support.bundles import GOLDEN

NAME = "model.layers.0.mlp.gate_proj.weight"
EVERY_CODE = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu),
    ],
)
def test_every_code_of_8_bit_floats_is_decoded(name: str, dtype: type) -> None:
    decode = SAFETENSORS[name].decode
    assert decode is not None
    decoded, expected = decode(EVERY_CODE[:, None])[:, 0], EVERY_CODE.view(dtype)
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, expected.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(decoded), np.signbit(expected))


def test_codes_of_e4m3_are_sign_exponent_and_mantissa() -> None:
    """OFP8 1.0, section 5.2, of four that show it: subnormal, one, largest, and no number."""
    decode = SAFETENSORS["F8_E4M3"].decode
    assert decode is not None
    codes = np.array([[0b0000_0001], [0b1011_1000], [0b0111_1110], [0b0111_1111]], np.uint8)
    np.testing.assert_array_equal(decode(codes)[:, 0], [2.0**-9, -1, 448, np.nan])


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_weights_are_floats_times_scales(scheme: Scheme, tmp_path: Path) -> None:
    weights = fp8_model(tmp_path / "fp8", scheme)
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        assert checkpoint.tensors().keys() == weights.keys()
        assert checkpoint.tensors()[NAME].dtype == "F8_E4M3"
        for name, weight in weights.items():
            read = checkpoint.read(name)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read, weight)
            for rows in (slice(len(weight) // 3, len(weight) - 5), slice(5, 5)):
                np.testing.assert_array_equal(checkpoint.read(name, rows), weight[rows])
        assert checkpoint.read_to_the_end() == weights.keys()
        assert checkpoint.integers(NAME) is None
        assert checkpoint.affine(NAME) is None
        assert checkpoint.ternary(NAME) is None


def test_stacks_of_experts_have_scales_of_each(tmp_path: Path) -> None:
    """In blocks, of each output, of each expert and of all."""
    name = "model.layers.1.block_sparse_moe.input_linear.weight"
    for form in ("deepseek", "channel", "modelopt", "vllm-static"):
        weights = fp8_model(tmp_path / form, SCHEMES[form], "granitemoe")
        with open_checkpoint(str(tmp_path / form)) as checkpoint:
            for expert in range(5):
                up = name.replace("input_linear", f"experts.{expert}.up_proj")
                np.testing.assert_array_equal(checkpoint.read(up), weights[name][expert, 40:])
            assert len(checkpoint.notes) == (form == "vllm-static")


def test_one_scale_may_be_for_a_whole_stack(tmp_path: Path) -> None:
    name = "model.layers.1.block_sparse_moe.output_linear.weight"
    codes: Tensors = {}

    def shared(tensors: Tensors) -> None:
        tensors[f"{name}_scale"] = np.float32([3])
        codes.update(tensors)

    fp8_model(tmp_path / "fp8", SCHEMES["tensor"], "granitemoe", shared)
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        down = checkpoint.read(name.replace("output_linear", "experts.3.down_proj"))
        assert isinstance(checkpoint, StackedExperts)
        whole = checkpoint._checkpoint.read(name)
    np.testing.assert_array_equal(down, codes[name][3].astype(np.float32) * 3)
    np.testing.assert_array_equal(whole, codes[name].astype(np.float32) * 3)


@pytest.mark.parametrize(
    ("model", "form", "options"),
    [
        ("llama", "qwen3", {"weights": "int8"}),
        ("ministral3", "ministral3", {"weights": "int4", "method": "rtn"}),
        ("qwen3_moe", "channel", {"weights": "int4"}),
        ("granitemoe", "deepseek", {"weights": "int8"}),
        ("gemma4_text-experts", "qwen3", {"weights": "int8"}),
        ("deepseek_v3", "deepseek", {"weights": "fp32"}),
    ],
)
def test_bundles_are_those_of_the_weights_in_float32(
    model: str, form: str, options: dict[str, str], tmp_path: Path
) -> None:
    weights = fp8_model(tmp_path / "fp8", SCHEMES[form], model)
    write(tmp_path / "plain", model, weights, {})
    first, second = (
        export(tmp_path / source, tmp_path / f"{source}-out", ExportOptions(**options))
        for source in ("fp8", "plain")
    )
    for name in ("model.onnx", "model.onnx.data"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    assert first.manifest["quality"] == second.manifest["quality"]


def test_source_weights_become_int8_and_the_export_says_so(tmp_path: Path) -> None:
    fp8_model(tmp_path / "fp8", SCHEMES["qwen3"])
    result = export(tmp_path / "fp8", tmp_path / "out", ExportOptions(weights="source"))
    assert result.recipe.tensor("model.layers.0.mlp.gate_proj").weights == "int8"
    assert any("14 projections are stored as F8_E4M3" in each for each in result.warnings)
    assert 0 < result.manifest["quality"]["relative_weight_error"] < 0.008


def test_scales_of_activations_keys_and_values_are_left_out_and_named(tmp_path: Path) -> None:
    first = "model.layers.0.mlp.down_proj.activation_scale"
    others = [
        "mlp.gate_proj.input_scale",
        "mlp.experts.gate_up_proj_activation_scale",
        "mlp.experts.down_proj_input_scale",
        "self_attn.k_proj.output_scale",
        "self_attn.prob_output_scale",
        "self_attn.k_scale",
        "self_attn.v_scale",
        "self_attn.q_scale",
        "self_attn.attn.prob_scale",
        "self_attn.kv_scale",
    ]

    def with_others(tensors: Tensors) -> None:
        tensors |= {f"model.layers.0.{name}": np.ones(1, np.float32) for name in others}

    weights = fp8_model(tmp_path / "fp8", SCHEMES["ministral3"], alter=with_others)
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        assert checkpoint.tensors().keys() == weights.keys()
    result = export(tmp_path / "fp8", tmp_path / "out", ExportOptions())
    assert [each for each in result.warnings if "scales" in each] == [
        f"scales of activations, keys and values are left out ({14 + len(others)}, such as "
        f"'{first}'): they tell other runtimes how to round what they compute, and no weight "
        "depends on them"
    ]


def test_a_cache_may_be_all_that_is_quantised(tmp_path: Path) -> None:
    weights, scale = source_tensors("llama"), "model.layers.0.self_attn.k_proj.k_scale"
    settings = {"quant_method": "modelopt", "quant_algo": None, "kv_cache_scheme": {}}
    tensors = weights | {scale: np.ones(1, np.float32)}
    write(tmp_path / "fp8", "llama", tensors, {"quantization_config": settings})
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        assert checkpoint.tensors().keys() == weights.keys()
        assert f"are left out (1, such as '{scale}'): they" in checkpoint.notes[0]


def test_other_checkpoints_are_left_as_they_are() -> None:
    with open_checkpoint(str(GOLDEN / "llama")) as checkpoint:
        assert not isinstance(checkpoint, Fp8Weights)


def test_a_scale_of_outputs_that_a_model_computes_with_stays(tmp_path: Path) -> None:
    """``altup.correct_output_scale`` of Gemma 3n."""
    name = "model.layers.0.altup.correct_output_scale"
    fp8_model(
        tmp_path / "fp8",
        SCHEMES["channel"],
        alter=lambda tensors: tensors.update({name: np.ones(64, np.float32)}),
    )
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        assert name in checkpoint.tensors()
        assert checkpoint.notes == ()


def test_layers_may_stay_floats(tmp_path: Path) -> None:
    """What ``modules_to_not_convert`` and ``ignore`` name; the types tell."""
    plain = source_tensors("llama")[NAME]

    def unconverted(tensors: Tensors) -> None:
        del tensors[f"{NAME}_scale_inv"]
        tensors[NAME] = plain.astype(ml_dtypes.bfloat16)

    fp8_model(tmp_path / "fp8", SCHEMES["qwen3"], alter=unconverted)
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        np.testing.assert_array_equal(
            checkpoint.read(NAME), plain.astype(ml_dtypes.bfloat16).astype(np.float32)
        )


@pytest.mark.parametrize("dtype", [E4M3, ml_dtypes.float8_e5m2])
def test_floats_that_nothing_scales_are_weights_themselves(dtype: type, tmp_path: Path) -> None:
    """A model that was cast, as neither config.json nor a tensor says otherwise."""
    weights = source_tensors("llama")
    write(tmp_path / "cast", "llama", {n: w.astype(dtype) for n, w in weights.items()}, {})
    with open_checkpoint(str(tmp_path / "cast")) as checkpoint:
        for name, weight in weights.items():
            np.testing.assert_array_equal(
                checkpoint.read(name), weight.astype(dtype).astype(np.float32)
            )


def test_scales_count_where_config_json_forgot_them(tmp_path: Path) -> None:
    scheme = SCHEMES["channel"]
    forgetful = Scheme({}, scheme.block, dtype=scheme.dtype)
    weights = fp8_model(tmp_path / "fp8", forgetful)
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read(NAME), weights[NAME])


def test_rows_are_read_with_their_own_scales_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = fp8_model(tmp_path / "fp8", SCHEMES["deepseek"])
    counts: list[int] = []
    read = ByteFile.read
    monkeypatch.setattr(
        ByteFile, "read", lambda self, at, count: counts.append(count) or read(self, at, count)
    )
    with open_checkpoint(str(tmp_path / "fp8")) as checkpoint:
        counts.clear()
        checkpoint.read(NAME, slice(25, 30))
    columns = weights[NAME].shape[1]
    assert counts == [5 * columns, 4 * -(-columns // 40)]
