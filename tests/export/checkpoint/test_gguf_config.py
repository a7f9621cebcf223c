"""Rotary scaling in GGUF metadata, as Hugging Face's configuration has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.errors import CheckpointError, UnsupportedError
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.checkpoint.gguf_architectures import ARCHITECTURES
from edgerun_export.checkpoint.gguf_config import _head_dim
from edgerun_export.checkpoint.gguf_families import _turned_part, of_family
from edgerun_export.checkpoint.kinds.keys import Keys

gguf = pytest.importorskip("gguf")
Type = gguf.GGMLQuantizationType
Make = Callable[..., Path]
Tensors = dict[str, np.ndarray]


def keys(metadata: dict[str, int]) -> Keys:
    return Keys({f"llama.{key}": value for key, value in metadata.items()}, "llama")


def scaling_config(make_gguf: Make, tensors: Tensors, extra: Callable[[Any], None]) -> Any:
    with open_checkpoint(str(make_gguf(tensors, extra=extra))) as checkpoint:
        return checkpoint.config["rope_scaling"]


def test_reads_linear_and_yarn_scaling(make_gguf: Make, tensors: Tensors) -> None:
    def linear(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(2.0)
        writer.add_rope_scaling_orig_ctx_len(32768)

    assert scaling_config(make_gguf, tensors, linear) == {"rope_type": "linear", "factor": 4.0}
    assert scaling_config(make_gguf, tensors, yarn) == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 32768,
    }


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
@pytest.mark.parametrize(("value", "factor"), [(4.0, 4.0), (1.0, None), (0.0, None)])
def test_a_factor_without_a_type_is_linear(
    make_gguf: Make, tensors: Tensors, key: str, value: float, factor: float | None
) -> None:
    """As llama.cpp does: its default for ``rope.scaling.type`` is linear."""

    def extra(writer: Any) -> None:
        writer.add_float32(f"llama.{key}", value)

    expected = factor and {"rope_type": "linear", "factor": factor}
    assert scaling_config(make_gguf, tensors, extra) == expected


def test_no_scaling_means_none_whatever_the_factor(make_gguf: Make, tensors: Tensors) -> None:
    def extra(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(4.0)

    assert scaling_config(make_gguf, tensors, extra) is None


def test_refuses_a_negative_factor(make_gguf: Make, tensors: Tensors) -> None:
    with pytest.raises(CheckpointError, match=r"scaling factor is -4\.0"):
        scaling_config(make_gguf, tensors, lambda writer: writer.add_rope_scaling_factor(-4.0))


def test_refuses_two_scalings_at_once(make_gguf: Make, tensors: Tensors) -> None:
    raw = {"rope_freqs.weight": (np.array([1.0, 3.0], np.float32), Type.F32)}
    path = make_gguf(tensors, raw=raw, extra=lambda writer: writer.add_rope_scaling_factor(4.0))
    with pytest.raises(UnsupportedError, match="'linear' on top of the factors"):
        open_checkpoint(str(path))


def test_reads_where_yarns_ramp_begins_and_ends(make_gguf: Make, tensors: Tensors) -> None:
    def extra(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(2.0)
        writer.add_float32("llama.rope.scaling.yarn_beta_fast", 16.0)
        writer.add_float32("llama.rope.scaling.yarn_beta_slow", 2.0)

    scaling = scaling_config(make_gguf, tensors, extra)
    assert (scaling["beta_fast"], scaling["beta_slow"]) == (16.0, 2.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("logit_scale", 0.5),
        ("attention.scale", 0.1),
        ("final_logit_softcapping", 30.0),
        ("rope.scaling.yarn_ext_factor", 0.5),
    ],
)
def test_refuses_what_would_change_the_model(
    make_gguf: Make, tensors: Tensors, key: str, value: float
) -> None:
    with pytest.raises(UnsupportedError, match=f"metadata '{key}' is {value:g}, which"):
        scaling_config(make_gguf, tensors, lambda w: w.add_float32(f"llama.{key}", value))


def test_values_that_do_nothing_are_fine(make_gguf: Make, tensors: Tensors) -> None:
    def extra(writer: Any) -> None:
        writer.add_float32("llama.logit_scale", 1.0)
        writer.add_float32("llama.attn_logit_softcapping", 0.0)

    assert scaling_config(make_gguf, tensors, extra) is None


def test_refuses_an_unknown_scaling(make_gguf: Make, tensors: Tensors) -> None:
    def extra(writer: Any) -> None:
        writer.add_string("llama.rope.scaling.type", "spiral")

    with pytest.raises(UnsupportedError, match="'spiral' is not supported; supported: none"):
        scaling_config(make_gguf, tensors, extra)


@pytest.mark.parametrize("length", ["short", "long"])
def test_refuses_divisors_that_nothing_reads(
    make_gguf: Make, tensors: Tensors, length: str
) -> None:
    name = f"rope_factors_{length}.weight"
    path = make_gguf(tensors, raw={name: (np.array([1.0, 3.0], np.float32), Type.F32)})
    with pytest.raises(UnsupportedError, match=f"tensor '{name}' is not supported in llama"):
        open_checkpoint(str(path))


def test_refuses_long_rope_without_divisors(make_gguf: Make, tensors: Tensors) -> None:
    def extra(writer: Any) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)

    with pytest.raises(UnsupportedError, match="rotary scaling 'longrope' is not supported in ll"):
        scaling_config(make_gguf, tensors, extra)
    with pytest.raises(CheckpointError, match=r"neither 'rope_factors_short\.weight' nor"):
        open_checkpoint(str(make_gguf(tensors, "phi3", extra=extra)))


def test_layers_of_gpt_oss_have_the_windows_that_a_file_says() -> None:
    def full(**said: int) -> list[int]:
        metadata = {f"gpt-oss.attention.{key}": value for key, value in said.items()}
        config = {"num_hidden_layers": 6}
        kind = ARCHITECTURES["gpt-oss"]
        types = of_family(Keys(metadata, "gpt-oss"), kind, config, {})["layer_types"]
        return [layer for layer, each in enumerate(types) if each == "full_attention"]

    assert full() == [1, 3, 5]
    assert full(sliding_window_pattern=3) == [2, 5]


def llama3_reference(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """Llama 3.1's ``apply_scaling``, one frequency at a time, as divisors."""
    out = []
    for index in range(head_dim // 2):
        frequency = theta ** (-2 * index / head_dim)
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            out.append(1.0)
        elif wavelength > 8192 / 1:
            out.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_recognises_llama3_factors(make_gguf: Make, tensors: Tensors, factor: float) -> None:
    raw = {"rope_freqs.weight": (llama3_reference(5e5, 64, factor), Type.F32)}
    wide = {name: weight for name, weight in tensors.items() if "layers" not in name}

    def extra(writer: Any) -> None:
        writer.add_rope_freq_base(5e5)
        writer.add_key_length(64)

    with open_checkpoint(str(make_gguf(wide, extra=extra, raw=raw))) as checkpoint:
        assert checkpoint.config["rope_scaling"] == {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        assert "rope_freqs.weight" not in checkpoint.tensors()


def test_passes_on_factors_of_no_known_rule(make_gguf: Make, tensors: Tensors) -> None:
    raw = {"rope_freqs.weight": (np.array([1.0, 3.0], np.float32), Type.F32)}
    with open_checkpoint(str(make_gguf(tensors, raw=raw))) as checkpoint:
        scaling = checkpoint.config["rope_scaling"]
    assert scaling["rope_type"] == "longrope"
    assert scaling["long_factor"] == scaling["short_factor"] == [1.0, 3.0]
    assert scaling["attention_factor"] == 1.0


@pytest.mark.parametrize("factors", [[1.0], [1.0, 2.0, 3.0], [1.0, 0.0], [1.0, -2.0]])
def test_refuses_factors_that_are_none(
    make_gguf: Make, tensors: Tensors, factors: list[float]
) -> None:
    raw = {"rope_freqs.weight": (np.array(factors, np.float32), Type.F32)}
    with pytest.raises(
        CheckpointError, match=r"'rope_freqs\.weight' .* expected 2 positive factors"
    ):
        open_checkpoint(str(make_gguf(tensors, raw=raw)))


@pytest.mark.parametrize(
    ("metadata", "sizes"),
    [
        ({}, (4, 4)),
        (
            {"attention.key_length": 6, "rope.dimension_count": 2, "attention.value_length": 6},
            (6, 2),
        ),
        ({"attention.key_length": 1 << 20}, (1 << 20, 1 << 20)),
    ],
)
def test_heads_have_sizes(metadata: dict[str, int], sizes: tuple[int, int]) -> None:
    assert _head_dim(keys(metadata), ARCHITECTURES["llama"], 16, 4) == sizes


def test_heads_need_not_share_the_width_if_their_size_is_stated() -> None:
    assert _head_dim(keys({"attention.key_length": 4}), ARCHITECTURES["llama"], 16, 3) == (4, 4)
    with pytest.raises(CheckpointError, match="hidden size 16 is not a multiple of 3 heads"):
        _head_dim(keys({}), ARCHITECTURES["llama"], 16, 3)


@pytest.mark.parametrize(
    "metadata",
    [
        {"attention.key_length": 5},
        {"rope.dimension_count": 3},
        {"rope.dimension_count": 6},
        {"attention.value_length": 2},
        {"attention.value_length": 8},
    ],
)
def test_refuses_heads_of_other_sizes(metadata: dict[str, int]) -> None:
    with pytest.raises(UnsupportedError, match="heads of . with . rotated and values of . are not"):
        _head_dim(keys(metadata), ARCHITECTURES["llama"], 16, 4)


@pytest.mark.parametrize(("divisors", "part"), [([1, 1, 1e30, 1e30], 0.5), ([1, 1, 1, 1], 1.0)])
def test_pairs_of_gemma_4_are_turned_or_not(divisors: list[float], part: float) -> None:
    assert _turned_part({"rope_freqs.weight": np.float32(divisors)}, 8) == part


@pytest.mark.parametrize(
    "divisors", [[1e30] * 4, [1e30, 1, 1e30, 1e30], [0.5, 1, 1e30, 1e30], [1, 1, 2, 1e30]]
)
def test_refuses_other_divisors_of_gemma_4(divisors: list[float]) -> None:
    with pytest.raises(UnsupportedError, match="is supported with divisors of 1 first"):
        _turned_part({"rope_freqs.weight": np.float32(divisors)}, 8)
