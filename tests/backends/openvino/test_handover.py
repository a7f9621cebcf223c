"""Keys and values between pages and a device: what is moved when, and what is left of failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends.openvino import session as sessions
from edgerun.backends.openvino.interface import Interface
from edgerun.backends.openvino.mirror import Mirror
from edgerun.backends.openvino.network import Network
from edgerun.backends.openvino.pieces import run_pieces
from edgerun.backends.openvino.translation import Extent, Piece, part_names
from edgerun.errors import BackendError
from edgerun.state import SequenceStore, same_attention

pytest.importorskip("openvino")

LAYERS, HEADS, DIM = 2, 2, 4
WIDTH = HEADS * DIM
ROWS, ROOM, CONTEXT = 8, 64, 200
UNEVEN = np.linspace(0.1, 1, WIDTH, dtype=np.float32)  # which int8 has no exact numbers for
Rows = NDArray[np.float32]


class Store(SequenceStore):
    """A store that notes what is moved."""

    def __init__(self, codec: str, events: list[object]) -> None:
        super().__init__(same_attention(LAYERS, HEADS, DIM, codec), CONTEXT, 3)
        self.events = events

    def read_block(self, name: str, slot: int, start: int, stop: int, out: Any = None) -> Any:
        self.events.append(("read", name, start, stop))
        return super().read_block(name, slot, start, stop, out)

    def write_block(self, name: str, slot: int, start: int, block: Any) -> None:
        self.events.append(("write", name, start, start + len(block[0])))
        super().write_block(name, slot, start, block)


class Adder:
    """A device whose new keys are the sum of what came before, plus the ids."""

    def __init__(self, events: list[object]) -> None:
        self.events, self.arrays, self.fault = events, [], ""

    def start(self, arrays: list[Rows]) -> None:
        self.events.append("start")
        self.arrays = arrays
        self.before = [array.copy() for array in arrays]

    def has_ended(self) -> bool:
        return False

    def cancel(self) -> None:
        self.events.append("cancel")

    def export(self) -> bytes:
        return b""

    def wait(self) -> list[Rows]:
        self.events.append("wait")
        if self.fault == "lost":
            raise RuntimeError("lost")
        ids, start, *past = self.arrays
        past = past if len(past) == 2 * LAYERS else [*past, *past]
        count = int(start[0])
        for array, before in zip(self.arrays[2:], self.before[2:], strict=True):
            np.testing.assert_array_equal(array[:count], before[:count])  # nobody touched it
        rows = [ids[:, None] * UNEVEN + array[:count].sum(0) / 64 for array in past]
        if self.fault == "nan":
            rows[-1][0] = np.nan
        return [row.astype(np.float32) for row in rows]


class Bench:
    """A store, a mirror and a device."""

    def __init__(self, codec: str = "fp32", room: int = ROOM) -> None:
        self.events: list[object] = []
        self.store, self.mirror = Store(codec, self.events), Mirror()
        self.device = Adder(self.events)
        self.networks = {size: self.network(size) for size in (room, 2 * room)}
        self.room = room

    def network(self, room: int, inputs: tuple[str, ...] = ()) -> Network:
        states = self.store.states
        past = [name for state in states for name in part_names(state)]
        fills: dict[str, Callable[[Piece], Rows]] = {
            "ids": lambda piece: piece.ids.astype(np.float32),
            "start": lambda piece: np.array([piece.start], np.float32),
        }
        extent = Extent(ROWS, room, 0)
        inputs = inputs or (*fills, *past)
        reads = tuple(each for each in states if part_names(each)[0] in inputs)
        return Network(Interface(extent, inputs, fills, reads, (), (), states), self.device)

    def pieces(self, slot: int, lengths: list[int], seed: int) -> list[tuple[Network, Piece]]:
        start, pieces = self.store.length(slot), []
        for length in lengths:
            ids = np.zeros(ROWS, np.int32)
            ids[:length] = np.arange(start, start + length) * 7 + seed
            network = self.networks[self.room if start <= self.room else 2 * self.room]
            none = np.zeros(0, np.int32)
            pieces.append((network, Piece(ids, slot, start, length, none, {})))
            start += length
        return pieces

    def call(self, slot: int, lengths: list[int], seed: int = 0) -> list[object]:
        """A call of some pieces, committed; returns what happened."""
        self.events.clear()
        stop = self.store.length(slot) + sum(lengths)
        self.store.reserve(slot, stop)
        for _ in run_pieces(self.pieces(slot, lengths, seed), self.store, self.mirror):
            pass
        self.store.commit(slot, stop)
        return list(self.events)

    def keys(self, slot: int) -> Rows:
        states, stop = self.store.states, self.store.length(slot)
        return np.array([self.store.read_block(s.name, slot, 0, stop) for s in states])


def moved(kind: str, start: int, stop: int) -> list[object]:
    return [(kind, f"layers.{layer}", start, stop) for layer in range(LAYERS)]


def names(events: list[object]) -> list[object]:
    """Events with the layers' names as ``moved`` has them."""
    states = same_attention(LAYERS, HEADS, DIM)
    numbers = {state.name: f"layers.{index}" for index, state in enumerate(states)}
    return [
        (event[0], numbers[event[1]], *event[2:]) if isinstance(event, tuple) else event
        for event in events
    ]


