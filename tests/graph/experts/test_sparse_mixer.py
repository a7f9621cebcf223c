"""Experts that are scored one after the other: what files say of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import BundleError, UnsupportedError
from edgerun.graph.passes.experts.groups import NO_GROUPS
from edgerun.ops.registry import OPS
from tests.graph.mixing.changes import constant, lowered, rewired
from tests.support.altered import Alteration, AlteredBundle
from tests.support.bundles import bundle_of

ROUTER = "layers.0/block_sparse_moe/router"
USUAL = {"biased": "scores", "normalise": 0, "epsilon": 0.0, "scale": 1.0, **NO_GROUPS}


@pytest.fixture
def altered(tmp_path: Path) -> AlteredBundle:
    return AlteredBundle(bundle_of("phimoe", weights="int4"), tmp_path / "bundle")


@pytest.mark.parametrize("profile", ["portable", "genai"])
def test_a_choice_of_two_becomes_one_node(profile: str) -> None:
    graph = lowered(bundle_of("phimoe", weights="int4", profile=profile))
    routes = [node for node in graph.nodes if node.op == "route"]
    expected = {"top_k": 2, "scoring": "sparse_mixer", "margin": float(np.float32(0.4)), **USUAL}
    assert [node.attrs for node in routes] == [expected] * 2


@pytest.mark.parametrize(
    "alter",
    [
        constant(f"{ROUTER}/choice.1/Greater", 1, 0.5, dtype=np.float32),  # two margins
        constant(f"{ROUTER}/choice.0/TopK", 1, 2),
        constant(f"{ROUTER}/choice.1/Where", 1, -1.0, dtype=np.float32),
        constant(f"{ROUTER}/choice.0/Add", 1, -1.0, dtype=np.float32),
        rewired(f"{ROUTER}/scores", 1, "attention_mask"),
        lambda bundle: bundle.set(f"{ROUTER}/choice.1/Softmax", axis=1),
        lambda bundle: bundle.set(f"{ROUTER}/choice.1/TopK", largest=0),
        lambda bundle: bundle.set(f"{ROUTER}/choice.0/rest", reduction="add"),
    ],
)
def test_other_forms_are_none_of_ours(alter: Alteration, altered: AlteredBundle) -> None:
    alter(altered)
    with pytest.raises((UnsupportedError, BundleError)):
        lowered(altered.save())


def test_a_margin_below_0_is_refused(altered: AlteredBundle) -> None:
    constant(f"{ROUTER}/choice.0/Greater", 1, -0.5, dtype=np.float32)(altered)
    altered.node(f"{ROUTER}/choice.1/Greater").input[1] = "own"
    with pytest.raises(BundleError, match=r"margin = -0.5; expected a number from 0"):
        lowered(altered.save())


def test_what_is_too_far_away_does_not_count() -> None:
    """Nor does for the second expert what was chosen before it."""
    logits = np.log(np.array([[8, 6, 1, 0.5]], np.float32))
    margin = float((logits[0, 0] - logits[0, 1]) / logits[0, 0]) + 1e-3
    routes = OPS["route"].define(logits, top_k=2, scoring="sparse_mixer", margin=margin, **USUAL)
    np.testing.assert_allclose(routes, [[8 / 14, 1, 0, 0]], rtol=1e-6)
    routes = OPS["route"].define(logits, top_k=2, scoring="sparse_mixer", margin=1.0, **USUAL)
    np.testing.assert_allclose(routes, [[8 / 15, 6 / 7, 0, 0]], rtol=1e-6)
