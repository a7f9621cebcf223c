"""Glue behind registers, queue and memory ports: beside others, behind them, with faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.command import Command, sizes
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import CommandError, OverlayTimeoutError
from edgerun_hw.overlay.geometry import PRESETS, Geometry
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.simulate.build import Design, overlay_design
from edgerun_hw.simulate.cases import Placed, make_operands, place, push, random_case
from edgerun_hw.simulate.memory import DDR_PRESETS
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.rtl import attention_bench
from tests.hw.rtl.glue_bench import random_command, some_command
from tests.hw.rtl.shell_bench import complete, recover, recover_from_faults, refuse
from tests.hw.support.attention_cases import place_attention
from tests.hw.support.glue_cases import place_glue
from tests.hw.support.glue_chain import Chain
from tests.hw.support.placed import PlacedCommand

pytestmark = pytest.mark.fpga

NAMES = ("tiny-glue", "layer-300")


@pytest.fixture(scope="module")
def simulators() -> Iterator[list[Simulator]]:
    opened: list[Simulator] = []
    yield opened
    for simulator in opened:
        assert simulator.violations() == []
        simulator.close()


def make(simulators: list[Simulator], name: str, **options: object) -> Simulator:
    simulator = Simulator(PRESETS[name], **{"memory": None, **options})  # type: ignore[arg-type]
    simulators.append(simulator)
    return simulator


def glue(simulator: Simulator, rng: np.random.Generator, *command: object) -> PlacedCommand:
    case = random_command(rng, *command) if command else some_command(rng, 500)  # type: ignore[arg-type]
    return place_glue(simulator, case.gate, case.norm, case.length, case.x, case.w)


def follow(simulator: Simulator, rng: np.random.Generator) -> None:
    """Glue, matrices and attention in turn, back to back."""
    geometry = simulator.geometry
    done: list[Placed | PlacedCommand] = []
    for number in range(7):
        kind = rng.random()
        if kind < 0.5:
            done.append(glue(simulator, rng))
        elif kind < 0.6 and geometry.attention:
            given = attention_bench.some_command(rng, 2, most_beats=300)
            operands = given.layout, given.queries, given.count, given.ports
            done.append(place_attention(simulator, *operands))
        else:
            case = random_case(rng, geometry, 400)
            done.append(place(simulator, case.mode, make_operands(case, geometry), seed=number))
        push(simulator, done[-1].command, number)
    assert complete(simulator, len(done))
    assert [placed.difference() for placed in done] == [""] * len(done)
    assert simulator.read(regs.ERROR) == 0
    counted = [simulator.read(offset) for offset in (regs.READ_BEATS, regs.WRITE_BEATS)]
    needed = [sizes(placed.command, geometry.rows_per_beat) for placed in done]
    beats = [n.x // 16 + geometry.ports * n.weights // 16 + -(-n.scales // 16) for n in needed]
    assert counted == [sum(beats), sum(-(-n.y // 16) for n in needed)]


def run_chain(simulator: Simulator, rng: np.random.Generator) -> None:
    """Twice, the second time on what the first has left."""
    overlay, chain = Tlmm(simulator), Chain(simulator, rng)
    for _ in range(2):
        overlay.wait(overlay.submit_all(chain.commands))
        assert chain.difference() == ""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_glue_and_others_follow_one_another(
    simulators: list[Simulator], name: str, seed: int
) -> None:
    options = {"backpressure": (0.0, 0.4, 0.8, 0.2)[seed], "outstanding": 1 + 5 * seed}
    memory = DDR_PRESETS["kv260"] if seed % 2 else None
    simulator = make(simulators, name, memory=memory, seed=seed, **options)
    follow(simulator, np.random.default_rng(seed))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_commands_reads_the_results_of_those_before(
    simulators: list[Simulator], name: str, seed: int
) -> None:
    """Half a layer in one queue: norm, matrix, sum in place, matrix, gate, matrix, sum, matrix."""
    memory = DDR_PRESETS["kv260"]
    simulator = make(simulators, name, memory=memory, seed=seed, backpressure=0.3 * seed)
    run_chain(simulator, np.random.default_rng(seed))


def test_busy_cycles_of_glue_are_all_told(simulators: list[Simulator]) -> None:
    simulator = make(simulators, "tiny-glue", seed=3)
    placed = glue(simulator, np.random.default_rng(1), Gate.RESIDUAL, True, 4000)
    push(simulator, placed.command)
    assert complete(simulator, 1)
    # Codes come in whole beats of 15.
    assert simulator.read(regs.LOOKUPS) == 2 * 1000 + 1002
    assert simulator.read(regs.STALL_TABLES) == 0
    stalls = simulator.read(regs.STALL_WEIGHTS) + simulator.read(regs.STALL_OUTPUT)
    # The data port reads both rows of a sum: two cycles a group, and a start.
    assert 1000 <= stalls <= 1100
    assert simulator.read(regs.BUSY) - 3002 - stalls <= 420


MODE = regs.CMD_MODE_GLUE.mask
BAD = {
    "scaled": (regs.CMD_MODE, MODE | regs.CMD_MODE_SCALE.mask),
    "no elements": (regs.CMD_TILES, 0),
    "too many elements": (regs.CMD_TILES, 46),
    "too few elements": (regs.CMD_TILES, 30),
    "far too many": (regs.CMD_TILES, 1 << 14 | 40),
    "no beats of codes": (regs.CMD_ROW_BEATS, 0),
    "far too many beats": (regs.CMD_ROW_BEATS, 1 << 10 | 3),
    "no columns": (regs.CMD_COLUMNS, 0),
    "two columns": (regs.CMD_COLUMNS, 2),
    "misaligned row": (regs.CMD_X, 8),
    "misaligned second row": (regs.CMD_S, 4),
    "misaligned weights": (regs.CMD_W[0], 4),
}


def refuse_bad(simulator: Simulator) -> None:
    refuse(simulator, glue(simulator, np.random.default_rng(2), Gate.RESIDUAL, True, 40), BAD)


def test_bad_glue_is_dropped_between_good_commands(simulators: list[Simulator]) -> None:
    refuse_bad(make(simulators, "tiny-glue"))
    simulator = make(simulators, "layer-300")
    refuse_bad(simulator)
    good = glue(simulator, np.random.default_rng(2), Gate.NONE, True, 40)
    push(simulator, good.command, 1)
    attention = regs.CMD_MODE_ATTENTION.mask | 2 << 25 | 2 << 20
    simulator.write(regs.CMD_MODE, good.command.mode_word | attention)
    simulator.write(regs.CMD_PUSH, 1)
    assert complete(simulator, 3 * len(BAD) + 2)
    assert simulator.read(regs.ERROR) == regs.ERROR_BAD_LENGTH.mask


def test_the_longest_row(simulators: list[Simulator]) -> None:
    simulator = make(simulators, "tiny-glue")
    placed = glue(simulator, np.random.default_rng(2), Gate.RESIDUAL, True, regs.MAX_GLUE_LENGTH)
    push(simulator, placed.command)
    assert complete(simulator, 1)
    assert not placed.difference()
    push(simulator, placed.command)
    simulator.write(regs.CMD_TILES, regs.MAX_GLUE_LENGTH + 1)
    simulator.write(regs.CMD_PUSH, 1)
    assert complete(simulator, 3)
    assert simulator.read(regs.ERROR) == regs.ERROR_BAD_LENGTH.mask


def test_the_driver_recovers_from_faults_and_resets(simulators: list[Simulator]) -> None:
    fail_and_recover(make(simulators, "tiny-glue"))


def fail_and_recover(simulator: Simulator) -> None:
    overlay = Tlmm(simulator)
    assert overlay.capabilities.glue
    rng = np.random.default_rng(3)
    placed = glue(simulator, rng, Gate.SWIGLU, True, 300)
    recover_from_faults(simulator, overlay, placed, (0, simulator.geometry.ports))
    chain = Chain(simulator, rng)
    for cycles in rng.integers(1, 4000, 10):
        for command in chain.commands[: simulator.geometry.queue_depth]:
            overlay.submit(command)
        simulator.step(int(cycles))
        recover(overlay, placed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiles": 8193}, "8193 elements; the unit takes 1 to 8192"),
        ({"tiles": 0}, "tiles is 0"),
        ({"row_beats": 4}, "4 beats of codes, not of 3"),
        ({"columns": 2}, "3 beats of codes, not of 3"),
        ({"scales": None}, "needs a second row"),
        ({"gate": 0}, "takes none without"),
        ({"gate": 4}, "gate 4; there are 0 to 3"),
    ],
)
def test_the_driver_refuses_what_the_unit_cannot_do(
    simulators: list[Simulator], change: dict[str, int], message: str
) -> None:
    simulator = simulators[-1] if simulators else make(simulators, "tiny-glue")
    overlay = Tlmm(simulator)
    placed = glue(simulator, np.random.default_rng(4), Gate.RELU2, False, 40)
    with pytest.raises(ValueError, match=message):
        overlay.submit(replace(placed.command, **change))
    placed.free()


def test_an_overlay_without_the_unit_refuses_it() -> None:
    command = Command(0, 0, (0,), 1, 1, glue=True)
    with Simulator(PRESETS["tiny"], memory=None) as simulator:
        overlay = Tlmm(simulator)
        assert not overlay.capabilities.glue
        with pytest.raises(ValueError, match="asks for glue, which this overlay was built without"):
            overlay.submit(command)


# ---- mistakes made on purpose in copies of the RTL; the default tests above must see each
MUTANTS = {
    "data are read before they are written": ("loader", " && !must_wait", ""),
    "scales do not wait": ("loader", "(i == ACTIVATIONS || i == SCALES)", "(i == ACTIVATIONS)"),
    "waits for the newest": ("loader", "&& here != oldest;", "&& here != oldest + 1'b1;"),
    "the engine takes a row for scales": ("compute", "s_valid && engine_open", "s_valid"),
    "too few scales are the engine's": ("scale_credit", "(rows + BITS'(3)) >> 2", "rows >> 2"),
    "a reset leaves scales open": ("scale_credit", "rst ? '0 : next", "next"),
    "begins beside a matrix": ("compute", "glues && !engine_busy && !att", "glues && !att"),
    "a matrix begins beside it": ("compute", "!glues && !others_busy)", "!glues)"),
    "weights without what fills them up": ("glue_rows", "(last_port || ends)", "last_port"),
    "weights of one port": ("glue_rows", "w_data[128*port+:128]", "w_data[127:0]"),
    "a row too long is taken": ("intake", "|| unfilled > 15'sd14", ""),
    "results without the sum": ("intake", "(gate == RESIDUAL ? groups : '0)", "12'd0"),
}


def mistaken(name: str, folder: Path, geometry: Geometry) -> Design:
    part, old, new = MUTANTS[name]
    design = overlay_design(geometry)
    sources = []
    for file in design.sources:
        if file.name == f"tlmm_{part}.sv":
            text = file.read_text("utf-8")
            assert old in text, "the mistake's place is gone"
            file = folder / file.name
            file.write_text(text.replace(old, new, 1), "utf-8")
        sources.append(file)
    return Design(design.top, tuple(sources), geometry)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_in_the_joint_are_seen(name: str, tmp_path: Path) -> None:
    geometry = replace(PRESETS["tiny-glue"], ports=2)
    design = mistaken(name, tmp_path, geometry)
    simulators: list[Simulator] = []

    def another(**options: object) -> Simulator:
        simulators.append(Simulator(geometry, design=design, **options))  # type: ignore[arg-type]
        return simulators[-1]

    with pytest.raises((AssertionError, CommandError, OverlayTimeoutError)):
        for seed in range(4):
            follow(
                another(memory=None, seed=seed, backpressure=0.2 * seed),
                np.random.default_rng(seed),
            )
        for seed in range(3):
            run_chain(another(memory=DDR_PRESETS["kv260"], seed=seed), np.random.default_rng(seed))
        refuse_bad(another(memory=None))
        fail_and_recover(another(memory=None))
        assert not any(simulator.violations() for simulator in simulators)
