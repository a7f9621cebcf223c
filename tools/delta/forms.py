"""What a second product could hold beside a base's: a difference, pruned and in few bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tools.rivals.forms import Form, Stored, blocks, refitted

F64 = NDArray[np.float64]
BLOCK = 64  # weights, kept or not, that share a scale
# Takes base float64 [N, K] and gives a form of what is to be added to it.
Beside: TypeAlias = Callable[[F64], Form]


def entropy(share: float) -> float:
    """Bits that tell whether a weight is kept, if a share of all is."""
    return 0.0 if share in (0, 1) else -sum(p * math.log2(p) for p in (share, 1 - share))


def pruned_bytes(shape: tuple[int, int], share: float, bits: int) -> float:
    """Codes of what is kept, which it is (at its entropy), and a half for every block."""
    count = shape[0] * shape[1]
    groups = shape[0] * -(-shape[1] // BLOCK)
    return (count * (share * bits + entropy(share)) + groups * 16) / 8


def best_factor(pruned: F64, difference: F64, hessian: F64) -> float:
    """What a pruned difference is multiplied by to leave the least error of outputs (DARE-q)."""
    reach = pruned @ hessian
    square = float(np.einsum("nk,nk->", reach, pruned))
    return float(np.einsum("nk,nk->", reach, difference)) / square if square > 0 else 0.0


def keep_mask(difference: F64, hessian: F64, share: float, rule: str) -> NDArray[np.bool_]:
    """Which weights of a difference stay: any (``random``, DARE) or those that weigh ``most``."""
    count = max(1, round(share * difference.size))
    if rule == "random":
        order = np.random.default_rng(0).permutation(difference.size)
    else:
        weight = np.abs(difference) * np.sqrt(np.diag(hessian))
        order = np.argsort(-weight, axis=None, kind="stable")
    mask = np.zeros(difference.size, bool)
    mask[order[:count]] = True
    return mask.reshape(difference.shape)


def two_bits(values: F64) -> F64:
    """Values of every block as one of four levels either side of 0; zeros stay zeros."""
    out = np.zeros_like(values)
    for start in range(0, values.shape[1], BLOCK):
        part = values[:, start : start + BLOCK]
        there = part != 0
        mean = np.abs(part).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        step = np.maximum(mean, 1e-12)[:, None]
        size = np.where(np.abs(part) < step, 0.5, 1.5)
        out[:, start : start + BLOCK] = np.where(there, np.sign(part) * size * step, 0)
    return out


def pruned(share: float, rule: str, factor: str, bits: int = 2) -> Beside:
    """A share of the weights of the difference, times a factor: that of DARE, or the best.

    Args:
        share: that is kept.
        rule: which, see ``keep_mask``.
        factor: ``dare`` for 1 / share, ``best`` for that of ``best_factor``, ``fitted`` for scales
            of all blocks fitted together.
        bits: 2, or 16 for values as they are.
    """

    def beside(base: F64) -> Form:
        def store(target: F64, hessian: F64) -> Stored:
            difference = target - base
            some = np.where(keep_mask(difference, hessian, share, rule), difference, 0)
            some = two_bits(some) if bits == 2 else some
            if factor == "fitted":
                some = refitted(some, difference, hessian, BLOCK)
            elif factor == "best":
                some = some * best_factor(some, difference, hessian)
            else:
                some = some / share
            return Stored(base + some, pruned_bytes(target.shape, share, bits))

        return store

    return beside


def dense(weights: str, block: int) -> Beside:
    """The whole difference as a bundle's weights: a second MatMulNBits, as runtimes have it."""

    def beside(base: F64) -> Form:
        form = blocks(weights, block)

        def store(target: F64, hessian: F64) -> Stored:
            stored = form(target - base, hessian)
            return Stored(base + stored.values, stored.bytes)

        return store

    return beside
