"""An overlay in software, with faults to order: the definition behind the register protocol.

For tests of what stands above the driver, and for trying the whole path where no simulator is
installed. It says nothing about cycles: commands take what ``expected_cycles`` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.attention_layout import KvLayout, run_attention
from edgerun_hw.overlay.command import Command, check_command, expected_cycles, sizes
from edgerun_hw.overlay.definition import run_command
from edgerun_hw.overlay.geometry import PRESETS, Geometry, capabilities_of
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.glue_layout import join_norm, run_glue
from edgerun_hw.overlay.packing import LookupMode

PAGE_BYTES = 4096
# Above 4 GiB, so that a driver which drops the upper half of an address is found out.
MEMORY_BASE = 0x2_4000_0000
ACCESS_CYCLES = 8
WORD = (1 << 32) - 1


@dataclass
class Faults:
    """What goes wrong; may be changed at any time. Commands are numbered from 0 over all resets.

    Attributes:
        identity: what the ID register reads.
        version: what the VERSION register reads.
        wedged: commands that never complete; the watchdog notices.
        silent: with ``wedged``: the watchdog does not notice either.
        errors: error bits to set when a command is reached; any but BAD_LENGTH stops the queue.
        altered: commands of whose results one bit is wrong.
        reset_sticks: a soft reset never ends.
        gone: every register reads as all ones, as a bus without a device does.
    """

    identity: int = regs.ID_VALUE
    version: int = regs.VERSION_VALUE
    wedged: Container[int] = ()
    silent: bool = False
    errors: Mapping[int, regs.Field] = field(default_factory=dict)
    altered: Container[int] = ()
    reset_sticks: bool = False
    gone: bool = False


class FakeBuffer:
    """Memory of a ``FakeDevice``: the processor's copy, and the device's at ``address``."""

    def __init__(self, device: FakeDevice, start: int, nbytes: int) -> None:
        self._device = device
        self._span: slice | None = slice(start, start + nbytes)
        self.array = device.memory[self._span] if device.coherent else np.zeros(nbytes, np.uint8)
        self.address = MEMORY_BASE + start

    def flush(self) -> None:
        self._device.memory[self._in_use()] = self.array

    def hand_over(self) -> None:
        self.flush()

    def invalidate(self) -> None:
        self.array[...] = self._device.memory[self._in_use()]

    def free(self) -> None:
        if self._span is not None:
            self._device.release(self._span)
            self._span = None

    def _in_use(self) -> slice:
        if self._span is None:
            raise ValueError("this buffer was freed")
        return self._span


class _Queued(NamedTuple):
    command: Command
    tag: int
    number: int
    cycles: int


class FakeDevice:
    """Satisfies ``port.DevicePort``.

    Args:
        geometry: what the overlay says it is.
        faults: what it does wrong.
        memory_bytes: size of the memory.
        coherent: the processor sees the device's writes, and the other way round, without
            ``invalidate`` and ``flush``.
    """

    def __init__(
        self,
        geometry: Geometry = PRESETS["tiny"],
        *,
        faults: Faults | None = None,
        memory_bytes: int = 64 << 20,
        coherent: bool = False,
    ) -> None:
        self.geometry = geometry
        self.faults = faults or Faults()
        self.coherent = coherent
        self.memory = np.zeros(memory_bytes, np.uint8)
        self._free: list[tuple[int, int]] = [(0, memory_bytes)]
        self._capabilities = capabilities_of(geometry)
        self._accepted = 0
        self._registers: dict[int, int] = {regs.WATCHDOG: regs.WATCHDOG_RESET}
        self._constants = self._describe()
        self._clear()

    # What a driver calls.

    def read(self, offset: int) -> int:
        """Reads a register."""
        self._advance(ACCESS_CYCLES)
        if self.faults.gone:
            return WORD
        fixed = {regs.ID: self.faults.identity, regs.VERSION: self.faults.version}
        if offset == regs.STATUS:
            return self._status()
        if offset == regs.CMD_PUSH:
            return 0
        for values in (fixed, self._constants):
            if offset in values:
                return values[offset]
        return self._registers.get(offset, 0) & WORD

    def write(self, offset: int, value: int) -> None:
        """Writes a register."""
        if not 0 <= value <= WORD:
            raise ValueError(f"a register holds 32 bits, not {value:#x}")
        self._advance(ACCESS_CYCLES)
        if offset == regs.CONTROL:
            self._registers[regs.CONTROL] = value & regs.CONTROL_IRQ_ENABLE.mask
            if regs.CONTROL_SOFT_RESET.of(value):
                self._clear()
        elif offset in (regs.ERROR, regs.IRQ):
            self._registers[offset] &= ~value
        elif offset == regs.CMD_PUSH:
            self._push()
        elif offset == regs.WATCHDOG or offset in range(regs.CMD_MODE, regs.CMD_PUSH):
            self._registers[offset] = value

    def allocate(self, nbytes: int) -> FakeBuffer:
        """Allocates whole pages, zeroed.

        Raises:
            MemoryError: there is no such stretch of memory.
        """
        if nbytes < 1:
            raise ValueError(f"a buffer needs at least one byte, not {nbytes}")
        size = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        for i, (start, length) in enumerate(self._free):
            if length >= size:
                self._free[i] = (start + size, length - size)
                self.memory[start : start + nbytes] = 0
                return FakeBuffer(self, start, nbytes)
        raise MemoryError(f"the device's memory has no {nbytes} bytes in one piece")

    def wait(self, cycles: int) -> None:
        """Lets time pass until the interrupt line rises."""
        step = max(1, cycles // 16)
        for _ in range(0, cycles, step):
            if self.irq:
                return
            self._advance(step)

    def close(self) -> None:
        """Does nothing: there is nothing to give back."""

    # What tests look at.

    @property
    def irq(self) -> bool:
        """The interrupt line."""
        enabled = regs.CONTROL_IRQ_ENABLE.of(self._registers[regs.CONTROL])
        return bool(enabled and self._registers[regs.IRQ])

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory in use, in whole pages."""
        return self.memory.size - sum(length for _, length in self._free)

    def release(self, span: slice) -> None:
        """Takes memory back; neighbours are joined."""
        length = -(-(span.stop - span.start) // PAGE_BYTES) * PAGE_BYTES
        joined: list[tuple[int, int]] = []
        for start, size in sorted([*self._free, (span.start, length)]):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + size)
            else:
                joined.append((start, size))
        self._free = joined

    # The inside.

    def _describe(self) -> dict[int, int]:
        can = self._capabilities
        geometry = (
            (regs.GEOMETRY_PORTS, can.ports),
            (regs.GEOMETRY_COLUMNS, can.columns),
            (regs.GEOMETRY_TABLES, regs.TABLES),
            (regs.GEOMETRY_PORT_ROWS, regs.PORT_ROWS),
            (regs.GEOMETRY_GROUP, regs.GROUP),
            (regs.GEOMETRY_QUEUE_DEPTH, can.queue_depth),
        )
        limits = (
            (regs.LIMITS_MAX_ROW_BEATS, can.max_row_beats),
            (regs.LIMITS_ROW_SCALE, can.row_scale),
            (regs.LIMITS_TERNARY, can.ternary),
            (regs.LIMITS_MULTIPLES, can.multiples),
            (regs.LIMITS_GLUE, can.glue),
            (regs.LIMITS_QUERIES, can.attention),
            (regs.LIMITS_ADDR_BITS, can.addr_bits),
        )
        return {
            regs.GEOMETRY: sum(value << part.lsb for part, value in geometry),
            regs.LIMITS: sum(value << part.lsb for part, value in limits),
        }

    def _clear(self) -> None:
        """A soft reset: all but the watchdog's limit and CONTROL."""
        preserved = {name: self._registers.get(name, 0) for name in (regs.WATCHDOG, regs.CONTROL)}
        counters = range(regs.CYCLES, regs.WRITE_BEATS + 4, 4)
        cleared = (regs.ERROR, regs.ERROR_TAG, regs.SUBMITTED, regs.COMPLETED, regs.IRQ, *counters)
        self._registers = {**dict.fromkeys(cleared, 0), **preserved}
        if self.faults.reset_sticks:
            self._registers[regs.CONTROL] |= regs.CONTROL_SOFT_RESET.mask
        self._queue: deque[_Queued] = deque()
        self._progress = 0
        self._stopped = False

    def _status(self) -> int:
        level = len(self._queue)
        return (
            (level == 0) << regs.STATUS_IDLE.lsb
            | self.faults.reset_sticks << regs.STATUS_RESETTING.lsb
            | (level >= self._capabilities.queue_depth) << regs.STATUS_QUEUE_FULL.lsb
            | level << regs.STATUS_QUEUE_LEVEL.lsb
        )

    def _push(self) -> None:
        get = self._registers.get
        address = {name: get(name, 0) | get(name + 4, 0) << 32 for name in _ADDRESSES}
        mode = get(regs.CMD_MODE, 0)
        glue = bool(regs.CMD_MODE_GLUE.of(mode))
        gate = regs.CMD_MODE_GATE.of(mode) if glue else 0
        command = Command(
            x=address[regs.CMD_X],
            y=address[regs.CMD_Y],
            weights=tuple(address[name] for name in regs.CMD_W[: self._capabilities.ports]),
            row_beats=get(regs.CMD_ROW_BEATS, 0),
            tiles=get(regs.CMD_TILES, 0),
            columns=get(regs.CMD_COLUMNS, 0),
            multiples=bool(regs.CMD_MODE_MULTIPLES.of(mode)),
            scales=address[regs.CMD_S] if regs.CMD_MODE_SCALE.of(mode) or gate else None,
            kv_heads=regs.CMD_MODE_KV_HEADS.of(mode) * regs.CMD_MODE_ATTENTION.of(mode),
            head_units=regs.CMD_MODE_HEAD_UNITS.of(mode),
            glue=glue,
            gate=gate,
            norm=glue and bool(regs.CMD_MODE_NORM.of(mode)),
            after=bool(regs.CMD_MODE_AFTER.of(mode)),
        )
        tag = get(regs.CMD_TAG, 0)
        if len(self._queue) >= self._capabilities.queue_depth:
            self._raise_error(regs.ERROR_QUEUE_OVERFLOW, tag)
            return
        self._registers[regs.SUBMITTED] += 1
        cycles = expected_cycles(command, self._capabilities.rows_per_beat)
        self._queue.append(_Queued(command, tag, self._accepted, cycles))
        self._accepted += 1

    def _advance(self, cycles: int) -> None:
        self._registers[regs.CYCLES] += cycles
        self._registers[regs.BUSY] += cycles if self._queue else 0
        if not self._queue or self._stopped:
            return
        self._progress += cycles
        first = self._queue[0]
        if first.number in self.faults.wedged:
            limit = self._registers[regs.WATCHDOG]
            if limit and self._progress > limit and not self.faults.silent:
                self._raise_error(regs.ERROR_WATCHDOG, first.tag)
        elif self._progress >= first.cycles:
            self._progress = 0
            self._run(first)

    def _run(self, queued: _Queued) -> None:
        flag = self.faults.errors.get(queued.number)
        try:
            check_command(queued.command, self._capabilities)
        except ValueError:
            flag = regs.ERROR_BAD_LENGTH
        if flag is None:
            flag = self._compute(queued)
        if flag is not None:
            self._raise_error(flag, queued.tag)
        if not self._stopped:
            self._queue.popleft()
            self._registers[regs.COMPLETED] += 1
            self._registers[regs.IRQ] |= regs.IRQ_COMPLETED.mask

    def _compute(self, queued: _Queued) -> regs.Field | None:
        """Runs a command on memory; returns the error bit of an address without memory."""
        command, need = queued.command, sizes(queued.command, self._capabilities.rows_per_beat)
        beats, tiles, columns = command.row_beats, command.tiles, command.columns
        reads = [self._at(address, need.weights) for address in command.weights]
        reads.append(self._at(command.x, need.x))
        if command.scales is not None:
            reads.append(self._at(command.scales, need.scales))
        operands = [part for part in reads if part is not None]
        if len(operands) < len(reads):
            return regs.ERROR_READ_RESPONSE
        results = self._at(command.y, need.y)
        if results is None:
            return regs.ERROR_WRITE_RESPONSE
        ports = self._capabilities.ports
        if command.kv_heads:
            layout = KvLayout(command.kv_heads, regs.BEAT_BYTES * command.head_units)
            words = run_attention(layout, operands[ports], columns, operands[:ports])
        elif command.glue:
            rows = operands[ports].view(np.float32)
            second = operands[ports + 1].view(np.float32) if command.gate else rows[:0]
            weights = join_norm(operands[:ports], command.tiles) if command.norm else rows[:0]
            both = np.concatenate([second, weights])
            gate = Gate(command.gate)
            words = run_glue(gate, command.norm, tiles, rows, both).view("<u4")
        else:
            words = run_command(
                LookupMode(command.multiples),
                np.stack(operands[:ports]).reshape(ports, tiles, beats, regs.BEAT_BYTES),
                operands[ports].view(np.int8).reshape(tiles, columns, regs.BEAT_BYTES),
                operands[ports + 1].view(np.float32) if command.scales is not None else None,
            )
        if queued.number in self.faults.altered:
            words = words ^ np.eye(1, words.size, dtype=np.uint32)[0]
        results[...] = words.astype("<u4").view(np.uint8)
        self._registers[regs.LOOKUPS] += tiles * beats
        self._registers[regs.READ_BEATS] += sum(part.size for part in operands) // regs.BEAT_BYTES
        self._registers[regs.WRITE_BEATS] += need.y // regs.BEAT_BYTES
        return None

    def _at(self, address: int, nbytes: int) -> NDArray[np.uint8] | None:
        start = address - MEMORY_BASE
        inside = start >= 0 and start + nbytes <= self.memory.size
        return self.memory[start : start + nbytes] if inside else None

    def _raise_error(self, flag: regs.Field, tag: int) -> None:
        if not self._registers[regs.ERROR]:
            self._registers[regs.ERROR_TAG] = tag
        self._registers[regs.ERROR] |= flag.mask
        self._registers[regs.IRQ] |= regs.IRQ_ERROR.mask
        self._stopped |= flag not in (regs.ERROR_BAD_LENGTH, regs.ERROR_QUEUE_OVERFLOW)


_ADDRESSES = (regs.CMD_X, regs.CMD_S, regs.CMD_Y, *regs.CMD_W)
