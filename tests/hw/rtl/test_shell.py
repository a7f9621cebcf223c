"""The overlay around the engine: commands, descriptors, queue, counters, interrupt.

Commands are written to the registers by hand. Every test ends by asking the simulated memory
whether a rule of AXI was broken (fixture ``overlay``).
"""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.faults import Channel, Fault, FaultKind
from edgerun_hw.simulate.memory import DDR_PRESETS
from tests.hw.support.commands import (
    DATA_PORT,
    GEOMETRY,
    LIMIT,
    Make,
    complete,
    make_command,
    push_all,
    random_command,
)

pytestmark = pytest.mark.fpga

# ---- Commands


@pytest.mark.parametrize("seed", range(24))
def test_commands_are_right_under_back_pressure_on_every_channel(overlay: Make, seed: int) -> None:
    rng = np.random.default_rng(seed)
    simulator = overlay(
        memory=DDR_PRESETS["kv260"] if seed % 3 == 0 else None,
        seed=seed,
        backpressure=(0.0, 0.3, 0.7, 0.9)[seed % 4],
        control_backpressure=(0.0, 0.5)[seed % 2],
        outstanding=1 + seed % 16,
    )
    commands = [random_command(simulator, rng) for _ in range(7)]
    completed = [0]
    for command in commands:
        command.push(simulator)
        completed.append(simulator.read(regs.COMPLETED))
    while completed[-1] < len(commands) and simulator.cycles < LIMIT:
        completed.append(simulator.read(regs.COMPLETED))
    assert completed == sorted(completed)
    assert completed[-1] == simulator.read(regs.SUBMITTED) == len(commands)
    assert all(command.is_right() for command in commands)
    assert simulator.read(regs.ERROR) == 0


