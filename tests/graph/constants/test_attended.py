"""Constants around attention and experts: windows, heads, and how inputs are rounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from edgerun.errors import BundleError
from edgerun.formats.base import PackedWeight
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.model.bundle import open_bundle
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

ATTENTION = "layers.1/self_attn"


def with_constant(bundle: AlteredBundle, node: str, place: int, values: object) -> Path:
    """Gives a node a constant of its own."""
    tensor = numpy_helper.from_array(np.asarray(values), "own")
    bundle.model.graph.initializer.append(tensor)
    bundle.node(node).input[place] = "own"
    return bundle.save()


def with_window(window: object, folder: Path) -> Path:
    bundle = AlteredBundle(bundle_of("mistral", weights="fp32"), folder / "bundle")
    return with_constant(bundle, "mask/window_8/oldest", 1, window)


def test_a_window_may_be_as_small_as_a_token(tmp_path: Path) -> None:
    graph = open_bundle(with_window(1, tmp_path)).graph
    assert {node.attrs["window"] for node in graph.nodes if node.op == "attention"} == {1}


@pytest.mark.parametrize("window", [0, -1, 2.5, np.nan, np.inf])
def test_windows_are_whole_numbers_of_tokens(window: float, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="has a window of .* positions; expected 1 or more"):
        open_bundle(with_window(window, tmp_path))


@pytest.mark.parametrize(
    ("projection", "heads"), [("q", (8, 8)), ("q", (2, 32)), ("v", (4, 8)), ("v", (1, 32))]
)
def test_heads_of_a_layer_have_one_size(
    projection: str, heads: tuple[int, int], tmp_path: Path
) -> None:
    bundle = AlteredBundle(bundle_of("smollm3", weights="fp32"), tmp_path / "bundle")
    shape = np.array([0, 0, *heads], np.int64)
    path = with_constant(bundle, f"{ATTENTION}/{projection}_proj/Reshape", 1, shape)
    with pytest.raises(BundleError, match="expected one size, and as many heads of values"):
        open_bundle(path)


def test_experts_that_round_in_different_ways_are_not_lowered(tmp_path: Path) -> None:
    bundle = AlteredBundle(bundle_of("olmoe", weights="int4"), tmp_path / "bundle")
    for node in bundle.model.graph.node:
        if "/experts." in node.name and node.name.endswith("down_proj/MatMulNBits"):
            bundle.set(node.name, accuracy_level=1)
    refusal = open_bundle(bundle.save()).graph.refusal
    assert "round their inputs in different ways (float, int8_block); expected one" in refusal


@pytest.mark.parametrize("name", ["rows", "weights"])
def test_experts_of_other_rows_are_not_lowered(name: str, tmp_path: Path) -> None:
    """Those of the layer before, or its routes."""
    bundle = AlteredBundle(bundle_of("olmoe", weights="int4"), tmp_path / "bundle")
    before = bundle.node(f"layers.0/mlp/experts.0/{name}").input[0]
    for node in bundle.model.graph.node:
        if "layers.1/mlp/experts." in node.name and node.name.endswith(f"/{name}"):
            node.input[0] = before
    assert "are none that edgerun knows" in open_bundle(bundle.save()).graph.refusal


def test_constants_are_what_is_asked_for_or_none() -> None:
    scales = np.ones((8, 1), np.float32)
    weight = PackedWeight("int4", (8, 16), 16, np.zeros((8, 1, 8), np.uint8), scales)
    constants = {"scales": scales, "weight": weight, "stack": ExpertStack((weight,))}
    graph = Graph([], [], [], constants)
    assert graph.array("scales") is graph.matrix("scales") is scales
    assert graph.matrix("weight") is weight
    for name in ("weight", "stack", "none"):
        with pytest.raises(KeyError):
            graph.array(name)
    for name in ("stack", "none"):
        with pytest.raises(KeyError):
            graph.matrix(name)
