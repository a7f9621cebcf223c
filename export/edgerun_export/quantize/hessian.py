"""What the methods share that know how the inputs of a matrix hang together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat
from edgerun_export.quantize.blocks import Grid, padded
from edgerun_export.quantize.factor import inverse_factor
from edgerun_export.quantize.method import Inputs
from edgerun_export.quantize.mse import searched_grid

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
DAMPING = 0.01  # of the mean of the diagonal, as GPTQ has it
_PANEL = 32  # columns between which changes are made good at once, before all others


def damped(inputs: Inputs, block: int) -> F64:
    """The Hessian ``[K', K']`` with a little on its diagonal, K padded to whole blocks.

    Inputs that were silent in all of the text are rounded as if they were independent of others.
    """
    assert inputs.hessian is not None, "a method that needs it"
    hessian = inputs.hessian
    extra = -len(hessian) % block
    mean = float(np.trace(hessian)) / len(hessian)
    whole: F64 = np.pad(hessian, ((0, extra), (0, extra)))
    whole[np.diag_indices_from(whole)] += DAMPING * mean if mean > 0 else 1.0
    return whole


def weights(rows: F32, block: int) -> F64:
    """Rows as float64 ``[n, K']``, K padded to whole blocks."""
    return padded(rows.astype(np.float64), block)


def corrected(rows: F32, inputs: Inputs, hessian: F64, block: int, *, residual: bool) -> F64:
    """Weights that give what the source's give, from inputs that are no longer the source's.

    They minimise the mean of ``|W x_source + r_source - W' x - r|^2`` over float W'. GPTAQ (Li et
    al. 2025) and QEP (Arai and Ichikawa 2025, equation 8) have the first difference; with
    ``residual`` what earlier layers did wrong to the sum that the output is added to is made up
    for as well, as far as x tells.

    Returns:
        float64 ``[n, K']``.
    """
    whole = weights(rows, block)
    if inputs.drift is None and (inputs.residual is None or not residual):
        return whole
    change = np.zeros((len(rows), len(inputs.importance)))
    if inputs.drift is not None:
        change += rows.astype(np.float64) @ inputs.drift
    if residual and inputs.residual is not None:
        change += inputs.residual
    whole += np.linalg.solve(hessian, padded(change, block).T).T
    return whole


def importance(hessian: F64) -> F64:
    """The diagonal, relative to its mean."""
    diagonal: F64 = np.diag(hessian)
    relative: F64 = diagonal / diagonal.mean()
    return relative


def rounded_in_turn(target: F64, hessian: F64, scales: F64, layout: BlockFormat) -> F64:
    """Rounds column by column; those that follow make up for what each one lost.

    GPTQ (Frantar et al. 2022, algorithm 1), with columns in descending order of the Hessian's
    diagonal and scales that are given.

    Args:
        target: weights ``[n, K]``.
        hessian: positive definite ``[K, K]``.
        scales: ``[n, blocks]`` of equal width; where one is 0, codes are.
        layout: format of the codes.

    Returns:
        Integer codes as float64 ``[n, K]``.
    """
    order = np.argsort(-np.diag(hessian), kind="stable")
    factor = inverse_factor(hessian[np.ix_(order, order)])
    # A column of weights is a row here, so that it lies in one piece.
    rest = np.ascontiguousarray(target.T[order])
    steps = _steps(scales, target.shape[1])[order]
    codes = np.zeros_like(rest)
    for start in range(0, len(rest), _PANEL):
        stop = min(start + _PANEL, len(rest))
        errors = np.empty((stop - start, rest.shape[1]))
        for at in range(start, stop):
            codes[at] = _nearest(rest[at], steps[at], layout)
            error = (rest[at] - codes[at] * steps[at]) / factor[at, at]
            rest[at + 1 : stop] -= factor[at, at + 1 : stop, None] * error
            errors[at - start] = error
        rest[stop:] -= factor[start:stop, stop:].T @ errors
    in_order = np.empty_like(codes)
    in_order[order] = codes
    return np.ascontiguousarray(in_order.T)


def descended(
    codes: F64, target: F64, hessian: F64, scales: F64, layout: BlockFormat, sweeps: int
) -> F64:
    """Gives one column after the other the best codes while all others stay, until none changes.

    QuantEase (Behdin et al. 2023, algorithm 1). No sweep makes ``tr(E H ET)`` larger.

    Args:
        codes: those to begin with, ``[n, K]``.
        target: weights ``[n, K]``.
        hessian: positive definite ``[K, K]``.
        scales: ``[n, blocks]``.
        layout: format of the codes.
        sweeps: at most so many.

    Returns:
        Integer codes as float64 ``[n, K]``.
    """
    order = np.argsort(-np.diag(hessian), kind="stable")
    turned = hessian[np.ix_(order, order)]
    steps = _steps(scales, target.shape[1])[order]
    now = np.ascontiguousarray(codes.T[order])
    slope = turned @ (now * steps - target.T[order])
    for _ in range(sweeps):
        before = now.copy()
        for start in range(0, len(now), _PANEL):
            stop = min(start + _PANEL, len(now))
            changes = np.empty((stop - start, now.shape[1]))
            local = slope[start:stop].copy()
            for at in range(start, stop):
                best = now[at] * steps[at] - local[at - start] / turned[at, at]
                new = _nearest(best, steps[at], layout)
                changes[at - start] = (new - now[at]) * steps[at]
                local[at - start + 1 :] += turned[at + 1 : stop, at, None] * changes[at - start]
                now[at] = new
            slope += turned[:, start:stop] @ changes
        if np.array_equal(now, before):
            break
    in_order = np.empty_like(now)
    in_order[order] = now
    return np.ascontiguousarray(in_order.T)


def refitted(codes: F64, target: F64, hessian: F64, scales: F64) -> F64:
    """The best scales ``[n, blocks]`` for given codes, all of a row together.

    With q_g the codes of a block, and zero elsewhere, they solve
    ``sum_h (q_g H q_h) s_h = q_g H w``. A block of zero codes keeps its scale.
    """
    rows, blocks = scales.shape
    width = codes.shape[1] // blocks
    cut = codes.reshape(rows, blocks, width)
    right = np.einsum("ngk,ngk->ng", (target @ hessian).reshape(cut.shape), cut)
    products = np.empty((rows, blocks, blocks))
    for block in range(blocks):
        reach = cut[:, block] @ hessian[block * width : (block + 1) * width]
        products[:, block] = np.einsum("ngk,ngk->ng", reach.reshape(cut.shape), cut)
    empty = ~cut.any(axis=2)
    diagonal = np.einsum("ngg->ng", products)
    diagonal[:] = np.where(empty, 1.0, diagonal)
    solved = np.linalg.solve(products, np.where(empty, scales, right)[..., None])[..., 0]
    return np.asarray(solved)


def settled(
    target: F64, hessian: F64, layout: BlockFormat, block: int, rounds: int = 2, sweeps: int = 2
) -> tuple[F64, Grid[np.float64]]:
    """Codes ``[n, K]`` and a grid of which neither alone can be improved much.

    Begins with GPTQ's, then fits scales and codes in turns; zero points stay. No step makes the
    error larger.
    """
    grid = searched_grid(target, layout, block, importance(hessian))
    codes = rounded_in_turn(grid.centred(target), hessian, grid.scales, layout)
    for _ in range(rounds):
        grid = _refitted(codes, target, hessian, grid)
        codes = descended(codes, grid.centred(target), hessian, grid.scales, layout, sweeps)
    return codes, _refitted(codes, target, hessian, grid)


def _refitted(codes: F64, target: F64, hessian: F64, grid: Grid[np.float64]) -> Grid[np.float64]:
    scales = refitted(grid.integers(codes), target, hessian, grid.scales)
    return replace(grid, scales=scales)


def _steps(scales: F64, columns: int) -> F64:
    """The scale of every weight, ``[K, n]``."""
    return np.repeat(scales.T, columns // scales.shape[1], axis=0)


def _nearest(values: F64, steps: F64, layout: BlockFormat) -> F64:
    ratio = np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)
    return np.clip(np.rint(ratio), layout.low, layout.high)
