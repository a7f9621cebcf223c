"""The overlay around the engine when memory misbehaves, and resets at any moment."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.simulate.faults import DECERR, SLVERR, Channel, Fault, FaultKind
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.support.commands import (
    DATA_PORT,
    LIMIT,
    Make,
    RawCommand,
    assert_works,
    complete,
    make_command,
    push_all,
    random_command,
    soft_reset,
    wait_for_error,
)

pytestmark = pytest.mark.fpga

PATIENCE = 2_000  # cycles of the watchdog, where it is to bark
RESETS = 200

# ---- Errors of memory


READ_FAULTS = [
    (FaultKind.READ_RESPONSE, SLVERR, regs.ERROR_READ_RESPONSE),
    (FaultKind.READ_RESPONSE, DECERR, regs.ERROR_READ_RESPONSE),
    (FaultKind.EARLY_LAST, 1, regs.ERROR_UNDERRUN),
    (FaultKind.EARLY_LAST, 100, regs.ERROR_UNDERRUN),
    (FaultKind.MISSING_LAST, 0, regs.ERROR_OVERRUN),
]
WRITE_FAULTS = [
    (FaultKind.WRITE_RESPONSE, SLVERR, regs.ERROR_WRITE_RESPONSE),
    (FaultKind.WRITE_RESPONSE, DECERR, regs.ERROR_WRITE_RESPONSE),
]
FAULTS = [(port, *fault) for port in range(DATA_PORT + 1) for fault in READ_FAULTS]
FAULTS += [(DATA_PORT, *fault) for fault in WRITE_FAULTS]


@pytest.mark.parametrize(("port", "kind", "value", "flag"), FAULTS)
def test_an_error_of_memory_stops_the_queue_until_a_reset(
    overlay: Make,
    rng: np.random.Generator,
    port: int,
    kind: FaultKind,
    value: int,
    flag: regs.Field,
) -> None:
    simulator = overlay(backpressure=0.2)
    commands = [
        make_command(simulator, rng, row_beats=40, tiles=9, columns=2, scale=True, tag=5 + n)
        for n in range(3)
    ]
    push_all(simulator, commands[:1])
    assert complete(simulator, 1)
    simulator.add_fault(Fault(kind, port, value=value, skip=1))
    push_all(simulator, commands[1:])
    assert wait_for_error(simulator) == flag.mask
    assert simulator.read(regs.ERROR_TAG) == 6
    # Its results are not called results, and acknowledging it does not set the queue going.
    simulator.write(regs.ERROR, 0x7F)
    simulator.step(5_000)
    assert simulator.read(regs.COMPLETED) == 1
    assert commands[0].is_right()
    assert soft_reset(simulator)
    assert simulator.statistics().outstanding == 0
    assert_works(simulator, rng)


def address_of(command: RawCommand, register: int) -> int:
    return command.registers[register] | command.registers[register + 4] << 32


def test_the_tag_is_that_of_the_command_whose_data_failed(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    commands = [make_command(simulator, rng, row_beats=64, tiles=9, tag=20 + n) for n in range(3)]
    # The second command's weights are fetched, and fail, while the first is computed.
    first = address_of(commands[1], regs.CMD_W[1])
    simulator.add_fault(Fault(FaultKind.READ_RESPONSE, 1, first=first, last=first + 16))
    push_all(simulator, commands)
    assert wait_for_error(simulator) == regs.ERROR_READ_RESPONSE.mask
    assert simulator.read(regs.ERROR_TAG) == 21
    assert simulator.read(regs.COMPLETED) <= 1


def test_the_first_of_several_errors_gives_the_tag(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    commands = [make_command(simulator, rng, row_beats=32, tiles=3, tag=20 + n) for n in range(2)]
    # The last burst of the first command, and the one behind it, which is of the second.
    for address in (
        address_of(commands[0], regs.CMD_W[0]) + 16 * (32 * 3 - 1),
        address_of(commands[1], regs.CMD_W[0]),
    ):
        fault = Fault(FaultKind.READ_RESPONSE, 0, first=address, last=address + 16)
        simulator.add_fault(fault)
    push_all(simulator, commands)
    assert wait_for_error(simulator) == regs.ERROR_READ_RESPONSE.mask
    assert simulator.read(regs.ERROR_TAG) == 20


# Do not remove: no other test notices when tlmm_top.sv goes on counting completions after a failed
# write (`.completed(written)` without `&& !halted`).
def test_nothing_counts_as_complete_behind_a_failed_write(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    simulator.add_fault(Fault(FaultKind.WRITE_RESPONSE, DATA_PORT))
    # Both responses wait, and come back to back.
    simulator.add_fault(Fault(FaultKind.SILENCE, DATA_PORT, value=Channel.B, cycles=2_000))
    push_all(simulator, [make_command(simulator, rng, row_beats=1, tag=n) for n in (8, 9)])
    assert wait_for_error(simulator) == regs.ERROR_WRITE_RESPONSE.mask
    assert simulator.read(regs.ERROR_TAG) == 8
    assert simulator.read(regs.COMPLETED) == 0


def test_memory_that_is_not_there_is_an_error(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    command = make_command(simulator, rng, tag=3)
    command.registers[regs.CMD_Y] = 0x40
    command.registers[regs.CMD_Y + 4] = 0
    command.push(simulator)
    assert wait_for_error(simulator) == regs.ERROR_WRITE_RESPONSE.mask
    assert simulator.read(regs.ERROR_TAG) == 3
    assert simulator.read(regs.COMPLETED) == 0
    assert soft_reset(simulator)
    assert_works(simulator, rng)


# ---- Watchdog


@pytest.mark.parametrize(
    ("port", "channel"),
    [
        (0, Channel.AR),
        (1, Channel.R),
        (DATA_PORT, Channel.AR),
        (DATA_PORT, Channel.R),
        (DATA_PORT, Channel.AW),
        (DATA_PORT, Channel.W),
        (DATA_PORT, Channel.B),
    ],
    ids=str,
)
def test_a_memory_that_falls_silent_is_noticed_and_survived(
    overlay: Make, rng: np.random.Generator, port: int, channel: Channel
) -> None:
    simulator = overlay(backpressure=0.1)
    simulator.write(regs.WATCHDOG, PATIENCE)
    commands = [
        make_command(simulator, rng, row_beats=20, tiles=5, columns=2, scale=True, tag=9 + n)
        for n in range(2)
    ]
    simulator.add_fault(Fault(FaultKind.SILENCE, port, value=channel))
    push_all(simulator, commands)
    assert wait_for_error(simulator) == regs.ERROR_WATCHDOG.mask
    assert simulator.read(regs.ERROR_TAG) == 9
    # While nothing moves, registers answer and a reset stays pending.
    assert simulator.read(regs.ID) == regs.ID_VALUE
    simulator.write(regs.CONTROL, 1)
    simulator.step(3 * PATIENCE)
    busy = simulator.statistics().outstanding > 0 or channel & (Channel.AR | Channel.AW)
    assert simulator.read(regs.CONTROL) & 1 == bool(busy)
    simulator.clear_faults()
    assert simulator.run_until(regs.CONTROL, 1, 0, LIMIT)
    assert simulator.statistics().outstanding == 0
    assert simulator.read(regs.WATCHDOG) == PATIENCE
    assert_works(simulator, rng)


@pytest.mark.parametrize("failed", [False, True], ids=["running", "failed"])
def test_the_watchdog_also_watches_a_reset(
    overlay: Make, rng: np.random.Generator, failed: bool
) -> None:
    simulator = overlay()
    simulator.write(regs.WATCHDOG, PATIENCE)
    simulator.add_fault(Fault(FaultKind.SILENCE, 0, value=Channel.R))
    if failed:
        simulator.add_fault(Fault(FaultKind.READ_RESPONSE, 1))
    make_command(simulator, rng).push(simulator)
    simulator.step(100)
    simulator.write(regs.CONTROL, 1)
    simulator.step(PATIENCE // 2)
    before = regs.ERROR_READ_RESPONSE.mask if failed else 0
    assert simulator.read(regs.ERROR) == before
    simulator.step(PATIENCE)
    assert simulator.read(regs.ERROR) == regs.ERROR_WATCHDOG.mask | before
    simulator.clear_faults()
    assert simulator.run_until(regs.CONTROL, 1, 0, LIMIT)
    assert_works(simulator, rng)


def test_the_watchdog_lets_slow_memory_be_and_can_be_switched_off(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay(backpressure=0.95)
    simulator.write(regs.WATCHDOG, PATIENCE)
    commands = [random_command(simulator, rng) for _ in range(3)]
    push_all(simulator, commands)
    assert complete(simulator, 3)
    simulator.step(3 * PATIENCE)  # idle is not stuck
    assert simulator.read(regs.ERROR) == 0
    simulator.write(regs.WATCHDOG, 0)
    silence = Fault(FaultKind.SILENCE, 0, value=Channel.R, cycles=20 * PATIENCE)
    simulator.add_fault(silence)
    random_command(simulator, rng).push(simulator)
    assert complete(simulator, 4)
    assert simulator.read(regs.ERROR) == 0


# ---- Reset


def interrupted_run(simulator: Simulator, rng: np.random.Generator) -> None:
    """Resets at a random moment of some commands."""
    commands = [random_command(simulator, rng) for _ in range(int(rng.integers(1, 5)))]
    push_all(simulator, commands)
    # The moment is anywhere from the last write of a register to well after the end.
    simulator.step(int(rng.integers(0, 40)) ** 2)
    assert soft_reset(simulator)
    assert simulator.statistics().outstanding == 0
    assert simulator.read(regs.STATUS) == 1
    assert simulator.read(regs.SUBMITTED) == 0
    for command in commands:
        command.free()


@pytest.mark.parametrize("seed", range(4))
def test_a_reset_at_any_moment_ends_and_what_follows_is_right(overlay: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    simulator = overlay(seed=seed, backpressure=(0.0, 0.3, 0.6, 0.9)[seed])
    for _ in range(RESETS // 4):
        interrupted_run(simulator, rng)
        assert_works(simulator, rng, count=1)
        assert soft_reset(simulator)


def test_a_reset_with_errors_under_way_ends(overlay: Make) -> None:
    rng = np.random.default_rng(3)
    simulator = overlay(backpressure=0.4)
    kinds = [FaultKind.READ_RESPONSE, FaultKind.EARLY_LAST, FaultKind.MISSING_LAST]
    for round_ in range(30):
        kind = kinds[round_ % 3]
        fault = Fault(kind, value=SLVERR, skip=int(rng.integers(0, 9)), count=3)
        simulator.add_fault(fault)
        interrupted_run(simulator, rng)
        simulator.clear_faults()
        assert_works(simulator, rng, count=1)
        assert soft_reset(simulator)


def test_nothing_more_is_asked_for_once_a_reset_waits(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    make_command(simulator, rng, row_beats=64, tiles=100).push(simulator)
    simulator.step(500)
    simulator.write(regs.CONTROL, 1)
    before = simulator.cycles
    assert simulator.run_until(regs.CONTROL, 1, 0, LIMIT)
    # The command would take 6,400; what is outstanding, 8 bursts of 64.
    assert simulator.cycles - before < 800


def test_a_reset_keeps_settings_and_clears_the_rest(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    simulator.write(regs.CONTROL, 2)
    simulator.write(regs.WATCHDOG, 12_345)
    bad = make_command(simulator, rng, tag=77)
    bad.registers[regs.CMD_TILES] = 0
    bad.push(simulator)
    assert complete(simulator, 1)
    simulator.write(regs.CONTROL, 3)
    assert simulator.run_until(regs.CONTROL, 1, 0, LIMIT)
    assert simulator.read(regs.CONTROL) == 2
    assert simulator.read(regs.WATCHDOG) == 12_345
    assert simulator.read(regs.CMD_TAG) == 77
    for offset in (regs.ERROR, regs.ERROR_TAG, regs.IRQ, regs.SUBMITTED, regs.COMPLETED):
        assert simulator.read(offset) == 0
    assert simulator.read(regs.CYCLES) < 200


def test_a_push_during_a_reset_is_not_taken(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    simulator.add_fault(Fault(FaultKind.SILENCE, 0, value=Channel.R))
    command = make_command(simulator, rng)
    command.push(simulator)
    simulator.step(200)
    simulator.write(regs.CONTROL, 1)
    simulator.write(regs.CMD_PUSH, 1)
    assert simulator.read(regs.STATUS) & 3 == 2
    simulator.clear_faults()
    assert simulator.run_until(regs.CONTROL, 1, 0, LIMIT)
    simulator.step(1000)
    assert simulator.read(regs.SUBMITTED) == 0
    assert simulator.read(regs.STATUS) == 1


def test_aresetn_in_mid_transfer_starts_over(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay(backpressure=0.5)
    for _ in range(20):
        push_all(simulator, [random_command(simulator, rng) for _ in range(3)])
        simulator.step(int(rng.integers(0, 500)))
        simulator.power_on_reset()
        assert_works(simulator, rng, count=1)
        simulator.power_on_reset()
