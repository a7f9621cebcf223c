"""Commands as register writes, without the driver, and what they must leave in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.definition import run_command
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.overlay.packing import (
    LookupMode,
    pack_activations,
    pack_multiples,
    pack_scales,
    pack_ternary,
)
from edgerun_hw.simulate.simulator import SimulatedBuffer, Simulator

# Two ports, which must stay in step, and all three users of the data port.
GEOMETRY = Geometry(ports=2, columns=2, nb_max=64, row_scale=True)
DATA_PORT = GEOMETRY.ports
LIMIT = 400_000  # cycles in which anything here is over

Make = Callable[..., Simulator]

UNTOUCHED = 0xA5
MARGIN = 64  # bytes behind an operand that nothing may touch


@dataclass
class RawCommand:
    """One command: the values of its registers, its memory and its expected results."""

    registers: dict[int, int]
    results: SimulatedBuffer
    offset: int
    expected: NDArray[np.uint32]
    buffers: list[SimulatedBuffer]

    def push(self, simulator: Simulator) -> None:
        for offset, value in self.registers.items():
            simulator.write(offset, value)
        simulator.write(regs.CMD_PUSH, 1)

    def is_right(self) -> bool:
        """Whether the results are there, and nothing was written around them."""
        memory, end = self.results.array, self.offset + self.expected.nbytes
        around = np.concatenate([memory[: self.offset], memory[end:]])
        words = memory[self.offset : end].view(np.uint32)
        return np.array_equal(words, self.expected) and bool((around == UNTOUCHED).all())

    def is_untouched(self) -> bool:
        return bool((self.results.array == UNTOUCHED).all())

    def erase(self) -> None:
        """Makes the memory of the results as it was before the command."""
        self.results.array[:] = UNTOUCHED

    def free(self) -> None:
        for buffer in self.buffers:
            buffer.free()


def make_command(
    simulator: Simulator,
    rng: np.random.Generator,
    *,
    row_beats: int = 4,
    tiles: int = 3,
    columns: int = 1,
    mode: LookupMode = LookupMode.TERNARY,
    scale: bool = False,
    tag: int = 0,
) -> RawCommand:
    """Makes a command of random values, its operands at random addresses."""
    geometry: Geometry = simulator.geometry
    N, K = row_beats * geometry.rows_per_beat, tiles * mode.activations_per_tile
    if mode is LookupMode.TERNARY:
        weights = pack_ternary(rng.integers(-1, 2, (N, K)).astype(np.int8), geometry.ports)
    else:
        weights = pack_multiples(rng.integers(-13, 14, (N, K)).astype(np.int8), geometry.ports)
    x = pack_activations(rng.integers(-128, 128, (columns, K)).astype(np.int8), mode)
    scales = rng.normal(size=N).astype(np.float32) if scale else None
    expected = run_command(mode, weights, x, scales)[: N * columns]
    buffers: list[SimulatedBuffer] = []

    def place(nbytes: int) -> tuple[SimulatedBuffer, int]:
        # Anywhere in a page, so that bursts meet every kind of boundary.
        offset = 16 * int(rng.integers(0, 256))
        buffers.append(simulator.allocate(offset + nbytes + MARGIN))
        return buffers[-1], offset

    def load(values: NDArray[np.generic]) -> int:
        data = np.ascontiguousarray(values).view(np.uint8).ravel()
        buffer, offset = place(data.nbytes)
        buffer.array[offset : offset + data.nbytes] = data
        return buffer.address + offset

    results, offset = place(expected.nbytes)
    addresses = {regs.CMD_X: load(x), regs.CMD_Y: results.address + offset}
    if scales is not None:
        addresses[regs.CMD_S] = load(pack_scales(scales, geometry.ports))
    addresses |= {regs.CMD_W[p]: load(weights[p]) for p in range(geometry.ports)}
    registers = {
        regs.CMD_MODE: int(mode) | int(scale) << 1,
        regs.CMD_ROW_BEATS: row_beats,
        regs.CMD_TILES: tiles,
        regs.CMD_COLUMNS: columns,
        regs.CMD_TAG: tag,
    }
    for register, address in addresses.items():
        registers[register] = address & 0xFFFFFFFF
        registers[register + 4] = address >> 32
    command = RawCommand(registers, results, offset, expected, buffers)
    command.erase()
    return command


def random_command(simulator: Simulator, rng: np.random.Generator, tag: int = 0) -> RawCommand:
    """Makes a command of a random shape: short ones, where stalls are, as often as longer ones."""
    geometry: Geometry = simulator.geometry
    most = int(rng.choice([3, 24]))
    return make_command(
        simulator,
        rng,
        row_beats=int(rng.integers(1, most + 1)),
        tiles=int(rng.integers(1, 13)),
        columns=int(rng.integers(1, geometry.columns + 1)),
        mode=LookupMode(int(rng.integers(2))),
        scale=geometry.row_scale and bool(rng.integers(2)),
        tag=tag,
    )


def push_all(simulator: Simulator, commands: list[RawCommand]) -> None:
    for command in commands:
        command.push(simulator)


def complete(simulator: Simulator, number: int) -> bool:
    return simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, number, LIMIT)


def soft_reset(simulator: Simulator) -> bool:
    simulator.write(regs.CONTROL, 1)
    return simulator.run_until(regs.CONTROL, 1, 0, LIMIT)


def wait_for_error(simulator: Simulator) -> int:
    """Returns ERROR once it is not 0, and the tag is there as well."""
    for _ in range(LIMIT // 100):
        if flags := simulator.read(regs.ERROR):
            simulator.step(100)
            return flags | simulator.read(regs.ERROR)
        simulator.step(100)
    raise AssertionError("no error was reported")


def assert_works(simulator: Simulator, rng: np.random.Generator, count: int = 2) -> None:
    """Runs commands after a reset."""
    commands = [random_command(simulator, rng) for _ in range(count)]
    assert simulator.read(regs.COMPLETED) == 0
    push_all(simulator, commands)
    assert complete(simulator, count)
    assert all(command.is_right() for command in commands)
    assert simulator.read(regs.ERROR) == 0
    for command in commands:
        command.free()
