"""How a glue command's operands and results lie in its streams, in beats of 16 bytes.

====================  ===================================================================
x: 1 beat             float32 gain, and what is ignored: the last beat of the command that
                      rounded the activations of the matrices before
x: 1 beat             float32 slope, factor, floor, and what is ignored
x: N / 4 beats        float32 row; what fills up the last beat is ignored
w: N / 4 beats        with a gate: the row that it multiplies by, likewise
w: N / 4 beats        with a norm: its weights, likewise
y: N / 15 beats       activations of a ternary matrix: 15 codes, zeros behind the row's, a zero
y: 1 beat             float32 scale, and zeros
====================  ===================================================================
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.glue import Constants, Gate, round_row
from edgerun_hw.overlay.glue_numbers import F32
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
    return pack_results(*round_row(constants, gate, row, up, weight))
