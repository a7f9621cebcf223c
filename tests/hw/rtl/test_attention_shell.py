"""Attention behind registers, queue and memory ports: beside matrices, refused, with faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgerun_hw.model.attention import attention_cycles
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import sizes
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import CommandError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate.cases import make_operands, place, push, random_case
from edgerun_hw.simulate.faults import Channel, Fault, FaultKind
from edgerun_hw.simulate.memory import DDR_PRESETS
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.rtl.attention_bench import random_command, some_command
from tests.hw.rtl.shell_bench import complete, recover, recover_from_faults, refuse
from tests.hw.support.attention_cases import place_attention
from tests.hw.support.placed import PlacedCommand

pytestmark = pytest.mark.fpga

# Of the presets with the unit the one that most tests build; glue beside it changes no cycle.
GEOMETRY = PRESETS["layer-300"]


@pytest.fixture(scope="module")
def simulators() -> Iterator[list[Simulator]]:
    opened: list[Simulator] = []
    yield opened
    for simulator in opened:
        assert simulator.violations() == []
        simulator.close()


def make(simulators: list[Simulator], **options: object) -> Simulator:
    simulators.append(Simulator(GEOMETRY, **{"memory": None, **options}))  # type: ignore[arg-type]
    return simulators[-1]


def attention(simulator: Simulator, rng: np.random.Generator, **sizes: int) -> PlacedCommand:
    command = random_command(rng, **sizes) if sizes else some_command(rng, 2, most_beats=800)
    return place_attention(simulator, command.layout, command.queries, command.count, command.ports)


@pytest.mark.parametrize("seed", range(6))
def test_attention_and_matrices_follow_one_another(simulators: list[Simulator], seed: int) -> None:
    rng = np.random.default_rng(seed)
    simulator = make(
        simulators,
        memory=DDR_PRESETS["kv260"] if seed % 2 else None,
        seed=seed,
        backpressure=(0.0, 0.0, 0.4, 0.2, 0.8, 0.6)[seed],
        outstanding=1 + 3 * seed,
    )
    done = []
    for number in range(6):
        if rng.random() < 0.6:
            placed = attention(simulator, rng)
        else:
            case = random_case(rng, GEOMETRY, 600)
            operands = make_operands(case, GEOMETRY)
            placed = place(simulator, case.mode, operands, seed=number)
        push(simulator, placed.command, number)
        done.append(placed)
    assert complete(simulator, len(done))
    assert [placed.difference() for placed in done] == [""] * len(done)
    assert simulator.read(regs.ERROR) == 0
    counted = [simulator.read(offset) for offset in (regs.READ_BEATS, regs.WRITE_BEATS)]
    needed = [sizes(placed.command, GEOMETRY.rows_per_beat) for placed in done]
    beats = [(n.x + 4 * n.weights) // 16 + -(-n.scales // 16) for n in needed]
    assert counted == [sum(beats), sum(n.y for n in needed) // 16]


@pytest.mark.parametrize(
    ("heads", "units", "tokens", "count"),
    [(16, 6, 512, 1), (8, 4, 1024, 1), (5, 8, 512, 1), (5, 8, 512, 2)],
)
def test_attention_takes_what_the_modelled_memory_gives(
    simulators: list[Simulator], heads: int, units: int, tokens: int, count: int
) -> None:
    """0.85 of the DDR's peak from 512 tokens on, counted in useful keys, values and scales."""
    simulator = make(simulators, memory=DDR_PRESETS["kv260"])
    rng = np.random.default_rng(1)
    placed = attention(simulator, rng, heads=heads, units=units, count=count, tokens=tokens)
    push(simulator, placed.command)
    assert complete(simulator, 1)
    assert not placed.difference()
    useful = tokens * heads * (2 * 16 * units + 4)
    assert useful / (simulator.read(regs.BUSY) * DDR_PRESETS["kv260"].bytes_per_cycle) >= 0.85


