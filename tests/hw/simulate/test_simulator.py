"""The simulator itself, around a small stand-in for the overlay (``hw/tb/standin.sv``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgerun.errors import StorageError
from edgerun_hw.overlay.geometry import Geometry
from edgerun_hw.simulate import (
    DDR_PRESETS,
    Channel,
    Fault,
    FaultKind,
    SimulationError,
    Simulator,
)
from edgerun_hw.simulate.addresses import HIGH_MEMORY, PAGE_BYTES, AddressSpace
from edgerun_hw.simulate.build import Variant, standin_design
from edgerun_hw.simulate.coverage import FileCoverage, read_points, summarise, table
from edgerun_hw.simulate.faults import DECERR

fpga = pytest.mark.fpga

GEOMETRY = Geometry(ports=2, nb_max=64)
DATA_PORT = 2
BURST_BYTES = 256
START, LENGTH, BUG, ERRORS = 0x10, 0x14, 0x18, 0x1C
ADDRESSES = {"w0": 0x70, "w1": 0x78, "x": 0x54, "y": 0x64}
DROP_VALID, CHANGE_ADDRESS, CROSS_4K, WRONG_WLAST, CHANGE_DATA, ASSERTION = (
    1 << bit for bit in range(6)
)

Make = Callable[..., Simulator]


@pytest.fixture
def make() -> Iterator[Make]:
    simulators: list[Simulator] = []

    def make_simulator(**options: object) -> Simulator:
        chosen = {"memory": None, "design": standin_design(GEOMETRY), **options}
        simulators.append(Simulator(GEOMETRY, **chosen))  # type: ignore[arg-type]
        return simulators[-1]

    yield make_simulator
    for simulator in simulators:
        simulator.close()


def prepare(simulator: Simulator, bursts: int = 8, bug: int = 0) -> tuple[dict, np.ndarray]:
    """Gives the stand-in something to do; returns its buffers and what it must write."""
    rng = np.random.default_rng(3)
    buffers = {name: simulator.allocate(bursts * BURST_BYTES) for name in ADDRESSES}
    for name in ("w0", "w1", "x"):
        buffers[name].array[:] = rng.integers(0, 256, bursts * BURST_BYTES)
    for name, offset in ADDRESSES.items():
        simulator.write(offset, buffers[name].address & 0xFFFFFFFF)
        simulator.write(offset + 4, buffers[name].address >> 32)
    simulator.write(LENGTH, bursts)
    simulator.write(BUG, bug)
    return buffers, buffers["w0"].array ^ buffers["w1"].array ^ buffers["x"].array


def run(simulator: Simulator, limit: int = 200_000) -> bool:
    simulator.write(START, 1)
    return simulator.run_until(START, 1, 0, limit)


@fpga
@pytest.mark.timeout(900)  # the first one compiles
@pytest.mark.parametrize("memory", [None, "kv260"])
@pytest.mark.parametrize("backpressure", [0.0, 0.3, 0.8])
def test_data_arrive_whatever_the_pace(make: Make, memory: str, backpressure: float) -> None:
    simulator = make(
        memory=DDR_PRESETS[memory] if memory else None,
        backpressure=backpressure,
        control_backpressure=backpressure,
        seed=11,
    )
    buffers, expected = prepare(simulator, bursts=40)
    assert run(simulator)
    assert (buffers["y"].array == expected).all()
    assert simulator.read(ERRORS) == 0
    assert simulator.violations() == []
    statistics = simulator.statistics()
    assert statistics.read_bursts == (40, 40, 40)
    assert statistics.read_beats == (640, 640, 640)
    assert (statistics.write_bursts, statistics.write_beats) == (40, 640)
    assert statistics.outstanding == 0
    lines = statistics.ddr.lines_read + statistics.ddr.lines_written
    # Writes are posted: the last ones may still be on their way to the DRAM.
    assert (lines == 0) if memory is None else (4 * 160 - 16 <= lines <= 4 * 160)


@fpga
@pytest.mark.parametrize(
    ("bug", "complaint"),
    [
        (DROP_VALID, "VALID fell before READY"),
        (CHANGE_ADDRESS, "payload changed before READY"),
        (CROSS_4K, "cross 4 KiB"),
        (WRONG_WLAST, "WLAST is 1 at beat 4 of 16"),
        (CHANGE_DATA, "W 2: payload changed"),
        (ASSERTION, "failed assertion"),
    ],
)
def test_broken_rules_are_seen(make: Make, bug: int, complaint: str) -> None:
    simulator = make(backpressure=0.5)
    prepare(simulator, bug=bug)
    run(simulator, limit=5000)
    assert any(complaint in text for text in simulator.violations()), simulator.violations()
    assert simulator.statistics().violations > 0
    simulator.clear_violations()
    assert simulator.violations() == []


@fpga
@pytest.mark.parametrize(
    ("fault", "errors"),
    [
        (Fault(FaultKind.READ_RESPONSE, port=1, skip=2), 16),
        (Fault(FaultKind.READ_RESPONSE, port=0, value=DECERR, count=3), 48),
        (Fault(FaultKind.READ_RESPONSE, first=HIGH_MEMORY + 16, last=HIGH_MEMORY + 48), 2),
        (Fault(FaultKind.EARLY_LAST, port=DATA_PORT, value=3), 1),
        (Fault(FaultKind.MISSING_LAST, port=0, count=2), 2),
        (Fault(FaultKind.WRITE_RESPONSE, skip=1), 1),
        (Fault(FaultKind.WRITE_RESPONSE, first=0, last=1), 0),
    ],
)
def test_faults_hit_what_they_name(make: Make, fault: Fault, errors: int) -> None:
    simulator = make(faults=[fault])
    prepare(simulator)
    assert run(simulator)
    assert simulator.read(ERRORS) == errors
    assert simulator.statistics().faults == (fault.count if errors else 0)


@fpga
@pytest.mark.parametrize("channel", list(Channel))
def test_silence_lasts_as_long_as_it_should(make: Make, channel: Channel) -> None:
    simulator = make(
        faults=[Fault(FaultKind.SILENCE, port=DATA_PORT, value=channel, cycles=5000, skip=1)]
    )
    buffers, expected = prepare(simulator)
    assert run(simulator)
    assert 5000 < simulator.cycles < 6500
    assert (buffers["y"].array == expected).all()


@fpga
def test_silence_can_be_ended(make: Make) -> None:
    simulator = make(faults=[Fault(FaultKind.SILENCE, port=1, value=Channel.R)])
    prepare(simulator)
    assert not run(simulator, limit=3000)
    simulator.clear_faults()
    assert simulator.run_until(START, 1, 0, 3000)


@fpga
def test_unmapped_addresses_are_decode_errors(make: Make) -> None:
    simulator = make()
    buffers, _ = prepare(simulator)
    buffers["w1"].free()
    buffers["w1"].free()  # a second time does nothing
    assert run(simulator)
    assert simulator.read(ERRORS) == 8 * 16


@fpga
def test_reset_in_mid_transfer_starts_anew(make: Make) -> None:
    simulator = make()
    buffers, expected = prepare(simulator)
    simulator.write(START, 1)
    simulator.step(60)
    assert simulator.statistics().outstanding > 0
    simulator.power_on_reset()
    assert simulator.statistics().outstanding == 0
    assert simulator.read(START) == 0
    simulator.write(LENGTH, 8)
    assert run(simulator)
    assert (buffers["y"].array == expected).all()
    assert simulator.violations() == []


@fpga
def test_same_seed_same_cycles(make: Make) -> None:
    cycles = []
    for seed in (1, 1, 2):
        simulator = make(backpressure=0.4, seed=seed)
        prepare(simulator)
        assert run(simulator)
        cycles.append(simulator.cycles)
    assert cycles[0] == cycles[1] != cycles[2]


@fpga
def test_wait_ends_with_the_interrupt(make: Make) -> None:
    simulator = make()
    prepare(simulator)
    simulator.wait(100)
    assert not simulator.interrupt
    simulator.write(START, 1)
    simulator.wait(100_000)
    assert simulator.interrupt
    assert simulator.cycles < 2000


@fpga
@pytest.mark.parametrize("delays", [(0, 9, 0), (9, 0, 0), (3, 0, 40)])
def test_channels_of_a_register_write_may_be_out_of_step(
    make: Make, delays: tuple[int, int, int]
) -> None:
    address, data, response = delays
    simulator = make()
    before = simulator.cycles
    simulator.write_with(0x54, 7, address_delay=address, data_delay=data, response_delay=response)
    assert simulator.cycles - before > max(delays)
    assert simulator.read(0x54) == 7


@fpga
def test_buffers_are_zeroed_aligned_and_apart(make: Make) -> None:
    simulator = make()
    first, second = simulator.allocate(1), simulator.allocate(5000)
    assert first.array.shape == (1,)
    assert second.array.shape == (5000,)
    assert not second.array.any()
    assert first.address % PAGE_BYTES == second.address % PAGE_BYTES == 0
    assert second.address >= first.address + 2 * PAGE_BYTES
    with pytest.raises(ValueError, match="at least one byte"):
        simulator.allocate(0)
    with pytest.raises(MemoryError, match="free buffers"):
        simulator.allocate(1 << 40)


@fpga
def test_a_closed_simulator_says_so(make: Make) -> None:
    simulator = make()
    buffer = simulator.allocate(16)
    simulator.close()
    simulator.close()
    buffer.array[:] = 1
    buffer.free()
    with pytest.raises(SimulationError, match="closed"):
        simulator.read(0)


@fpga
def test_what_was_not_built_in_is_refused(make: Make, tmp_path: Path) -> None:
    simulator = make()
    with pytest.raises(StorageError, match="built without traces"):
        simulator.open_trace(tmp_path / "trace.vcd")
    with pytest.raises(StorageError, match="built without coverage"):
        simulator.write_coverage(tmp_path / "coverage.dat")


@fpga
@pytest.mark.parametrize("value", [-0.1, 1.0, 7.0])
def test_impossible_back_pressure_is_refused(make: Make, value: float) -> None:
    with pytest.raises(ValueError, match="backpressure must be from 0"):
        make(backpressure=value)


@pytest.mark.parametrize("addr_bits", [16, 32, 40])
def test_addresses_are_taken_and_given_back(addr_bits: int) -> None:
    space = AddressSpace(addr_bits)
    addresses = [space.take(100) for _ in range(3)]
    assert len(set(addresses)) == 3
    assert all(0 < address < 1 << addr_bits for address in addresses)
    space.give_back(addresses[1])
    assert space.take(2 * PAGE_BYTES) > addresses[2]
    assert space.take(PAGE_BYTES) == addresses[1]


def test_coverage_is_read_and_added_up_over_instances() -> None:
    def point(file: str, line: int, page: str, what: str, instance: str, count: int) -> str:
        fields = {"f": file, "l": line, "n": 3, "page": page, "o": what, "h": instance}
        return "C '" + "".join(f"\1{k}\2{v}" for k, v in fields.items()) + f"' {count}"

    text = "\n".join(
        [
            "# SystemC::Coverage-3",
            point("a/x.sv", 4, "v_line/x", "block", "top.x0", 0),
            point("a/x.sv", 4, "v_line/x", "block", "top.x1", 5),
            point("a/x.sv", 5, "v_line/x", "block", "top.x0", 0),
            point("a/y.sv", 1, "v_toggle/y", "clk:0->1", "top.y", 9),
            point("a/y.sv", 2, "v_branch/y", "if", "top.y", 0),
        ]
    )
    files = summarise(read_points(text))
    assert files == [
        FileCoverage("x.sv", (1, 2), (0, 0), (0, 0)),
        FileCoverage("y.sv", (0, 0), (0, 1), (1, 1)),
    ]
    lines = table(files).splitlines()
    assert lines[1].split() == ["x.sv", "1/2", "50%", "-", "-"]
    assert lines[-1].split() == ["total", "1/2", "50%", "0/1", "0%", "1/1", "100%"]


@fpga
@pytest.mark.timeout(900)
def test_waveforms_are_written(make: Make, tmp_path: Path) -> None:
    simulator = make(variant=Variant(trace="vcd"))
    trace = tmp_path / "trace.vcd"
    with pytest.raises(StorageError, match="no trace in"):
        simulator.open_trace(tmp_path / "missing" / "trace.vcd")
    simulator.open_trace(trace)
    simulator.step(10)
    simulator.close_trace()
    assert "$var wire" in trace.read_text()
