"""The overlay's AXI4-Lite port: order of the channels, strobes, unknown addresses."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_hw.overlay import register_map as regs
from tests.hw.support.commands import GEOMETRY, Make, complete, make_command

pytestmark = pytest.mark.fpga


def test_the_overlay_says_what_it_is(overlay: Make) -> None:
    simulator = overlay()
    assert simulator.read(regs.ID) == regs.ID_VALUE
    assert simulator.read(regs.VERSION) == regs.VERSION_VALUE
    geometry, limits = simulator.read(regs.GEOMETRY), simulator.read(regs.LIMITS)
    assert regs.GEOMETRY_PORTS.of(geometry) == GEOMETRY.ports
    assert regs.GEOMETRY_COLUMNS.of(geometry) == GEOMETRY.columns
    assert regs.GEOMETRY_TABLES.of(geometry) == regs.TABLES
    assert regs.GEOMETRY_PORT_ROWS.of(geometry) == regs.PORT_ROWS
    assert regs.GEOMETRY_GROUP.of(geometry) == regs.GROUP
    assert regs.GEOMETRY_QUEUE_DEPTH.of(geometry) == GEOMETRY.queue_depth
    assert regs.LIMITS_MAX_ROW_BEATS.of(limits) == GEOMETRY.nb_max
    assert regs.LIMITS_ROW_SCALE.of(limits) == GEOMETRY.row_scale
    assert regs.LIMITS_TERNARY.of(limits) == regs.LIMITS_MULTIPLES.of(limits) == 1
    assert regs.LIMITS_ADDR_BITS.of(limits) == GEOMETRY.addr_bits
    assert simulator.read(regs.WATCHDOG) == regs.WATCHDOG_RESET
    assert simulator.read(regs.CONTROL) == simulator.read(regs.ERROR) == 0
    assert simulator.read(regs.STATUS) == 1


@pytest.mark.parametrize("response_delay", [0, 3, 20])
@pytest.mark.parametrize(("address_delay", "data_delay"), [(0, 0), (9, 0), (0, 9), (1, 2), (2, 1)])
def test_address_and_data_of_a_write_come_in_any_order(
    overlay: Make, address_delay: int, data_delay: int, response_delay: int
) -> None:
    simulator = overlay(control_backpressure=0.3)
    for value in range(20):
        simulator.write_with(
            regs.CMD_X,
            value << 4,
            address_delay=address_delay,
            data_delay=data_delay,
            response_delay=response_delay,
        )
        assert simulator.read(regs.CMD_X) == value << 4


@pytest.mark.parametrize("register", [regs.WATCHDOG, regs.CMD_ROW_BEATS, regs.CMD_W[3] + 4])
@pytest.mark.parametrize("strobes", range(16))
def test_only_strobed_bytes_are_written(overlay: Make, register: int, strobes: int) -> None:
    simulator = overlay()
    simulator.write(register, 0x11223344)
    simulator.write_with(register, 0xAABBCCDD, strobes=strobes)
    mask = sum(0xFF << 8 * byte for byte in range(4) if strobes >> byte & 1)
    assert simulator.read(register) == (0xAABBCCDD & mask | 0x11223344 & ~mask)


def test_unknown_addresses_read_zero_and_ignore_writes(
    overlay: Make, rng: np.random.Generator
) -> None:
    simulator = overlay()
    offsets = set(regs.OFFSETS.values())
    unknown = [offset for offset in range(0, regs.WINDOW_BYTES, 4) if offset not in offsets]
    before = {offset: simulator.read(offset) for offset in offsets if offset < regs.CYCLES}
    for offset in unknown:
        simulator.write(offset, 0xFFFFFFFF)
        assert simulator.read(offset) == 0, hex(offset)
    assert {offset: simulator.read(offset) for offset in before} == before
    command = make_command(simulator, rng)
    command.push(simulator)
    assert complete(simulator, 1)
    assert command.is_right()


def test_fields_that_have_no_meaning_read_as_zero(overlay: Make) -> None:
    simulator = overlay()
    for register, bits in ((regs.CMD_MODE, 7), (regs.CONTROL, 2), (regs.ERROR, 0), (regs.IRQ, 0)):
        simulator.write(register, 0xFFFFFFFE)
        assert simulator.read(register) == 0xFFFFFFFE & bits
    for register in (regs.ID, regs.VERSION, regs.STATUS, regs.SUBMITTED, regs.CMD_PUSH - 4):
        before = simulator.read(register)
        simulator.write(register, ~before & 0xFFFFFFFF if register < 0x40 else before)
        assert simulator.read(register) == before


def test_command_words_keep_all_their_bits(overlay: Make, rng: np.random.Generator) -> None:
    simulator = overlay()
    words = [r for r in regs.OFFSETS.values() if regs.CMD_ROW_BEATS <= r < regs.CMD_PUSH]
    values = {offset: int(rng.integers(0, 1 << 32)) for offset in words}
    for offset, value in values.items():
        simulator.write(offset, value)
    assert {offset: simulator.read(offset) for offset in words} == values
