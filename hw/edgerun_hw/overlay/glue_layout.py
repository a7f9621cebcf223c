"""How a glue command's operands and results lie in its streams, in beats of 16 bytes.

Behind the shell the first row of ``w`` is the scales' stream, and the norm's weights come on all
weight ports: port p has elements 4 p to 4 p + 3 of every 4 * ports.

====================  ===================================================================
x: 1 beat             float32 gain, and what is ignored: the last beat of the command that
                      rounded the activations of the matrices before
x: 1 beat             float32 slope, factor, floor, and what is ignored
x: N / 4 beats        float32 row; what fills up the last beat is ignored
w: N / 4 beats        with a gate: the row that it multiplies by, likewise; or the one to add
w: N / 4 beats        with a norm: its weights, likewise
y: N / 4 beats        of a residual sum: the float32 row, zeros behind it
y: N / 15 beats       activations of a ternary matrix: 15 codes, zeros behind the row's, a zero
y: 1 beat             float32 scale, and zeros
====================  ===================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.glue import Constants, Gate, residual_sum, round_row
from edgerun_hw.overlay.glue_numbers import F32, Scalar
from edgerun_hw.overlay.packing import LookupMode, pack_activations
from edgerun_hw.overlay.register_map import BEAT_BYTES

U8: TypeAlias = NDArray[np.uint8]
U32: TypeAlias = NDArray[np.uint32]
LANES = BEAT_BYTES // 4


def beats(length: int) -> int:
    """Beats of a row of floats."""
    return -(-length // LANES)


def pack_constants(constants: Constants) -> F32:
    """The two beats before a row."""
    first = [constants.gain, 0, 0, 0]
    return np.array([*first, constants.slope, constants.factor, constants.floor, 0], np.float32)


def pack_results(codes: NDArray[np.int8], scale: np.float32) -> U8:
    """The bytes of a command's results."""
    tiles = pack_activations(codes[None], LookupMode.TERNARY).reshape(-1).view(np.uint8)
    last = np.zeros(LANES, np.float32)
    last[0] = scale
    return np.concatenate([tiles, last.view(np.uint8)])


def split_norm(weight: F32, ports: int) -> list[U8]:
    """The bytes of each port of a norm's weights ``[N]``; what fills them up is 0."""
    stripe = LANES * ports
    whole = np.zeros(-(-len(weight) // stripe) * stripe, np.float32)
    whole[: len(weight)] = weight
    parts = whole.reshape(-1, ports, LANES).transpose(1, 0, 2)
    return [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]


def join_norm(parts: Sequence[U8], length: int) -> F32:
    """A norm's weights of all ports, in whole beats."""
    rows = [part.view(np.float32).reshape(-1, LANES) for part in parts]
    return np.stack(rows, axis=1).reshape(-1)[: LANES * beats(length)]


def run_glue(gate: Gate, norm: bool, length: int, x: F32, w: F32) -> U8:
    """Computes one command from its streams.

    Args:
        gate: which one.
        norm: whether there is a norm.
        length: elements of the row.
        x: the words of the stream.
        w: likewise.

    Returns:
        the bytes of the results.
    """
    constants = Constants(float(x[0]), *map(float, x[LANES : LANES + 3]))
    row = x[2 * LANES :][:length]
    rows = w.reshape(-1, LANES * beats(length))[:, :length]
    up = rows[0] if gate else None
    weight = rows[-1] if norm else None
    results = pack_results(*round_row(constants, gate, row, up, weight))
    if gate is not Gate.RESIDUAL or up is None:
        return results
    sums = np.zeros(LANES * beats(length), np.uint32)
    sums[:length] = residual_sum(row, up, Scalar.of(constants.gain)).words()
    return np.concatenate([sums.view(np.uint8), results])
