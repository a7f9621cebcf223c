"""Residual streams beside each other, as files say them, and what is no such form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.plan.early_rows import select_early
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

NAME, LAYERS, STREAMS, HIDDEN = "gemma3n_text", 6, 4, 64
Alteration = Callable[[AlteredBundle], None]


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of(NAME, weights="int8"), tmp_path / "bundle")


def lowered(folder: Path) -> Graph:
    path = folder / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def test_what_becomes_of_streams_are_few_ops() -> None:
    graph = lowered(bundle_of(NAME, weights="int8"))
    counts = Counter(node.op for node in graph.nodes)
    assert counts["concat"] == STREAMS - 1
    assert counts["match_magnitude"] == 2 * (STREAMS - 1)
    for op in ("altup_predict", "altup_correct", "add_to_others"):
        assert counts[op] == LAYERS
    # Of the layers' inputs, of what the router reads and a layer begins with, and in the end.
    assert counts["row_part"] == 3 * LAYERS + STREAMS
    assert counts["scale"] == LAYERS + 1
    cut = [node.attrs["deviations"] for node in graph.nodes if node.op == "gaussian_top_k"]
    np.testing.assert_allclose(cut, [1.2815516, 0.5244005, -0.5244005], rtol=1e-6)
    bounds = Counter(node.attrs["bound"] for node in graph.nodes if node.op == "softcap")
    assert bounds == {1.0: 2 * LAYERS, 5.0: 1}


def test_layers_that_share_keys_go_for_wanted_rows_alone() -> None:
    early = select_early(lowered(bundle_of(NAME, weights="int8")))
    predicted = [node for node in early.nodes if node.op == "altup_predict"]
    selected = [early.shapes[node.outputs[0]].selected for node in predicted]
    assert selected == [False] * 4 + [True] * 2


def constant(name: str, place: int, values: NDArray[Any]) -> Alteration:
    """Another constant in the place of an input of a node."""

    def alter(bundle: AlteredBundle) -> None:
        bundle.model.graph.initializer.append(numpy_helper.from_array(values, "other"))
        bundle.node(name).input[place] = "other"

    return alter


def integers(name: str, place: int, *values: int) -> Alteration:
    return constant(name, place, np.array(values, np.int64))


def attribute(name: str, **attributes: Any) -> Alteration:
    return lambda bundle: bundle.set(name, **attributes)


def instead(name: str, place: int, source: str) -> Alteration:
    """What another node makes in the place of an input of a node."""

    def alter(bundle: AlteredBundle) -> None:
        bundle.node(name).input[place] = bundle.value(source)

    return alter


OTHERS = np.ones((STREAMS, 1), np.float32)


@pytest.mark.parametrize(
    "alter",
    [
        integers("/altup/Reshape", 1, 0, 0, 2, 2 * HIDDEN),
        integers("/altup/Reshape", 1, 0, 0, STREAMS, -1),
        integers("/altup/Reshape", 1, 0, 0, STREAMS * HIDDEN),
        integers("/altup/Reshape", 1, 1, 0, STREAMS, HIDDEN),
        integers("/altup/Reshape", 1, 0, 0, STREAMS, HIDDEN - 1),
        attribute("/altup/Concat", axis=1),
        integers("layers.2/altup/predict/Reshape", 1, 0, 0, STREAMS * STREAMS),
        integers("layers.2/altup/predict/Reshape", 1, 0, 0, 2, 8),
        instead("layers.2/altup/predict/Reshape", 0, "layers.2/altup/predict/first"),
        instead("layers.2/altup/predict/MatMul", 1, "layers.1/altup/correct/scale"),
        constant("layers.2/altup/predict/first", 1, np.array(STREAMS, np.int64)),
        constant("layers.2/altup/predict/first", 1, np.array(-1, np.int64)),
        constant("layers.2/altup/predict/first", 1, np.array([0], np.int64)),
        attribute("layers.2/altup/predict/first", axis=1),
        constant("layers.2/altup/correct/predicted", 1, np.array(1, np.int64)),
        instead("layers.2/altup/correct/predicted", 0, "layers.1/altup/correct/Add"),
        integers("layers.2/altup/correct/change", 1, 1),
        integers("layers.2/altup/correct/column", 1, 2),
        constant("layers.2/altup/correct/scale", 1, np.ones((1, HIDDEN), np.float32)),
        constant("layers.2/altup/correct/scale", 1, np.ones(HIDDEN - 1, np.float32)),
        constant("layers.2/altup/others/Mul", 1, OTHERS),
        constant("layers.2/altup/others/Mul", 1, OTHERS[:-1]),
        constant("layers.2/altup/others/Mul", 1, np.array([[0, 1, 1, 1]], np.float32)),
        constant("layers.2/altup/predict/first", 1, np.array(0, np.float32)),
        constant("layers.2/altup/others/Mul", 1, np.ones(STREAMS, np.float32)),
        integers("layers.2/altup/others/Unsqueeze", 1, 1),
        constant("altup_projections.0/magnitude/Clip", 1, np.zeros(1, np.float32)),
        constant("altup_projections.0/magnitude/Clip", 1, np.full(1, np.nan, np.float32)),
        attribute("altup_projections.0/magnitude/ReduceMean", keepdims=0),
        integers("altup_projections.0/magnitude/ReduceMean", 1, 1),
        instead("altup_projections.0/magnitude/Mul", 1, "/altup/magnitude/Mul"),
        constant("layers.0/mlp/largest/cut", 1, np.full(1, np.inf, np.float32)),
        constant("layers.0/mlp/largest/cut", 1, np.ones(96, np.float32)),
        attribute("layers.0/mlp/largest/variance", keepdims=0),
        integers("layers.0/mlp/largest/mean", 1, 1),
        instead("layers.0/mlp/largest/squares", 1, "layers.0/mlp/largest/mean"),
    ],
)
def test_another_form_is_refused(alter: Alteration, altered: AlteredBundle) -> None:
    alter(altered)
    altered.save()
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.folder)
