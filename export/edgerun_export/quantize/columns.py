"""Rounding and improving codes column by column; what methods share that know the Hessian.

Rows hang together in nothing, so results of some rows are those of all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import BlockFormat
from edgerun_export.quantize.blocks import Grid, padded
from edgerun_export.quantize.hessian import Hessian
from edgerun_export.quantize.method import Inputs
from edgerun_export.quantize.mse import searched_grid

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
_PANEL = 32  # columns between which changes are made good at once, before all others
_PRODUCTS_BYTES = 1 << 24  # of blocks with blocks of some rows


def weights(rows: F32, block: int) -> F64:
    """Rows as float64 ``[n, K']``, K padded to whole blocks."""
    return padded(rows.astype(np.float64), block)


def corrected(rows: F32, inputs: Inputs, block: int) -> F64:
    """Weights that give what the source's give, from inputs that are no longer the source's.

    They minimise the mean of ``|W x_source - W' x + r|^2`` over float W', in which r is what the
    output is to differ by besides. GPTAQ (Li et al. 2025) and QEP (Arai and Ichikawa 2025,
    equation 8) have the first difference.

    Returns:
        float64 ``[n, K']``, K padded to whole blocks.
    """
    assert inputs.hessian is not None, "a method that needs it"
    whole = weights(rows, block)
    if inputs.drift is None and inputs.change is None:
        return whole
    change = np.zeros(rows.shape) if inputs.change is None else inputs.change
    if inputs.drift is not None:
        change = change + rows.astype(np.float64) @ inputs.drift
    whole[:, : rows.shape[1]] += inputs.hessian.solve(change)
    return whole


def importance(hessian: Hessian, block: int) -> F64:
    """What an error of each column weighs, ``[K']``."""
    whole: F64 = padded(hessian.importance[None], block)
    return np.asarray(whole[0])


def rounded_in_turn(target: F64, hessian: Hessian, scales: F64, layout: BlockFormat) -> F64:
    """Rounds column by column; those that follow make up for what each one lost.

    GPTQ (Frantar et al. 2022, algorithm 1), with columns in descending order of the Hessian's
    diagonal and scales that are given. Columns beyond those of the Hessian are rounded alone.

    Args:
        target: weights ``[n, K']``.
        hessian: of the first K columns.
        scales: ``[n, blocks]`` of equal width; where one is 0, codes are.
        layout: format of the codes.

    Returns:
        Integer codes as float64 ``[n, K']``.
    """
    factor, order = hessian.factor(), hessian.order
    steps = _steps(scales, target.shape[1])
    # A column of weights is a row here, so that it lies in one piece.
    codes = np.empty((target.shape[1], len(target)))
    codes[len(order) :] = _nearest(target.T[len(order) :], steps[len(order) :], layout)
    rest, steps = target.T[order], steps[order]
    for start in range(0, len(rest), _PANEL):
        stop = min(start + _PANEL, len(rest))
        errors = np.empty((stop - start, rest.shape[1]))
        for at in range(start, stop):
            code = _nearest(rest[at], steps[at], layout)
            error = (rest[at] - code * steps[at]) / factor[at, at]
            rest[at + 1 : stop] -= factor[at, at + 1 : stop, None] * error
            errors[at - start] = error
            codes[order[at]] = code
        rest[stop:] -= factor[start:stop, stop:].T @ errors
    return np.ascontiguousarray(codes.T)


def descended(
    codes: F64, target: F64, hessian: Hessian, scales: F64, layout: BlockFormat, sweeps: int
) -> F64:
    """Gives one column after the other the best codes while all others stay, until none changes.

    QuantEase (Behdin et al. 2023, algorithm 1). No sweep makes ``tr(E H ET)`` larger.

    Args:
        codes: those to begin with, ``[n, K']``.
        target: weights ``[n, K']``.
        hessian: of the first K columns; the others stay.
        scales: ``[n, blocks]``.
        layout: format of the codes.
        sweeps: at most so many.

    Returns:
        Integer codes as float64 ``[n, K']``.
    """
    columns = len(hessian)
    steps = _steps(scales, target.shape[1])[:columns]
    now = np.ascontiguousarray(codes.T)
    slope = hessian.product(now[:columns] * steps - target.T[:columns])
    for _ in range(sweeps):
        has_changed = False
        for start in range(0, columns, _PANEL):
            changes = _improved(
                now[start : min(start + _PANEL, columns)], slope, hessian, steps, start, layout
            )
            if changes.any():
                hessian.spread(start, changes, slope)
                has_changed = True
        if not has_changed:
            break
    return np.ascontiguousarray(now.T)


def _improved(
    now: F64, slope: F64, hessian: Hessian, steps: F64, start: int, layout: BlockFormat
) -> F64:
    """Improves codes of some columns ``[p, n]`` in their place; returns changes of weights."""
    stop = start + len(now)
    corner, local, own = hessian.corner(start, stop), slope[start:stop].copy(), steps[start:stop]
    changes = np.empty_like(now)
    for at in range(len(now)):
        best = now[at] * own[at] - local[at] / corner[at, at]
        code = _nearest(best, own[at], layout)
        changes[at] = (code - now[at]) * own[at]
        local[at + 1 :] += corner[at + 1 :, at, None] * changes[at]
        now[at] = code
    return changes


def refitted(codes: F64, weighed: F64, hessian: Hessian, scales: F64) -> F64:
    """The best scales ``[n, blocks]`` for given codes, all of a row together.

    With q_g the codes of a block, and zero elsewhere, they solve
    ``sum_h (q_g H q_h) s_h = q_g H w``. A block of zero codes keeps its scale.

    Args:
        codes: what scales multiply, ``[n, K']``; zero beyond the K columns of the Hessian.
        weighed: ``w H`` of the weights w, ``[n, K]``.
        hessian: of the first K columns.
        scales: those of now.
    """
    blocks = scales.shape[1]
    step = max(1, _PRODUCTS_BYTES // (8 * blocks**2))
    out = np.empty_like(scales)
    for start in range(0, len(scales), step):
        rows = slice(start, start + step)
        out[rows] = _refitted_rows(codes[rows], weighed[rows], hessian, scales[rows])
    return out


def _refitted_rows(codes: F64, weighed: F64, hessian: Hessian, scales: F64) -> F64:
    rows, blocks = scales.shape
    width = codes.shape[1] // blocks
    cut = codes.reshape(rows, blocks, width)
    right = np.einsum("ngk,ngk->ng", _in_blocks(weighed, blocks, width), cut)
    products = np.empty((rows, blocks, blocks))
    for block in range(blocks):
        start, stop = block * width, min((block + 1) * width, len(hessian))
        reach = _in_blocks(hessian.reach(start, codes[:, start:stop]), block + 1, width)
        products[:, block, : block + 1] = np.einsum("ngk,ngk->ng", reach, cut[:, : block + 1])
        products[:, : block + 1, block] = products[:, block, : block + 1]
    empty = ~cut.any(axis=2)
    diagonal = np.einsum("ngg->ng", products)
    diagonal[:] = np.where(empty, 1.0, diagonal)
    solved = np.linalg.solve(products, np.where(empty, scales, right)[..., None])[..., 0]
    return np.asarray(solved)


def settled(
    target: F64, hessian: Hessian, layout: BlockFormat, block: int, rounds: int = 2, sweeps: int = 2
) -> tuple[F64, Grid[np.float64]]:
    """Codes ``[n, K']`` and a grid of which neither alone can be improved much.

    Begins with GPTQ's, then fits scales and codes in turns; zero points stay. No step makes the
    error larger.
    """
    grid = searched_grid(target, layout, block, importance(hessian, block))
    codes = rounded_in_turn(grid.centred(target), hessian, grid.scales, layout)
    weighed = hessian.product(np.ascontiguousarray(target.T[: len(hessian)])).T
    for _ in range(rounds):
        grid = _refitted(codes, weighed, hessian, grid)
        codes = descended(codes, grid.centred(target), hessian, grid.scales, layout, sweeps)
    return codes, _refitted(codes, weighed, hessian, grid)


def _refitted(
    codes: F64, weighed: F64, hessian: Hessian, grid: Grid[np.float64]
) -> Grid[np.float64]:
    scales = refitted(grid.integers(codes), weighed, hessian, grid.scales)
    return replace(grid, scales=scales)


def _in_blocks(values: F64, blocks: int, width: int) -> F64:
    """``[n, columns]`` as ``[n, blocks, width]``, with zeros behind."""
    whole = np.pad(values, ((0, 0), (0, blocks * width - values.shape[1])))
    return whole.reshape(len(values), blocks, width)


def _steps(scales: F64, columns: int) -> F64:
    """The scale of every weight, ``[K, n]``."""
    return np.repeat(scales.T, columns // scales.shape[1], axis=0)


def _nearest(values: F64, steps: F64, layout: BlockFormat) -> F64:
    ratio = np.divide(values, steps, out=np.zeros_like(values), where=steps != 0)
    return np.clip(np.rint(ratio), layout.low, layout.high)
