"""Attention queued by native code: the definition's bits, and the CPU's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape
from edgerun.errors import BackendError
from edgerun.graph.ir import Graph, Node
from edgerun.llm.llm import load
from edgerun.state import Batch, SequenceStore, same_attention
from edgerun.state.spec import attention_name
from edgerun_hw.backend import FpgaBackend
from edgerun_hw.backend.attention import CHECK_EVERY
from edgerun_hw.backend.native.sequence_copy import SequenceCopy
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay import register_map as regs
from edgerun_hw.overlay.attention import (
    BLOCK_TOKENS,
    Cache,
    attend,
    encode_scales,
    quantise_queries,
)
from edgerun_hw.overlay.attention_layout import KvLayout
from edgerun_hw.overlay.driver import Tlmm
from edgerun_hw.overlay.geometry import PRESETS
from edgerun_hw.simulate import fake
from edgerun_hw.simulate.board.dev import CLOCK_HZ, EmulatedKernel
from edgerun_hw.simulate.fake import FakeDevice, Faults
from edgerun_hw.simulate.simulator import Simulator
from tests.hw.support.overlays import normal, replace_fake
from tests.support.bundles import SMALL_MODEL

Bytes: TypeAlias = NDArray[np.uint8]
BASE, MEMORY_BYTES = 0xA000_0000, 48 << 20
PROMPT = "Once upon a time there was a little dog who"
TOKENS = 6
LAYERS = 5  # of the small model
TESTS = 2  # round trips of a session before its first batch


class Board:
    """Device files over a device in software."""

    def __init__(
        self, root: Path, faults: Faults | None = None, nbytes: int = MEMORY_BYTES
    ) -> None:
        preset = PRESETS["attention-300"]
        self.logic = FakeDevice(preset, faults=faults, memory_bytes=2 * nbytes, coherent=True)
        self.kernel = EmulatedKernel(root, self.logic, BASE, nbytes)

    def driver(self) -> Tlmm:
        return Tlmm(NativePort(self.kernel, BASE, CLOCK_HZ, "udmabuf0"))

    def flushed(self) -> list[int]:
        """Bytes of each flush since the last call."""
        pairs = zip(self.kernel.writes, self.kernel.spans, strict=True)
        sizes = [length for name, (_, length) in pairs if name == "sync_for_device"]
        self.kernel.writes.clear()
        self.kernel.spans.clear()
        return sizes


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    emulated = Board(tmp_path)
    replace_fake(monkeypatch, emulated.driver)
    return emulated


class Layer:
    """One layer of attention on the device ``fake``, and the cache of its sequences."""

    def __init__(self, heads: int, group: int, dim: int, window: int = 0) -> None:
        self.heads, self.group, self.dim, self.window = heads, group, dim, window
        self.attrs = {"num_heads": heads * group, "num_kv_heads": heads, "head_dim": dim}
        self.attrs |= {
            "layer": 0,
            "window": window,
            "scale": np.float32(dim**-0.5),
            "softcap": 0.0,
        }
        self.node = Node("attention", "a", ("q", "k", "v"), ("y",), self.attrs)
        spec = same_attention(1, heads, dim, "int8", window)
        self.backend = FpgaBackend()
        self.backend.use_device("fake")
        self.backend.configure({"kv_cache": "int8"})
        graph = Graph([self.node], ["q", "k", "v"], ["y"], {})
        self.executable = self.backend.compile(graph, Shape.of(96), CompileOptions(spec))
        self.cache = SequenceStore(spec, 512, slots=3)
        self.rng = np.random.default_rng(5)

    def run(
        self, *parts: tuple[int, int], largest: float = 1.0, commit: bool = True
    ) -> NDArray[np.float32]:
        """Appends so many random rows to some sequences; returns what the device says."""
        batches = []
        for slot, rows in parts:
            start = self.cache.length(slot)
            self.cache.reserve(slot, start + rows)
            batches.append(Batch.of([0] * rows, start, slot))
        batch = Batch.join(batches)
        widths = self.heads * self.group * self.dim, self.heads * self.dim
        self.q = normal(self.rng, batch.rows, widths[0]) * np.float32(3)
        k, v = (normal(self.rng, batch.rows, widths[1]) for _ in range(2))
        k *= self.rng.uniform(0.1, largest, (batch.rows, 1)).astype(np.float32)
        v *= self.rng.uniform(0.1, largest, (batch.rows, 1)).astype(np.float32)
        self.k, self.v = k, v
        out = self.executable(batch, self.cache, {"q": self.q, "k": k, "v": v})["y"].copy()
        expected = self.definition(batch)
        for slot, rows in parts if commit else ():
            self.cache.commit(slot, self.cache.length(slot) + rows)
        np.testing.assert_array_equal(out, expected)
        return out

    def definition(self, batch: Batch) -> NDArray[np.float32]:
        """The unit's definition on what the cache stores."""
        out = np.empty_like(self.q)
        for start, stop in batch.runs():
            slot, last = int(batch.sequences[start]), int(batch.positions[stop - 1])
            cache = self.stored(slot, last + 1)
            shape = stop - start, self.heads, self.group, self.dim
            queries = self.q[start:stop].reshape(shape).transpose(0, 2, 1, 3)
            flat = queries.reshape(-1, self.heads, self.dim)
            limit = np.repeat(batch.positions[start:stop].astype(np.int64) + 1, self.group)
            first = np.maximum(limit - self.window, 0) if self.window else 0 * limit
            scale = float(self.attrs["scale"])
            for j in range(len(flat)):  # a command counts tokens from the block it begins with
                begin = int(first[j]) // BLOCK_TOKENS * BLOCK_TOKENS
                part = Cache(*(field[begin : last + 1] for field in vars(cache).values()))
                bounds = first[j : j + 1] - begin, limit[j : j + 1] - begin
                rounded = quantise_queries(flat[j : j + 1], scale, *bounds, part.value_scales)
                row, member = divmod(j, self.group)
                heads = out[start + row].reshape(self.heads, self.group, self.dim)
                heads[:, member] = attend(rounded, part)[0]
        return out

    def stored(self, slot: int, tokens: int) -> Cache:
        pool = self.cache.pool(attention_name(0))
        pages = pool.page_table[slot, : -(-tokens // BLOCK_TOKENS)]
        parts = []
        for name in ("key_data", "value_data", "key_scales", "value_scales"):
            array = np.where(pages[:, None, None, None] < 0, 0, pool.arrays[name][pages, 0])
            joined = array.transpose(0, 2, 1, 3).reshape(-1, self.heads, array.shape[-1])[:tokens]
            parts.append(joined.astype(pool.arrays[name].dtype))
        return Cache(parts[0], parts[1], *(encode_scales(part[..., 0]) for part in parts[2:]))

    def close(self) -> None:
        self.executable.close()
        self.backend.close()


@pytest.mark.parametrize(
    ("heads", "group", "dim", "window"),
    [
        (1, 3, 32, 0),
        pytest.param(2, 2, 64, 0, marks=pytest.mark.fpga),
        pytest.param(5, 1, 16, 0, marks=pytest.mark.fpga),
        pytest.param(3, 2, 96, 100, marks=pytest.mark.fpga),
    ],
)
def test_results_are_the_definitions(board, heads, group, dim, window):
    """Prompts over blocks, tokens, several sequences a batch, and tokens that did not stay."""
    layer = Layer(heads, group, dim, window)
    first, second = layer.cache.open(), layer.cache.open()
    layer.run((first, 70), largest=8)
    layer.run((second, 5))
    for _ in range(3):
        layer.run((first, 1), (second, 1))
    layer.cache.rewind(first, 66)
    layer.run((first, 3), largest=300, commit=False)
    layer.run((first, 2), largest=0.2)
    layer.run((second, 60), (first, 9))
    for _ in range(4):
        layer.run((first, 96), largest=3)  # beyond the room that was taken at first
    layer.run((first, 1))
    layer.cache.close(second)
    third = layer.cache.open()
    layer.run((third, 3))
    layer.backend._session.native[1]._memory._free = []
    layer.run((layer.cache.open(), 3))  # in the room of those that are in no batch now
    assert layer.backend._session.commands > 0
    runs, results = layer.executable._layers.checks
    assert runs > 8 and results > 0  # all were right, or they would not have come here
    assert layer.backend._session.resets == 0
    layer.close()


def pair_span(heads: int, dim: int) -> int:
    """Bytes of a block of all heads on a port, with the pairs that its values lie in."""
    layout = KvLayout(heads, dim)
    return (heads + regs.KV_LEAD) * layout.pair_beats * regs.BEAT_BYTES


def test_a_token_flushes_its_own_block_of_one_port(board):
    """However long the context is; a prompt flushes what it wrote, once a port."""
    from edgerun_hw.backend.native.attention import query_bytes  # compiles when it is imported

    layer = Layer(2, 2, 64)
    slot = layer.cache.open()
    layer.run((slot, 60))
    counts = []
    for _ in range(6):  # from the last port of a block to the first of the next
        board.flushed()
        layer.run((slot, 1))
        queries = query_bytes(layer.node, layer.backend._opened().capabilities)
        counts.append([size for size in board.flushed() if size != queries])
    assert counts == [[pair_span(2, 64)]] * 6
    layer.run((slot, 90))
    board.flushed()
    layer.run((slot, 40))
    spans = [size for size in board.flushed() if size > queries]
    assert len(spans) == 4
    assert max(spans) <= pair_span(2, 64) + 2 * KvLayout(2, 64).pair_beats * regs.BEAT_BYTES
    layer.close()


def generate(**options: object) -> tuple[list[int], list[str]]:
    """Greedy ids, and the notes of the device's report."""
    with load(SMALL_MODEL, kv_cache="int8", **options) as llm:  # type: ignore[arg-type]
        ids = llm.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True).ids
        notes = [note for report in llm.reports() for note in report.notes]
    return ids, notes


@pytest.fixture(scope="module")
def by_cpu() -> list[int]:
    return generate(backend="cpu")[0]


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many each attention command has that the software device runs."""
    counts: list[int] = []
    run = fake.run_attention

    def counting(layout: KvLayout, packed: Bytes, count: int, ports: list[Bytes]) -> object:
        counts.append(count)
        return run(layout, packed, count, ports)

    monkeypatch.setattr(fake, "run_attention", counting)
    return counts


def test_greedy_tokens_are_the_cpus_in_one_round_trip_each(board, by_cpu, queries):
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert set(queries) == {2}
    assert any(f" in {TOKENS + TESTS} round trips" in note for note in notes)


@pytest.mark.fpga
@pytest.mark.timeout(900)
def test_the_simulated_unit_attends_for_native_code(monkeypatch):
    """On the RTL of an overlay that has no other unit; all of a token in one program."""
    write, attended = Simulator.write, []

    def seeing(simulator, offset, value):
        if offset == regs.CMD_MODE and value >> regs.CMD_MODE_KV_HEADS.lsb:
            attended.append(value)
        write(simulator, offset, value)

    monkeypatch.setattr(Simulator, "write", seeing)
    with load(
        SMALL_MODEL, kv_cache="int8", backend="fpga", device="native-cosim:attention-300"
    ) as llm:
        ids = llm.generate(PROMPT, max_tokens=2, temperature=0.0, ignore_eos=True).ids
        notes = [note for report in llm.reports() for note in report.notes]
    with load(SMALL_MODEL, kv_cache="int8", backend="cpu") as llm:
        assert ids == llm.generate(PROMPT, max_tokens=2, temperature=0.0, ignore_eos=True).ids
    assert any(f" in {2 + TESTS} round trips" in note for note in notes)
    assert len(attended) > 2 * LAYERS  # of a prompt more than one a layer


@pytest.mark.fpga
@pytest.mark.parametrize("first", [60, 66, 71])
def test_a_device_lost_between_attention_and_projection(tmp_path, monkeypatch, by_cpu, first):
    """From some command on all fail: the CPU goes on with what the cache holds."""
    faults = Faults(errors={n: regs.ERROR_READ_RESPONSE for n in range(first, first + 100_000)})
    replace_fake(monkeypatch, Board(tmp_path, faults).driver)
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert any("not used any more" in note for note in notes)


@pytest.mark.fpga
def test_a_device_that_is_reset_attends_again(tmp_path, monkeypatch, by_cpu, queries):
    faults = Faults(errors={66: regs.ERROR_READ_RESPONSE})
    replace_fake(monkeypatch, Board(tmp_path, faults).driver)
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert any("1 resets" in note for note in notes)
    assert set(queries) == {2}


@pytest.mark.fpga
def test_a_result_that_cannot_be_is_noticed(board, monkeypatch, by_cpu):
    """Attention cannot give more than the largest value: the batch is run again."""
    run, calls = fake.run_attention, []

    def flipping(*arguments: object) -> NDArray[np.uint32]:
        out = run(*arguments)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 7:
            out[5] ^= 0x4000_0000  # of the exponent
        return out

    monkeypatch.setattr(fake, "run_attention", flipping)
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert any("1 resets" in note for note in notes)


@pytest.mark.fpga
def test_small_errors_are_noticed_where_a_result_is_computed_again(board, monkeypatch):
    """The last bit of one element: heads and queries take turns, one in sixteen commands."""
    run = fake.run_attention

    def flipping(*arguments: object) -> NDArray[np.uint32]:
        out = run(*arguments)  # type: ignore[arg-type]
        out[-1] ^= 1
        return out

    layer = Layer(2, 2, 32)
    slot = layer.cache.open()
    layer.run((slot, 30))
    assert layer.backend._session.resets == 0
    monkeypatch.setattr(fake, "run_attention", flipping)
    session, runs = layer.backend._session, 0
    monkeypatch.setattr(session, "_test", lambda: None)
    with pytest.raises(BackendError, match="cannot give"):
        while runs < CHECK_EVERY * 2 * 2:
            runs += 1
            batch = Batch.of([0], layer.cache.length(slot), slot)
            layer.cache.reserve(slot, layer.cache.length(slot) + 1)
            values = dict(zip("qkv", (layer.q[:1], layer.k[:1], layer.v[:1]), strict=True))
            layer.executable(batch, layer.cache, values)
    assert session.resets == 1


@pytest.mark.fpga
def test_contexts_beyond_the_unit_are_the_cpus_and_matrices_stay(
    board, monkeypatch, by_cpu, queries
):
    """It attends while it can, and the device multiplies in any case."""
    monkeypatch.setattr("edgerun_hw.backend.native.attention.MAX_TOKENS", 14)
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert len(queries) > 0
    assert any(f" in {TOKENS + TESTS} round trips" in note for note in notes)
    assert not any("not used any more" in note for note in notes)


@pytest.mark.fpga
def test_values_beyond_the_format_are_the_cpus(board, queries):
    """Scales above 255; the next batch may be another sequence."""
    layer = Layer(1, 1, 16)
    slot, other = layer.cache.open(), layer.cache.open()
    batch = Batch.of([0, 0], 0, slot)
    layer.cache.reserve(slot, 2)
    values = {name: normal(layer.rng, 2, 16) * np.float32(1e5) for name in "qkv"}
    out = layer.executable(batch, layer.cache, values)["y"]
    error = np.abs(values["v"][0]).max() / 127
    np.testing.assert_allclose(out[0], values["v"][0], atol=error)
    assert not queries
    layer.run((other, 3))
    assert queries
    assert not layer.backend._opened().failure
    layer.close()


@pytest.mark.fpga
def test_without_room_for_keys_the_cpu_attends(tmp_path, monkeypatch, by_cpu, queries, caplog):
    replace_fake(monkeypatch, Board(tmp_path).driver)
    full = lambda *arguments: (_ for _ in ()).throw(MemoryError)  # noqa: E731
    monkeypatch.setattr(SequenceCopy, "_grow", full)
    ids, notes = generate(backend="fpga", device="fake")
    assert ids == by_cpu
    assert not queries
    assert ["is full after" in record.message for record in caplog.records] == [True]
    assert not any("not used any more" in note for note in notes)


@pytest.mark.fpga
def test_other_storage_and_other_heads_are_the_cpus(board, queries):
    with load(SMALL_MODEL, backend="fpga", device="fake") as llm:
        ids = llm.generate(PROMPT, max_tokens=2, temperature=0.0).ids
    with load(SMALL_MODEL, backend="cpu") as llm:
        assert ids == llm.generate(PROMPT, max_tokens=2, temperature=0.0).ids
    layer = Layer(2, 1, 24)
    assert layer.executable._layers is None
    layer.close()
    assert not queries
