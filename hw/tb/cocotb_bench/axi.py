"""AXI for cocotb: a processor's AXI4-Lite master and memory at the overlay's AXI4 ports.

Written apart from the C++ harness beside it on purpose: what one of them misunderstands the other
should not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from cocotb.triggers import ReadOnly, RisingEdge

BEAT_BYTES = 16
OKAY, DECERR = 0, 3

Dut = Any  # a handle of cocotb
Pause = Callable[[], bool]


def pauses(seed: int, probability: float) -> Pause:
    """Returns a function that says whether to hold a channel back in this cycle."""
    generator = random.Random(seed)
    return lambda: generator.random() < probability


class Memory:
    """Sparse bytes."""

    def __init__(self) -> None:
        self._regions: dict[int, bytearray] = {}

    def put(self, address: int, data: bytes) -> None:
        """Maps ``data`` at ``address``."""
        self._regions[address] = bytearray(data)

    def get(self, address: int) -> bytes:
        """Returns the region that begins at ``address``."""
        return bytes(self._regions[address])

    def find(self, address: int) -> tuple[bytearray, int] | None:
        """Returns the region that holds a beat at ``address``, and where in it."""
        for base, data in self._regions.items():
            if base <= address and address + BEAT_BYTES <= base + len(data):
                return data, address - base
        return None


class Signals:
    """Signals of one port: ``<prefix><name>`` of the design, or a part of a flattened one."""

    def __init__(self, dut: Dut, prefix: str, part: int = 0) -> None:
        self._dut, self._prefix, self._part = dut, prefix, part

    def get(self, name: str, width: int = 1) -> int:
        """The value of this port's ``width`` bits."""
        whole = int(getattr(self._dut, self._prefix + name).value)
        return whole >> (self._part * width) & ((1 << width) - 1)


class ReadPorts:
    """Memory behind read ports that share flattened signals; a beat a cycle each.

    Args:
        dut: the design.
        prefix: of the signals, e.g. ``m_axi_w_``.
        ports: how many ports are flattened into them.
        memory: what they read.
        addr_bits: width of an address.
        pause: back-pressure.
    """

    def __init__(
        self, dut: Dut, prefix: str, ports: int, memory: Memory, addr_bits: int, pause: Pause
    ) -> None:
        self.dut, self.prefix, self.memory, self.addr_bits = dut, prefix, memory, addr_bits
        self.pause = pause
        self.parts = [Signals(dut, prefix, port) for port in range(ports)]
        self.queues: list[list[tuple[int, bool]]] = [[] for _ in range(ports)]
        self.shown: list[tuple[int, bool] | None] = [None] * ports
        self.ready = [False] * ports
        self.beats = 0

    def forget(self) -> None:
        """Drops what is under way, as a reset of the whole system does."""
        self.queues = [[] for _ in self.parts]
        self.shown = [None] * len(self.parts)

    async def run(self) -> None:
        """Serves for ever."""
        while True:
            self._drive()
            await RisingEdge(self.dut.aclk)
            # Signals that the design drives are still those of before the edge.
            for port in range(len(self.parts)):
                self._clock(port)

    def _clock(self, port: int) -> None:
        signals = self.parts[port]
        if self.shown[port] is not None and signals.get("rready"):
            self.shown[port] = None
            self.beats += 1
        if self.ready[port] and signals.get("arvalid"):
            address, beats = signals.get("araddr", self.addr_bits), signals.get("arlen", 8) + 1
            assert address % BEAT_BYTES == 0, f"address {address:#x} is misaligned"
            assert address % 4096 + beats * BEAT_BYTES <= 4096, f"burst at {address:#x} too long"
            self.queues[port] += [
                (address + beat * BEAT_BYTES, beat == beats - 1) for beat in range(beats)
            ]
        self.ready[port] = len(self.queues[port]) < 256 and not self.pause()
        if self.shown[port] is None and self.queues[port] and not self.pause():
            self.shown[port] = self.queues[port].pop(0)

    def _drive(self) -> None:
        data = responses = lasts = valid = ready = 0
        for port, shown in enumerate(self.shown):
            ready |= self.ready[port] << port
            if shown is None:
                continue
            address, last = shown
            place = self.memory.find(address)
            beat = bytes(BEAT_BYTES) if place is None else place[0][place[1] : place[1] + 16]
            data |= int.from_bytes(beat, "little") << (128 * port)
            responses |= (DECERR if place is None else OKAY) << (2 * port)
            lasts |= last << port
            valid |= 1 << port
        values = {"rdata": data, "rresp": responses, "rlast": lasts, "rvalid": valid}
        for name, value in {**values, "arready": ready}.items():
            getattr(self.dut, self.prefix + name).value = value


