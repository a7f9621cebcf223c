"""The small model on the overlay: the CPU's tokens, and its matrices bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.cli.main import main
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph
from edgerun.llm.llm import load
from edgerun.model.bundle import open_bundle
from edgerun_hw.backend.matrix import DeviceMatrix
from edgerun_hw.devices.registry import find_device
from edgerun_hw.overlay.definition import run_command
from edgerun_hw.overlay.packing import pack_activations, result_words
from edgerun_hw.overlay.port import Overlay
from tests.support.bundles import SMALL_MODEL

PROMPTS = ("Once upon a time", "Tell me a story about a dog.", "The sun was warm and")
TOKENS = 24


@cache
def by_cpu(prompt: str) -> list[int]:
    with load(SMALL_MODEL, backend="cpu") as llm:
        return llm.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).ids


@pytest.mark.parametrize("device", ["fake:tiny-prefill", "fake:prefill-1500"])
def test_the_software_device_gives_the_cpus_tokens(device):
    with load(SMALL_MODEL, backend="fpga", device=device) as llm:
        prompt = PROMPTS[0]
        ids = llm.generate(prompt, max_tokens=6, temperature=0.0, ignore_eos=True).ids
    assert ids == by_cpu(prompt)[:6]


@pytest.mark.fpga
@pytest.mark.timeout(900)  # the simulator is compiled first
@pytest.mark.parametrize("device", ["cosim", "cosim:decode-300,ddr", "cosim:tiny-prefill"])
def test_the_simulated_overlay_gives_the_cpus_tokens(device):
    with load(SMALL_MODEL, backend="fpga", device=device) as llm:
        for prompt in PROMPTS[: 1 + 2 * (device == "cosim")]:
            reply = llm.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
            assert reply.ids == by_cpu(prompt)
        (report,) = llm.reports()
    assert not any("not used any more" in note for note in report.notes)
    totals = [row for row in report.rows if row["part"] == "all"]
    # Prompts of up to 16 tokens, which the program for few rows takes.
    assert [row["phase"] for row in totals] == ["decode", "few"]
    for row in totals:
        counted = sum(row[name] for name in row if name == "lookups" or name.startswith("stall"))
        assert counted + row["start and drain"] == pytest.approx(row["busy"], abs=4)


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_the_command_line_gives_the_cpus_tokens_and_the_cycles(capfd):
    options = "-n 8 --temperature 0 --json"
    arguments = ["run", str(SMALL_MODEL), "-p", "Tell me a story", *options.split()]
    assert main(arguments) == 0
    expected = json.loads(capfd.readouterr().out)["ids"]
    assert main([*arguments, "--backend", "fpga", "--device", "cosim"]) == 0
    reply = json.loads(capfd.readouterr().out)
    assert reply["ids"] == expected
    assert "simulated; no board was measured" in reply["devices"][0]["title"]


def matrices() -> Iterator[tuple[str, PackedWeight]]:
    graph: Graph = open_bundle(SMALL_MODEL).graph
    for node in graph.nodes:
        weight = graph.constants.get(node.inputs[1]) if node.op == "linear" else None
        if isinstance(weight, PackedWeight):
            yield node.name, weight


def bytes_at(memory: dict[int, NDArray[np.uint8]], address: int, nbytes: int) -> NDArray[np.uint8]:
    start, array = next(
        (start, buffer)
        for start, buffer in memory.items()
        if start <= address < start + buffer.nbytes
    )
    return array[address - start :][:nbytes]


def words_of(overlay: Overlay, matrix: DeviceMatrix, rng: np.random.Generator) -> list[bool]:
    """Whether the words of each command are those of the definition."""
    can = overlay.capabilities
    memory = {buffer.address: buffer.array for buffer in matrix._buffers}
    equal = []
    for piece in matrix.pieces:
        first, last = matrix.cut.columns(piece.block)
        codes = rng.integers(-128, 128, (can.columns, last - first)).astype(np.int8)
        packed = pack_activations(codes, matrix.cut.mode)
        rows = piece.rows * matrix.cut.digits
        x = overlay.allocate(packed.nbytes)
        y = overlay.allocate(4 * result_words(rows, can.columns, can.ports))
        x.array[:] = packed.reshape(-1).view(np.uint8)
        x.flush()
        command = matrix.command(piece, can.columns, x.address, y.address)
        overlay.wait(overlay.submit(command))
        y.invalidate()
        nbytes = piece.tiles * piece.row_beats * 16
        ports = [bytes_at(memory, address, nbytes) for address in piece.weights]
        weights = np.stack(ports).reshape(can.ports, piece.tiles, piece.row_beats, 16)
        expected = run_command(matrix.cut.mode, weights, packed)
        equal.append(np.array_equal(y.array.view(np.uint32), expected))
        x.free()
        y.free()
    return equal


@pytest.mark.fpga
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", ["cosim:decode-300", "cosim:tiny-prefill"])
def test_every_matrix_of_the_small_model_is_bit_exact(device):
    rng = np.random.default_rng(0)
    overlay = find_device(device).open()
    names = []
    for name, weight in matrices():
        matrix = DeviceMatrix(weight, overlay)
        assert all(words_of(overlay, matrix, rng)), name
        matrix.free()
        names.append(name)
    overlay.close()
    assert len(names) == 36