@pytest.mark.parametrize(
    ("heads", "units", "tokens", "count"),
    [(16, 6, 300, 1), (5, 8, 512, 2), (8, 4, 1024, 2), (2, 1, 4096, 1)],
)
def test_the_model_of_its_cycles_is_near(
    simulators: list[Simulator], heads: int, units: int, tokens: int, count: int
) -> None:
    """Within 1 %, with one query and with two."""
    simulator = make(simulators)
    rng = np.random.default_rng(1)
    placed = attention(simulator, rng, heads=heads, units=units, count=count, tokens=tokens)
    push(simulator, placed.command)
    assert complete(simulator, 1)
    modelled = attention_cycles(heads, 16 * units, tokens)
    assert modelled == pytest.approx(simulator.read(regs.BUSY), rel=0.01)


BAD = {
    "no heads": (regs.CMD_MODE, regs.CMD_MODE_ATTENTION.mask | 2 << 20),
    "no units": (regs.CMD_MODE, regs.CMD_MODE_ATTENTION.mask | 2 << 25),
    "too many heads": (regs.CMD_MODE, regs.CMD_MODE_ATTENTION.mask | 33 << 25 | 2 << 20),
    "too many units": (regs.CMD_MODE, regs.CMD_MODE_ATTENTION.mask | 2 << 25 | 17 << 20),
    "too wide in all": (regs.CMD_MODE, regs.CMD_MODE_ATTENTION.mask | 32 << 25 | 5 << 20),
    "scales": (regs.CMD_MODE, regs.CMD_MODE_ATTENTION.mask | 2 << 25 | 2 << 20 | 2),
    "other beats of a pair": (regs.CMD_ROW_BEATS, 67),
    "too few pairs": (regs.CMD_TILES, 2),
    "too many pairs": (regs.CMD_TILES, 1 << 16),
    "no queries": (regs.CMD_COLUMNS, 0),
    "too many queries": (regs.CMD_COLUMNS, 3),
    "misaligned queries": (regs.CMD_X, 8),
    "misaligned keys": (regs.CMD_W[3], 4),
}


def test_bad_attention_is_dropped_between_good_ones(simulators: list[Simulator]) -> None:
    simulator = make(simulators)
    rng = np.random.default_rng(2)
    refuse(simulator, attention(simulator, rng, heads=2, units=2, count=2, tokens=30), BAD)


def test_the_driver_attends_and_recovers_from_faults_and_resets(
    simulators: list[Simulator],
) -> None:
    simulator = make(simulators)
    overlay = Tlmm(simulator)
    assert overlay.capabilities.attention == GEOMETRY.attention
    rng = np.random.default_rng(3)
    placed = attention(simulator, rng, heads=3, units=3, count=2, tokens=200)
    recover_from_faults(simulator, overlay, placed, (0, 3, GEOMETRY.ports))
    for cycles in rng.integers(1, 2500, 12):
        overlay.submit(placed.command)
        simulator.step(int(cycles))
        recover(overlay, placed)


def test_memory_that_falls_silent_is_noticed(simulators: list[Simulator]) -> None:
    simulator = make(simulators)
    overlay = Tlmm(simulator, watchdog_cycles=3000)
    placed = attention(simulator, np.random.default_rng(4), heads=2, units=2, count=1, tokens=99)
    simulator.add_fault(Fault(FaultKind.SILENCE, port=1, value=Channel.R))
    with pytest.raises(CommandError, match="watchdog"):
        overlay.wait(overlay.submit(placed.command))
    simulator.clear_faults()
    recover(overlay, placed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 33}, "33 heads"),
        ({"head_units": 17}, "272 elements"),
        ({"columns": 3}, "columns is 3"),
        ({"tiles": 4}, "no whole blocks"),
        ({"row_beats": 64}, "64 beats, not of 68"),
        ({"scales": 0}, "68 beats"),
    ],
)
def test_the_driver_refuses_what_the_unit_cannot_do(
    simulators: list[Simulator], change: dict[str, int], message: str
) -> None:
    simulator = simulators[-1] if simulators else make(simulators)
    overlay = Tlmm(simulator)
    placed = attention(simulator, np.random.default_rng(4), heads=3, units=2, count=1, tokens=9)
    with pytest.raises(ValueError, match=message):
        overlay.submit(replace(placed.command, **change))
    placed.free()
