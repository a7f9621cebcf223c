"""Experts that are chosen by scores with a bias: what files say of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from edgerun.errors import BundleError, EdgerunError, UnsupportedError
from edgerun.graph.ir import Graph
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

EXPERTS = 6  # of the golden lfm2_moe
ROUTER = "/model/layers.1/feed_forward/router"
Alteration = Callable[[AlteredBundle], None]


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("lfm2_moe", weights="int4"), tmp_path / "bundle")


def lowered(bundle: AlteredBundle) -> Graph:
    path = bundle.save() / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def test_choices_with_a_bias_become_one_node(altered: AlteredBundle) -> None:
    graph = lowered(altered)
    routes = [node for node in graph.nodes if node.op == "route"]
    assert len(routes) == 3
    epsilon, attributes = float(np.float32(1e-6)), {"top_k": 2, "scoring": "sigmoid"}
    for node in routes:
        assert node.attrs == attributes | {"normalise": 1, "epsilon": epsilon, "scale": 1.5}
        assert graph.array(node.inputs[1]).shape == (EXPERTS,)
    assert len({node.inputs[1] for node in routes}) == 3


def constant(node: str, place: int, value: NDArray[np.generic]) -> Alteration:
    """Puts a constant into an input of the router's node."""

    def alter(bundle: AlteredBundle) -> None:
        bundle.model.graph.initializer.append(numpy_helper.from_array(value, "other"))
        bundle.node(f"{ROUTER}/{node}").input[place] = "other"

    return alter


def bias(*values: float) -> Alteration:
    return constant("ranks", 1, np.array(values, np.float32))


def a_computed_bias(bundle: AlteredBundle) -> None:
    bundle.node(f"{ROUTER}/ranks").input[1] = bundle.value(f"{ROUTER}/MatMul")


def a_bias_of_logits(bundle: AlteredBundle) -> None:
    bundle.node(f"{ROUTER}/ranks").input[0] = bundle.value(f"{ROUTER}/MatMul")


def weights_with_the_bias(bundle: AlteredBundle) -> None:
    bundle.node(f"{ROUTER}/GatherElements").input[0] = bundle.value(f"{ROUTER}/ranks")


NO_FORM = "neither an op nor a form"
REFUSED: dict[str, tuple[Alteration, type[EdgerunError], str]] = {
    "too short": (bias(1, 2, 3), BundleError, "experts"),
    "one for all": (bias(1), BundleError, "experts"),
    "two axes": (
        constant("ranks", 1, np.ones((1, EXPERTS), np.float32)),
        BundleError,
        "expected float32 with 1 dimension",
    ),
    "doubles": (constant("ranks", 1, np.ones(EXPERTS)), BundleError, "expected float32"),
    "no number": (bias(1, 2, 3, 4, 5, np.nan), BundleError, "infinite or no numbers"),
    "infinite": (bias(1, 2, np.inf, 4, 5, 6), BundleError, "infinite or no numbers"),
    "computed": (a_computed_bias, UnsupportedError, NO_FORM),
    "of logits": (a_bias_of_logits, UnsupportedError, NO_FORM),
    "in weights": (weights_with_the_bias, UnsupportedError, NO_FORM),
    "negative epsilon": (
        constant("total", 1, np.float32(-1e-6)),
        BundleError,
        "epsilon = -9.99.*; expected a number from 0 to",
    ),
    "epsilon of no number": (
        constant("total", 1, np.float32(np.nan)),
        BundleError,
        "epsilon = nan",
    ),
    "many epsilons": (
        constant("total", 1, np.ones(EXPERTS, np.float32)),
        UnsupportedError,
        NO_FORM,
    ),
}


@pytest.mark.parametrize(("alter", "error", "message"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_choice_with_a_bias_is_refused(
    alter: Alteration, error: type[EdgerunError], message: str, altered: AlteredBundle
) -> None:
    alter(altered)
    with pytest.raises(error, match=message):
        lowered(altered)
