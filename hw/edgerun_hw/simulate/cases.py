"""Random commands, run on the simulated overlay and compared bit by bit with the definition."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import Command, expected_cycles
from edgerun_hw.overlay.definition import EXACT_FLOAT, run_command
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.packing import (
    LookupMode,
    pack_activations,
    pack_multiples,
    pack_scales,
    pack_ternary,
)
from edgerun_hw.overlay.register_map import BEAT_BYTES, PORT_ROWS
from edgerun_hw.simulate.addresses import PAGE_BYTES
from edgerun_hw.simulate.buffers import SimulatedBuffer
from edgerun_hw.simulate.simulator import Simulator

LARGEST_WEIGHT = {LookupMode.TERNARY: 1, LookupMode.MULTIPLES: 13}
LARGEST_ACTIVATION = 128
GUARD_BYTES = 64
GUARD = 0xA5
GUARD_WORD = 0xA5A5A5A5
# A command may take this many times what it would with ideal memory.
PATIENCE = 64
MAX_LOOKUPS = 6000  # of a random case


@dataclass(frozen=True)
class Case:
    """A command with random operands.

    Attributes:
        mode: what a weight code stands for.
        rows: N of the matrix.
        K: weights of a row.
        columns: activation columns.
        scale: whether results are scaled to float32.
        fill: ``random`` or ``extreme``: operands all of the largest magnitude.
        seed: of the operands.
    """

    mode: LookupMode
    rows: int
    K: int
    columns: int
    scale: bool
    fill: str
    seed: int

    def __str__(self) -> str:
        scale = " scaled" if self.scale else ""
        return (
            f"{self.mode.name.lower()} {self.rows}x{self.K}, {self.columns} columns{scale}, "
            f"{self.fill}, seed {self.seed}"
        )


@dataclass(frozen=True)
class Operands:
    """What lies in memory for a command, and what must lie there afterwards.

    Attributes:
        weights: uint8 ``[ports, tiles, row_beats, 16]``.
        activations: int8 ``[tiles, columns, 16]``.
        scales: float32, or None.
        expected: uint32 words of the results.
    """

    weights: NDArray[np.uint8]
    activations: NDArray[np.int8]
    scales: NDArray[np.float32] | None
    expected: NDArray[np.uint32]


def random_case(rng: np.random.Generator, geometry: Geometry, max_lookups: int) -> Case:
    """Draws a case, small ones and those at the edges of what is allowed more often.

    Args:
        rng: where to draw from.
        geometry: of the overlay.
        max_lookups: about how many cycles it may take at most.
    """
    mode = LookupMode(int(rng.integers(2)))
    beats = _log_uniform(rng, min(geometry.nb_max, max_lookups))
    if rng.random() < 0.1:
        beats = min(geometry.nb_max, max_lookups)
    tiles = _log_uniform(rng, max(1, max_lookups // beats))
    rows = beats * geometry.rows_per_beat - int(rng.integers(geometry.rows_per_beat))
    K = tiles * mode.activations_per_tile - int(rng.integers(mode.activations_per_tile))
    columns = int(rng.integers(1, geometry.columns + 1))
    # The overlay scales only sums that float32 can hold.
    fits = LARGEST_WEIGHT[mode] * LARGEST_ACTIVATION * K < EXACT_FLOAT
    scale = geometry.row_scale and bool(rng.random() < 0.5) and fits
    fill = "extreme" if rng.random() < 0.1 else "random"
    return Case(mode, rows, K, columns, scale, fill, int(rng.integers(1 << 31)))


def _log_uniform(rng: np.random.Generator, most: int) -> int:
    return min(most, int(np.exp(rng.uniform(0, np.log(most + 1)))))


def make_operands(case: Case, geometry: Geometry) -> Operands:
    """Makes a case's operands and computes its results by the definition."""
    rng = np.random.default_rng(case.seed)
    largest = LARGEST_WEIGHT[case.mode]
    weights = rng.integers(-largest, largest + 1, (case.rows, case.K)).astype(np.int8)
    activations = rng.integers(-128, 128, (case.columns, case.K)).astype(np.int8)
    if case.fill == "extreme":
        weights = np.where(rng.integers(2, size=(case.rows, 1)) > 0, largest, -largest)
        weights = np.broadcast_to(weights, (case.rows, case.K)).astype(np.int8)
        activations[:] = -128
    scales = None
    if case.scale:
        scales = pack_scales(_random_scales(rng, case.rows), geometry.ports)
    pack = pack_ternary if case.mode is LookupMode.TERNARY else pack_multiples
    packed = pack(weights, geometry.ports)
    beats = pack_activations(activations, case.mode)
    return Operands(packed, beats, scales, run_command(case.mode, packed, beats, scales))


