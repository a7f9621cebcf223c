"""Experts that are chosen by scores with a bias: what files say of it, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edgerun.errors import BundleError, EdgerunError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.graph.passes.experts.groups import NO_GROUPS
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
    attributes = {
        "top_k": 2,
        "scoring": "sigmoid",
        "biased": "scores",
        "normalise": 1,
        "scale": 1.5,
    }
    attributes |= {"epsilon": float(np.float32(1e-6)), "margin": 0.0, **NO_GROUPS}
    for node in routes:
        assert node.attrs == attributes
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


def is_route(node: Node) -> bool:
    return node.op == "route"


def test_a_bias_may_be_added_to_logits(altered: AlteredBundle) -> None:
    before = [node for node in lowered(altered).nodes if is_route(node)]
    a_bias_of_logits(altered)
    after = [node for node in lowered(altered).nodes if is_route(node)]
    assert [node.attrs["biased"] for node in after] == ["logits", "scores", "scores"]
    assert after[0] == before[0].replace(attrs={**before[0].attrs, "biased": "logits"})


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


QMOE = "/model/layers.1/feed_forward/QMoE"


@pytest.fixture
def fused(tmp_path: Path) -> AlteredBundle:
    folder = bundle_of("lfm2_moe", weights="int4", profile="genai", group_size=16)
    return AlteredBundle(folder, tmp_path / "fused")


@pytest.mark.parametrize(
    ("name", "biased"), [("lfm2_moe", "scores"), ("kolibri1", "logits"), ("laguna", "scores")]
)
def test_operators_with_a_bias_become_the_same_nodes(
    name: str, biased: str, tmp_path: Path
) -> None:
    folders = (
        bundle_of(name, weights="int4", profile="genai", group_size=16),
        bundle_of(name, weights="int4"),
    )
    bundles = [AlteredBundle(folder, tmp_path / str(place)) for place, folder in enumerate(folders)]
    assert any(node.op_type == "QMoE" for node in bundles[0].model.graph.node)
    pairs = [
        [
            (node.attrs, graph.array(node.inputs[1]).tolist())
            for node in graph.nodes
            if is_route(node)
        ]
        for graph in map(lowered, bundles)
    ]
    assert pairs[0] and pairs[0] == pairs[1]
    assert {attributes["biased"] for attributes, _ in pairs[0]} == {biased}


def divided_again(bundle: AlteredBundle) -> None:
    bundle.set(QMOE, normalize_routing_weights=1)


def divided_twice_without_a_factor(bundle: AlteredBundle) -> None:
    bundle.node(QMOE).input[14] = bundle.value(f"{ROUTER}/Div")
    divided_again(bundle)


def chosen_without_the_bias(bundle: AlteredBundle) -> None:
    bundle.node(QMOE).input[1] = bundle.value(f"{ROUTER}/Reshape")


def chosen_with_another_bias(bundle: AlteredBundle) -> None:
    other = numpy_helper.from_array(np.ones(EXPERTS, np.float32), "other")
    bundle.model.graph.initializer.append(other)
    scores = bundle.value(f"{ROUTER}/Sigmoid")
    add = helper.make_node("Add", [scores, "other"], ["ranks"], "ranks")
    place = list(bundle.model.graph.node).index(bundle.node(QMOE))
    bundle.model.graph.node.insert(place, add)
    bundle.node(QMOE).input[1] = "ranks"


def factor_of_what_is_divided_again(bundle: AlteredBundle) -> None:
    bundle.node(f"{ROUTER}/Mul").input[0] = bundle.value(f"{ROUTER}/Sigmoid")
    bundle.set(QMOE, normalize_routing_weights=1)


REFUSED_OPERATORS: dict[str, Alteration] = {
    "divided again": divided_again,
    "divided twice": divided_twice_without_a_factor,
    "chosen without the bias": chosen_without_the_bias,
    "chosen with another bias": chosen_with_another_bias,
    "a factor of what is divided": factor_of_what_is_divided_again,
    "a sum of others": constant("TopK", 1, np.array([3])),
    "many epsilons": constant("total", 1, np.ones(EXPERTS, np.float32)),
    "many factors": constant("Mul", 1, np.ones(EXPERTS, np.float32)),
    "rows that are cut": constant("Reshape", 1, np.array([1, EXPERTS])),
}


@pytest.mark.parametrize("alter", REFUSED_OPERATORS.values(), ids=list(REFUSED_OPERATORS))
def test_operators_that_contradict_what_is_written_out_are_refused(
    alter: Alteration, fused: AlteredBundle
) -> None:
    alter(fused)
    with pytest.raises(UnsupportedError, match=NO_FORM):
        lowered(fused)


def test_scores_that_are_not_divided_before_the_operator_are_read(fused: AlteredBundle) -> None:
    def read() -> tuple[object, ...]:
        route = next(filter(is_route, lowered(fused).nodes))
        return len(route.inputs), *map(route.attrs.get, ("normalise", "epsilon", "scale"))

    scores = fused.value(f"{ROUTER}/Sigmoid")
    fused.node(f"{ROUTER}/Mul").input[0] = scores
    assert read() == (2, 0, 0.0, 1.5)
    fused.node(QMOE).input[14] = scores
    assert read() == (2, 0, 0.0, 1.0)
    divided_again(fused)
    assert read() == (2, 1, 0.0, 1.0)
