"""What of a layer is queued whole, in a simulator's memory, and what it must leave there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.command import Command
from edgerun_hw.overlay.definition import run_command
from edgerun_hw.overlay.glue import Constants, Gate
from edgerun_hw.overlay.glue_layout import pack_constants, run_glue, split_norm
from edgerun_hw.overlay.packing import LookupMode, pack_scales, pack_ternary
from edgerun_hw.simulate.buffers import SimulatedBuffer
from edgerun_hw.simulate.simulator import Simulator

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
BEAT = 16
WIDTH, HIDDEN = 44, 60  # of the residual, of the gate


@dataclass(frozen=True)
class Matrix:
    """A ternary matrix with scales in memory.

    Attributes:
        packed: uint8 ``[ports, tiles, row_beats, 16]``.
        scales: float32 of all row beats.
        weights: addresses of the ports' parts.
        scales_at: address of the scales.
    """

    packed: U8
    scales: F32
    weights: tuple[int, ...]
    scales_at: int


class Chain:
    """Commands of which each reads what those before have written.

    One stretch of memory, in beats: what an attention layer would leave, with its constants; codes
    and, at ``slot``, their scale; constants, the residual, its codes and their scale; constants and
    what gate and up give. So each scale lies before the constants of whoever needs it.
    """

    def __init__(self, simulator: Simulator, rng: np.random.Generator) -> None:
        """Places random weights, and a residual of zeros."""
        self._simulator, self._ports = simulator, simulator.geometry.ports
        self._rows = 5 * self._ports
        width, hidden = WIDTH // 4, HIDDEN // 4
        self._attended = 2
        self._slot = self._attended + width + -(-HIDDEN // 15)
        self._residual = self._slot + 2
        self._codes = self._residual + width
        self._scale = self._codes + -(-WIDTH // 15)
        self._gate = self._scale + 2
        self._up = self._gate + hidden
        both = -(-2 * HIDDEN // self._rows) * self._rows
        self._memory = simulator.allocate(BEAT * (self._gate + both // 4 + 1))
        self._added = simulator.allocate(4 * (WIDTH + self._rows))
        self._last = simulator.allocate(4 * (WIDTH + self._rows))
        self._norms = [self._norm(rng, n) for n in (WIDTH, WIDTH, HIDDEN)]
        self._matrices = [
            self._matrix(rng, rows, k)
            for rows, k in ((WIDTH, WIDTH), (2 * HIDDEN, WIDTH), (WIDTH, HIDDEN), (WIDTH, WIDTH))
        ]
        words = self._memory.array.view(np.float32)
        attention = pack_constants(Constants.make(WIDTH, epsilon=1e-5))
        words[: attention.size] = attention
        words[8 : 8 + WIDTH] = rng.standard_normal(WIDTH)
        for place, n in ((self._slot, WIDTH), (self._scale, HIDDEN)):
            words[4 * place + 4 :][:4] = pack_constants(Constants.make(n, epsilon=1e-5))[4:]
        self._expected = self._memory.array.copy()
        self.commands = self._commands()

    def difference(self) -> str:
        """Runs the chain by the definition; what the memory differs in from that."""
        self._run()
        for name, got, expected in (
            ("memory", self._memory.array, self._expected),
            ("last", self._last.array[: 4 * WIDTH], self._q),
        ):
            if wrong := np.flatnonzero(got != expected).size:
                return f"{wrong} of {got.size} bytes of {name} differ"
        return ""

    def _at(self, beat: int) -> int:
        return self._memory.address + BEAT * beat

    def _norm(self, rng: np.random.Generator, n: int) -> tuple[F32, tuple[int, ...]]:
        weight = (1 + rng.standard_normal(n)).astype(np.float32)
        parts = [self._place(part) for part in split_norm(weight, self._ports)]
        return weight, tuple(part.address for part in parts)

    def _matrix(self, rng: np.random.Generator, rows: int, k: int) -> Matrix:
        packed = pack_ternary(rng.integers(-1, 2, (rows, k)).astype(np.int8), self._ports)
        scales = pack_scales(rng.uniform(0.01, 0.1, rows).astype(np.float32), self._ports)
        places = tuple(self._place(part.reshape(-1)).address for part in packed)
        return Matrix(packed, scales, places, self._place(scales.view(np.uint8)).address)

    def _place(self, data: U8) -> SimulatedBuffer:
        buffer = self._simulator.allocate(data.size)
        buffer.array[:] = data
        return buffer

    def _glue(self, gate: Gate, norm: int, n: int, x: int, y: int, row: int | None) -> Command:
        codes = -(-n // 15)
        return Command(
            x,
            y,
            self._norms[norm][1],
            codes,
            n,
            scales=row,
            glue=True,
            gate=gate,
            norm=True,
            after=True,
        )

    def _multiply(self, number: int, x: int, y: int) -> Command:
        matrix = self._matrices[number]
        _, tiles, beats, _ = matrix.packed.shape
        return Command(x, y, matrix.weights, beats, tiles, scales=matrix.scales_at, after=True)

    def _commands(self) -> list[Command]:
        added, at = self._added.address, self._at
        first = self._slot - -(-WIDTH // 15)
        gated = self._slot - -(-HIDDEN // 15)
        return [
            self._glue(Gate.NONE, 0, WIDTH, at(0), at(first), None),
            self._multiply(0, at(first), added),
            self._glue(Gate.RESIDUAL, 1, WIDTH, at(self._slot), at(self._residual), added),
            self._multiply(1, at(self._codes), at(self._gate)),
            self._glue(Gate.SWIGLU, 2, HIDDEN, at(self._scale), at(gated), at(self._up)),
            self._multiply(2, at(gated), added),
            self._glue(Gate.RESIDUAL, 0, WIDTH, at(self._slot), at(self._residual), added),
            self._multiply(3, at(self._codes), self._last.address),
        ]

    def _run(self) -> None:
        memory = self._expected
        for command in self.commands:
            x = command.x - self._memory.address
            if command.glue:
                n = command.tiles
                row = memory[x:].view(np.float32)[: 8 + -(-n // 4) * 4]
                second = row[:0]
                if command.scales == self._added.address:
                    second = self._sums[:n]
                elif command.scales is not None:
                    second = memory[command.scales - self._memory.address :].view(np.float32)[:n]
                weight = next(w for w, places in self._norms if places == command.weights)
                both = np.concatenate([second, weight])
                results = run_glue(Gate(command.gate), True, n, row, both)
            else:
                matrix = next(m for m in self._matrices if m.weights == command.weights)
                codes = memory[x:].view(np.int8)[: BEAT * command.tiles].reshape(-1, 1, BEAT)
                words = run_command(LookupMode.TERNARY, matrix.packed, codes, matrix.scales)
                results = words.view(np.uint8)
            self._put(command, results)

    def _put(self, command: Command, results: U8) -> None:
        if command.y == self._added.address:
            self._sums = results.view(np.float32)
        elif command.y == self._last.address:
            self._q = results[: 4 * WIDTH]
        else:
            used = results.size
            if not command.glue:
                used = command.row_beats * self._rows * 4
            start = command.y - self._memory.address
            self._expected[start : start + used] = results[:used]