def _random_scales(rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
    """Finite float32 of all exponents and both signs, zeros and subnormal numbers among them."""
    bits = rng.integers(0, 1 << 32, rows, dtype=np.uint64).astype(np.uint32)
    ordinary = rng.random(rows) < 0.7
    exponents = rng.integers(100, 140, rows).astype(np.uint32)
    bits = np.where(ordinary, (bits & 0x807FFFFF) | exponents << 23, bits).astype(np.uint32)
    infinite = (bits >> 23 & 0xFF) == 0xFF
    return np.where(infinite, bits ^ np.uint32(1 << 30), bits).astype(np.uint32).view(np.float32)


@dataclass(frozen=True)
class Region:
    """A part of a buffer that begins anywhere a beat may."""

    buffer: SimulatedBuffer
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """What the overlay calls the first byte."""
        return self.buffer.address + self.offset

    @property
    def array(self) -> NDArray[np.uint8]:
        """The bytes, uint8 [nbytes]."""
        return self.buffer.array[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True)
class Placed:
    """A command whose operands are in a simulator's memory.

    ``used`` of the ``expected`` words are results, the rest fills the last beat up.
    ``inputs_crc`` is of the operands' bytes, which nobody may write.
    """

    command: Command
    expected: NDArray[np.uint32]
    used: int
    results: Region
    inputs: tuple[Region, ...]
    inputs_crc: int

    def difference(self) -> str:
        """Says in what the results differ from the definition; empty when they are equal."""
        first, end = self.results.offset, self.results.offset + self.results.nbytes
        around = self.results.buffer.array
        if not ((around[:first] == GUARD).all() and (around[end:] == GUARD).all()):
            return "something was written before or behind the results"
        if _crc(self.inputs) != self.inputs_crc:
            return "something was written into the operands"
        words = self.results.array.view(np.uint32)
        # What fills the last beat up is not written.
        expected = self.expected.copy()
        expected[self.used :] = GUARD_WORD
        wrong = np.flatnonzero(words != expected)
        if not wrong.size:
            return ""
        place = int(wrong[0])
        return (
            f"{wrong.size} of {words.size} words differ, the first is word {place}: "
            f"{words[place]:#010x} instead of {expected[place]:#010x}"
        )

    def free(self) -> None:
        """Frees the buffers."""
        for region in (*self.inputs, self.results):
            region.buffer.free()


def place(
    simulator: Simulator, mode: LookupMode, operands: Operands, seed: int | None = None
) -> Placed:
    """Puts operands into memory of their own, results' memory filled with a pattern.

    Args:
        simulator: whose memory.
        mode: of the command.
        operands: what to put there.
        seed: of the addresses within a page; None begins all at a page's start.
    """
    ports, tiles, beats, _ = operands.weights.shape
    arrays = [*operands.weights, operands.activations]
    if operands.scales is not None:
        arrays.append(operands.scales)
    rng = None if seed is None else np.random.default_rng(seed)
    inputs = []
    for array in arrays:
        data = np.ascontiguousarray(array).view(np.uint8).ravel()
        region = _region(simulator, -(-data.size // BEAT_BYTES) * BEAT_BYTES, 0, rng)
        region.array[: data.size] = data
        inputs.append(region)
    results = _region(simulator, operands.expected.nbytes, GUARD_BYTES, rng)
    results.buffer.array[:] = GUARD
    columns = operands.activations.shape[1]
    command = Command(
        x=inputs[ports].address,
        y=results.address,
        weights=tuple(region.address for region in inputs[:ports]),
        row_beats=beats,
        tiles=tiles,
        columns=columns,
        multiples=mode is LookupMode.MULTIPLES,
        scales=None if operands.scales is None else inputs[-1].address,
    )
    used = beats * columns * ports * PORT_ROWS
    return Placed(command, operands.expected, used, results, tuple(inputs), _crc(inputs))


def _region(
    simulator: Simulator, nbytes: int, guard: int, rng: np.random.Generator | None
) -> Region:
    offset = 0 if rng is None else BEAT_BYTES * int(rng.integers(PAGE_BYTES // BEAT_BYTES))
    # Nothing is mapped behind operands: reading too far is an error.
    return Region(simulator.allocate(offset + nbytes + guard), offset, nbytes)


def _crc(regions: Sequence[Region]) -> int:
    crc = 0
    for region in regions:
        crc = zlib.crc32(region.buffer.array.data, crc)
    return crc


def push(simulator: Simulator, command: Command, tag: int = 0) -> None:
    """Stages and pushes a command, one register after another, without the driver."""
    words = {
        regs.CMD_MODE: command.mode_word,
        regs.CMD_ROW_BEATS: command.row_beats,
        regs.CMD_TILES: command.tiles,
        regs.CMD_COLUMNS: command.columns,
        regs.CMD_TAG: tag,
    }
    addresses = {regs.CMD_X: command.x, regs.CMD_Y: command.y, regs.CMD_S: command.scales or 0}
    addresses.update(zip(regs.CMD_W, command.weights, strict=False))
    for offset, address in addresses.items():
        words[offset] = address & 0xFFFFFFFF
        words[offset + 4] = address >> 32
    for offset, word in words.items():
        simulator.write(offset, word)
    simulator.write(regs.CMD_PUSH, 1)


def run_cases(simulator: Simulator, cases: Sequence[Case]) -> list[str]:
    """Runs cases back to back, as many queued at a time as the overlay takes.

    Returns:
        One sentence for each case that went wrong, and one for each other thing that did.
    """
    geometry = simulator.geometry
    failures: list[str] = []
    for start in range(0, len(cases), geometry.queue_depth):
        group = cases[start : start + geometry.queue_depth]
        placed = [
            place(simulator, case.mode, make_operands(case, geometry), seed=case.seed)
            for case in group
        ]
        before = simulator.read(regs.COMPLETED)
        for tag, item in enumerate(placed):
            push(simulator, item.command, tag)
        cycles = sum(expected_cycles(item.command, geometry.rows_per_beat) for item in placed)
        target = (before + len(group)) & 0xFFFFFFFF
        completed = simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, target, PATIENCE * cycles)
        for case, item in zip(group, placed, strict=True):
            if difference := item.difference():
                failures.append(f"{case}: {difference}")
            item.free()
        failures += _complaints(simulator, completed)
        if not completed:
            break
    return failures


def _complaints(simulator: Simulator, completed: bool) -> list[str]:
    complaints = [f"AXI: {text}" for text in simulator.violations()]
    simulator.clear_violations()
    if error := simulator.read(regs.ERROR):
        complaints.append(f"ERROR is {error:#x}, tag {simulator.read(regs.ERROR_TAG)}")
    if not completed:
        complaints.append(f"the overlay hangs: STATUS {simulator.read(regs.STATUS):#x}")
    elif outstanding := simulator.statistics().outstanding:
        complaints.append(f"{outstanding} bursts are under way after the last command")
    return complaints
