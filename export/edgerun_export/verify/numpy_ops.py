"""What the decoder in NumPy consists of, on arrays alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_export.architectures import DecoderSpec, Experts, Rope
from edgerun_export.verify.parts import Weights

F32 = NDArray[np.float32]


def route(experts: Experts, logits: F32, bias: F32 | None) -> F32:
    """How much each token ``[tokens, experts]`` gets of each expert."""
    if experts.softcap is not None:
        logits = np.tanh(logits / experts.softcap) * np.float32(experts.softcap)
    if experts.scoring == "sparse_mixer":
        return _mixed(experts, logits)
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    if experts.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    routes, ranks = np.zeros_like(logits), logits
    if bias is not None:
        ranks = bias + (scores if experts.biased == "scores" else logits)
    for token, row in enumerate(ranks):
        chosen = sorted(_in_groups(experts, row), key=lambda expert: (-row[expert], expert))
        routes[token, chosen[: experts.top_k]] = scores[token, chosen[: experts.top_k]]
    if experts.normalise:
        routes /= routes.sum(axis=-1, keepdims=True) + np.float32(experts.epsilon)
    return routes * np.float32(experts.scale)


def _mixed(experts: Experts, logits: F32) -> F32:
    """Routes by a softmax for each choice, over what is not chosen yet and close enough."""
    routes = np.zeros_like(logits)
    for token, row in enumerate(logits):
        order = sorted(range(experts.count), key=lambda expert: (-row[expert], expert))
        for place, expert in enumerate(order[: experts.top_k]):
            others = row[order[place:]]
            distance = row[expert] - others
            by = np.maximum(np.abs(others), row[expert])
            with np.errstate(invalid="ignore"):  # of 0 by 0, which is close
                close = ~(distance / by > np.float32(experts.margin))
            routes[token, expert] = 1 / np.exp(-distance[close]).sum()
    return routes


def _in_groups(experts: Experts, ranks: F32) -> list[int]:
    """Experts of the groups that are chosen by the best ranks ``[experts]`` in each."""
    groups, size = experts.groups, experts.count
    if groups is None:
        return [*range(size)]
    size //= groups.count
    worth = [sum(sorted(part)[-groups.best :]) for part in ranks.reshape(groups.count, size)]
    chosen = sorted(range(groups.count), key=lambda group: (-worth[group], group))
    return [size * group + each for group in chosen[: groups.chosen] for each in range(size)]


def norm(value: F32, weight: F32, epsilon: float) -> F32:
    """RMS norm over the last axis."""
    mean = np.mean(value * value, axis=-1, keepdims=True, dtype=np.float32)
    length: F32 = np.sqrt(mean + np.float32(epsilon))
    return value / length * weight


def layer_norm(value: F32, weight: F32, epsilon: float) -> F32:
    """Norm of what a row deviates from its mean."""
    return norm(value - value.mean(axis=-1, keepdims=True), weight, epsilon)


def normed(spec: DecoderSpec, weights: Weights, module: str, value: F32, epsilon: float) -> F32:
    """A value behind the norm at a path of modules, of whichever kind the decoder has."""
    weight = weights.vector(f"{module}.weight")
    if not spec.centres:
        return norm(value, weight, epsilon)
    scaled = layer_norm(value, weight, epsilon)
    return scaled + weights.vector(f"{module}.bias") if spec.norm_biases else scaled


def largest(value: F32, deviations: float) -> F32:
    """What is above a row's mean plus so many standard deviations (Gemma 3n), and else 0."""
    cut = value.mean(axis=-1, keepdims=True) + value.std(axis=-1, keepdims=True) * deviations
    above: F32 = np.maximum(value - cut.astype(np.float32), np.float32(0))
    return above


def round_rows(value: F32) -> F32:
    """Rounds each row to 8 bits of its largest magnitude (BitNet b1.58)."""
    largest: F32 = np.maximum(np.abs(value).max(axis=-1, keepdims=True), np.float32(1e-5))
    scale = np.float32(127) / largest
    integers: F32 = np.rint(value * scale)
    clipped: F32 = np.clip(integers, np.float32(-128), np.float32(127))
    return clipped / scale


def rotate(rope: Rope | None, heads: F32) -> F32:
    """Turns ``[heads, tokens, head_dim]`` by the positions 0, 1, 2, ...; by nothing without one."""
    if rope is None:
        return heads
    positions = np.arange(heads.shape[1], dtype=np.float32)
    angles = positions[:, None] * rope.inv_freq[None, :]
    factor = np.float32(rope.attention_factor)
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(
    spec: DecoderSpec, layer: int, query: F32, key: F32, value: F32, sinks: F32 | None
) -> F32:
    """Attention of ``[heads, tokens, head_dim]``; returns ``[tokens, heads * head_dim]``."""
    tokens = query.shape[1]
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    visible = (distance >= 0) & (distance < (spec.layers[layer].window or tokens))
    shared = len(query) // len(key)
    key, value = key.repeat(shared, axis=0), value.repeat(shared, axis=0)
    scores = query @ key.transpose(0, 2, 1) * np.float32(spec.attention_scale(layer))
    if spec.score_softcap is not None:
        scores = np.tanh(scores / spec.score_softcap) * np.float32(spec.score_softcap)
    scores = np.where(visible, scores, np.float32(-np.inf))
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (len(query), tokens, 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: F32 = weights[..., :tokens] @ value
    return mixed.transpose(1, 0, 2).reshape(tokens, -1)
