"""Masters that a bundle's ternary matrices are thawed to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgerun.formats.registry import dense
from edgerun.model.bundle import open_bundle
from tools.train_default.own.thaw import masters, thawed

BUNDLE = Path(__file__).parents[3] / "models" / "default" / "bundle"


def rounded(matrix: np.ndarray) -> np.ndarray:
    """BitNet's rounding by its definition: `rounding.ternary` without torch."""
    scale = np.abs(matrix).mean()
    return np.clip(np.rint(matrix / scale), -1, 1) * scale


@pytest.mark.parametrize("zeros", [0.0, 0.35, 0.6])
def test_masters_round_to_the_matrix_that_they_are_drawn_for(zeros):
    rng = np.random.default_rng(3)
    codes = rng.choice([-1, 0, 1], (96, 64), p=[(1 - zeros) / 2, zeros, (1 - zeros) / 2])
    weight = (codes * 0.07).astype(np.float32)
    np.testing.assert_allclose(rounded(masters(weight, rng)), weight, rtol=1e-5)


def test_masters_lie_on_both_sides_of_where_rounding_changes():
    codes = np.random.default_rng(3).choice([-1, 0, 1], (96, 64), p=[0.33, 0.34, 0.33])
    sizes = np.abs(masters(codes * 0.07, np.random.default_rng(4))) / 0.07
    close = np.abs(sizes - 0.5) < 0.1
    assert close[codes == 0].mean() > 0.1 and close[codes != 0].mean() > 0.05


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0, 0.0, 0.0], [0.5, 0.25, 0.0, -0.5]],
    ids=["zeros alone", "two sizes"],
)
def test_a_matrix_that_no_masters_round_to_is_refused(values):
    with pytest.raises(ValueError, match="not -s, 0 and s of one s"):
        masters(np.array([values], np.float32), np.random.default_rng(1))


def test_the_default_bundle_is_thawed_by_the_names_of_its_checkpoint():
    tensors = dict(thawed(BUNDLE, seed=1))
    constants = open_bundle(BUNDLE).graph.constants
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.7.mlp.down_proj.weight"):
        given = dense(next(value for key, value in constants.items() if key.startswith(name)))
        np.testing.assert_allclose(rounded(tensors[name]), given, rtol=1e-5)
    assert tensors["model.embed_tokens.weight"].shape == (6144, 512)
    assert tensors["model.norm.weight"].shape == (512,)
