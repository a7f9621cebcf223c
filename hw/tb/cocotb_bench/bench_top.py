"""cocotb's tests of ``tlmm_top``; ``tests/hw/rtl/test_cocotb.py`` starts them.

The parameters of the build come in the environment variable BENCH_GEOMETRY, a preset's name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import cocotb
import numpy as np
from axi import Memory, Processor, ReadPorts, WritePort, pauses
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.cases import Case, Operands, make_operands

GEOMETRY = PRESETS[os.environ.get("BENCH_GEOMETRY", "tiny-prefill")]
PATTERN = 0xA5
INPUTS = (
    *("s_axi_control_awvalid", "s_axi_control_wvalid", "s_axi_control_bready"),
    *("s_axi_control_arvalid", "s_axi_control_rready"),
)


@dataclass
class Bench:
    """The design with a processor and memory around it."""

    dut: Any
    memory: Memory
    processor: Processor
    weights: ReadPorts
    data: ReadPorts
    results: WritePort

    async def reset(self) -> None:
        """Pulls aresetn."""
        self.dut.aresetn.value = 0
        for ports in (self.weights, self.data, self.results):
            ports.forget()
        await ClockCycles(self.dut.aclk, 8)
        self.dut.aresetn.value = 1
        await ClockCycles(self.dut.aclk, 2)

    async def push(self, mode: LookupMode, operands: Operands, base: int) -> int:
        """Puts operands into memory from ``base`` on, pushes; returns the results' address."""
        ports, tiles, beats, _ = operands.weights.shape
        arrays = [*operands.weights, operands.activations]
        scaled = operands.scales is not None
        if operands.scales is not None:
            arrays.append(operands.scales)
        addresses = []
        for array in arrays:
            self.memory.put(base, np.ascontiguousarray(array).tobytes() + bytes(16))
            addresses.append(base)
            base += (array.nbytes + 16 + 4095) // 4096 * 4096
        self.memory.put(base, bytes([PATTERN]) * operands.expected.nbytes)
        values = {
            regs.CMD_MODE: int(mode) | scaled << regs.CMD_MODE_SCALE.lsb,
            regs.CMD_ROW_BEATS: beats,
            regs.CMD_TILES: tiles,
            regs.CMD_COLUMNS: operands.activations.shape[1],
        }
        pointers = dict(zip(regs.CMD_W, addresses[:ports], strict=False))
        pointers |= {regs.CMD_X: addresses[ports], regs.CMD_Y: base}
        pointers |= {regs.CMD_S: addresses[-1] if scaled else 0}
        for offset, address in pointers.items():
            values |= {offset: address & 0xFFFFFFFF, offset + 4: address >> 32}
        for offset, value in values.items():
            await self.processor.write(offset, value)
        await self.processor.write(regs.CMD_PUSH, 1)
        return base

    async def until(self, offset: int, value: int, mask: int = 0xFFFFFFFF) -> None:
        """Polls a register."""
        for _ in range(2000):
            if await self.processor.read(offset) & mask == value:
                return
            await ClockCycles(self.dut.aclk, 20)
        raise AssertionError(f"register {offset:#x} never became {value:#x}")

    def check(self, operands: Operands, results: int) -> None:
        """Compares results with the definition; pad words may be written as zero or not at all."""
        words = np.frombuffer(self.memory.get(results), np.uint32)
        columns, beats = operands.activations.shape[1], operands.weights.shape[2]
        used = beats * columns * GEOMETRY.rows_per_beat
        assert (words[:used] == operands.expected[:used]).all()


async def start(dut: Any, backpressure: float = 0.0, seed: int = 1) -> Bench:
    """Starts clock, memory and processor, and resets the design."""
    cocotb.start_soon(Clock(dut.aclk, 10, unit="ns").start())
    for name in INPUTS:
        getattr(dut, name).value = 0
    memory = Memory()
    bits = GEOMETRY.addr_bits
    weights = ReadPorts(dut, "m_axi_w_", GEOMETRY.ports, memory, bits, pauses(seed, backpressure))
    data = ReadPorts(dut, "m_axi_d_", 1, memory, bits, pauses(seed + 1, backpressure))
    results = WritePort(dut, "m_axi_d_", memory, pauses(seed + 2, backpressure))
    processor = Processor(dut, pauses(seed + 3, backpressure))
    bench = Bench(dut, memory, processor, weights, data, results)
    for ports in (weights, data, results):
        cocotb.start_soon(ports.run())
    await bench.reset()
    return bench


def case(seed: int, rows: int = 23, K: int = 70, mode: LookupMode = LookupMode.TERNARY) -> Case:
    """A small case with all columns, scaled where the design can."""
    return Case(mode, rows, K, GEOMETRY.columns, GEOMETRY.row_scale, "random", seed)


@cocotb.test()
async def registers_say_what_was_built(dut: Any) -> None:
    bench = await start(dut)
    assert await bench.processor.read(regs.ID) == regs.ID_VALUE
    word = await bench.processor.read(regs.GEOMETRY)
    assert regs.GEOMETRY_PORTS.of(word) == GEOMETRY.ports
    assert regs.GEOMETRY_COLUMNS.of(word) == GEOMETRY.columns
    assert regs.STATUS_IDLE.of(await bench.processor.read(regs.STATUS)) == 1
    await bench.processor.write(regs.CMD_TAG, 0x1234)
    assert await bench.processor.read(regs.CMD_TAG) == 0x1234


@cocotb.test()
async def one_command_of_each_mode(dut: Any) -> None:
    bench = await start(dut)
    for number, mode in enumerate(LookupMode, start=1):
        operands = make_operands(case(number, mode=mode), GEOMETRY)
        results = await bench.push(mode, operands, number << 32)
        await bench.until(regs.COMPLETED, number)
        bench.check(operands, results)
    assert await bench.processor.read(regs.ERROR) == 0


@cocotb.test()
async def commands_back_to_back_under_back_pressure(dut: Any) -> None:
    bench = await start(dut, backpressure=0.4)
    pushed = []
    for number in range(4):
        mode = LookupMode(number % 2)
        operands = make_operands(case(number, rows=5 + 17 * number, mode=mode), GEOMETRY)
        pushed.append((operands, await bench.push(mode, operands, (1 + number) << 24)))
    await bench.until(regs.COMPLETED, 4)
    for operands, results in pushed:
        bench.check(operands, results)


@cocotb.test()
async def reset_in_mid_transfer(dut: Any) -> None:
    """A soft reset at several moments; the next command then works as the first."""
    bench = await start(dut, backpressure=0.2)
    operands = make_operands(case(9, rows=200, K=150), GEOMETRY)
    for moment in (1, 40, 150, 400):
        await bench.push(LookupMode.TERNARY, operands, 1 << 24)
        await ClockCycles(dut.aclk, moment)
        await bench.processor.write(regs.CONTROL, regs.CONTROL_SOFT_RESET.mask)
        await bench.until(regs.CONTROL, 0, regs.CONTROL_SOFT_RESET.mask)
        # Nothing that was asked for may still be on its way.
        assert not any(bench.weights.queues) and not any(bench.data.queues)
        assert not bench.results.bursts and not bench.results.responses
        assert await bench.processor.read(regs.COMPLETED) == 0
        results = await bench.push(LookupMode.TERNARY, operands, 2 << 24)
        await bench.until(regs.COMPLETED, 1)
        bench.check(operands, results)
        await bench.processor.write(regs.CONTROL, regs.CONTROL_SOFT_RESET.mask)
        await bench.until(regs.CONTROL, 0, regs.CONTROL_SOFT_RESET.mask)
