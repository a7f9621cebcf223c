"""GroupQueryAttention and QMoE as files say them, and what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.passes.grouped_attention import frequencies
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

GQA = "layers.0/self_attn/GroupQueryAttention"
MOE = "layers.0/mlp/QMoE"
STACK = "model.layers.0.mlp.experts"
COS, SIN = "model.rotary.cos_cache", "model.rotary.sin_cache"


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    folder = bundle_of("gpt_oss", weights="int4", profile="genai")
    return AlteredBundle(folder, tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def tables(angles: np.ndarray, rows: int, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """What the exporter writes."""
    every = np.arange(rows, dtype=np.float32)[:, None] * angles[None]
    return np.cos(every) * np.float32(factor), np.sin(every) * np.float32(factor)


@given(
    st.lists(st.floats(2**-20, 1, width=32), min_size=1, max_size=8),
    st.sampled_from([64, 1000, 9000]),
    st.sampled_from([1.0, 1.3465736]),
)
def test_tables_tell_their_frequencies(angles: list[float], rows: int, factor: float) -> None:
    expected = np.array(angles, np.float32)
    recovered = frequencies(*tables(expected, rows, factor))
    assert recovered is not None
    assert recovered[1] == np.float32(factor)
    np.testing.assert_allclose(recovered[0], expected, rtol=3e-7)


def test_long_tables_are_looked_at_piece_by_piece() -> None:
    angles = np.linspace(1e-3, 0.7, 8, dtype=np.float32)
    cos, sin = tables(angles, 1 << 17)  # 8 MB with both
    tracemalloc.start()
    try:
        assert frequencies(cos, sin) is not None
        assert tracemalloc.get_traced_memory()[1] < cos.nbytes // 4
    finally:
        tracemalloc.stop()
    cos[-1, -1] += np.float32(1e-3)
    assert frequencies(cos, sin) is None


def one_sine(bundle: AlteredBundle) -> None:
    table = bundle.array(SIN).copy()
    table[77, 3] += 1e-3
    bundle.put(SIN, table)


def no_numbers(bundle: AlteredBundle) -> None:
    bundle.put(COS, np.full_like(bundle.array(COS), np.nan))


def short_tables(bundle: AlteredBundle) -> None:
    for name in (COS, SIN):
        bundle.put(name, bundle.array(name)[:1])


def other_sizes(bundle: AlteredBundle) -> None:
    bundle.put(SIN, bundle.array(SIN)[:, 1:])


def interleaved(bundle: AlteredBundle) -> None:
    bundle.set(GQA, rotary_interleaved=1)


def softcapped_below_nothing(bundle: AlteredBundle) -> None:
    bundle.set(GQA, softcap=-30.0)


def rotated_otherwise(bundle: AlteredBundle) -> None:
    bundle.set(GQA, do_rotary=2)


def other_cache(bundle: AlteredBundle) -> None:
    bundle.node(GQA).input[4] = "past_key_values.1.value"


def other_lengths(bundle: AlteredBundle) -> None:
    bundle.node(GQA).input[5] = bundle.value("/model/lengths/total_sequence_length")


def more_heads(bundle: AlteredBundle) -> None:
    bundle.set(GQA, num_heads=8)


def no_window(bundle: AlteredBundle) -> None:
    bundle.set(GQA, local_window_size=-7)


def empty_window(bundle: AlteredBundle) -> None:
    """Nothing is seen, where our op would see everything."""
    bundle.set(GQA, local_window_size=0)


def default_scale(bundle: AlteredBundle) -> None:
    """onnxruntime takes it for none."""
    bundle.set(GQA, scale=0.0)


def few_sinks(bundle: AlteredBundle) -> None:
    bundle.put("model.layers.0.self_attn.sinks", np.ones(3, np.float32))


def relu(bundle: AlteredBundle) -> None:
    bundle.set(MOE, activation_type="relu")


def halves(bundle: AlteredBundle) -> None:
    bundle.set(MOE, swiglu_fusion=2)


def other_limit(bundle: AlteredBundle) -> None:
    bundle.set(MOE, swiglu_limit=5.0)


def unnormalised(bundle: AlteredBundle) -> None:
    bundle.set(MOE, normalize_routing_weights=0)


def three_bits(bundle: AlteredBundle) -> None:
    bundle.set(MOE, expert_weight_bits=3)


def no_blocks(bundle: AlteredBundle) -> None:
    bundle.set(MOE, block_size=0)


def fewer_codes(bundle: AlteredBundle) -> None:
    name = f"{STACK}.gate_up_proj.weight.codes"
    bundle.put(name, bundle.array(name)[..., :-1])


def odd_rows(bundle: AlteredBundle) -> None:
    for part in ("codes", "scales"):
        name = f"{STACK}.gate_up_proj.weight.{part}"
        bundle.put(name, bundle.array(name)[:, :-1])


def no_outputs(bundle: AlteredBundle) -> None:
    for part in ("weight.codes", "weight.scales", "bias"):
        name = f"{STACK}.gate_up_proj.{part}"
        bundle.put(name, bundle.array(name)[:, :0])


def no_experts(bundle: AlteredBundle) -> None:
    for matrix in ("gate_up_proj", "down_proj"):
        for part in ("weight.codes", "weight.scales", "bias"):
            name = f"{STACK}.{matrix}.{part}"
            bundle.put(name, bundle.array(name)[:0])


def fewer_experts(bundle: AlteredBundle) -> None:
    for part in ("codes", "scales"):
        name = f"{STACK}.down_proj.weight.{part}"
        bundle.put(name, bundle.array(name)[1:])


def narrow_bias(bundle: AlteredBundle) -> None:
    name = f"{STACK}.gate_up_proj.bias"
    bundle.put(name, bundle.array(name)[:, 1:])


def one_bias(bundle: AlteredBundle) -> None:
    bundle.node(MOE).input[7] = ""


def too_many_chosen(bundle: AlteredBundle) -> None:
    bundle.set(MOE, k=5)


def put_zeros(bundle: AlteredBundle, place: int, zeros: NDArray[Any]) -> None:
    """Gives the operator zero points, of gate and up as input 11 and of down as 12."""
    bundle.model.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    node = bundle.node(MOE)
    node.input.extend([*[""] * (place - len(node.input)), "zeros"])


def more_zero_points(bundle: AlteredBundle) -> None:
    put_zeros(bundle, 11, np.zeros((4, 64, 2), np.uint8))


def float_zero_points(bundle: AlteredBundle) -> None:
    put_zeros(bundle, 11, np.zeros((4, 64, 1), np.float32))


def zero_points_of_fewer(bundle: AlteredBundle) -> None:
    put_zeros(bundle, 12, np.zeros((3, 64, 1), np.uint8))


def zero_points_of_a_third(bundle: AlteredBundle) -> None:
    put_zeros(bundle, 13, np.zeros((4, 64, 1), np.uint8))


def made_zero_points(bundle: AlteredBundle) -> None:
    node = bundle.node(MOE)
    node.input.extend(["", "", "", node.input[1]])


def weights_of_others(bundle: AlteredBundle) -> None:
    node = bundle.node(MOE)
    node.input.extend([""] * (14 - len(node.input)) + [node.input[1]])


def more_inputs(bundle: AlteredBundle) -> None:
    node = bundle.node(MOE)
    node.input.extend([""] * (15 - len(node.input)) + [node.input[0]])


def more_inputs_of_attention(bundle: AlteredBundle) -> None:
    node = bundle.node(GQA)
    node.input.extend([""] * (12 - len(node.input)) + [node.input[0]])


OP = "neither an op nor a form"
REFUSED: list[tuple[Callable[[AlteredBundle], None], type[Exception], str]] = [
    (one_sine, UnsupportedError, OP),
    (no_numbers, UnsupportedError, OP),
    (short_tables, UnsupportedError, OP),
    (other_sizes, UnsupportedError, OP),
    (interleaved, UnsupportedError, "GroupQueryAttention with rotary_interleaved=1"),
    (softcapped_below_nothing, BundleError, "softcap = -30.0; expected 0 or a number from"),
    (rotated_otherwise, UnsupportedError, OP),
    (other_cache, UnsupportedError, OP),
    (other_lengths, UnsupportedError, OP),
    (more_heads, BundleError, "num_heads"),
    (no_window, BundleError, "window = -7"),
    (empty_window, UnsupportedError, OP),
    (default_scale, UnsupportedError, OP),
    (few_sinks, BundleError, "num_heads = 3"),
    (relu, UnsupportedError, OP),
    (halves, UnsupportedError, OP),
    (other_limit, UnsupportedError, OP),
    (unnormalised, UnsupportedError, OP),
    (three_bits, BundleError, "for 3 bits in blocks of 32, which do not fit"),
    (no_blocks, BundleError, "4 bits in blocks of 0, which do not fit"),
    (fewer_codes, BundleError, r"codes uint8 \(4, 64, 31\) and scales .* do not fit"),
    (odd_rows, BundleError, r"codes uint8 \(4, 63, 32\) and scales .* do not fit"),
    (no_outputs, BundleError, r"codes uint8 \(4, 0, 32\) and scales .* do not fit"),
    (no_experts, BundleError, r"codes uint8 \(0, 64, 32\) and scales .* do not fit"),
    (fewer_experts, BundleError, r"biases float32 \(4, 64\); expected float32 \(3, 64\)"),
    (narrow_bias, BundleError, r"biases float32 \(4, 63\); expected float32 \(4, 64\)"),
    (one_bias, UnsupportedError, OP),
    (too_many_chosen, BundleError, "top_k is 5 of no more than experts = 4"),
    (more_zero_points, BundleError, r"points uint8 \(4, 64, 2\); expected uint8 \(4, 64, 1\)"),
    (float_zero_points, BundleError, r"zero points float32 \(4, 64, 1\); expected uint8"),
    (zero_points_of_fewer, BundleError, r"points uint8 \(3, 64, 1\); expected uint8 \(4, 64, 1\)"),
    (zero_points_of_a_third, UnsupportedError, OP),
    (made_zero_points, UnsupportedError, OP),
    (weights_of_others, UnsupportedError, OP),
    (more_inputs, UnsupportedError, OP),
    (more_inputs_of_attention, UnsupportedError, OP),
]


@pytest.mark.parametrize(
    ("alter", "error", "message"), REFUSED, ids=[alter.__name__ for alter, *_ in REFUSED]
)
def test_what_is_none_of_its_forms_is_refused(
    alter: Callable[[AlteredBundle], None],
    error: type[Exception],
    message: str,
    altered: AlteredBundle,
) -> None:
    alter(altered)
    with pytest.raises(error, match=message):
        lowered(altered.save())


def test_zero_points_of_one_stack_are_read(altered: AlteredBundle) -> None:
    """Outputs of gate and up take turns there, too."""
    zeros = np.random.default_rng(0).integers(0, 256, (4, 64, 1), np.uint8)
    put_zeros(altered, 11, zeros)
    graph = lowered(altered.save())
    node = next(node for node in graph.nodes if node.op == "experts")
    for turn, name in enumerate(node.inputs[2:5]):
        stack = graph.constants[name]
        assert isinstance(stack, ExpertStack)
        for expert, matrix in enumerate(stack.matrices):
            assert isinstance(matrix, PackedWeight)
            if turn == 2:
                assert matrix.zeros is None
            else:
                np.testing.assert_array_equal(matrix.zeros, zeros[expert, turn::2])


def test_the_bundle_itself_is_read(altered: AlteredBundle) -> None:
    graph = lowered(altered.save())
    attentions = [node for node in graph.nodes if node.op == "attention"]
    assert [node.attrs["window"] for node in attentions] == [8, 0]
    assert len([node for node in graph.nodes if node.op == "experts"]) == 2


def test_a_bound_of_scores_is_read_beside_sinks(altered: AlteredBundle) -> None:
    altered.set(GQA, softcap=30.0)
    graph = lowered(altered.save())
    attentions = [node for node in graph.nodes if node.op == "attention"]
    assert [node.attrs["softcap"] for node in attentions] == [30.0, 0.0]
    assert all(len(node.inputs) == 4 for node in attentions)
