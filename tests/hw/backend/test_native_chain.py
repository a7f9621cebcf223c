"""Layers queued whole by native code: the definition's bits, on the overlay and in its stead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgerun.llm.llm import load
from edgerun_hw.backend.native.chain import search as searching
from edgerun_hw.backend.native.chain.memory import ChainMemory
from edgerun_hw.backend.native.chain.rows import round_row
from edgerun_hw.backend.native.chain.words import CHECK_EVERY
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.glue_layout import LANES, beats
from edgerun_hw.simulate.fake import Faults
from tests.hw.rtl.glue_bench import some_command
from tests.hw.support.overlays import replace_fake
from tests.hw.support.queued_layers import (
    COMMANDS,
    Board,
    MakeBoard,
    layers,
    make_boards,
    run,
)
from tests.support.bundles import SMALL_MODEL

pytestmark = pytest.mark.fpga
PROMPT = "Once upon a time there was a little dog who"
SHORT = "Once upon a time"
TOKENS, FEW = 24, 5
TESTS = 2  # round trips of a session before its first batch
LAYERS = 5  # of the small model


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBoard:
    return make_boards(tmp_path, monkeypatch)


def test_rows_have_the_bits_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1500):
        command = some_command(rng, 120)
        length, words = command.length, LANES * beats(command.length)
        x, w = command.x.view(np.uint32), command.w.view(np.uint32)
        rows = w.reshape(-1, words) if w.size else x[None, :words]
        sums = np.zeros(words if command.gate is Gate.RESIDUAL else 0, np.uint32)
        codes = np.zeros(-(-length // 15) * 16, np.int8)
        constants = x[[0, LANES, LANES + 1, LANES + 2]]
        row = x[2 * LANES :][:length]
        operands = rows[0, :length], rows[-1, :length], sums, codes
        scale = round_row(int(command.gate), command.norm, constants, row, *operands)
        last = np.array([scale, 0, 0, 0], np.uint32)
        got = np.concatenate([sums, codes.view(np.uint32), last])
        np.testing.assert_array_equal(got, command.expected)


@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("activation", ["silu", "relu2"])
def test_layers_have_the_same_bits_without_the_overlay(
    board: MakeBoard, activation: str, norms: bool
) -> None:
    """Queued on the overlay, and computed when it fails from the first command of a layer on."""
    graph = layers(np.random.default_rng(4), activation, norms)
    board()
    queued = run(graph)
    errors = {n: regs.ERROR_READ_RESPONSE for n in range(5, 100_000)}
    board(Faults(errors=errors))
    np.testing.assert_array_equal(run(graph), queued)
    # And they are nearly the float32 layers of an overlay without the unit.
    board(preset="attention-300")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() < 0.2 * np.abs(plain).max()


def test_more_columns_give_the_same_bits(board: MakeBoard) -> None:
    graph = layers(np.random.default_rng(4), "silu", True)
    board()
    queued = run(graph)
    board(preset="layer-1500")
    np.testing.assert_array_equal(run(graph), queued)


def test_a_short_queue_is_not_overrun(board: MakeBoard, caplog: pytest.LogCaptureFixture) -> None:
    """A layer has more commands than it holds; one too many would be an error, and a reset."""
    graph = layers(np.random.default_rng(4), "silu", True)
    board()
    queued = run(graph)
    board(queue_depth=2)
    with caplog.at_level(logging.INFO):
        np.testing.assert_array_equal(run(graph), queued)
    assert not [record.message for record in caplog.records if "reset" in record.message]


def test_a_layer_is_one_hand_over(board: MakeBoard) -> None:
    """Of the processor to the overlay and back; five without the unit, attention left out."""
    graph = layers(np.random.default_rng(4), "silu", True)
    counts = []
    for preset, chains in (("layer-300", 2), ("attention-300", 0)):
        emulated = board(preset=preset)
        run(graph, 1, chains)
        first = emulated.hand_overs()
        run(graph, 2, chains)
        counts.append(emulated.hand_overs() - first)
    # The first layer's queries, keys and values; then both layers.
    assert counts == [1 + 2, 2 * 4]


def test_commands_take_turns_in_being_computed_again(board: MakeBoard) -> None:
    """One in ``CHECK_EVERY``; a token begins one later than the last one.

    The last layer has no matrix behind its last norm.
    """
    graph = layers(np.random.default_rng(4), "silu", True)
    board()
    for before, expected in ((1, 0), (CHECK_EVERY - COMMANDS + 1, COMMANDS - 1)):
        checks: list[int] = []
        run(graph, COMMANDS, before=before, checks=checks)
        assert checks == [before + COMMANDS, expected]


@pytest.mark.parametrize("kind", [Gate.NONE, Gate.RESIDUAL, Gate.SWIGLU, None])
def test_wrong_results_that_last_are_noticed(
    board: MakeBoard, caplog: pytest.LogCaptureFixture, kind: Gate | None
) -> None:
    """Commands take turns in being computed again; then the processor goes on."""
    graph = layers(np.random.default_rng(4), "silu", True)
    emulated = board()
    compute, wrong = emulated.logic._compute, []

    def altering(queued: Any) -> Any:
        flag, command = compute(queued), queued.command
        is_kind = command.glue and command.gate == kind
        if is_kind or (kind is None and command.scales is not None and not command.glue):
            results = emulated.logic._at(command.y, 16)
            assert results is not None
            results[2] ^= 1  # of a float32's fraction, or of a code
            wrong.append(command)
        return flag

    emulated.logic._compute = altering  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert np.isfinite(run(graph, COMMANDS, before=CHECK_EVERY - COMMANDS)).all()
    assert len(wrong) > 1
    (message,) = (record.message for record in caplog.records)
    assert "a command of a layer gave what its operands cannot give" in message


def generate(
    tokens: int = FEW, prompt: str = SHORT, **options: object
) -> tuple[list[int], list[str]]:
    """Greedy ids, and the notes of the device's report."""
    with load(SMALL_MODEL, kv_cache="int8", **options) as llm:  # type: ignore[arg-type]
        ids = llm.generate(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True).ids
        notes = [note for report in llm.reports() for note in report.notes]
    return ids, notes


