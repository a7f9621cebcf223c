"""Ways to store a matrix: each takes what to store and what its inputs are, and says what is left.

All get ``target`` float64 ``[N, K]``, the weights to come near to, and ``hessian`` ``[K, K]``, the
damped mean of products of two inputs; they give the values that the stored form stands for.
Scales are halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_export.quantize import block_layout
from edgerun_export.quantize.columns import settled
from edgerun_export.quantize.hessian import Hessian

F64 = NDArray[np.float64]
Rounding: TypeAlias = Callable[[int, F64, F64], F64]
_SCALE_BITS = 16
# Quantiles of a normal distribution (QLoRA, Dettmers et al. 2023, appendix E).
NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
INT3 = tuple(code / 4 for code in range(-4, 4))


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix as a form has it.

    Attributes:
        values: float64 ``[N, K]``.
        bytes: that it takes.
    """

    values: F64
    bytes: float


Form: TypeAlias = Callable[[F64, F64], Stored]


def blocks(weights: str, block: int) -> Form:
    """What a bundle has: the codes and scales of ``descent``."""
    layout = block_layout(weights)

    def store(target: F64, hessian: F64) -> Stored:
        rows, columns = target.shape
        whole = np.pad(target, ((0, 0), (0, -columns % block)))
        codes, grid = settled(whole, Hessian(hessian.copy(), 0), layout, block)
        values = grid.integers(codes) * np.repeat(_halves(grid.scales), block, axis=1)
        bits = grid.scales.size * (block * layout.bits + _SCALE_BITS)
        return Stored(values[:, :columns], bits / 8)

    return store


