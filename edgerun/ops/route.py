"""Which experts a row goes to, and how much each of them counts."""

from __future__ import annotations

import numpy as np

from edgerun.ops.base import COUNT, F32, Attribute, Example, Op, normal, rows, vector


def _softmax(logits: F32) -> F32:
    weights: F32 = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float32)


def _sigmoid(logits: F32) -> F32:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -80, None))), np.float32)


SCORES = {"softmax": _softmax, "sigmoid": _sigmoid}


def ranking(logits: F32, bias: F32 | None, *, scoring: str) -> F32:
    """What experts are chosen by, the largest first: logits, or scores plus a bias ``[experts]``.

    Source: Wang et al. 2024 (Auxiliary-Loss-Free Load Balancing), equation 3, for the bias.
    """
    with np.errstate(invalid="ignore"):
        ranks = logits if bias is None else SCORES[scoring](logits) + bias
    return np.where(np.isnan(ranks), np.float32(-np.inf), ranks)


def route(
    logits: F32,
    bias: F32 | None = None,
    *,
    top_k: int,
    scoring: str,
    normalise: int,
    epsilon: float,
    scale: float,
) -> F32:
    """Scores of the ``top_k`` experts with the largest logits, 0 for the others.

    With a bias, the chosen experts are those with the largest sum of score and bias, which changes
    no score. Of equal ones the expert of the lower number is chosen, and what is no number counts
    as the smallest; its score is no number. ``normalise`` divides by the sum of the chosen scores
    and ``epsilon``, ``scale`` multiplies after that.

    Source: Jiang et al. 2024 (Mixtral), section 2.1; Muennighoff et al. 2024 (OLMoE) do not
    normalise; Wang et al. 2024 for the bias.
    """
    chosen = np.argsort(-ranking(logits, bias, scoring=scoring), axis=-1, kind="stable")[:, :top_k]
    with np.errstate(invalid="ignore"):
        scores = np.take_along_axis(SCORES[scoring](logits), chosen, axis=-1)
        if normalise:
            scores = scores / (scores.sum(axis=-1, keepdims=True) + np.float32(epsilon))
    routes = np.zeros_like(logits)
    np.put_along_axis(routes, chosen, scores * np.float32(scale), axis=-1)
    return routes


def _examples() -> list[Example]:
    examples = []
    for shape, top_k, scoring, normalise, scale, epsilon in [
        ((1, 8), 2, "softmax", 1, 1.0, 0.0),
        ((3, 64), 8, "softmax", 0, 1.0, 0.0),
        ((20, 5), 5, "softmax", 1, 2.5, 0.0),
        ((2, 1), 1, "sigmoid", 0, 1.0, 0.0),
        ((4, 130), 6, "sigmoid", 1, 2.5, 0.25),
    ]:
        logits = 3 * normal(shape, 1)
        logits[-1, -3:] = logits[-1].max()  # equal ones, the largest
        if shape[1] > top_k:
            logits[0, 0] = -np.inf
        attributes = {
            "top_k": top_k,
            "scoring": scoring,
            "normalise": normalise,
            "epsilon": epsilon,
            "scale": scale,
        }
        examples.append(Example({"logits": logits}, attributes))
        bias = normal(shape[1:], 2)
        bias[-3:] = 4  # of the equal ones
        examples.append(Example({"logits": logits, "bias": bias}, attributes))
    return examples


OP = Op(
    inputs=(rows("logits", "experts"), vector("bias", "experts", optional=True)),
    outputs=(rows("routes", "experts"),),
    define=route,
    attributes={
        "top_k": COUNT,
        "scoring": Attribute(str, choices=tuple(SCORES)),
        "normalise": Attribute(int, 0, 1),
        "epsilon": Attribute(float, 0),
        "scale": Attribute(float),
    },
    at_most=(("top_k", "experts"),),
    tolerance=1e-6,
    examples=_examples,
)
