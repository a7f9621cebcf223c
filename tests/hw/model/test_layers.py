"""The model of layers that are queued whole, beside the simulated RTL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from edgerun_hw.backend.native.chain import words
from edgerun_hw.model import layers, tokens
from edgerun_hw.model.cycles import matrix_work
from edgerun_hw.model.layers import glue_cycles, read_ahead
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import Command
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.geometry import PRESETS, capabilities_of
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.cases import Case, make_operands, place, push
from edgerun_hw.simulate.memory import DDR_PRESETS
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.rtl.glue_bench import random_command
from tests.hw.support.glue_cases import place_glue

GEOMETRY = PRESETS["layer-300"]
SHORT = 512  # beats that a port of other geometries reads ahead


@pytest.mark.fpga
@pytest.mark.parametrize(
    ("gate", "norm", "length"),
    [
        (Gate.NONE, True, 1536),
        (Gate.RESIDUAL, True, 1536),
        (Gate.RESIDUAL, True, 2560),
        (Gate.SWIGLU, True, 4096),
        (Gate.SWIGLU, False, 4096),
        (Gate.RELU2, True, 6912),
    ],
)
def test_glue_takes_what_the_model_says(gate: Gate, norm: bool, length: int) -> None:
    """Within 5 %, with the memory of a KV260."""
    with Simulator(GEOMETRY, memory=DDR_PRESETS["kv260"]) as simulator:
        command = random_command(np.random.default_rng(1), gate, norm, length)
        placed = place_glue(simulator, gate, norm, length, command.x, command.w)
        push(simulator, placed.command)
        assert simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, 1, 100_000)
        assert not placed.difference()
        busy = simulator.read(regs.BUSY)
    assert glue_cycles(length, norm=norm, second=gate is not Gate.NONE) == pytest.approx(
        busy, rel=0.05
    )


def test_commands_that_are_computed_again_are_counted_as_the_host_does() -> None:
    assert layers.CHECK_EVERY == words.CHECK_EVERY


@pytest.mark.fpga
@pytest.mark.parametrize(("rows", "K"), [(1536, 512), (2560, 300)])
def test_scaled_results_leave_one_a_cycle(rows: int, K: int) -> None:
    """The commands of a matrix, which is cut so that little is left to drain."""
    can = capabilities_of(GEOMETRY)
    cut = cut_matrix((rows, K), 1, K, can)
    assert cut.tail_rows
    with Simulator(GEOMETRY, memory=None) as simulator:
        placed = []
        for first, last in cut.pieces():
            case = Case(LookupMode.TERNARY, last - first, K, 1, True, "random", first)
            placed.append(place(simulator, case.mode, make_operands(case, GEOMETRY)))
        for item in placed:
            push(simulator, item.command)
        assert simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, len(placed), 100_000)
        assert [item.difference() for item in placed] == [""] * len(placed)
        busy = simulator.read(regs.BUSY)
    work = matrix_work(cut, can, 1, scaled=True)
    assert work.cycles + work.exposed == pytest.approx(busy, rel=0.03)


@pytest.mark.fpga
def test_weights_come_while_glue_runs_until_the_ports_are_full() -> None:
    """A matrix behind a gate: before its first lookup all that ports hold has been asked for."""
    with Simulator(GEOMETRY, memory=DDR_PRESETS["kv260"]) as simulator:
        for command in commands_of(simulator, [(Gate.SWIGLU, 4096, (2560, 1024))]):
            push(simulator, command)
        assert simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, 1, 100_000)
        beats = simulator.statistics().read_beats[: GEOMETRY.ports]
    of_norm = 4096 // 4 // GEOMETRY.ports
    assert max(beats) <= GEOMETRY.read_ahead + of_norm + 8  # registers behind the memory
    assert min(beats) >= GEOMETRY.read_ahead + of_norm - 64


@pytest.mark.slow
@pytest.mark.fpga
def test_reading_ahead_saves_what_the_model_says() -> None:
    """A layer's commands at the rate of a board's memory, and on an overlay that holds less."""
    shape, clock_mhz, gb_per_s = tokens.SHAPES["bitnet-0.73b"], 250.0, 12.73
    bus = gb_per_s / 0.92 * 1e9  # of which so much comes
    rate = replace(DDR_PRESETS["kv260"], clock_mhz=clock_mhz, bytes_per_second=bus)
    steps = shape.steps()
    parts = [
        (Gate.NONE, shape.heads * shape.head_dim, steps["o"]),
        (Gate.RESIDUAL, shape.hidden, steps["gate/up"]),
        (Gate.SWIGLU, shape.intermediate, steps["down"]),
        (Gate.RESIDUAL, shape.hidden, steps["qkv"]),
    ]
    cycles, expected = [], []
    for beats in (SHORT, GEOMETRY.read_ahead):
        geometry = replace(GEOMETRY, read_ahead=beats)
        with Simulator(geometry, memory=rate) as simulator:
            commands = list(commands_of(simulator, parts))
            for number, command in enumerate(commands):
                while number - simulator.read(regs.COMPLETED) >= geometry.queue_depth:
                    simulator.step(50)
                push(simulator, command)
            assert simulator.run_until(regs.COMPLETED, 0xFFFFFFFF, len(commands), 1_000_000)
            cycles.append(simulator.read(regs.BUSY))
        expected.append(read_ahead(shape, geometry, clock_mhz, gb_per_s) * clock_mhz * 1e6)
    saved = cycles[0] - cycles[1]
    assert saved == pytest.approx(expected[1] - expected[0], rel=0.1)


def commands_of(
    simulator: Simulator, parts: list[tuple[Gate, int, tuple[int, int]]]
) -> Iterator[Command]:
    """Glue and the matrix behind it, of zeros; each waits for those before."""
    geometry = simulator.geometry
    can = capabilities_of(geometry)

    def room(nbytes: int) -> int:
        return simulator.allocate(nbytes).address

    for gate, length, (rows, K) in parts:
        groups, codes = length // 4, -(-length // 15)
        norm = tuple(room(4 * length) for _ in range(geometry.ports))
        second = room(4 * length) if gate is not Gate.NONE else None
        yield Command(
            room(4 * length + 32),
            room(16 * (groups + codes + 1)),
            norm,
            codes,
            length,
            scales=second,
            glue=True,
            gate=gate,
            norm=True,
            after=True,
        )
        cut = cut_matrix((rows, K), 1, K, can)
        for first, last in cut.pieces():
            beats, tiles = geometry.row_beats(last - first), cut.mode.tiles(K)
            weights = tuple(room(16 * tiles * beats) for _ in range(geometry.ports))
            results = 4 * beats * geometry.rows_per_beat
            x, y, scales = room(16 * tiles), room(results), room(results)
            yield Command(x, y, weights, beats, tiles, scales=scales, after=True)
