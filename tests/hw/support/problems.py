"""Random commands in a device's memory, with their answers; for every kind of overlay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgerun_hw.overlay.command import Command
from edgerun_hw.overlay.packing import LookupMode, pack_activations, pack_multiples, pack_ternary
from edgerun_hw.overlay.port import Overlay

LIMITS = {LookupMode.TERNARY: 1, LookupMode.MULTIPLES: 13}
PACK = {LookupMode.TERNARY: pack_ternary, LookupMode.MULTIPLES: pack_multiples}


def random_problem(
    overlay: Overlay, seed: int = 0, mode: LookupMode = LookupMode.TERNARY, size: int = 60
) -> tuple[Command, Callable[[], bool]]:
    """Places a random matrix and activations; returns the command and a check of its results."""
    rng = np.random.default_rng(seed)
    can = overlay.capabilities
    columns, rows = can.columns, can.rows_per_beat
    N, K = (int(rng.integers(1, size)) for _ in range(2))
    limit = LIMITS[mode]
    matrix = rng.integers(-limit, limit + 1, (N, K)).astype(np.int8)
    x = rng.integers(-128, 128, (columns, K)).astype(np.int8)

    def place(array: np.ndarray) -> int:
        buffer = overlay.allocate(array.nbytes)
        buffer.array[:] = array.reshape(-1).view(np.uint8)
        buffer.flush()
        buffers.append(buffer)
        return buffer.address

    buffers: list = []
    row_beats = -(-N // rows)
    y = overlay.allocate(-(-row_beats * columns * rows // 4) * 16)
    command = Command(
        x=place(pack_activations(x, mode)),
        y=y.address,
        weights=tuple(place(port) for port in PACK[mode](matrix, can.ports)),
        row_beats=row_beats,
        tiles=mode.tiles(K),
        columns=columns,
        multiples=mode is LookupMode.MULTIPLES,
    )

    def answer_is_right() -> bool:
        assert buffers  # the operands must live as long as the command
        y.invalidate()
        words = y.array.view(np.int32)[: row_beats * columns * rows]
        got = words.reshape(row_beats, columns, rows).transpose(1, 0, 2).reshape(columns, -1)
        return np.array_equal(got[:, :N], x.astype(np.int64) @ matrix.T.astype(np.int64))

    return command, answer_is_right
