"""The driver on the RTL: right answers, and faults of memory as the driver tells them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import CommandError, OverlayTimeoutError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate import Channel, Fault, FaultKind, Simulator
from tests.hw.support.problems import random_problem

pytestmark = pytest.mark.fpga


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator(PRESETS["tiny-prefill"], memory=None, backpressure=0.2) as simulator:
        yield simulator
        assert simulator.violations() == []


def test_capabilities_are_those_of_the_geometry(simulator):
    geometry = simulator.geometry
    can = Tlmm(simulator).capabilities
    assert (can.ports, can.columns, can.queue_depth) == (geometry.ports, geometry.columns, 8)
    assert (can.max_row_beats, can.addr_bits) == (geometry.nb_max, geometry.addr_bits)
    assert can.row_scale and can.ternary and can.multiples


def test_mixed_commands_in_flight_give_the_right_answers(simulator):
    overlay = Tlmm(simulator)
    modes = list(LookupMode)
    problems = [random_problem(overlay, seed, modes[seed % 2], 200) for seed in range(30)]
    overlay.wait(overlay.submit_all([command for command, _ in problems]))
    assert all(right() for _, right in problems)
    counters = overlay.counters()
    assert counters.lookups == sum(c.tiles * c.row_beats for c, _ in problems)
    stalls = counters.stall_weights + counters.stall_tables + counters.stall_output
    assert counters.lookups + stalls <= counters.busy <= counters.cycles


@pytest.mark.parametrize(
    ("kind", "value", "flag"),
    [
        (FaultKind.READ_RESPONSE, 2, "read_response"),
        (FaultKind.EARLY_LAST, 1, "underrun"),
        (FaultKind.MISSING_LAST, 0, "overrun"),
        (FaultKind.WRITE_RESPONSE, 3, "write_response"),
    ],
)
def test_fault_of_memory_is_typed_and_ends_with_a_reset(simulator, kind, value, flag):
    overlay = Tlmm(simulator)
    command, right = random_problem(overlay, 3, size=100)
    first = overlay.submit(command)
    overlay.wait(first)
    simulator.add_fault(Fault(kind, value=value))
    with pytest.raises(CommandError) as info:
        overlay.wait(overlay.submit_all([command] * 3))
    assert (info.value.tag, flag in info.value.flags) == (1, True)
    simulator.clear_faults()
    overlay.reset()
    overlay.wait(overlay.submit_all([command] * 10))
    assert right()


def test_memory_that_stops_answering_is_named_by_the_watchdog(simulator):
    overlay = Tlmm(simulator, watchdog_cycles=3000)
    command, right = random_problem(overlay, 3)
    simulator.add_fault(Fault(FaultKind.SILENCE, value=Channel.R))
    with pytest.raises(CommandError, match="watchdog"):
        overlay.wait(overlay.submit(command))
    # What was asked for never comes, so the reset cannot end; it must not hang either.
    with pytest.raises(OverlayTimeoutError, match="load the bitstream again"):
        Tlmm(simulator, timeout_cycles=20_000)
    simulator.clear_faults()
    overlay.reset()
    overlay.wait(overlay.submit(command))
    assert right()


def test_watchdog_switched_off_leaves_it_to_the_driver(simulator):
    overlay = Tlmm(simulator, watchdog_cycles=0, timeout_cycles=20_000)
    command, _ = random_problem(overlay, 3)
    simulator.add_fault(Fault(FaultKind.SILENCE, value=Channel.B))
    with pytest.raises(OverlayTimeoutError, match="no progress"):
        overlay.wait(overlay.submit(command))
    simulator.clear_faults()


def test_resets_at_any_moment_leave_it_working(simulator):
    overlay = Tlmm(simulator)
    rng = np.random.default_rng(0)
    problems = [random_problem(overlay, seed, size=150) for seed in range(4)]
    for _ in range(60):
        overlay.submit_all([command for command, _ in problems])
        simulator.step(int(rng.integers(0, 3000)))
        overlay.reset()
    overlay.wait(overlay.submit_all([command for command, _ in problems]))
    assert all(right() for _, right in problems)
