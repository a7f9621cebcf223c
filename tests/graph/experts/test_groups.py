"""Groups of experts that are chosen first: what files say of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.graph.lower import lower
from edgerun.graph.onnx_reader import read_graph
from edgerun.ops.registry import OPS
from tests.support.altered import AlteredBundle
from tests.support.bundles import bundle_of

PROFILES = {"portable": {}, "genai": {"profile": "genai", "group_size": 16}}
ROUTER = "/model/layers.1/mlp/router"
GROUPS = {"groups": 4, "top_groups": 2}
Alteration = Callable[[AlteredBundle], None]


def altered(name: str, profile: str, folder: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of(name, weights="int4", **PROFILES[profile]), folder / "altered")


def lowered(bundle: AlteredBundle) -> Graph:
    path = bundle.save() / "model.onnx"
    return lower(read_graph(path, path.read_bytes()))


def route_of(bundle: AlteredBundle) -> Node:
    (route,) = (node for node in lowered(bundle).nodes if node.op == "route")
    return route


@pytest.mark.parametrize("profile", PROFILES)
def test_a_choice_in_groups_becomes_one_node(profile: str, tmp_path: Path) -> None:
    second = route_of(altered("deepseek_v2-groups", profile, tmp_path / "2"))
    assert len(second.inputs) == 1
    attributes = {
        "top_k": 3,
        "scoring": "softmax",
        "biased": "scores",
        "normalise": 0,
        "epsilon": 0.0,
        "scale": 2.5,
    }
    assert second.attrs == attributes | GROUPS | {"group_top_k": 1, "margin": 0.0}
    third = route_of(altered("deepseek_v3-groups", profile, tmp_path / "3"))
    assert len(third.inputs) == 2
    attributes = {
        "top_k": 3,
        "scoring": "sigmoid",
        "biased": "scores",
        "normalise": 1,
        "epsilon": 0.0,
        "scale": 2.5,
    }
    assert third.attrs == attributes | GROUPS | {"group_top_k": 2, "margin": 0.0}


def constant(node: str, place: int, *value: float, dtype: str = "int64") -> Alteration:
    """Puts a constant into an input of a node of the form."""
    array: NDArray[np.generic] = np.array(value, dtype)

    def alter(bundle: AlteredBundle) -> None:
        bundle.model.graph.initializer.append(numpy_helper.from_array(array, "other"))
        bundle.node(f"{ROUTER}/{node}").input[place] = "other"

    return alter


def attribute(node: str, **attributes: int) -> Alteration:
    return lambda bundle: bundle.set(f"{ROUTER}/{node}", **attributes)


def into(groups: int) -> Alteration:
    """So many groups, and the same number everywhere."""
    alterations = constant("groups", 1, 0, 0, groups, -1), constant("groups/OneHot", 1, groups)

    def alter(bundle: AlteredBundle) -> None:
        for number, each in enumerate(alterations):
            each(bundle)
            bundle.model.graph.initializer[-1].name += str(number)
            bundle.node(f"{ROUTER}/{('groups', 'groups/OneHot')[number]}").input[1] += str(number)

    return alter


def ranks_of_none(bundle: AlteredBundle) -> None:
    """What is left out is left out of something else."""
    bundle.node(f"{ROUTER}/groups/Add").input[0] = bundle.value(f"{ROUTER}/groups/left")


REFUSED: dict[str, Alteration] = {
    "other groups than depth": constant("groups", 1, 0, 0, 3, -1),
    "other depth than groups": constant("groups/OneHot", 1, 3),
    "tokens mixed": constant("groups", 1, -1, 1, 4, 3),
    "the last axis cut": constant("groups", 1, 0, 0, 4, 3),
    "not as they were": constant("groups/ranks", 1, 0, -1, 12),
    "the smallest": attribute("groups/best", largest=0),
    "the worst": attribute("groups/TopK", largest=0),
    "another axis": attribute("groups/OneHot", axis=-1),
    "axes left": attribute("groups/worth", keepdims=1),
    "no axis": attribute("groups/left", keepdims=0),
    "in and out": constant("groups/OneHot", 2, 0, -np.inf, dtype="float32"),
    "nearly out": constant("groups/OneHot", 2, -100, 0, dtype="float32"),
    "half a number": constant("groups/TopK", 1, 1, 1),
    "of none": ranks_of_none,
}


@pytest.mark.parametrize("alter", REFUSED.values(), ids=list(REFUSED))
def test_what_is_no_choice_in_groups_is_refused(alter: Alteration, tmp_path: Path) -> None:
    bundle = altered("deepseek_v3-groups", "portable", tmp_path)
    alter(bundle)
    with pytest.raises(UnsupportedError, match="neither an op nor a form"):
        lowered(bundle)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (constant("groups/best", 1, 3), "group_top_k = 3; expected a whole number from 1 to 2"),
        (constant("groups/TopK", 1, 5), "top_groups is 5 of no more than groups = 4"),
        (into(12), r"group_top_k\*groups is 24 of no more than experts = 12"),
        (into(5), "experts 12 is no multiple of groups 5"),
        (constant("TopK", 1, 7), "top_k\\*groups is 28 of no more than .* = 24"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    alter: Alteration, message: str, tmp_path: Path
) -> None:
    bundle = altered("deepseek_v3-groups", "portable", tmp_path)
    alter(bundle)
    with pytest.raises(BundleError, match=message):
        lowered(bundle)


@pytest.mark.parametrize("bias", [None, np.float32([0, -2, 0.5, 0, 0.5, 0, 1, -1, 0, 0, -3, 1])])
@pytest.mark.parametrize("biased", ["scores", "logits"])
@pytest.mark.parametrize("best", [1, 2])
def test_a_row_goes_to_the_best_experts_of_the_best_groups(
    best: int, biased: str, bias: NDArray[np.float32] | None
) -> None:
    """Written out once more, one row and one group after the other."""
    rng = np.random.default_rng(1)
    logits = rng.choice(np.float32([-3, 0, 0.5, 2]), (200, 12))  # many are equal
    routes = OPS["route"].define(
        logits,
        bias,
        **{
            "top_k": 3,
            "scoring": "sigmoid",
            "biased": biased,
            "normalise": 0,
            "epsilon": 0.0,
            "scale": 1.0,
        },
        **{"groups": 4, "top_groups": 2, "group_top_k": best},
    )
    for row, scores in zip(logits, routes, strict=True):
        scored = 1 / (1 + np.exp(-row)) if biased == "scores" else row
        ranks = row if bias is None else scored + bias
        groups = np.arange(12).reshape(4, 3)
        worth = [sum(sorted(ranks[group])[-best:]) for group in groups]
        ordered = sorted(range(4), key=lambda group: (-worth[group], group))
        allowed = [expert for group in ordered[:2] for expert in groups[group]]
        chosen = sorted(allowed, key=lambda expert: (-ranks[expert], expert))[:3]
        assert np.flatnonzero(scores).tolist() == sorted(chosen)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_logits_of_damaged_weights_are_no_warning(scoring: str) -> None:
    """Differences and sums beyond float32 are infinite, and so are compared."""
    given = {
        "top_k": 2,
        "scoring": scoring,
        "biased": "scores",
        "normalise": 1,
        "epsilon": 0.0,
        "scale": 1.0,
    }
    logits = np.float32([[-3e38, 2, 3e38, 3e38], [-3e38, -3e38, 1, 2]])
    with np.errstate(all="raise", under="ignore"):
        routes = OPS["route"].define(
            logits, **given, **{"groups": 2, "top_groups": 1, "group_top_k": 2}
        )
    assert (routes[:, :2] == 0).all()
    np.testing.assert_allclose(routes.sum(axis=1), 1, rtol=1e-6)
