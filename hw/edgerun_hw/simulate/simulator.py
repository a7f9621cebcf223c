"""The overlay as a device without a board: satisfies ``port.DevicePort``.

Time passes only inside its methods. Register accesses are AXI4-Lite transactions of some cycles
each; memory is served to the RTL while ``step``, ``wait`` and ``run_until`` run the clock, which
they do in C++: a million cycles a second and more.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from edgerun.errors import BackendError, StorageError
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.simulate import library as lib
from edgerun_hw.simulate.addresses import AddressSpace
from edgerun_hw.simulate.buffers import SimulatedBuffer
from edgerun_hw.simulate.build import Design, Progress, Variant, build, overlay_design
from edgerun_hw.simulate.faults import Fault
from edgerun_hw.simulate.memory import DdrConfig
from edgerun_hw.simulate.statistics import DdrStatistics, Statistics

RESET_CYCLES = 8
# AXI4-Lite has no time-out of its own; a register that takes this long never answers.
REGISTER_LIMIT = 100_000
POLL_CYCLES = 32
MAX_BURST_BEATS = 64
OUTSTANDING_BURSTS = 8
ALL_BYTES = 0xF
DDR_COUNTERS = tuple(field.name for field in dataclasses.fields(DdrStatistics))
ADDRESS_LIMIT = 1 << 64


class SimulationError(BackendError):
    """The simulated overlay did not answer its control port, or broke a rule of AXI."""


class Simulator:
    """A verilated overlay with memory and a processor's control port.

    Args:
        geometry: parameters of the overlay.
        memory: the DRAM to model, or None for ideal memory: every port gets a beat each cycle.
        seed: of random back-pressure and of registers that the RTL leaves uninitialised.
        backpressure: probability, 0 to below 1, that a memory channel is not ready in a cycle.
        control_backpressure: the same of the control port's transactions.
        faults: faults to commit.
        variant: traces and coverage.
        progress: told what is being done while the simulator is compiled, once per geometry.
        design: another module with the same ports.
        library: what ``build`` made of this geometry elsewhere, for an environment without
            Verilator; ``variant`` and ``design`` are then of no account.
        outstanding: bursts that a memory port accepts at a time, 1 to 16.

    Raises:
        MissingDependencyError: Verilator or a C++ compiler is not installed.
        BackendError: the RTL does not compile.
        StorageError: the cache folder cannot be written.

    Example:
        >>> with Simulator(PRESETS["tiny"], memory=None) as simulator:
        ...     hex(simulator.read(0))
        '0x544c4d4d'
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        memory: DdrConfig | None,
        seed: int = 0,
        backpressure: float = 0.0,
        control_backpressure: float = 0.0,
        faults: Iterable[Fault] = (),
        variant: Variant | None = None,
        progress: Progress | None = None,
        design: Design | None = None,
        library: Path | None = None,
        outstanding: int = OUTSTANDING_BURSTS,
    ) -> None:
        for name, value in (("", backpressure), ("control_", control_backpressure)):
            if not 0 <= value < 1:
                raise ValueError(f"{name}backpressure must be from 0 to below 1, not {value}")
        if not 1 <= outstanding <= 16:
            raise ValueError(f"outstanding must be from 1 to 16, not {outstanding}")
        self.geometry = geometry
        self.memory = memory
        self._lock = threading.RLock()
        self._buffers: dict[int, SimulatedBuffer] = {}
        self._addresses = AddressSpace(geometry.addr_bits)
        self._handle: int | None = None
        if library is None:
            library = build(design or overlay_design(geometry), variant, progress=progress)
        self._library = lib.load(library)
        options = lib.Options(
            seed=seed % (1 << 64),
            weight_backpressure=backpressure,
            data_backpressure=backpressure,
            control_backpressure=control_backpressure,
            max_burst=MAX_BURST_BEATS,
            outstanding=outstanding,
            ddr=lib.ddr_options(memory),
        )
        self._handle = self._library.edgerun_create(options)
        if not self._handle:
            raise SimulationError(f"the simulator does not start: {self._message()}")
        for fault in faults:
            self.add_fault(fault)
        self.power_on_reset()

    # ---- DevicePort

    def read(self, offset: int) -> int:
        """Reads the 32-bit register at ``offset`` bytes.

        Raises:
            SimulationError: no answer, or an error response.
        """
        value = ctypes.c_uint32()
        with self._lock:
            status = self._library.edgerun_read(self._open, offset, value, REGISTER_LIMIT)
        self._check(status, f"reading register {offset:#05x}")
        return value.value

    def write(self, offset: int, value: int) -> None:
        """Writes ``value`` (0 to 2**32 - 1) to the register at ``offset`` bytes.

        Raises:
            SimulationError: no answer, or an error response.
        """
        self.write_with(offset, value)

    def allocate(self, nbytes: int) -> SimulatedBuffer:
        """Allocates zeroed, page-aligned memory.

        Raises:
            MemoryError: there is not that much.
        """
        if nbytes < 1:
            raise ValueError(f"a buffer must have at least one byte, not {nbytes}")
        with self._lock:
            address = self._addresses.take(nbytes)
            buffer = SimulatedBuffer(self, address, nbytes)
            host = buffer.array.ctypes.data
            self._library.edgerun_map(self._open, address, buffer.mapped_bytes, host)
            self._buffers[address] = buffer
        return buffer

    def wait(self, cycles: int) -> None:
        """Runs the clock until the interrupt line is up, ``cycles`` cycles at most."""
        with self._lock:
            self._library.edgerun_step_until_interrupt(self._open, cycles)

    def close(self) -> None:
        """Ends the simulation; a second call does nothing. Arrays of buffers stay valid."""
        with self._lock:
            if self._handle:
                self._library.edgerun_destroy(self._handle)
            self._handle = None
            self._buffers.clear()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    # ---- Time

    @property
    def cycles(self) -> int:
        """Cycles since the start."""
        return int(self._library.edgerun_cycle(self._open))

    @property
    def interrupt(self) -> bool:
        """Whether the interrupt line is up."""
        return bool(self._library.edgerun_interrupt(self._open))

    def step(self, cycles: int = 1) -> None:
        """Runs the clock for so many cycles."""
        with self._lock:
            self._library.edgerun_step(self._open, cycles)

    def run_until(
        self, offset: int, mask: int, value: int, limit: int, interval: int = POLL_CYCLES
    ) -> bool:
        """Runs until a register's bits ``mask`` are ``value``.

        The register is read every ``interval`` cycles.

        Returns:
            False when they were not within about ``limit`` cycles.

        Raises:
            SimulationError: the register does not answer.
        """
        last = ctypes.c_uint32()
        with self._lock:
            started = self.cycles
            status = self._library.edgerun_poll(
                self._open, offset, mask, value, interval, max(limit, 1), last
            )
            if status == lib.Status.TIMED_OUT and self.cycles - started >= limit:
                return False
        self._check(status, f"polling register {offset:#05x}")
        return True

    def power_on_reset(self, cycles: int = RESET_CYCLES) -> None:
        """Pulls ``aresetn`` for so many cycles; transfers under way are lost on both sides."""
        with self._lock:
            self._library.edgerun_reset(self._open, cycles)

    # ---- What a test wants besides

    def write_with(
        self,
        offset: int,
        value: int,
        *,
        strobes: int = ALL_BYTES,
        address_delay: int = 0,
        data_delay: int = 0,
        response_delay: int = 0,
    ) -> None:
        """Writes a register with byte strobes and its three channels out of step.

        Raises:
            SimulationError: no answer, or an error response.
        """
        delays = lib.Delays(address_delay, data_delay, response_delay)
        with self._lock:
            status = self._library.edgerun_write(
                self._open, offset, value, strobes, delays, REGISTER_LIMIT
            )
        self._check(status, f"writing register {offset:#05x}")

    def add_fault(self, fault: Fault) -> None:
        """Makes the memory commit ``fault`` from now on."""
        options = lib.FaultOptions(
            kind=fault.kind,
            port=-1 if fault.port is None else fault.port,
            skip=fault.skip,
            remaining=fault.count,
            first=fault.first,
            last=ADDRESS_LIMIT - 1 if fault.last is None else fault.last,
            cycles=fault.cycles,
            value=fault.value,
        )
        with self._lock:
            self._library.edgerun_add_fault(self._open, options)

    def clear_faults(self) -> None:
        """Ends all faults, silences under way included."""
        with self._lock:
            self._library.edgerun_clear_faults(self._open)

    def violations(self) -> list[str]:
        """How the overlay broke the rules of AXI; the first 64 of them."""
        with self._lock:
            texts: list[str] = []
            while (text := self._library.edgerun_violation(self._open, len(texts))) is not None:
                texts.append(text.decode())
        return texts

    def clear_violations(self) -> None:
        """Forgets them."""
        self._library.edgerun_clear_violations(self._open)

    def statistics(self) -> Statistics:
        """Returns what was counted since the start or ``clear_statistics``."""
        counters = lib.Counters()
        with self._lock:
            self._library.edgerun_counters(self._open, counters)
            outstanding = self._library.edgerun_outstanding(self._open)
            violations = self._library.edgerun_violation_count(self._open)
        ports = self.geometry.ports + 1
        ddr = {name: getattr(counters.ddr, name) for name in DDR_COUNTERS}
        return Statistics(
            cycles=counters.cycles,
            read_bursts=tuple(counters.read_bursts[:ports]),
            read_beats=tuple(counters.read_beats[:ports]),
            write_bursts=counters.write_bursts,
            write_beats=counters.write_beats,
            outstanding=outstanding,
            violations=violations,
            faults=counters.faults,
            ddr=DdrStatistics(**ddr),
        )

    def clear_statistics(self) -> None:
        """Starts counting anew."""
        with self._lock:
            self._library.edgerun_clear_counters(self._open)

    def open_trace(self, path: Path) -> None:
        """Writes waveforms from now on; needs a ``variant`` with traces.

        Raises:
            StorageError: the file cannot be written, or the simulator was built without traces.
        """
        with self._lock:
            status = self._library.edgerun_open_trace(self._open, str(path).encode())
        if status != lib.Status.DONE:
            raise StorageError(f"no trace in {path}: {self._message()}")

    def close_trace(self) -> None:
        """Ends the trace."""
        with self._lock:
            self._library.edgerun_close_trace(self._open)

    def write_coverage(self, path: Path) -> None:
        """Writes what was covered so far; needs a ``variant`` with coverage.

        Raises:
            StorageError: the simulator was built without coverage.
        """
        with self._lock:
            status = self._library.edgerun_write_coverage(self._open, str(path).encode())
        if status != lib.Status.DONE:
            raise StorageError(f"no coverage in {path}: {self._message()}")

    def release(self, buffer: SimulatedBuffer) -> None:
        """Frees a buffer; see ``SimulatedBuffer.free``."""
        with self._lock:
            if self._buffers.pop(buffer.address, None) is None:
                return
            self._library.edgerun_unmap(self._open, buffer.address)
            self._addresses.give_back(buffer.address)

    # ---- Inside

    @property
    def _open(self) -> int:
        if not self._handle:
            raise SimulationError("the simulator is closed")
        return self._handle

    def _message(self) -> str:
        message: bytes = self._library.edgerun_message()
        return message.decode()

    def _check(self, status: int, what: str) -> None:
        if status == lib.Status.DONE:
            return
        reasons = {
            lib.Status.TIMED_OUT: f"no answer within {REGISTER_LIMIT} cycles",
            lib.Status.ERROR_RESPONSE: "an error response",
            lib.Status.REFUSED: "a transaction before it never ended",
        }
        raise SimulationError(f"{what} of the simulated overlay: {reasons[lib.Status(status)]}")
