"""Blocks with offsets: the form that the exporter writes is recognised, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

from edgerun.backends.cpu.weights import WeightStore
from edgerun.errors import BundleError
from edgerun.formats import dense, format_named
from edgerun.formats.base import PackedWeight
from edgerun.graph.constants import check_many_scales
from edgerun.kernels.isa import selected_isa
from edgerun.model.bundle import open_bundle
from tests.support.altered import Alteration, AlteredBundle
from tests.support.bundles import bundle_of

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def bundle(tmp_path) -> AlteredBundle:
    return AlteredBundle(bundle_of("llama", weights="int4_offset"), tmp_path / "bundle")


def packed_weights(folder) -> list[PackedWeight]:
    graph = open_bundle(folder).graph
    assert not graph.refusal
    weights = [graph.constants[node.inputs[1]] for node in graph.nodes if node.op == "linear"]
    return [each for each in weights if isinstance(each, PackedWeight)]


def test_every_projection_has_its_offsets(bundle):
    expected = [
        bundle.array(tensor.name)
        for tensor in bundle.model.graph.initializer
        if tensor.name.endswith(".offsets")
    ]
    stored = [each.offsets for each in packed_weights(bundle.save()) if each.offsets is not None]
    assert len(stored) == len(expected) == 14
    for array in stored:
        assert any(np.array_equal(array, each) for each in expected)


def test_sums_of_blocks_are_made_once_for_all_that_read_them(bundle):
    sums = [node for node in bundle.model.graph.node if node.op_type == "ReduceSum"]
    assert len(sums) == 2 * 4  # before queries, before the output, before the gate, before down


@pytest.mark.parametrize("weights", ["int4", "int4_offset"])
@pytest.mark.parametrize("block", [0, -32])
def test_blocks_of_nothing_are_refused_by_the_name_of_the_node(weights, block, tmp_path):
    bundle = AlteredBundle(bundle_of("llama", weights=weights), tmp_path / "bundle")
    node = next(node for node in bundle.model.graph.node if node.op_type == "MatMulNBits")
    bundle.set(node.name, block_size=block)
    with pytest.raises(BundleError, match=f"^node '{node.name}' says block_size={block}; at "):
        open_bundle(bundle.save())


def put(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Alteration:
    return lambda bundle: bundle.put(name, change(bundle.array(name)))


def with_first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        changed = array.copy()
        changed.reshape(-1)[0] = value
        return changed

    return change


WRONG = {
    "offsets turned": (put(f"{Q}.offsets", lambda array: array.T.copy()), "the offsets of weight"),
    "a block too many": (
        put(f"{Q}.offsets", lambda array: np.vstack([array, array[:1]])),
        "the offsets of weight",
    ),
    "NaN": (put(f"{Q}.offsets", with_first(np.nan)), "offsets that are infinite or no numbers"),
    "infinity": (put(f"{Q}.offsets", with_first(np.inf)), "offsets that are infinite"),
    "NaN scale": (put(f"{Q}.scales", with_first(np.nan)), "scales that are infinite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_offsets_that_do_not_fit_are_refused_in_a_sentence(name, bundle):
    alter, sentence = WRONG[name]
    alter(bundle)
    with pytest.raises(BundleError, match=sentence):
        open_bundle(bundle.save())


def plain_scales(bundle: AlteredBundle) -> None:
    """Scales as float32 that are no halves."""
    scales = bundle.array(f"{Q}.scales").astype(np.float32) * np.float32(1.0001)
    bundle.model.graph.node.remove(bundle.node("q_proj/weight/scales/Cast"))
    bundle.put(f"{Q}.scales", scales)
    bundle.node("q_proj/MatMulNBits").input[2] = f"{Q}.scales"


def test_scales_beside_offsets_are_halves(bundle):
    plain_scales(bundle)
    with pytest.raises(BundleError, match="scales that half precision does not hold"):
        open_bundle(bundle.save())


def test_many_scales_and_offsets_are_looked_at_when_they_are_prepared():
    values = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    good = format_named("int4_offset").pack(values, 32)
    assert good.offsets is not None
    for wrong, sentence in (
        (replace(good, offsets=with_first(np.nan)(good.offsets)), "offsets that are infinite"),
        (replace(good, scales=good.scales * np.float32(1.0001)), "half precision does not hold"),
    ):
        with pytest.raises(BundleError, match=sentence):
            check_many_scales(wrong)
        with pytest.raises(BundleError, match=sentence):
            WeightStore(selected_isa()).prepare(wrong, "int8_block")


def other_blocks(bundle: AlteredBundle) -> None:
    node = bundle.node("q_proj/blocks")
    bundle.put(node.input[1], np.array([0, 0, 4, 16]))


def other_input(bundle: AlteredBundle) -> None:
    """The residual stream is as wide, and is no input of the projection."""
    norm = next(node for node in bundle.model.graph.node if node.op_type == "RMSNormalization")
    bundle.node("q_proj/blocks").input[0] = norm.input[0]


def zero_points(bundle: AlteredBundle) -> None:
    zeros = numpy_helper.from_array(np.zeros((64, 1), np.uint8), "zeros")
    bundle.model.graph.initializer.append(zeros)
    bundle.node("q_proj/MatMulNBits").input[3] = "zeros"  # a bias is behind it


def no_cast(bundle: AlteredBundle) -> None:
    bundle.put(f"{Q}.offsets", bundle.array(f"{Q}.offsets").astype(np.float32))
    bundle.model.graph.node.remove(bundle.node("q_proj/weight/offsets/Cast"))
    bundle.node("q_proj/offset").input[1] = f"{Q}.offsets"


def turned_sum(bundle: AlteredBundle) -> None:
    node = bundle.node("q_proj/Add")
    node.input[:] = node.input[::-1]


@pytest.mark.parametrize("alter", [other_blocks, other_input, zero_points, no_cast, turned_sum])
def test_what_is_not_of_that_form_is_not_run(alter, bundle):
    alter(bundle)
    assert open_bundle(bundle.save()).graph.refusal


def test_a_weight_is_its_code_times_scale_and_offset(bundle):
    weight = next(each for each in packed_weights(bundle.save()) if each.offsets is not None)
    plain = dense(replace(weight, offsets=None))
    expected = plain + np.repeat(weight.offsets.T.astype(np.float32), weight.block, axis=1)
    np.testing.assert_array_equal(dense(weight), expected)
    assert np.abs(weight.offsets).max() > 0