def test_weights_of_queued_commands_come_without_a_gap(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay(memory=DDR_PRESETS["kv260"])
    commands = [make_command(simulator, rng, row_beats=64, tiles=12) for _ in range(6)]
    push_all(simulator, commands)
    assert complete(simulator, len(commands))
    lookups = simulator.read(regs.LOOKUPS)
    assert lookups == 6 * 64 * 12
    # Only the first command waits for memory; a gap at each would cost its latency five times.
    assert simulator.read(regs.STALL_WEIGHTS) < 150


def test_counters_agree_with_the_memory(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay(backpressure=0.3)
    commands = [random_command(simulator, rng) for _ in range(5)]
    push_all(simulator, commands)
    assert complete(simulator, 5)
    seen = simulator.statistics()
    assert simulator.read(regs.READ_BEATS) == sum(seen.read_beats)
    assert simulator.read(regs.WRITE_BEATS) == seen.write_beats
    lookups = sum(c.registers[regs.CMD_ROW_BEATS] * c.registers[regs.CMD_TILES] for c in commands)
    assert simulator.read(regs.LOOKUPS) == lookups == seen.read_beats[0]
    before, first = simulator.cycles, simulator.read(regs.CYCLES)
    simulator.step(1000)
    second = simulator.read(regs.CYCLES)
    assert abs((second - first) - (simulator.cycles - before)) <= 32
    assert lookups < simulator.read(regs.BUSY) < second


def test_the_last_beat_spares_the_words_behind_the_results(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    # 10, 20, 30, 70 results: remainders 2 and 0 of a beat, and a burst's end in between.
    for number, row_beats in enumerate((1, 2, 3, 7), start=1):
        command = make_command(simulator, rng, row_beats=row_beats)
        command.push(simulator)
        assert complete(simulator, number)
        assert command.is_right()


def test_the_interrupt_follows_completion_and_error(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    simulator.write(regs.CONTROL, 2)
    assert not simulator.interrupt
    make_command(simulator, rng).push(simulator)
    simulator.wait(LIMIT)
    assert simulator.interrupt
    assert simulator.read(regs.COMPLETED) == 1
    assert simulator.read(regs.IRQ) == 1
    simulator.write(regs.IRQ, 1)
    simulator.step(2)
    assert not simulator.interrupt
    refused = make_command(simulator, rng)
    refused.registers[regs.CMD_TILES] = 0
    refused.push(simulator)
    simulator.wait(LIMIT)
    assert simulator.interrupt
    assert complete(simulator, 2)
    assert simulator.read(regs.IRQ) == 3  # it counts as completed as well
    simulator.write(regs.CONTROL, 0)
    simulator.step(2)
    assert not simulator.interrupt


# ---- Descriptors and the queue

BAD_VALUES = {
    "no row beats": (regs.CMD_ROW_BEATS, 0),
    "too many row beats": (regs.CMD_ROW_BEATS, GEOMETRY.nb_max + 1),
    "row beats beyond 16 bits": (regs.CMD_ROW_BEATS, 1 << 16 | 4),
    "no tiles": (regs.CMD_TILES, 0),
    "too many tiles": (regs.CMD_TILES, 1 << 16),
    "no columns": (regs.CMD_COLUMNS, 0),
    "too many columns": (regs.CMD_COLUMNS, GEOMETRY.columns + 1),
    "columns beyond 8 bits": (regs.CMD_COLUMNS, 1 << 8 | 1),
    "misaligned activations": (regs.CMD_X, 8),
    "misaligned scales": (regs.CMD_S, 4),
    "misaligned results": (regs.CMD_Y, 1),
    "misaligned weights": (regs.CMD_W[0], 2),
    "misaligned weights of the last port": (regs.CMD_W[GEOMETRY.ports - 1], 15),
    "address beyond the bus": (regs.CMD_X + 4, 1 << (GEOMETRY.addr_bits - 32)),
    "results beyond the bus": (regs.CMD_Y + 4, 1 << 31),
    "weights beyond the bus": (regs.CMD_W[1] + 4, 1 << 8),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_bad_descriptor_is_dropped_between_good_ones(
    overlay: Make, rng: np.random.Generator, case: str
) -> None:
    simulator = overlay()
    register, value = BAD_VALUES[case]
    good = [make_command(simulator, rng, tag=n, scale=True) for n in (1, 3)]
    bad = make_command(simulator, rng, tag=2, scale=True)
    bad.registers[register] = value
    push_all(simulator, [good[0], bad, good[1]])
    assert complete(simulator, 3)
    assert good[0].is_right()
    assert good[1].is_right()
    assert bad.is_untouched()
    assert simulator.read(regs.ERROR) == regs.ERROR_BAD_LENGTH.mask
    assert simulator.read(regs.ERROR_TAG) == 2
    assert simulator.read(regs.SUBMITTED) == 3
    simulator.write(regs.ERROR, regs.ERROR_BAD_LENGTH.mask)
    assert simulator.read(regs.ERROR) == 0


# Do not remove: no other test notices when tlmm_loader.sv drops a command before it is the oldest
# (`may_drop` always true), so that commands complete out of their order.
def test_a_dropped_command_completes_in_its_turn(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    good, bad = make_command(simulator, rng), make_command(simulator, rng)
    bad.registers[regs.CMD_COLUMNS] = 0
    simulator.add_fault(Fault(FaultKind.SILENCE, DATA_PORT, value=Channel.B))
    good.push(simulator)
    for _ in range(3):
        bad.push(simulator)
    simulator.step(2000)
    assert simulator.read(regs.COMPLETED) == 0
    simulator.clear_faults()
    assert complete(simulator, 4)
    assert simulator.read(regs.STATUS) & 1


def test_a_pushed_command_is_safe_from_the_next_writes(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    for number, register in enumerate((regs.CMD_TILES, regs.CMD_W[0], regs.CMD_W[1]), start=1):
        command = make_command(simulator, rng)
        command.push(simulator)
        simulator.write(register, 0xFFFFFFFF)
        assert simulator.read(regs.SUBMITTED) == number
        assert complete(simulator, number)
        assert command.is_right()
    assert simulator.read(regs.ERROR) == 0


def test_only_commands_with_scales_need_an_address_of_scales(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    command = make_command(simulator, rng)
    command.registers[regs.CMD_S] = 0xFFFFFFFF
    command.push(simulator)
    assert complete(simulator, 1)
    assert command.is_right()
    assert simulator.read(regs.ERROR) == 0


def test_a_push_into_a_full_queue_is_lost_and_said(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    depth = GEOMETRY.queue_depth
    simulator.add_fault(Fault(FaultKind.SILENCE, 0, value=Channel.AR | Channel.R))
    commands = [make_command(simulator, rng, tag=10 + n) for n in range(depth + 2)]
    push_all(simulator, commands[:depth])
    assert simulator.read(regs.STATUS) == depth << 8 | 1 << 2
    assert simulator.read(regs.ERROR) == 0
    push_all(simulator, commands[depth:])
    assert simulator.read(regs.ERROR) == regs.ERROR_QUEUE_OVERFLOW.mask
    assert simulator.read(regs.ERROR_TAG) == 10 + depth
    assert simulator.read(regs.SUBMITTED) == depth
    simulator.clear_faults()
    assert complete(simulator, depth)
    assert all(command.is_right() for command in commands[:depth])
    assert all(command.is_untouched() for command in commands[depth:])
    assert simulator.read(regs.STATUS) == 1


def test_a_lost_push_leaves_the_queued_commands_alone(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    simulator.write(regs.WATCHDOG, 5_000)
    simulator.add_fault(Fault(FaultKind.SILENCE, 0, value=Channel.R))
    for tag in range(GEOMETRY.queue_depth + 1):
        make_command(simulator, rng, tag=10 + tag).push(simulator)
    simulator.write(regs.ERROR, regs.ERROR_QUEUE_OVERFLOW.mask)
    assert simulator.run_until(regs.ERROR, 0x7F, regs.ERROR_WATCHDOG.mask, LIMIT)
    # It is the oldest command that is stuck, and its slot still says its tag.
    assert simulator.run_until(regs.ERROR_TAG, 0xFFFFFFFF, 10, limit=100)


def test_the_queue_is_used_round_and_round(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    command = make_command(simulator, rng, mode=LookupMode.MULTIPLES, columns=2)
    command.push(simulator)
    for number in range(2, 40):
        # The staged words keep their values: the same command again by one write.
        while simulator.read(regs.STATUS) & 1 << 2:
            pass
        simulator.write(regs.CMD_PUSH, 0)
        if number % 7 == 0:
            simulator.write(regs.CMD_TILES, 0)
            simulator.write(regs.CMD_PUSH, 0)
            simulator.write(regs.CMD_TILES, command.registers[regs.CMD_TILES])
    assert complete(simulator, simulator.read(regs.SUBMITTED))
    assert command.is_right()
    assert simulator.read(regs.ERROR) & ~regs.ERROR_QUEUE_OVERFLOW.mask == (
        regs.ERROR_BAD_LENGTH.mask
    )