def levels(values: Sequence[float], block: int, ratios: Sequence[float]) -> Form:
    """Codes that stand for any levels (NF4), rounded in turn, scales of blocks by search."""
    choices = np.array(values)
    borders = (choices[1:] + choices[:-1]) / 2

    def nearest(value: F64) -> F64:
        return choices[np.searchsorted(borders, value)]

    def store(target: F64, hessian: F64) -> Stored:
        scales = _searched(target, np.diag(hessian), block, nearest, ratios)

        def rounded(at: int, value: F64, _: F64) -> F64:
            scale = scales[:, at // block, None]
            return nearest(value / scale) * scale

        fitted = refitted(in_turn(target, hessian, 1, rounded), target, hessian, block)
        bits = target.size * math.log2(len(choices)) + scales.size * _SCALE_BITS
        return Stored(fitted, bits / 8)

    return store


def points(block: int, ratios: Sequence[float] = (0.7, 0.85, 1.0, 1.15, 1.3)) -> Form:
    """Eight weights are one of the 65,536 shortest points of the lattice E8 (QuIP#'s idea)."""

    def store(target: F64, hessian: F64) -> Stored:
        rows, columns = target.shape
        more = -columns % 8
        target = np.pad(target, ((0, 0), (0, more)))
        hessian = np.pad(hessian, ((0, more), (0, more))) + np.diag(
            [0.0] * columns + [hessian.trace()] * more
        )
        shape = math.sqrt(float(np.square(lattice()).sum(axis=1).mean()) / 8)
        best = np.full((rows, -(-target.shape[1] // block)), np.inf)
        scales = np.zeros_like(best)
        for ratio in ratios:
            for at in range(best.shape[1]):
                part = target[:, at * block : (at + 1) * block]
                scale = _halves(np.sqrt(np.square(part).mean(axis=1)) * ratio / shape + 1e-9)
                nearest = _nearest_point((part / scale[:, None]).reshape(-1, 8), np.eye(8))
                error = np.square(part - nearest.reshape(part.shape) * scale[:, None]).sum(axis=1)
                better = error < best[:, at]
                best[better, at], scales[better, at] = error[better], scale[better]

        def rounded(at: int, value: F64, metric: F64) -> F64:
            scale = scales[:, at * 8 // block, None]
            return _nearest_point(value / scale, metric) * scale

        values = refitted(in_turn(target, hessian, 8, rounded), target, hessian, block)
        bits = target.size * 2 + scales.size * _SCALE_BITS
        return Stored(values[:, :columns], bits / 8)

    return store


def pulses(width: int, count: int) -> Form:
    """A block is whole numbers whose magnitudes add up to ``count``, times a gain (PVQ)."""

    def rounded(_: int, value: F64, __: F64) -> F64:
        size = np.abs(value)
        whole = np.floor(count * size / np.maximum(size.sum(axis=1, keepdims=True), 1e-12))
        while (missing := np.flatnonzero(whole.sum(axis=1) < count)).size:
            part, now = size[missing], whole[missing]
            product = (part * now).sum(axis=1, keepdims=True) + part
            square = np.square(now).sum(axis=1, keepdims=True) + 2 * now + 1
            whole[missing, (product * product / square).argmax(axis=1)] += 1
        signed = whole * np.where(value < 0, -1, 1)
        gain = (value * signed).sum(axis=1) / np.square(signed).sum(axis=1)
        return signed * gain[:, None]

    def store(target: F64, hessian: F64) -> Stored:
        values = refitted(in_turn(target, hessian, width, rounded), target, hessian, width)
        bits = math.log2(ways(width, count)) + _SCALE_BITS
        return Stored(values, len(target) * -(-target.shape[1] // width) * bits / 8)

    return store


def binary(share: float = 0.2) -> Form:
    """The columns of largest input in 4 bits, the rest signs times row and column (PTQ1.61)."""

    def store(target: F64, hessian: F64) -> Stored:
        importance = np.diag(hessian)
        order = np.argsort(importance, kind="stable")
        rest = len(order) - round(share * len(order))
        sorted_target, sorted_hessian = target[:, order], hessian[np.ix_(order, order)]
        size, weight = np.abs(sorted_target[:, :rest]), importance[order[:rest]]
        column = np.ones(rest)
        for _ in range(10):
            row = (size * column * weight).sum(axis=1) / (column * column * weight).sum()
            column = (size * row[:, None]).sum(axis=0) / np.square(row).sum()
        wide = _halves(np.abs(sorted_target[:, rest:]).max(axis=1, keepdims=True) * 0.85 / 7)

        def rounded(at: int, value: F64, _: F64) -> F64:
            if at < rest:
                return np.where(value < 0, -1.0, 1.0) * (row * column[at])[:, None]
            return np.clip(np.rint(value / wide), -8, 7) * wide

        values = np.empty_like(target)
        values[:, order] = in_turn(sorted_target, sorted_hessian, 1, rounded)
        bits = len(target) * (4 * len(order) - 3 * rest) + len(order)
        return Stored(values, (bits + (2 * len(target) + rest) * _SCALE_BITS) / 8)

    return store


def low_rank(inner: Form, rank: int, turns: int = 2) -> Form:
    """A form and two thin matrices of 8 bits for what it leaves (LQER), in turns."""

    def store(target: F64, hessian: F64) -> Stored:
        values, vectors = np.linalg.eigh(hessian)
        root = np.sqrt(np.maximum(values, 1e-12))
        thin = np.zeros_like(target)
        for _ in range(turns):
            stored = inner(target - thin, hessian)
            left = (target - stored.values) @ (vectors * root)
            u, s, v = np.linalg.svd(left, full_matrices=False)
            first = u[:, :rank] * np.sqrt(s[:rank])
            second = (v[:rank] * np.sqrt(s[:rank])[:, None]) @ (vectors / root).T
            outer, inside = _bytewise(first, max(16, rank)), _bytewise(second, 32)
            thin = outer.values @ inside.values
        return Stored(stored.values + thin, stored.bytes + outer.bytes + inside.bytes)

    return store


def wide_columns(inner: Form, wide: Callable[[int], Form], count: int) -> Form:
    """The columns that ``inner`` does most harm to in another form, as SpQR's outliers."""

    def store(target: F64, hessian: F64) -> Stored:
        harm = np.square(target - inner(target, hessian).values).mean(axis=0) * np.diag(hessian)
        order = np.argsort(harm, kind="stable")
        rest, chosen = order[:-count], order[-count:]
        mixed, own = hessian[np.ix_(rest, chosen)], hessian[np.ix_(chosen, chosen)]
        # What an error of the others costs if the chosen ones make up for it.
        lowered = hessian[np.ix_(rest, rest)] - mixed @ np.linalg.solve(own, mixed.T)
        lowered[np.diag_indices_from(lowered)] += 1e-9 * lowered.trace()
        narrow = inner(target[:, rest], (lowered + lowered.T) / 2)
        moved = np.linalg.solve(own, ((target[:, rest] - narrow.values) @ mixed).T).T
        stored = wide(min(32, count))(target[:, chosen] + moved, own)
        values = np.empty_like(target)
        values[:, rest], values[:, chosen] = narrow.values, stored.values
        return Stored(values, narrow.bytes + stored.bytes + 4 * len(order))

    return store


def in_turn(target: F64, hessian: F64, width: int, rounded: Rounding) -> F64:
    """GPTQ by groups of ``width`` columns: those that follow make up for what a group lost.

    ``rounded`` gets the number of a group, what is to be rounded, and the metric of its errors.
    """
    factor = np.linalg.cholesky(np.linalg.inv(hessian)).T
    rest, values = target.copy(), np.empty_like(target)
    for start in range(0, target.shape[1], width):
        stop = min(start + width, target.shape[1])
        inverse = np.linalg.inv(factor[start:stop, start:stop])
        values[:, start:stop] = rounded(start // width, rest[:, start:stop], inverse @ inverse.T)
        error = (rest[:, start:stop] - values[:, start:stop]) @ inverse
        rest[:, stop:] -= error @ factor[start:stop, stop:]
    return values


def refitted(values: F64, target: F64, hessian: F64, block: int) -> F64:
    """The same with the best scales for all blocks of a row together."""
    starts = range(0, values.shape[1], block)
    out = np.empty_like(values)
    for row, (line, aim) in enumerate(zip(values, target @ hessian, strict=True)):
        parts = np.zeros((len(starts), len(line)))
        for at, start in enumerate(starts):
            parts[at, start : start + block] = line[start : start + block]
        products = parts @ hessian @ parts.T
        products[np.diag_indices_from(products)] += 1e-9 * products.trace() / len(starts) + 1e-30
        out[row] = np.linalg.solve(products, parts @ aim) @ parts
    return out


def ways(width: int, count: int) -> int:
    """How many vectors of whole numbers have magnitudes that add up to ``count`` (Fischer 1986)."""
    row = [1] + [0] * count
    for _ in range(width):
        following = [1]
        for at in range(1, count + 1):
            following.append(row[at] + row[at - 1] + following[at - 1])
        row = following
    return row[count]


@cache
def lattice() -> F64:
    """The 65,536 shortest points of E8, ``[65536, 8]``: whole or half numbers of even sum."""
    kinds = []
    for offset in (0.0, 0.5):
        steps = np.arange(-4, 4) + offset
        part = np.zeros((1, 0))
        for at in range(8):
            part = np.concatenate(
                [np.repeat(part, len(steps), axis=0), np.tile(steps, len(part))[:, None]], axis=1
            )
            part = part[np.square(part).sum(axis=1) + (7 - at) * offset**2 < 12.01]
        kinds.append(part[part.sum(axis=1) % 2 == 0])
    every = np.concatenate(kinds)
    return every[np.argsort(np.square(every).sum(axis=1), kind="stable")[: 1 << 16]]


def _nearest_point(value: F64, metric: F64) -> F64:
    turn = np.linalg.cholesky(metric / metric.trace())
    turned = (lattice() @ turn).astype(np.float32)
    product = (value @ turn).astype(np.float32) @ turned.T
    return lattice()[(np.square(turned).sum(axis=1) - 2 * product).argmin(axis=1)]


def _searched(
    target: F64, importance: F64, block: int, nearest: Callable[[F64], F64], ratios: Sequence[float]
) -> F64:
    """Scales ``[N, blocks]``, relative to the largest magnitude the ratio that loses least."""
    parts = range(0, target.shape[1], block)
    scales = np.empty((len(target), len(parts)))
    for at, start in enumerate(parts):
        part, weight = target[:, start : start + block], importance[start : start + block]
        tried = [_halves(np.abs(part).max(axis=1) * ratio) for ratio in ratios]
        tried = [np.where(scale == 0, 1e-7, scale) for scale in tried]
        errors = [
            (np.square(part - nearest(part / scale[:, None]) * scale[:, None]) * weight).sum(axis=1)
            for scale in tried
        ]
        scales[:, at] = np.choose(np.argmin(errors, axis=0), tried)
    return scales


def _bytewise(values: F64, block: int) -> Stored:
    """8 bits, the largest magnitude of a block being the last code."""
    more = -values.shape[1] % block
    cut = np.pad(values, ((0, 0), (0, more))).reshape(len(values), -1, block)
    scales = np.maximum(_halves(np.abs(cut).max(axis=2, keepdims=True) / 127), 1e-7)
    rounded = (np.clip(np.rint(cut / scales), -128, 127) * scales).reshape(len(values), -1)
    return Stored(rounded[:, : values.shape[1]], scales.size * (block * 8 + _SCALE_BITS) / 8)


def _halves(scales: F64) -> F64:
    return scales.astype(np.float16).astype(np.float64)
