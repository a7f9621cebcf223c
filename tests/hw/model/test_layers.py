"""The model of layers that are queued whole, beside the simulated RTL."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun_hw.backend.native.chain import code
from edgerun_hw.model import layers
from edgerun_hw.model.cycles import capabilities_of, matrix_work
from edgerun_hw.model.layers import glue_cycles
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.cut import cut_matrix
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.simulate.cases import Case, make_operands, place, push
from edgerun_hw.simulate.memory import DDR_PRESETS
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.rtl.glue_bench import random_command
from tests.hw.support.glue_cases import place_glue

GEOMETRY = PRESETS["layer-300"]


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
    assert layers.CHECK_EVERY == code.CHECK_EVERY


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