class WritePort:
    """Memory behind the data port's write channels."""

    def __init__(self, dut: Dut, prefix: str, memory: Memory, pause: Pause) -> None:
        self.dut, self.prefix, self.memory, self.pause = dut, prefix, memory, pause
        self.signals = Signals(dut, prefix)
        self.forget()

    def forget(self) -> None:
        """Drops what is under way."""
        self.bursts: list[list[int]] = []  # address of the next beat, beats left
        self.responses = 0
        self.state = {"awready": 0, "wready": 0, "bvalid": 0}

    async def run(self) -> None:
        """Serves for ever."""
        while True:
            for name, value in {**self.state, "bresp": OKAY}.items():
                getattr(self.dut, self.prefix + name).value = value
            await RisingEdge(self.dut.aclk)
            self._clock()

    def _clock(self) -> None:
        get, state = self.signals.get, self.state
        if state["bvalid"] and get("bready"):
            state["bvalid"] = 0
        if state["awready"] and get("awvalid"):
            self.bursts.append([get("awaddr", 64), get("awlen", 8) + 1])
        if state["wready"] and get("wvalid"):
            self._store(get("wdata", 128), get("wstrb", 16), bool(get("wlast")))
        state["awready"] = int(len(self.bursts) < 4 and not self.pause())
        state["wready"] = int(bool(self.bursts) and not self.pause())
        if self.responses and not state["bvalid"] and not self.pause():
            self.responses -= 1
            state["bvalid"] = 1

    def _store(self, data: int, strobes: int, last: bool) -> None:
        burst = self.bursts[0]
        place = self.memory.find(burst[0])
        assert place is not None or not strobes, f"a write to {burst[0]:#x}, which is not mapped"
        for byte in range(BEAT_BYTES):
            if place is not None and strobes >> byte & 1:
                place[0][place[1] + byte] = data >> (8 * byte) & 0xFF
        burst[0] += BEAT_BYTES
        burst[1] -= 1
        assert last == (burst[1] == 0), "WLAST is in the wrong place"
        if last:
            self.bursts.pop(0)
            self.responses += 1


class Processor:
    """The AXI4-Lite master."""

    def __init__(self, dut: Dut, pause: Pause) -> None:
        self.dut, self.pause = dut, pause

    def _signal(self, name: str) -> Any:
        return getattr(self.dut, "s_axi_control_" + name)

    async def _handshake(self, valid: str, ready: str) -> None:
        while self.pause():
            await RisingEdge(self.dut.aclk)
        self._signal(valid).value = 1
        await self._until(ready)
        self._signal(valid).value = 0

    async def _until(self, name: str) -> None:
        for _ in range(10_000):
            await ReadOnly()
            seen = bool(int(self._signal(name).value))
            await RisingEdge(self.dut.aclk)
            if seen:
                return
        raise AssertionError(f"{name} did not come")

    async def write(self, offset: int, value: int) -> None:
        """Writes a register, address before data."""
        self._signal("awaddr").value = offset
        await self._handshake("awvalid", "awready")
        self._signal("wdata").value = value
        self._signal("wstrb").value = 0xF
        await self._handshake("wvalid", "wready")
        self._signal("bready").value = 1
        await self._until("bvalid")
        self._signal("bready").value = 0

    async def read(self, offset: int) -> int:
        """Reads a register."""
        self._signal("araddr").value = offset
        await self._handshake("arvalid", "arready")
        self._signal("rready").value = 1
        for _ in range(10_000):
            await ReadOnly()
            seen, value = int(self._signal("rvalid").value), self._signal("rdata").value
            word = int(value) if seen else 0
            await RisingEdge(self.dut.aclk)
            if seen:
                self._signal("rready").value = 0
                return word
        raise AssertionError("rvalid did not come")
