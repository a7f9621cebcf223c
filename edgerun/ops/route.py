"""Which experts a row goes to, and how much each of them counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.ops.base import COUNT, F32, Attribute, Example, Op, normal, rows, vector


def _softmax(logits: F32) -> F32:
    with np.errstate(over="ignore"):  # of differences, whose exponential is 0
        weights: F32 = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)


def _sigmoid(logits: F32) -> F32:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -80, None))), np.float32)


SCORES = {"softmax": _softmax, "sigmoid": _sigmoid}
MIXER = "sparse_mixer"  # scores experts one after the other, by those that are not chosen yet


@dataclass(frozen=True, slots=True)
class Groups:
    """Which experts may be chosen at all.

    Attributes:
        count: groups that experts are divided into.
        chosen: of these, whose experts may be.
        best: how many experts a group is chosen by.
    """

    count: int = 1
    chosen: int = 1
    best: int = 1

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Groups:
        """Those of a node with the op's attributes."""
        return cls(attributes["groups"], attributes["top_groups"], attributes["group_top_k"])


ALL = Groups()


def ranking(
    logits: F32, bias: F32 | None, *, scoring: str, biased: str, groups: Groups = ALL
) -> F32:
    """What experts are chosen by, the largest first: logits, or a sum with a bias ``[experts]``.

    The bias is added to what ``biased`` says, scores or logits. Ranks of experts of groups that are
    not chosen are as small as can be.

    Source: Wang et al. 2024 (Auxiliary-Loss-Free Load Balancing), equation 3, for the bias.
    """
    with np.errstate(invalid="ignore"):
        ranks = logits
        if bias is not None:
            scored = biased == "scores"
            ranks = (SCORES.get(scoring, _softmax)(logits) if scored else logits) + bias
    ranks = _comparable(ranks)
    if groups.count == 1:
        return ranks
    parts = ranks.reshape(*ranks.shape[:-1], groups.count, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        worth = _comparable(np.sort(parts, axis=-1)[..., -groups.best :].sum(axis=-1))
    chosen = np.argsort(-worth, axis=-1, kind="stable")[..., : groups.chosen]
    others = np.full_like(worth, -np.inf)
    np.put_along_axis(others, chosen, 0, axis=-1)
    return np.where(others[..., None] == 0, parts, others[..., None]).reshape(ranks.shape)


def _comparable(ranks: F32) -> F32:
    """The same, where what is no number is the smallest."""
    return np.where(np.isnan(ranks), np.float32(-np.inf), ranks)


def route(
    logits: F32,
    bias: F32 | None = None,
    *,
    top_k: int,
    scoring: str,
    biased: str,
    normalise: int,
    epsilon: float,
    scale: float,
    groups: int,
    top_groups: int,
    group_top_k: int,
    margin: float = 0.0,
) -> F32:
    """Scores of the ``top_k`` experts with the largest logits, 0 for the others.

    With a bias, the chosen experts are those with the largest sum of score and bias, or of logit
    and bias if ``biased`` says so, which changes no score. Of equal ones the expert of the lower
    number is chosen, and what is no number counts as the smallest; its score is no number.
    ``normalise`` divides by the sum of the chosen scores and ``epsilon``, ``scale`` multiplies
    after that.

    With several ``groups``, of as many experts each one after the other, ``top_groups`` of them are
    chosen first, by the sum of the ``group_top_k`` largest numbers that experts are chosen by, and
    of equal ones that of the lower number. Experts of others count as minus infinity.

    With a ``scoring`` of "sparse_mixer" each score is that of a softmax by itself, over the expert
    and those that are not chosen before it and have logits close enough: ``logit - other``, by the
    larger of ``logit`` and the magnitude of ``other``, is ``margin`` at most.

    Source: Jiang et al. 2024 (Mixtral), section 2.1; Muennighoff et al. 2024 (OLMoE) do not
    normalise; Wang et al. 2024 for the bias; DeepSeek-V2 (2024), section 2.2.2, chooses groups by
    their largest score, DeepSeek-V3 (2024), section 2.1.2, by a sum; Liu et al. 2024 (GRIN),
    section 2.2, for the mixer.
    """
    chosen_groups = Groups(groups, top_groups, group_top_k)
    ranks = ranking(logits, bias, scoring=scoring, biased=biased, groups=chosen_groups)
    chosen = np.argsort(-ranks, axis=-1, kind="stable")[:, :top_k]
    with np.errstate(invalid="ignore"):
        if scoring == MIXER:
            scores = _mixed(logits, chosen, margin)
        else:
            scores = np.take_along_axis(SCORES[scoring](logits), chosen, axis=-1)
        if normalise:
            scores = scores / (scores.sum(axis=-1, keepdims=True) + np.float32(epsilon))
    routes = np.zeros_like(logits)
    np.put_along_axis(routes, chosen, scores * np.float32(scale), axis=-1)
    return routes


@np.errstate(all="ignore")  # what is infinite or no number makes a score that is none
def _mixed(logits: F32, chosen: NDArray[np.int64], margin: float) -> F32:
    """Scores of experts ``[rows, top_k]`` in the order in which they are chosen."""
    rest, scores = logits.copy(), []
    for place in range(chosen.shape[1]):
        expert = chosen[:, place, None]
        best = np.take_along_axis(logits, expert, axis=-1)
        is_far = (best - logits) / np.maximum(np.abs(logits), best) > np.float32(margin)
        weights = np.exp(np.where(is_far, np.float32(-np.inf), rest) - best)
        scores.append(1 / weights.sum(axis=-1, keepdims=True))
        np.put_along_axis(rest, expert, np.float32(-np.inf), axis=-1)
    return np.concatenate(scores, axis=-1)


def _examples() -> list[Example]:
    examples = _mixer_examples()
    for shape, top_k, scoring, normalise, scale, epsilon, groups in [
        ((1, 8), 2, "softmax", 1, 1.0, 0.0, (1, 1, 1)),
        ((3, 64), 8, "softmax", 0, 1.0, 0.0, (1, 1, 1)),
        ((20, 5), 5, "softmax", 1, 2.5, 0.0, (1, 1, 1)),
        ((2, 1), 1, "sigmoid", 0, 1.0, 0.0, (1, 1, 1)),
        ((4, 130), 6, "sigmoid", 1, 2.5, 0.25, (1, 1, 1)),
        ((3, 40), 6, "softmax", 0, 16.0, 0.0, (8, 3, 1)),
        ((5, 130), 8, "sigmoid", 1, 2.5, 0.0, (13, 4, 2)),
        ((2, 6), 2, "sigmoid", 1, 1.0, 0.0, (6, 2, 1)),
    ]:
        logits = 3 * normal(shape, 1)
        logits[-1, -3:] = logits[-1].max()  # equal ones, the largest
        if shape[1] > top_k:
            logits[0, 0] = -np.inf
        if groups[0] > 1:  # of which the last, and some before, are equal
            size = shape[1] // groups[0]
            logits[1, -4 * size :] = np.tile(logits[1, -size:], 4)
        attributes = {
            "top_k": top_k,
            "scoring": scoring,
            "biased": "scores",
            "normalise": normalise,
            "epsilon": epsilon,
            "scale": scale,
            **dict(zip(("groups", "top_groups", "group_top_k"), groups, strict=True)),
            "margin": 0.0,
        }
        examples.append(Example({"logits": logits}, attributes))
        bias = normal(shape[1:], 2)
        bias[-3:] = 4  # of the equal ones
        for biased in ("scores", "logits"):
            inputs = {"logits": logits, "bias": bias}
            examples.append(Example(inputs, {**attributes, "biased": biased}))
    return examples


def _mixer_examples() -> list[Example]:
    examples = []
    usual = {"biased": "scores", "normalise": 0, "epsilon": 0.0}
    usual |= {"groups": 1, "top_groups": 1, "group_top_k": 1}
    for shape, top_k, scale, margin in [((3, 16), 2, 1.0, 0.5), ((9, 5), 3, 2.0, 1.25)]:
        logits = 3 * normal(shape, 1)
        logits[0] -= 9  # all below 0, where differences count by other magnitudes
        logits[-1, -3:] = logits[-1].max()
        attributes = {"top_k": top_k, "scoring": MIXER, "scale": scale, "margin": margin}
        examples.append(Example({"logits": logits}, {**usual, **attributes}))
    return examples


OP = Op(
    inputs=(rows("logits", "experts"), vector("bias", "experts", optional=True)),
    outputs=(rows("routes", "experts"),),
    define=route,
    attributes={
        "top_k": COUNT,
        "scoring": Attribute(str, choices=(*SCORES, MIXER)),
        "biased": Attribute(str, choices=("scores", "logits")),
        "normalise": Attribute(int, 0, 1),
        "epsilon": Attribute(float, 0),
        "scale": Attribute(float),
        "groups": COUNT,
        "top_groups": COUNT,
        "group_top_k": Attribute(int, 1, 2),
        "margin": Attribute(float, 0),
    },
    divides=(("groups", "experts"),),
    at_most=(
        ("top_k", "experts"),
        ("top_groups", "groups"),
        ("group_top_k*groups", "experts"),
        ("top_k*groups", "top_groups*experts"),
    ),
    tolerance=1e-6,
    examples=_examples,
)
