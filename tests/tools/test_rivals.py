"""Forms that no bundle has: what they are measured by."""

import numpy as np
import pytest

from edgerun_export.calibrate.fitted import FittedLayers
from edgerun_export.calibrate.layers import LayerFitter
from edgerun_export.calibrate.text import CalibrationText, Sample
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.recipe import make_recipe
from edgerun_export.sizes import matrix_bytes
from edgerun_export.source.model import interpret
from tools.rivals.__main__ import FORMS, Rival
from tools.rivals.forms import (
    INT3,
    binary,
    blocks,
    in_turn,
    lattice,
    levels,
    low_rank,
    pulses,
    refitted,
    ways,
)


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    x = random.standard_normal((200, 64)) @ random.standard_normal((64, 64))
    return random.standard_normal((12, 64)), x.T @ x / 200 + 0.1 * np.eye(64)


def error(values, target, hessian):
    return float(np.einsum("nk,kj,nj->", values - target, hessian, values - target))


def test_more_bytes_lose_less_in_forms_of_one_kind(problem):
    target, hessian = problem
    for smaller, larger in (
        (blocks("int2", 32), blocks("int4", 32)),
        (blocks("int2", 32), low_rank(blocks("int2", 32), 4)),
        (pulses(32, 20), pulses(32, 56)),
        (binary(0.1), binary(0.5)),
    ):
        few, many = smaller(target, hessian), larger(target, hessian)
        assert few.bytes < many.bytes
        assert error(few.values, target, hessian) > error(many.values, target, hessian)


def test_bytes_are_those_of_codes_scales_and_indices(problem):
    target, hessian = problem
    assert blocks("int4", 32)(target, hessian).bytes == 12 * 2 * (16 + 2)
    assert levels(INT3, 32, (1.0,))(target, hessian).bytes == 12 * 2 * (12 + 2)
    bits = np.log2(float(ways(32, 20)))
    assert pulses(32, 20)(target, hessian).bytes == pytest.approx(12 * 2 * (bits + 16) / 8)


def test_groups_of_one_are_rounded_as_gptq_does(problem):
    """Whole numbers, one column after the other: each target is the best float for the rest."""
    target, hessian = problem
    values = in_turn(target, hessian, 1, lambda at, value, metric: np.rint(value))
    rest, expected = target.copy(), np.empty_like(target)
    for at in range(64):
        expected[:, at] = np.rint(rest[:, at])
        change = (expected[:, at] - rest[:, at])[:, None]
        behind = slice(at + 1, 64)
        step = np.linalg.solve(hessian[behind, behind], hessian[behind, at])
        rest[:, behind] -= change * step
    np.testing.assert_array_equal(values, expected)


def test_refitting_leaves_what_is_best_and_improves_what_is_not(problem):
    target, hessian = problem
    np.testing.assert_allclose(refitted(target, target, hessian, 32), target, rtol=1e-6)
    worse = target * 1.5
    assert error(refitted(worse, target, hessian, 32), target, hessian) < 1e-6


def test_pulses_and_lattice_are_what_they_are_called():
    assert [ways(3, count) for count in range(4)] == [1, 6, 18, 38]
    vectors = lattice()
    assert vectors.shape == (65536, 8) and len(np.unique(vectors, axis=0)) == 65536
    lengths = np.square(vectors).sum(axis=1)
    # The theta series of E8: 1, 240, 2160, 6720, 17520, 30240, and part of the next shell.
    assert [int((lengths == size).sum()) for size in (0, 2, 4, 6, 8, 10, 12)] == [
        1, 240, 2160, 6720, 17520, 30240, 65536 - 56881
    ]  # fmt: skip


def test_a_form_that_bundles_have_costs_what_the_exporter_says(repo_root, tmp_path):
    with open_checkpoint(str(repo_root / "tests" / "golden" / "llama")) as checkpoint:
        source, _ = interpret(checkpoint)
        ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (6, 24))
        text = CalibrationText(("text",), ids[:5], (Sample("text", ids[5:], 100),))
        recipe = make_recipe("int2", method="residual", scales="fp16")
        kind = recipe.tensor("")
        fitter = LayerFitter(source, recipe, text, FittedLayers(tmp_path, {}), threads=1)
        (expected,) = fitter.run()
        rival = Rival(FORMS["int2:32"], source, text)
        assert rival.cost().nats == pytest.approx(expected.nats, rel=1e-4)
        assert rival.bytes == sum(
            matrix_bytes(source.shape(f"model.layers.{layer}.{projection.path}.weight"), kind, 2)
            for layer in range(source.spec.num_layers)
            for projection in source.spec.projections(layer)
        )
