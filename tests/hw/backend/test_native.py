"""A token in one native program: the same bits, one round trip, and the CPU when it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgerun.backends import CompileOptions, Phase, Shape
from edgerun.backends.registry import find_candidates
from edgerun.graph.ir import Graph, Node
from edgerun.llm.llm import load
from edgerun.model.bundle import open_bundle
from edgerun.plan.planner import make_plan
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.devices.native import exchange as exchanges
from edgerun_hw.devices.native.kernel import LinuxKernel
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.errors import CommandError, OverlayTimeoutError
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.overlay.port import DevicePort, Overlay
from edgerun_hw.simulate.board.dev import CLASS, CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice, Faults
from tests.hw.backend.test_faults import (
    TAKES_OVER,
    BrokenPort,
    From,
    OneField,
    expected,
    with_device,
)
from tests.hw.support.overlays import normal, random_weight, replace_fake
from tests.support.bundles import SMALL_MODEL

SPEC = same_attention(1, 1, 16)
BASE, MEMORY_BYTES = 0xA000_0000, 32 << 20
__all__ = ["expected"]  # a fixture


@pytest.fixture
def native(tmp_path: Path) -> Callable[..., Tlmm]:
    """Makes drivers through device files, over a device in software."""
    count = iter(range(100))

    def make(logic: DevicePort | str = "tiny", nbytes: int = MEMORY_BYTES) -> Tlmm:
        if isinstance(logic, str):
            logic = FakeDevice(PRESETS[logic], memory_bytes=2 * nbytes, coherent=True)
        kernel = EmulatedKernel(tmp_path / str(next(count)), logic, BASE, nbytes)
        return Tlmm(NativePort(kernel, BASE, CLOCK_HZ, "udmabuf0"))

    return make


def fpga() -> FpgaBackend:
    backend = FpgaBackend()
    backend.use_device("fake")
    return backend


def run(graph: Graph, rows: int, values: dict[str, np.ndarray]) -> tuple[np.ndarray, int]:
    """The outputs of a segment on the device ``fake``, side by side, and the round trips."""
    backend = fpga()
    executable = backend.compile(graph, Shape.of(rows), CompileOptions(SPEC))
    before = backend._opened().round_trips
    batch, cache = Batch.of(list(range(rows)), 0, 0), SequenceStore(SPEC, 64)
    outputs = executable(batch, cache, values)
    output = np.concatenate([outputs[name] for name in graph.outputs], axis=1)
    trips = backend._opened().round_trips - before
    executable.close()
    backend.close()
    return output, trips


@pytest.mark.parametrize("name", ["ternary", "int2", "int4", "int8"])
@pytest.mark.parametrize("activations", ["int8_row", "int8_block"])
@pytest.mark.parametrize("rows", [1, 7])
def test_layers_have_the_bits_of_the_host_in_python(native, monkeypatch, name, activations, rows):
    """Three layers of one input, one with a bias, and one that adds a residual that ends there."""
    rng = np.random.default_rng(3)
    by_row = activations == "int8_row"
    weights = {
        "w0": random_weight(rng, name, (70, 96), 32, row_scales=by_row),
        "w1": random_weight(rng, name, (33, 96), 32, row_scales=True),
        "w2": random_weight(rng, name, (70, 64), 32, row_scales=by_row),
    }
    attrs = {"activations": activations}
    nodes = [
        Node("linear", "a", ("x", "w0", "b"), ("u",), attrs),
        Node("linear", "c", ("x", "w1"), ("v",), attrs),
        Node("linear", "d", ("z", "w2", "", "u"), ("y",), attrs),
    ]
    constants = {**weights, "b": normal(rng, 1, 70)[0]}
    graph = Graph(nodes, ["x", "z"], ["v", "y"], constants)
    values = {"x": normal(rng, rows, 96), "z": normal(rng, rows, 64)}
    results = []
    for make in (lambda: Tlmm(FakeDevice(PRESETS["tiny-prefill"])), lambda: native("tiny-prefill")):
        replace_fake(monkeypatch, make)
        results.append(run(graph, rows, values))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert [trips for _, trips in results] == [2, 1]


def test_matrices_of_many_commands_wait_for_room_in_the_queue(native, monkeypatch):
    rng = np.random.default_rng(4)
    weight = random_weight(rng, "int8", (400, 256), 16)  # 16 blocks in 3 pieces
    graph = Graph(
        [Node("linear", "a", ("x", "w"), ("y",), {"activations": "int8_block"})],
        ["x"],
        ["y"],
        {"w": weight},
    )
    values = {"x": normal(rng, 2, 256)}
    outputs = []
    for make in (lambda: Tlmm(FakeDevice(PRESETS["tiny"])), native):
        replace_fake(monkeypatch, make)
        outputs.append(run(graph, 2, values)[0])
    np.testing.assert_array_equal(*outputs)


def test_all_of_a_model_is_one_segment(native, monkeypatch):
    replace_fake(monkeypatch, native)
    candidates = find_candidates("fpga", "fake")
    plan = make_plan(open_bundle(SMALL_MODEL).graph, candidates.backends, candidates.preferred)
    for phase in Phase:
        assert [segment.backend for segment in plan.segments[phase]] == ["fpga"]
    for backend in candidates.backends:
        backend.close()


def round_trips(monkeypatch, make: Callable[[], Overlay], tokens: int) -> int:
    replace_fake(monkeypatch, make)
    with load(SMALL_MODEL, backend="fpga", device="fake") as llm:
        llm.generate("Once upon a time", max_tokens=tokens, temperature=0.0)
        (report,) = llm.reports()
    (note,) = [note for note in report.notes if "round trips" in note]
    return int(note.split(" in ")[1].split()[0])


def test_a_token_is_one_round_trip_of_the_host(native, monkeypatch):
    logic = lambda: FakeDevice(PRESETS["prefill-1500"], memory_bytes=64 << 20, coherent=True)  # noqa: E731
    counts = []
    for make in (lambda: Tlmm(logic()), lambda: native(logic(), 32 << 20)):
        counts.append([round_trips(monkeypatch, make, tokens) for tokens in (2, 4)])
    a_token = [(after - before) // 2 for before, after in counts]
    assert a_token == [4 * 5 + 1, 1]  # four steps of each of five layers and the head, or one


def test_a_token_synchronises_what_its_commands_read_and_write(tmp_path, monkeypatch):
    """And not all that a prompt's commands of most rows and columns would: 200 KiB each."""
    logic = FakeDevice(PRESETS["prefill-1500"], memory_bytes=64 << 20, coherent=True)
    kernel = EmulatedKernel(tmp_path, logic, BASE, 32 << 20)
    replace_fake(monkeypatch, lambda: Tlmm(NativePort(kernel, BASE, CLOCK_HZ, "udmabuf0")))
    weight = random_weight(np.random.default_rng(0), "ternary", (300, 640), 640)
    node = Node("linear", "a", ("x", "w"), ("y",), {"activations": "int8_row"})
    backend = fpga()
    executable = backend.compile(
        Graph([node], ["x"], ["y"], {"w": weight}), Shape.of(1), CompileOptions(SPEC)
    )
    kernel.writes.clear()
    kernel.spans.clear()
    values = {"x": normal(np.random.default_rng(1), 1, 640)}
    executable(Batch.of([1], 0, 0), SequenceStore(SPEC, 64), values)
    sizes = [length for _, length in kernel.spans]
    x_bytes, y_bytes = -(-640 // 15) * 16, 300 * 4
    assert kernel.writes == ["sync_for_device", "sync_for_cpu"]
    assert sizes == [-(-nbytes // 64) * 64 for nbytes in (x_bytes, y_bytes)]
    executable.close()
    backend.close()


# ---- faults


KINDS = ["read_response", "watchdog", "wedged", "altered", "bus"]


def logic_with(kind: str, lasting: bool, place: int) -> DevicePort:
    """A device that fails at its ``place``-th command."""
    if kind == "bus":
        first = 40 + 2 * place
        port = BrokenPort(lambda n: n >= first if lasting else n == first)
        port.coherent, port.memory = True, np.zeros(2 * MEMORY_BYTES, np.uint8)
        port._free = [(0, port.memory.size)]
        return port
    hit = From(place) if lasting else [place]
    if kind in ("wedged", "altered"):
        faults = Faults(**{kind: hit})
    else:
        field = getattr(regs, f"ERROR_{kind.upper()}")
        faults = Faults(errors=OneField(place, field) if lasting else {place: field})
    return FakeDevice(PRESETS["tiny"], faults=faults, memory_bytes=2 * MEMORY_BYTES, coherent=True)


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_survive_faults(kind, lasting, native, expected, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    for place in (5, 41):
        caplog.clear()
        tokens, logits, backend = with_device(
            monkeypatch,
            lambda: native(logic_with(kind, lasting, place)),  # noqa: B023
        )
        assert tokens == expected[0]
        np.testing.assert_allclose(logits, expected[1], atol=2e-6)
        assert backend._session.resets == 1
        lines = [record.message for record in caplog.records]
        assert [TAKES_OVER in line for line in lines] == [True] * lasting


def test_a_memory_without_room_leaves_layers_to_the_cpus_kernels(
    native, expected, monkeypatch, caplog
):
    tokens, logits, backend = with_device(monkeypatch, lambda: native(nbytes=384 << 10))
    assert tokens == expected[0]
    np.testing.assert_allclose(logits, expected[1], atol=2e-6)
    assert ["is full after" in record.message for record in caplog.records] == [True]
    assert backend._session.commands > 2


def test_a_memory_without_room_for_activations_leaves_everything_to_the_cpu(
    native, expected, monkeypatch, caplog
):
    tokens, logits, backend = with_device(monkeypatch, lambda: native(nbytes=4 << 12))
    assert tokens == expected[0]
    np.testing.assert_array_equal(logits, expected[1])
    assert ["is full after" in record.message for record in caplog.records] == [True]


def test_the_driver_goes_on_after_native_code(native):
    driver = native()
    assert driver.hand_out() == 0
    driver.take_back(3)
    assert driver.hand_out() == 3
    with pytest.raises(CommandError, match="reports underrun at command"):
        driver.take_back(4, 2)
    with pytest.raises(CommandError, match="underrun"):
        driver.hand_out()
    driver.reset()
    assert driver.hand_out() == 0


def test_native_code_gives_up_a_device_that_does_nothing(native, monkeypatch):
    graph = Graph(
        [Node("linear", "a", ("x", "w"), ("y",), {"activations": "int8_row"})],
        ["x"],
        ["y"],
        {"w": random_weight(np.random.default_rng(0), "ternary", (20, 32), 32)},
    )
    logic = FakeDevice(PRESETS["tiny"], memory_bytes=2 * MEMORY_BYTES, coherent=True)
    replace_fake(monkeypatch, lambda: native(logic))
    backend = fpga()
    executable = backend.compile(graph, Shape.of(1), CompileOptions(SPEC))
    logic.faults = replace(logic.faults, wedged=From(0), silent=True)
    with pytest.raises(OverlayTimeoutError, match="no progress for [0-9]+ cycles"):
        executable._run(
            executable._workspace,
            Batch.of([1], 0, 0),
            lambda: executable._program(executable._workspace, None)(
                Batch.of([1], 0, 0), SequenceStore(SPEC, 64), {"x": np.ones((1, 32), np.float32)}
            ),
        )
    executable.close()
    backend.close()


def test_ctrl_c_below_native_code_ends_the_reply_and_is_no_failure(native, monkeypatch):
    logic = FakeDevice(PRESETS["tiny"], memory_bytes=2 * MEMORY_BYTES, coherent=True)
    replace_fake(monkeypatch, lambda: native(logic))
    read, left = logic.read, [300]

    def cut_off(offset: int) -> int:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return read(offset)

    with load(SMALL_MODEL, backend="fpga", device="fake") as llm:
        expected = llm.generate("Once", max_tokens=2, temperature=0.0).ids
        for _ in range(2):
            left[0] = 300
            with monkeypatch.context() as patch:
                patch.setattr(logic, "read", cut_off)
                with pytest.raises(KeyboardInterrupt):
                    llm.generate("Once", max_tokens=2, temperature=0.0)
        assert llm.generate("Once", max_tokens=2, temperature=0.0).ids == expected
        assert llm.reports()[0].notes[-1].endswith(" 0 resets")


# ---- native code at device files


def test_native_code_reaches_registers_and_attributes(tmp_path: Path) -> None:
    """The requests of a program, on files in the place of ``/dev/mem`` and u-dma-buf."""
    logic = FakeDevice(PRESETS["tiny"], memory_bytes=2 << 20, coherent=True)
    kernel = EmulatedKernel(tmp_path, logic, BASE, 1 << 20)
    registers = tmp_path / "dev/mem"
    registers.write_bytes(bytes(4096) + np.arange(1024, dtype="<u4").tobytes())
    for name in ("sync_for_device", "sync_for_cpu"):
        (tmp_path / CLASS / name).touch()
    port = NativePort(LinuxKernel(tmp_path), 4096, 250e6, "udmabuf0")
    assert kernel.writes == []
    port.allocate(1)
    (tmp_path / CLASS / "sync_for_device").write_text("")
    buffer = port.allocate(5000)
    (tmp_path / CLASS / "sync_for_device").write_text("")
    exchange = port.exchange()
    request = np.zeros(exchanges.REQUEST_WORDS, np.int64)

    def ask(asked: int, first: int, second: int = 0) -> int:
        request[:3] = asked, first, second
        exchanges.SIGNATURE(exchange.function)(exchange.context, request.ctypes.data)
        return int(request[exchanges.ANSWER])

    assert ask(exchanges.READ, 0x40) == 16
    assert ask(exchanges.WRITE, 0x44, 0xFEDC_BA98) == 0
    assert ask(exchanges.READ, 0x44) == 0xFEDC_BA98
    words = np.frombuffer(registers.read_bytes(), "<u4")[1024:]
    assert (words[16], words[17], words[18]) == (16, 0xFEDC_BA98, 18)
    assert ask(exchanges.WAIT, 1000) == 0
    first, nbytes = buffer.span
    assert ask(exchanges.FLUSH, first, nbytes) == ask(exchanges.INVALIDATE, first, nbytes) == 0
    assert (tmp_path / CLASS / "sync_for_device").read_text() == "0x0000100000002005"
    assert (tmp_path / CLASS / "sync_for_cpu").read_text() == "0x0000100000002009"
    port.close()
