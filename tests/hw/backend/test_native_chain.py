"""Layers queued whole by native code: the definition's bits, on the overlay and in its stead."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.cpu import make as make_cpu
from edgerun.graph.ir import Graph, Node
from edgerun.llm.llm import load
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.backend.native.chain import search as searching
from edgerun_hw.backend.native.chain.code import CHECK_EVERY
from edgerun_hw.backend.native.chain.memory import ChainMemory
from edgerun_hw.backend.native.chain.rows import round_row
from edgerun_hw.backend.native.chain.words import K_RUNS
from edgerun_hw.backend.native.program import ProgramExecutable
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.glue import Gate
from edgerun_hw.overlay.glue_layout import LANES, beats
from edgerun_hw.simulate.board.dev import CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice, Faults
from tests.hw.rtl.glue_bench import some_command
from tests.hw.support.overlays import normal, random_weight, replace_fake

pytestmark = pytest.mark.fpga
BASE, MEMORY_BYTES = 0xA000_0000, 48 << 20
PROMPT = "Once upon a time there was a little dog who"
SHORT = "Once upon a time"
TOKENS, FEW = 24, 5
TESTS = 2  # round trips of a session before its first batch
LAYERS = 5  # of the default model


class Board:
    """Device files over a device in software that has the glue unit."""

    def __init__(self, root: Path, faults: Faults | None = None, preset: str = "layer-300") -> None:
        logic = FakeDevice(
            PRESETS[preset], faults=faults, memory_bytes=2 * MEMORY_BYTES, coherent=True
        )
        self.logic = logic
        self.kernel = EmulatedKernel(root, logic, BASE, MEMORY_BYTES)
        self.glued, self.first = 0, -1  # commands of glue, and the first one's number
        compute = logic._compute

        def counting(queued: Any) -> Any:
            if queued.command.glue and not self.glued:
                self.first = queued.number
            self.glued += queued.command.glue
            return compute(queued)

        logic._compute = counting  # type: ignore[method-assign]

    def driver(self) -> Tlmm:
        return Tlmm(NativePort(self.kernel, BASE, CLOCK_HZ, "udmabuf0"))

    def hand_overs(self) -> int:
        """How often the processor has waited for the overlay since the last call."""
        names = self.kernel.writes
        waits = sum(a == "sync_for_device" and b == "sync_for_cpu" for a, b in pairwise(names))
        names.clear()
        return waits


MakeBoard = Callable[..., Board]


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBoard:
    numbers = count()

    def make(faults: Faults | None = None, preset: str = "layer-300") -> Board:
        emulated = Board(tmp_path / str(next(numbers)), faults, preset)
        replace_fake(monkeypatch, emulated.driver)
        return emulated

    return make


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


# ---- two layers of random weights
WIDTH, HIDDEN, DIM = 64, 96, 32
COMMANDS = 16  # of two layers


def layers(rng: np.random.Generator, activation: str, norms: bool) -> Graph:
    """Two layers; ``norms``: also before the output projection and the down projection."""
    constants: dict[str, object] = {}
    nodes: list[Node] = []

    def linear(name: str, source: str, rows: int, k: int, residual: str = "") -> str:
        constants[f"{name}.w"] = random_weight(rng, "ternary", (rows, k), 32, row_scales=True)
        inputs = (source, f"{name}.w", "", residual) if residual else (source, f"{name}.w")
        nodes.append(Node("linear", name, inputs, (f"{name}.y",), {"activations": "int8_row"}))
        return f"{name}.y"

    def norm(name: str, source: str, count: int) -> str:
        constants[f"{name}.w"] = 1 + normal(rng, 1, count)[0]
        inputs = (source, f"{name}.w")
        nodes.append(Node("rms_norm", name, inputs, (f"{name}.y",), {"epsilon": 1e-5}))
        return f"{name}.y"

    residual, before = "x", norm("first", "x", WIDTH)
    for layer in range(2):
        q, k, v = (linear(f"{part}{layer}", before, DIM, WIDTH) for part in "qkv")
        attrs = {"layer": layer, "num_heads": 1, "num_kv_heads": 1, "head_dim": DIM, "window": 0}
        attrs |= {"scale": np.float32(DIM**-0.5)}
        nodes.append(Node("attention", f"attention{layer}", (q, k, v), (f"a{layer}",), attrs))
        row = norm(f"row{layer}", f"a{layer}", DIM) if norms else f"a{layer}"
        residual = linear(f"o{layer}", row, WIDTH, DIM, residual)
        inner = norm(f"inner{layer}", residual, WIDTH)
        gate, up = (linear(f"{part}{layer}", inner, HIDDEN, WIDTH) for part in ("gate", "up"))
        attrs = {"activation": activation}
        nodes.append(Node("gate", f"act{layer}", (gate, up), (f"h{layer}",), attrs))
        h = norm(f"sub{layer}", f"h{layer}", HIDDEN) if norms else f"h{layer}"
        residual = linear(f"down{layer}", h, WIDTH, HIDDEN, residual)
        before = norm(f"next{layer}", residual, WIDTH)
    return Graph(nodes, ["x"], [before], constants)  # type: ignore[arg-type]


def run(graph: Graph, tokens: int = 3, chains: int = 2, before: int = 0) -> NDArray[np.float32]:
    """What the device ``fake`` makes of a few rows of a sequence, after ``before`` other runs."""
    backend, cpu = FpgaBackend(), make_cpu()
    backend.use_device("fake")
    spec = same_attention(2, 1, DIM)
    fallback = lambda segment, shape: cpu.compile(segment, shape, CompileOptions(spec))  # noqa: E731
    options = CompileOptions(spec, fallback=fallback)
    executable = backend.compile(graph, Shape.of(1), options)
    assert isinstance(executable, ProgramExecutable)
    assert len(executable._chains) == chains
    if executable._memory is not None:
        executable._memory.checks[K_RUNS] = before
    rng, cache = np.random.default_rng(9), SequenceStore(spec, 64)
    slot, outs = cache.open(), []
    for position in range(tokens):
        cache.reserve(slot, position + 1)
        batch = Batch.of([0], position, slot)
        outs.append(executable(batch, cache, {"x": normal(rng, 1, WIDTH)})[graph.outputs[0]].copy())
    executable.close()
    backend.close()
    cpu.close()
    return np.concatenate(outs)


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


def with_reader(graph: Graph, inputs: tuple[str, ...]) -> Graph:
    """The graph with one more linear layer, which reads these, as its first output."""
    weight = random_weight(np.random.default_rng(6), "ternary", (WIDTH, WIDTH), 32, row_scales=True)
    operands = (inputs[0], "more.w", "", *inputs[1:])
    node = Node("linear", "more", operands, ("more.y",), {"activations": "int8_row"})
    constants = {**graph.constants, "more.w": weight}
    return replace(
        graph, nodes=[*graph.nodes, node], outputs=["more.y", *graph.outputs], constants=constants
    )


@pytest.mark.parametrize(
    ("inputs", "chains"),
    [(("o0.y",), 0), (("o1.y",), 0), (("down0.y",), 0), (("down1.y",), 2), (("next1.y",), 2)],
)
def test_what_others_read_too_does_not_stay_on_the_device(
    board: MakeBoard, inputs: tuple[str, ...], chains: int
) -> None:
    """A sum within a layer or between two; what is behind the last one is written in any case."""
    graph = with_reader(layers(np.random.default_rng(4), "silu", True), inputs)
    board()
    queued = run(graph, chains=chains)
    board(preset="attention-300")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() <= (0.2 if chains else 0) * np.abs(plain).max()


def test_a_sum_behind_the_last_layer_is_the_processors(board: MakeBoard) -> None:
    """The matrix behind the last norm is queued with the layer, but not with a residual."""
    whole = layers(np.random.default_rng(4), "silu", True)
    graph = with_reader(replace(whole, outputs=[]), ("next1.y", "down1.y"))
    board()
    queued = run(graph)
    board(preset="attention-300")
    plain = run(graph, chains=0)
    assert np.abs(plain - queued).max() < 0.2 * np.abs(plain).max()


def test_norms_of_parts_of_a_row_are_the_processors(board: MakeBoard) -> None:
    """The unit's are of whole rows; a norm between two layers, so none is queued whole."""
    graph = layers(np.random.default_rng(4), "silu", True)
    half = {"next0.w": normal(np.random.default_rng(6), 1, WIDTH // 2)[0]}
    graph = replace(graph, constants={**graph.constants, **half})
    board()
    queued = run(graph, chains=0)
    board(preset="attention-300")
    np.testing.assert_array_equal(queued, run(graph, chains=0))


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
    with load(kv_cache="int8", **options) as llm:  # type: ignore[arg-type]
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
    with load(kv_cache="int8", backend="fpga", device="native-cosim:layer-300") as llm:
        ids = llm.generate(SHORT, max_tokens=4, temperature=0.0, ignore_eos=True).ids
        notes = [note for report in llm.reports() for note in report.notes]
    with load(kv_cache="int8", backend="cpu") as llm:
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
    with load(backend="fpga", device="fake") as llm:
        ids = llm.generate(SHORT, max_tokens=FEW, temperature=0.0).ids
    with load(backend="cpu") as llm:
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
