"""cocotb's tests of ``tlmm_registers`` alone; ``tests/hw/rtl/test_cocotb.py`` starts them.

The C++ harness and ``bench_top`` make one access at a time, as drivers do. Here every channel runs
for itself: addresses, data and responses of several accesses overlap, as an interconnect may do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from edgerun_hw.overlay import register_map as regs

ACCESSES = 400
MOST_CYCLES = 64  # that an access may take
WORDS = [regs.CMD_X, regs.CMD_X + 4, regs.CMD_Y, regs.WATCHDOG, regs.CMD_W[3] + 4]
IDLE_INPUTS = (
    *("awvalid", "wvalid", "bready", "arvalid", "rready", "clear", "resetting", "queue_busy"),
    *("staged_index", "level", "full", "ev_completed", "errors", "error_raised", "error_tag"),
    *("counter_visit", "counter_value"),
)


class Sender:
    """A channel that the processor drives, with pauses of its own."""

    def __init__(self, dut: Any, channel: str, fields: tuple[str, ...], seed: int) -> None:
        self.dut, self.channel, self.fields = dut, channel, fields
        self.generator = random.Random(seed)
        self.sent = 0

    async def run(self, items: Iterator[tuple[int, ...]]) -> None:
        valid, ready = (getattr(self.dut, self.channel + end) for end in ("valid", "ready"))
        for item in items:
            await ClockCycles(self.dut.clk, self.generator.choice((0, 0, 0, 1, 5)) or 1)
            for name, value in zip(self.fields, item, strict=True):
                getattr(self.dut, name).value = value
            valid.value = 1
            await RisingEdge(self.dut.clk)
            while not ready.value:
                await RisingEdge(self.dut.clk)
            self.sent += 1
            valid.value = 0


class Receiver:
    """A channel that the overlay drives; sees that an offer stands until it is taken."""

    def __init__(self, dut: Any, channel: str, payload: str, seed: int) -> None:
        self.dut, self.channel, self.payload = dut, channel, payload
        self.generator = random.Random(seed)
        self.taken: list[int] = []

    async def run(self) -> None:
        valid, ready = (getattr(self.dut, self.channel + end) for end in ("valid", "ready"))
        payload = getattr(self.dut, self.payload)
        offered: int | None = None
        while True:
            is_ready = self.generator.random() < 0.5
            ready.value = int(is_ready)
            await RisingEdge(self.dut.clk)
            now = int(payload.value) if valid.value else None
            assert offered is None or now == offered, f"{self.channel}: an offer was taken back"
            offered = None if is_ready else now
            if is_ready and now is not None:
                self.taken.append(now)


async def start(dut: Any) -> None:
    """Starts the clock and resets."""
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
    for name in IDLE_INPUTS:
        getattr(dut, name).value = 0
    dut.aresetn.value = 0
    await ClockCycles(dut.clk, 4)
    dut.aresetn.value = 1
    await ClockCycles(dut.clk, 2)


async def disturb(dut: Any, seed: int) -> None:
    """The queue is busy now and then, and counters take their turns, as behind the real port."""
    generator = random.Random(seed)
    while True:
        dut.queue_busy.value = 1
        await ClockCycles(dut.clk, 28)
        dut.queue_busy.value = 0
        await ClockCycles(dut.clk, generator.randrange(1, 60))


async def count_turns(dut: Any) -> None:
    """Counter n always reads 100 + n."""
    turn = 0
    while True:
        dut.counter_visit.value = turn
        dut.counter_value.value = 100 + turn
        await RisingEdge(dut.clk)
        turn = (turn + 1) % 16


async def until(dut: Any, done: Callable[[], bool]) -> None:
    """Waits, and not for longer than so many accesses may take."""
    for _ in range(ACCESSES * MOST_CYCLES):
        if done():
            return
        await RisingEdge(dut.clk)
    raise AssertionError("the control port hangs")


@cocotb.test()
async def overlapping_accesses_are_answered_in_order(dut: Any) -> None:
    await start(dut)
    generator = random.Random(1)
    writes = [(generator.choice(WORDS), generator.getrandbits(32)) for _ in range(ACCESSES)]
    reads = {regs.ID: regs.ID_VALUE, regs.VERSION: regs.VERSION_VALUE, regs.SUBMITTED: 101}
    reads |= {regs.READ_BEATS: 114, 0xFFC: 0, regs.CMD_TAG: 0}
    addresses_read = [generator.choice(list(reads)) for _ in range(ACCESSES)]
    responses, data = Receiver(dut, "b", "bresp", 2), Receiver(dut, "r", "rdata", 3)
    for task in (responses.run(), data.run(), disturb(dut, 4), count_turns(dut)):
        cocotb.start_soon(task)
    addresses = Sender(dut, "aw", ("awaddr",), 5)
    words = Sender(dut, "w", ("wdata", "wstrb"), 6)
    cocotb.start_soon(addresses.run((address,) for address, _ in writes))
    cocotb.start_soon(words.run((word, 0xF) for _, word in writes))
    cocotb.start_soon(
        Sender(dut, "ar", ("araddr",), 7).run((address,) for address in addresses_read)
    )
    await until(dut, lambda: len(responses.taken) == len(data.taken) == ACCESSES)
    await ClockCycles(dut.clk, 2 * MOST_CYCLES)
    assert responses.taken == [0] * ACCESSES
    assert data.taken == [reads[address] for address in addresses_read]
    await Sender(dut, "ar", ("araddr",), 8).run((address,) for address in WORDS)
    await until(dut, lambda: len(data.taken) == ACCESSES + len(WORDS))
    assert data.taken[ACCESSES:] == [dict(writes)[address] for address in WORDS]


@cocotb.test()
async def an_address_waits_for_its_data_and_data_for_their_address(dut: Any) -> None:
    await start(dut)
    responses = Receiver(dut, "b", "bresp", 2)
    cocotb.start_soon(responses.run())
    await Sender(dut, "aw", ("awaddr",), 5).run(iter([(regs.CMD_X,)]))
    await ClockCycles(dut.clk, 200)
    assert responses.taken == []
    await Sender(dut, "w", ("wdata", "wstrb"), 6).run(iter([(1, 0xF), (2, 0xF)]))
    await ClockCycles(dut.clk, 200)
    assert responses.taken == [0]
    await Sender(dut, "aw", ("awaddr",), 5).run(iter([(regs.CMD_Y,)]))
    await until(dut, lambda: len(responses.taken) == 2)