def test_pages_are_written_while_the_next_piece_computes() -> None:
    bench = Bench()
    events = names(bench.call(bench.store.open(), [8, 8, 3]))
    assert events == [
        *("start", "wait"),
        *("start", *moved("write", 0, 8), "wait"),
        *("start", *moved("write", 8, 16), "wait"),
        *moved("write", 16, 19),
    ]


def test_only_new_rows_are_read_out_of_pages() -> None:
    bench = Bench()
    slot = bench.store.open()
    bench.call(slot, [8, 8])
    for start, stop in ((0, 16), (16, 19), (19, 22)):
        events = names(bench.call(slot, [3]))
        assert [e for e in events if e[0] == "read"] == moved("read", start, stop)
    other, _ = bench.store.fork(slot, 10)
    assert [e for e in names(bench.call(other, [2])) if e[0] == "read"] == moved("read", 0, 10)
    assert [e for e in names(bench.call(slot, [2])) if e[0] == "read"] == moved("read", 0, 25)


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("room", [16, 64])  # the mirror grows, and is kept
def test_a_mirror_changes_no_bit(codec: str, room: int) -> None:
    """Calls of several sequences, with forks and rewinds, with a mirror and with a new one each."""
    results = []
    for is_kept in (True, False):
        bench, rng = Bench(codec, room), np.random.default_rng(3)
        slots = [bench.store.open()]
        for step in range(60):
            slot = slots[rng.integers(len(slots))]
            if not is_kept:
                bench.mirror = Mirror()
            kind, lengths = rng.integers(5), rng.integers(1, ROWS + 1, rng.integers(1, 4)).tolist()
            if kind == 0:
                bench.store.rewind(slot, int(rng.integers(bench.store.length(slot) + 1)))
            elif kind == 1 and len(slots) < 3:
                length = int(rng.integers(bench.store.length(slot) + 1))
                slots.append(bench.store.fork(slot, length)[0])
            elif kind == 2 and len(slots) > 1:
                bench.store.close(slots.pop())
            elif bench.store.length(slot) + sum(lengths) < 2 * room:
                bench.call(slot, lengths, step)
        results.append([bench.keys(slot) for slot in slots])
    for reused, new in zip(*results, strict=True):
        np.testing.assert_array_equal(reused, new)


def test_rows_of_a_call_see_each_other_as_computed_and_later_calls_as_stored() -> None:
    bench = Bench("int8")
    slot = bench.store.open()
    bench.call(slot, [8, 8])
    as_computed = bench.device.arrays[2][:8]
    assert not np.array_equal(as_computed, bench.keys(slot)[0, 0, :8].reshape(8, WIDTH))
    bench.call(slot, [2])
    as_stored = bench.device.arrays[2][:16]
    np.testing.assert_array_equal(as_stored, bench.keys(slot)[0, 0, :16].reshape(16, WIDTH))


@pytest.mark.parametrize("fault", ["lost", "nan"])
def test_what_came_before_a_failure_is_in_the_pages_and_nothing_of_it(fault: str) -> None:
    bench = Bench()
    slot = bench.store.open()
    bench.call(slot, [4], 1)
    bench.store.reserve(slot, 30)
    computed = run_pieces(bench.pieces(slot, [8, 8, 8], 1), bench.store, bench.mirror)
    next(computed)
    bench.device.fault = fault
    with pytest.raises((RuntimeError, BackendError)):
        next(computed)
    name = bench.store.states[0].name
    keys, _ = bench.store.read_block(name, slot, 0, 30)
    assert keys[:12].any(axis=(1, 2)).all() and not keys[12:].any()
    # The same rows again, by whoever stands in, then the device: nothing of the failure is left.
    bench.device.fault = ""
    bench.call(slot, [8, 8], 5)
    plain = Bench()
    other = plain.store.open()
    plain.call(other, [4], 1)
    plain.call(other, [8, 8], 5)
    np.testing.assert_array_equal(bench.keys(slot), plain.keys(other))


