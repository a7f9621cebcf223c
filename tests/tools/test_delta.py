"""A base and a pruned difference: what is stored, and how many bytes it takes."""

import math

import numpy as np
import pytest

from edgerun_export.calibrate.text import CalibrationText, Sample
from edgerun_export.checkpoint import open_checkpoint
from edgerun_export.source.model import interpret
from tools.delta.__main__ import Pair, rounded_base
from tools.delta.forms import BLOCK, best_factor, dense, entropy, keep_mask, pruned, two_bits


@pytest.fixture(scope="module")
def problem():
    random = np.random.default_rng(0)
    x = random.standard_normal((300, 128)) @ random.standard_normal((128, 128))
    base = random.standard_normal((16, 128))
    change = 0.1 * random.standard_normal(base.shape)
    return base, base + change, x.T @ x / 300 + 0.1 * np.eye(128)


def error(values, target, hessian):
    return float(np.einsum("nk,kj,nj->", values - target, hessian, values - target))


def test_bytes_are_codes_places_and_scales(problem):
    base, target, hessian = problem
    places = -(0.1 * math.log2(0.1) + 0.9 * math.log2(0.9))
    expected = (16 * 128 * (0.1 * 2 + places) + 16 * 2 * 16) / 8
    assert pruned(0.1, "random", "best")(base)(target, hessian).bytes == pytest.approx(expected)
    assert entropy(1) == 0
    assert entropy(0.5) == 1
    assert dense("int2", 32)(base)(target, hessian).bytes == 16 * 4 * (8 + 2)


@pytest.mark.parametrize("rule", ["random", "most"])
def test_what_is_not_kept_is_the_base(problem, rule):
    base, target, hessian = problem
    for factor in ("dare", "best", "fitted"):
        added = pruned(0.1, rule, factor)(base)(target, hessian).values - base
        assert np.count_nonzero(added) == round(0.1 * base.size)
        there = keep_mask(target - base, hessian, 0.1, rule)
        assert (added[~there] == 0).all()


def test_dare_keeps_the_mean_of_what_is_added():
    random = np.random.default_rng(1)
    base, difference = np.zeros((256, 512)), random.uniform(0.5, 1.5, (256, 512))
    stored = pruned(0.1, "random", "dare", bits=16)(base)(difference, np.eye(512))
    assert stored.values.mean() == pytest.approx(difference.mean(), rel=0.02)


def test_every_step_of_fitting_leaves_less(problem):
    base, target, hessian = problem
    left = [
        error(pruned(0.1, rule, factor, bits)(base)(target, hessian).values, target, hessian)
        for rule, factor, bits in (
            ("random", "dare", 16),
            ("random", "best", 16),
            ("random", "fitted", 16),
            ("most", "fitted", 16),
        )
    ]
    assert left == sorted(left, reverse=True)
    assert left[1] < error(base, target, hessian)


def test_the_best_factor_is_the_best(problem):
    base, target, hessian = problem
    difference = target - base
    some = np.where(keep_mask(difference, hessian, 0.2, "random"), difference, 0)
    factor = best_factor(some, difference, hessian)
    around = [error(factor * share * some, difference, hessian) for share in (0.9, 1.0, 1.1)]
    assert min(around) == around[1]
    assert best_factor(np.zeros_like(some), difference, hessian) == 0


def test_two_bits_are_four_levels_in_every_block():
    values = np.random.default_rng(2).standard_normal((4, 2 * BLOCK))
    values[:, ::3] = 0
    rounded = two_bits(values)
    assert (np.sign(rounded) == np.sign(values)).all()
    for row in rounded.reshape(8, BLOCK):
        assert len(np.unique(row[row != 0])) == 4
    assert np.corrcoef(rounded.ravel(), values.ravel())[0, 1] > 0.9


def test_a_fine_tune_that_is_the_base_needs_nothing_beside_it(repo_root):
    with open_checkpoint(str(repo_root / "tests" / "golden" / "llama-yarn")) as checkpoint:
        source, _ = interpret(checkpoint)
        ids = np.random.default_rng(0).integers(0, source.spec.vocab_size, (6, 24))
        text = CalibrationText(("text",), ids[:5], (Sample("text", ids[5:], 100),))
        exact = {
            f"model.layers.{layer}.{each.path}.weight": source.matrix(
                f"model.layers.{layer}.{each.path}.weight"
            ).astype(np.float64)
            for layer in range(source.spec.num_layers)
            for each in source.spec.projections(layer)
        }
        beside = pruned(0.1, "most", "fitted")
        stored, floats = Pair(source, text, exact, beside).perplexity()
        assert stored == pytest.approx(floats, rel=1e-4)
        base = rounded_base(source, text)
        assert base.keys() == exact.keys()
        for name, values in base.items():
            assert not np.array_equal(values, exact[name])
            assert np.corrcoef(values.ravel(), exact[name].ravel())[0, 1] > 0.97