@pytest.fixture(scope="module")
def by_cpu() -> list[int]:
    return generate(backend="cpu")[0]


@pytest.fixture(scope="module")
def begins(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of the first command of a layer that is queued whole, in tokens of ``SHORT``."""
    emulated = Board(tmp_path_factory.mktemp("begins"))
    with pytest.MonkeyPatch.context() as patch:
        replace_fake(patch, emulated.driver)
        generate(2, backend="fpga", device="fake")
    return emulated.first


def test_greedy_tokens_are_the_cpus(board: MakeBoard) -> None:
    """The prompt by float32 norms, then 23 tokens by the unit."""
    emulated = board()
    ids, notes = generate(TOKENS, PROMPT, backend="fpga", device="fake")
    assert ids == generate(TOKENS, PROMPT, backend="cpu")[0]
    assert emulated.glued == 4 * LAYERS * (TOKENS - 1)
    assert any(f" in {TOKENS + TESTS} round trips of the host, 0 resets" in note for note in notes)


@pytest.mark.timeout(900)
def test_the_simulated_overlay_runs_layers_for_native_code() -> None:
    """All of a token in one program, on the RTL."""
    with load(SMALL_MODEL, kv_cache="int8", backend="fpga", device="native-cosim:layer-300") as llm:
        ids = llm.generate(SHORT, max_tokens=4, temperature=0.0, ignore_eos=True).ids
        notes = [note for report in llm.reports() for note in report.notes]
    with load(SMALL_MODEL, kv_cache="int8", backend="cpu") as llm:
        assert ids == llm.generate(SHORT, max_tokens=4, temperature=0.0, ignore_eos=True).ids
    assert any(f" in {4 + TESTS} round trips" in note for note in notes)


@pytest.mark.parametrize("place", [0, 1, 5, 30])
def test_a_device_that_is_lost_in_a_layer(
    board: MakeBoard, by_cpu: list[int], begins: int, place: int
) -> None:
    """From some command on all fail: the processor goes on with what the cache holds."""
    first = begins + place
    board(Faults(errors={n: regs.ERROR_READ_RESPONSE for n in range(first, first + 100_000)}))
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert any("not used any more" in note for note in notes)


@pytest.mark.parametrize("place", [2, 19])
def test_a_device_that_is_reset_goes_on(
    board: MakeBoard, by_cpu: list[int], begins: int, place: int
) -> None:
    board(Faults(errors={begins + place: regs.ERROR_READ_RESPONSE}))
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert any("1 resets" in note for note in notes)


def test_without_int8_keys_the_processor_attends_between_chains(board: MakeBoard) -> None:
    emulated = board()
    with load(SMALL_MODEL, backend="fpga", device="fake") as llm:
        ids = llm.generate(SHORT, max_tokens=FEW, temperature=0.0).ids
    with load(SMALL_MODEL, backend="cpu") as llm:
        assert ids == llm.generate(SHORT, max_tokens=FEW, temperature=0.0).ids
    assert emulated.glued == 4 * LAYERS * (FEW - 1)


@pytest.mark.parametrize(
    ("what", "value"),
    [("MAX_GLUE_LENGTH", 508), ("GATES", {"silu": Gate.SWIGLU})],
)
def test_layers_beyond_the_unit_are_the_processors(
    board: MakeBoard, monkeypatch: pytest.MonkeyPatch, by_cpu: list[int], what: str, value: object
) -> None:
    """Rows that are too long, a gate that it does not have: as on an overlay without the unit."""
    monkeypatch.setattr(searching, what, value)
    emulated = board()
    ids, _ = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert not emulated.glued


def test_an_overlay_of_an_older_register_map_is_driven_as_before(
    board: MakeBoard, by_cpu: list[int]
) -> None:
    """It has not said that the unit is there; version 1.1."""
    emulated = board(Faults(version=0x0001_0100), preset="attention-300")
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert not emulated.glued
    assert not any("not used any more" in note for note in notes)


def test_without_room_layers_are_not_queued_whole(
    board: MakeBoard, monkeypatch: pytest.MonkeyPatch, by_cpu: list[int]
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ChainMemory, "_place", full)
    emulated = board()
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert not emulated.glued
    assert not any("not used any more" in note for note in notes)