def test_a_layer_whose_past_a_network_does_not_read_is_read_by_one_that_does() -> None:
    """As the last layer of a network without logits."""
    bench = Bench()
    slot, state = bench.store.open(), bench.store.states[1]
    bench.call(slot, [8])
    bench.mirror = Mirror()
    interface = bench.networks[ROOM]._interface
    inputs = tuple(name for name in interface.inputs if not name.startswith(state.name))
    pieces = bench.pieces(slot, [8, 8], 1)
    pieces[0] = bench.network(ROOM, inputs), pieces[0][1]
    bench.store.reserve(slot, 24)
    for _ in run_pieces(pieces, bench.store, bench.mirror):
        pass
    keys, _ = bench.store.read_block(state.name, slot, 0, 16)
    assert keys[8:].any()
    np.testing.assert_array_equal(bench.device.arrays[4][:16], keys.reshape(16, WIDTH))


def test_rows_of_a_call_that_was_not_committed_are_not_believed() -> None:
    bench = Bench()
    slot = bench.store.open()
    bench.call(slot, [4])
    for _ in run_pieces(bench.pieces(slot, [8], 1), bench.store, bench.mirror):
        pass  # and Ctrl-C comes before the commit
    block = tuple(np.full((8, HEADS, DIM), 3, np.float32) for _ in range(2))
    for state in bench.store.states:  # so the CPU computes others in their place
        bench.store.write_block(state.name, slot, 4, block)
    bench.store.commit(slot, 12)
    bench.call(slot, [1])
    assert (bench.device.arrays[2][4:12] == 3).all()


class Silent:
    """A request of OpenVINO's that never ends."""

    def __init__(self) -> None:
        self.cancelled = 0

    def set_input_tensor(self, index: int, tensor: object) -> None:
        pass

    def start_async(self) -> None:
        pass

    def wait_for(self, milliseconds: int) -> bool:
        return False

    def cancel(self) -> None:
        self.cancelled += 1


class Slow(Silent):
    """A request that goes on for a while when it is cancelled, as those of the NPU's partitioner.

    Attributes:
        left: how often it is waited for until it has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def set_input_tensor(self, index: int, tensor: object) -> None:
        if self.left:
            raise RuntimeError("Infer Request was canceled")

    def start_async(self) -> None:
        self.left = 3

    def wait_for(self, milliseconds: int) -> bool:
        self.left = max(0, self.left - 1)
        if not self.left and self.cancelled:
            raise RuntimeError("Infer Request was canceled")
        return not self.left


class Compiled:
    outputs = (None,)

    def __init__(self, request: Silent) -> None:
        self.request = request

    def create_infer_request(self) -> Silent:
        return self.request


def test_a_device_that_does_not_answer_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SECONDS", 0.01)
    bench, compiled = Bench(), Compiled(Silent())
    bench.device = sessions._Request(compiled)  # type: ignore[assignment]
    bench.networks = {ROOM: bench.network(ROOM)}
    pieces = bench.pieces(bench.store.open(), [8], 0)
    with pytest.raises(TimeoutError, match="did not answer within"):
        list(run_pieces(pieces, bench.store, bench.mirror))
    assert compiled.request.cancelled == 1


def test_a_device_is_stopped_when_ctrl_c_comes_while_pages_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads the mirror, which belongs to the next call."""
    bench = Bench()
    slot = bench.store.open()
    bench.store.reserve(slot, 16)
    computed = run_pieces(bench.pieces(slot, [8, 8], 0), bench.store, bench.mirror)
    next(computed)

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.store, "write_block", interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(computed)
    assert bench.events[-2:] == ["start", "cancel"]


def test_what_was_cancelled_and_goes_on_is_waited_for() -> None:
    slow = Slow()
    request = sessions._Request(Compiled(slow))
    request.start([np.zeros(1, np.float32)])
    request.cancel()
    assert slow.left == 3  # Ctrl-C keeps nobody waiting
    request.start([np.zeros(1, np.float32)])
    assert slow.left == 3  # of the second


def test_a_device_that_does_not_end_what_was_cancelled_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "SECONDS", 0.01)
    request = sessions._Request(Compiled(Silent()))
    request.start([np.zeros(1, np.float32)])
    request.cancel()
    with pytest.raises(TimeoutError, match="did not answer within"):
        request.start([np.zeros(1, np.float32)])
