"""What a command of the overlay computes, in NumPy: the definition that the hardware is held to.

Slow and plain on purpose. It starts from the bytes in memory and ends with the bytes in memory,
and knows nothing of tables, ports' timing or pipelines.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.packing import (
    RESULTS_PER_BEAT,
    LookupMode,
    unpack_multiples,
    unpack_ternary,
)
from edgerun_hw.overlay.register_map import PORT_ROWS

EXACT_FLOAT = 1 << 24  # integers below this are float32 numbers
SMALLEST_NORMAL = 2.0**-126

_UNPACK = {LookupMode.TERNARY: unpack_ternary, LookupMode.MULTIPLES: unpack_multiples}


def run_command(
    mode: LookupMode,
    weights: NDArray[np.uint8],
    activations: NDArray[np.int8],
    scales: NDArray[np.float32] | None = None,
) -> NDArray[np.uint32]:
    """Computes one command.

    Args:
        mode: what a weight code stands for.
        weights: beats ``[ports, tiles, row_beats, 16]`` of ``formats/lookup.py``.
        activations: beats ``[tiles, columns, 16]``.
        scales: float32 ``[row_beats * 5 * ports]`` or more; None leaves the results int32.

    Returns:
        Words ``[row_beats * columns * 5 * ports]``, filled up with zero to whole beats of four:
        the bits of int32 sums modulo 2**32, or of float32 products.

    Raises:
        ValueError: a code's magnitude is above 13, or the sums are too large to be scaled.
    """
    ports, tiles, beats, _ = weights.shape
    rows = beats * ports * PORT_ROWS
    K = tiles * mode.activations_per_tile
    matrix = _UNPACK[mode](weights, rows, K).astype(np.int64)
    columns = activations.shape[1]
    used = activations[:, :, : mode.activations_per_tile].transpose(1, 0, 2).reshape(columns, K)
    sums = used.astype(np.int64) @ matrix.T  # [columns, rows]
    in_order = sums.reshape(columns, beats, -1).transpose(1, 0, 2)
    if scales is None:
        words = in_order.astype(np.uint32)
    else:
        by_beat = scales[:rows].reshape(beats, 1, -1)
        words = scale_sums(in_order, np.broadcast_to(by_beat, in_order.shape)).view(np.uint32)
    return np.pad(words.ravel(), (0, -words.size % RESULTS_PER_BEAT))


def scale_sums(sums: NDArray[np.int64], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiplies integers by float32 scales, rounding to nearest, ties to even.

    There are no subnormal numbers: a scale below the normal range counts as zero of its sign, and
    so does a product that is below it before rounding. Products above the range are infinite.

    Raises:
        ValueError: a sum is not below 2**24 in magnitude, or a scale is not finite.
    """
    if np.abs(sums).max(initial=0) >= EXACT_FLOAT:
        raise ValueError(f"sums must be below {EXACT_FLOAT} in magnitude to be scaled")
    if not np.isfinite(scales).all():
        raise ValueError("scales must be finite")
    exact = sums.astype(np.float64) * _without_subnormals(scales.astype(np.float64))
    with np.errstate(over="ignore"):
        return _without_subnormals(exact).astype(np.float32)


def _without_subnormals(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(0.0, values), values)
