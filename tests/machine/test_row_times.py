"""From how many rows on blocks are taken: what follows from a few times."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.machine.row_times import (
    ALL_IN_TURNS,
    BLOCKS,
    MOST,
    TURNS,
    VERSION,
    BlockPath,
    RowTimes,
    blocks_from,
    blocks_seconds,
    gain,
    of_threads,
    quickest_path,
    read_layers,
    rows_in_blocks,
    stored,
    turns_seconds,
)

TOKENS = {"amx": -1, "gemm": 4, "lookup": 16, "wide": 8}
seconds = st.floats(1e-7, 1e-2)


def times_of(turns: tuple[float, ...], **blocks: tuple[float, float]) -> RowTimes:
    by_path = {path: dict(zip(BLOCKS, each, strict=True)) for path, each in blocks.items()}
    return RowTimes(dict(zip(TURNS, turns, strict=True)), by_path, threads=1)


@st.composite
def measured(draw: st.DrawFn) -> RowTimes:
    """Times of any machine, noise included: more rows may seem to take less."""
    paths = draw(st.sets(st.sampled_from(sorted(TOKENS)), min_size=1))
    blocks = {path: (draw(seconds), draw(seconds)) for path in paths}
    return times_of((draw(seconds), draw(seconds), draw(seconds)), **blocks)


@given(measured())
def test_what_is_chosen_is_slower_nowhere_where_it_was_timed(times: RowTimes) -> None:
    path = quickest_path([times, times], TOKENS)
    if path == ALL_IN_TURNS:
        return
    assert path.name in times.blocks
    assert 2 <= path.least <= MOST
    for rows in {path.least, *BLOCKS} - set(range(path.least)):
        in_blocks = blocks_seconds(times, path.name, rows, TOKENS[path.name])
        assert in_blocks < turns_seconds(times.turns, rows)


@given(measured(), st.lists(st.integers(2, MOST), min_size=5, max_size=5))
def test_no_other_number_of_rows_to_begin_with_gains_more(
    times: RowTimes, others: list[int]
) -> None:
    def total(path: str, first: int) -> float:
        return sum(gain(times, path, rows, TOKENS[path]) / rows for rows in range(first, MOST + 1))

    for path in times.blocks:
        slower = [rows for rows in BLOCKS if gain(times, path, rows, TOKENS[path]) <= 0]
        least = blocks_from([times], path, TOKENS[path])
        most = total(path, least) if least else 0.0
        assert not least or least > max(slower, default=1)
        for other in others:
            if other > max(slower, default=1):
                assert total(path, other) <= most + 1e-9


@given(measured(), st.sampled_from([0.25, 8.0]), st.sampled_from([0.5, 0.9]))
def test_a_faster_machine_chooses_the_same_and_faster_blocks_begin_no_later(
    times: RowTimes, factor: float, less: float
) -> None:
    scaled = RowTimes(
        {rows: each * factor for rows, each in times.turns.items()},
        {
            path: {rows: each * factor for rows, each in by_rows.items()}
            for path, by_rows in times.blocks.items()
        },
        times.threads,
    )
    for path, by_rows in times.blocks.items():
        least = blocks_from([times], path, TOKENS[path])
        assert blocks_from([scaled], path, TOKENS[path]) == least
        faster = replace(times, blocks={path: {rows: less * t for rows, t in by_rows.items()}})
        if TOKENS[path] < 0 and least:  # else a rest in turns is in the times of blocks too
            assert 0 < blocks_from([faster], path, TOKENS[path]) <= least


@given(measured())
def test_at_the_rows_that_were_timed_the_rule_goes_by_their_times(times: RowTimes) -> None:
    turns = times.turns
    assert turns_seconds(turns, 1) == turns[1]
    assert turns_seconds(turns, 4) == turns[4]
    assert turns_seconds(turns, 16) == pytest.approx(max(turns[4], turns[16]))
    for path, by_rows in times.blocks.items():
        first, many = (blocks_seconds(times, path, rows, TOKENS[path]) for rows in BLOCKS)
        if by_rows[16] <= by_rows[128] <= 8 * by_rows[16]:
            assert first == pytest.approx(by_rows[16])
            assert many == pytest.approx(by_rows[128])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 18, 35, 400])
def test_where_memory_hides_nothing_turns_add_up(rows: int) -> None:
    """Then the rule is ``ceil(m / 16) * t16 < (m // 4) * t4 + (m % 4) * t1``, of four times."""
    times = times_of((1.0, 3.9, 15.6), amx=(5.0, 40.0))
    expected = rows // 4 * 3.9 + min(rows % 4 * 1.0, 3.9)
    assert turns_seconds(times.turns, rows) == pytest.approx(expected)
    assert blocks_seconds(times, "amx", rows, -1) == pytest.approx(-(-rows // 16) * 5.0)


def test_a_rest_of_rows_costs_no_more_than_four_that_follow_others() -> None:
    turns = dict(zip(TURNS, (2.0, 5.0, 8.0), strict=True))  # each four more take 1.0
    seconds = [turns_seconds(turns, rows) for rows in range(1, 9)]
    assert seconds == [2.0, 4.0, 5.0, 5.0, 6.0, 6.0, 6.0, 6.0]


@pytest.mark.parametrize(("blocks", "chosen"), [(0.99, ""), (0.97, "gemm")])
def test_what_blocks_gain_must_be_more_than_noise(blocks: float, chosen: str) -> None:
    times = times_of((1.0, 4.0, 16.0), gemm=(16.0 * blocks, 128.0 * blocks))
    assert quickest_path([times], TOKENS).name == chosen


# Milliseconds of layers of 2560 x 6912 and 576 x 1536 on a Zen 5, one thread; of blocks at 16 rows
# and, as 64 and 256 say, at 128.
@pytest.mark.parametrize(
    ("turns", "blocks", "chosen"),
    [
        # AVX2, ternary: table entries beat multiplying, and unpacking is never worth it.
        ((0.168, 0.442, 1.703), {"gemm": (2.16, 13.1), "lookup": (1.36, 8.2)}, "lookup"),
        # AVX-512: weights that are unpacked once are never faster.
        ((0.212, 0.316, 0.776), {"gemm": (1.49, 6.7)}, ""),
        # The same with trits, which take longer to unpack.
        ((0.151, 0.248, 0.980), {"gemm": (1.09, 6.0)}, "gemm"),
    ],
)
def test_times_of_a_machine_lead_to_what_was_fastest_there(
    turns: tuple[float, ...], blocks: dict[str, tuple[float, float]], chosen: str
) -> None:
    path = quickest_path([times_of(turns, **blocks)], TOKENS)
    assert path.name == chosen
    assert path.least in (range(8, 17) if chosen == "lookup" else range(17, 33) if chosen else [0])


def test_only_paths_that_there_are_come_into_question() -> None:
    times = times_of((1.0, 4.0, 16.0), amx=(2.0, 16.0), gemm=(4.0, 32.0))
    assert quickest_path([times], TOKENS).name == "amx"
    assert quickest_path([times], {"gemm": 4}).name == "gemm"
    assert quickest_path([times], {"lookup": 16}) == ALL_IN_TURNS
    other = times_of((1.0, 4.0, 16.0), amx=(99.0, 999.0), gemm=(14.0, 60.0))
    gemm = quickest_path([times, other], TOKENS)  # the matrix unit loses in one of the layers
    assert gemm == BlockPath("gemm", blocks_from([times, other], "gemm", 4))
    assert blocks_from([times], "gemm", 4) < gemm.least <= blocks_from([other], "gemm", 4)
    assert BlockPath() == ALL_IN_TURNS


@pytest.mark.parametrize(
    ("rows", "tokens", "taken"),
    [(7, 16, 0), (8, 16, 8), (17, 16, 16), (24, 16, 24), (5, 4, 4), (6, 4, 6), (3, -1, 3)],
)
def test_rows_are_divided_as_kernels_do_it(rows: int, tokens: int, taken: int) -> None:
    from edgerun.kernels.linear.turns import rows_in_blocks as of_kernels

    assert rows_in_blocks(rows, tokens) == taken
    assert of_kernels.py_func(rows, tokens, 0) == of_kernels.py_func(rows, tokens, rows) == taken
    assert of_kernels.py_func(rows, tokens, rows + 1) == of_kernels.py_func(rows, 0, 0) == 0


def test_times_without_a_number_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="no time of 16 rows"):
        RowTimes({1: 1.0, 4: 2.0}, {}, 1)
    with pytest.raises(ValueError, match="no time of 128 rows"):
        RowTimes({1: 1.0, 4: 2.0, 16: 3.0}, {"gemm": {16: 1.0}}, 1)


TIMES = times_of((1e-6, 4e-6, 16e-6), gemm=(20e-6, 99e-6))


@pytest.mark.parametrize(
    ("threads", "nearest"), [(1, 1), (2, 1), (3, 8), (4, 8), (8, 8), (64, 8)], ids=str
)
def test_times_with_the_nearest_number_of_threads_count(threads: int, nearest: int) -> None:
    layers = tuple(replace(TIMES, threads=count) for count in (1, 1, 8))
    assert of_threads(layers, threads) == tuple(each for each in layers if each.threads == nearest)


def test_times_are_read_as_they_were_stored() -> None:
    layers = (TIMES, replace(TIMES, threads=2))
    assert read_layers(json.loads(json.dumps(stored({"a/b": layers})))["a/b"]) == layers


@pytest.mark.parametrize(
    "spoil",
    [
        lambda layers: layers[0].update(version=VERSION + 1),
        lambda layers: layers[0].pop("threads"),
        lambda layers: layers[0].update(threads=0),
        lambda layers: layers[0]["turns"].pop("4"),
        lambda layers: layers[0]["blocks"]["gemm"].pop("16"),
        lambda layers: layers[0].pop("turns"),
        lambda layers: layers[0].update(turns=[1e-6, 4e-6, 16e-6]),
        lambda layers: layers[0]["turns"].update({"0": 1e-6}),
        lambda layers: layers[0]["turns"].update({"4": "fast"}),
        lambda layers: layers[0]["turns"].update({"4": None}),  # what is no number, in JSON
        lambda layers: layers[0]["turns"].update({"4": 0.0}),
        lambda layers: layers[0]["turns"].update({"4": -1e-6}),
        lambda layers: layers[0]["turns"].update({"4": 1e300}),
        lambda layers: layers[0]["turns"].update({"4": 1e-300}),
        lambda layers: layers.clear(),
        lambda layers: layers.append("another"),
    ],
)
def test_times_of_another_version_or_that_cannot_be_are_none(
    spoil: Callable[[list[Any]], object],
) -> None:
    layers: list[Any] = stored({"a/b": (TIMES,)})["a/b"]
    assert read_layers(layers) == (TIMES,)
    spoil(layers)
    assert read_layers(layers) == ()


def test_more_rows_than_are_looked_at_do_no_harm() -> None:
    more = replace(TIMES, turns={**TIMES.turns, 64: 60e-6, 4096: 1e-3})
    assert read_layers(stored({"a/b": (more,)})["a/b"]) == (more,)
    assert turns_seconds(more.turns, 64) == turns_seconds(TIMES.turns, 64)
