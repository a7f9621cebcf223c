"""Matrices that tokens change, on the processor: the same bits however rows come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape
from edgerun.backends.base import Executable
from edgerun.backends.cpu.emit.recurrent import states
from edgerun.backends.estimates import node_seconds
from edgerun.backends.registry import make_backend
from edgerun.errors import BackendError, Full
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.machine.devices import Call, DeviceProfile
from edgerun.machine.profile import MachineProfile
from edgerun.ops.base import normal
from edgerun.ops.registry import OPS
from edgerun.state import Batch, RecurrentState, SequenceStore
from edgerun.state.memory import Memory

F32 = NDArray[np.float32]
ROWS = 23


@dataclass(frozen=True)
class Mixing:
    """An op, and a graph of nothing else.

    Attributes:
        op: its name.
        attributes: of its node.
        widths: of what it reads of every row, by names of inputs.
        constants: the other inputs.
    """

    op: str
    attributes: dict[str, Any]
    widths: dict[str, int]
    constants: dict[str, F32]

    @property
    def node(self) -> Node:
        inputs = (*self.widths, *self.constants)
        return Node(self.op, "mixing", inputs, ("result",), self.attributes)

    @property
    def graph(self) -> Graph:
        shapes = {name: ValueShape(width) for name, width in self.widths.items()}
        return Graph([self.node], list(self.widths), ["result"], self.constants, shapes=shapes)

    @property
    def state(self) -> RecurrentState:
        declare = OPS[self.op].state
        assert declare is not None
        state = declare(self.attributes)
        assert isinstance(state, RecurrentState)
        return state

    def texts(self, number: int) -> list[F32]:
        return [normal((ROWS, size), 10 * number + len(name)) for name, size in self.widths.items()]


HEADS, WIDTH = 4, 2 * 2 * 32 + 4 * 48
DELTA = Mixing(
    "gated_delta",
    {
        **{"key_heads": 2, "value_heads": HEADS, "key_dim": 32, "value_dim": 48, "count": 4},
        **{"layer": 0, "epsilon": 1e-6, "strength": 1.0},
    },
    {"qkv": WIDTH, "decay": HEADS, "write": HEADS},
    {
        "taps": normal((4 * WIDTH,), 4),
        "rate": -np.exp(normal((HEADS,), 5)),
        "offset": normal((HEADS,), 6),
    },
)
SPACE = Mixing(
    "state_space",
    {"heads": HEADS, "groups": 2, "head_dim": 48, "state_dim": 32, "count": 4, "layer": 0},
    {"xbc": WIDTH, "step": HEADS},
    {
        "taps": normal((4 * WIDTH,), 4),
        "bias": normal((WIDTH,), 7),
        "rate": -np.exp(normal((HEADS,), 5)),
        "offset": normal((HEADS,), 6),
        "skip": normal((HEADS,), 8),
    },
)


class Layer:
    """The op alone, with a store and texts whose rows differ from position to position."""

    def __init__(self, mixing: Mixing, executable: Executable, slots: int = 4) -> None:
        self.mixing, self.executable = mixing, executable
        self.store = SequenceStore([mixing.state], 256, slots)

    def run(self, parts: Sequence[tuple[int, int, int]], *, commit: bool = True) -> F32:
        """Appends rows of texts to slots: of each part the slot, the text and how many."""
        batches, rows = [], []
        for slot, text, count in parts:
            start = self.store.length(slot)
            self.store.reserve(slot, start + count)
            batches.append(Batch.of([0] * count, start, slot))
            rows.append([array[start : start + count] for array in self.mixing.texts(text)])
        values = [np.concatenate(arrays) for arrays in zip(*rows, strict=True)]
        batch, given = Batch.join(batches), dict(zip(self.mixing.widths, values, strict=True))
        result = self.executable(batch, self.store, given)["result"].copy()
        for slot, _, count in parts if commit else ():
            self.store.commit(slot, self.store.length(slot) + count)
        return result

    def state(self, slot: int) -> list[F32]:
        length = self.store.length(slot)
        return list(self.store.read_block(self.mixing.state.name, slot, length, length))


Programs = tuple[Mixing, dict[int, Executable]]


@pytest.fixture(
    scope="module",
    params=[(mixing, *way) for mixing in (DELTA, SPACE) for way in ((1, 1 << 40), (2, 0))],
    ids=lambda param: f"{param[0].op}-{'alone' if param[1] == 1 else 'past caches'}",
)
def programs(request: pytest.FixtureRequest) -> Iterator[Programs]:
    """An op's programs for one row, a few and many, whose units differ."""
    mixing, threads, outgrowing_bytes = request.param
    backend = make_backend("cpu", given={"threads": threads})
    options = CompileOptions((mixing.state,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "OUTGROWING_BYTES", outgrowing_bytes)
        shapes = {rows: Shape.of(rows) for rows in (1, 8, 64)}
        yield (
            mixing,
            {rows: backend.compile(mixing.graph, shape, options) for rows, shape in shapes.items()},
        )
    backend.close()


def same(actual: Sequence[F32], expected: Sequence[F32]) -> None:
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_have_the_same_bits_at_once_in_pieces_and_beside_others(
    programs: Programs,
) -> None:
    mixing, executables = programs
    layer = Layer(mixing, executables[64])
    slot = layer.store.open()
    whole = layer.run([(slot, 0, ROWS)])
    state = layer.state(slot)
    assert state[1].any()
    for pieces in ((1,) * ROWS, (2, 1, 7, 5, 8), (20, 3)):
        layer.executable = executables[1 if max(pieces) == 1 else 8 if max(pieces) <= 8 else 64]
        slot = layer.store.open()
        results = [layer.run([(slot, 0, count)]) for count in pieces]
        same([np.concatenate(results), *layer.state(slot)], [whole, *state])
        layer.store.close(slot)
    slots = [layer.store.open() for _ in range(3)]
    layer.executable = executables[64]
    other = layer.run([(slots[0], 1, 5)])
    first = layer.run([(slots[1], 0, 4), (slots[0], 1, 6), (slots[2], 2, 9)])
    second = layer.run([(slots[2], 2, 1), (slots[1], 0, ROWS - 4)])
    same([np.concatenate([first[:4], second[1:]]), *layer.state(slots[1])], [whole, *state])
    alone = Layer(mixing, executables[64])
    slot = alone.store.open()
    same([np.concatenate([other, first[4:10]])], [alone.run([(slot, 1, 11)])])


def test_it_computes_what_the_definition_says(programs: Programs) -> None:
    mixing, executables = programs
    layer, exact = Layer(mixing, executables[64]), SequenceStore([mixing.state], 256)
    slot, other = layer.store.open(), exact.open()
    exact.reserve(other, ROWS)
    arrays = [*mixing.texts(3), *mixing.constants.values()]
    batch = Batch.of([0] * ROWS, 0, other)
    (expected,) = OPS[mixing.op].evaluate(arrays, mixing.attributes, batch, exact)
    exact.commit(other, ROWS)
    computed = layer.run([(slot, 3, ROWS)])
    states = exact.read_block(mixing.state.name, other, ROWS, ROWS)
    for array, reference in zip([computed, *layer.state(slot)], [expected, *states], strict=True):
        assert np.abs(array - reference).max() < 1e-5 * np.abs(reference).max()


@pytest.mark.parametrize("mixing", [DELTA, SPACE], ids=lambda mixing: mixing.op)
def test_the_definition_warns_of_nothing_where_weights_are_damaged(mixing: Mixing) -> None:
    exact = SequenceStore([mixing.state], 256)
    slot = exact.open()
    exact.reserve(slot, ROWS)
    first, *others = mixing.texts(3)
    # A rate at which matrices grow.
    damaged = {**mixing.constants, "rate": np.full(HEADS, 100, np.float32)}
    arrays = [np.float32(1e25) * first, *others, *damaged.values()]
    batch = Batch.of([0] * ROWS, 0, slot)
    (result,) = OPS[mixing.op].evaluate(arrays, mixing.attributes, batch, exact)
    assert np.isnan(result).any()
    OPS["rms_norm"].define(first, np.ones(WIDTH, np.float32), epsilon=1e-6)


def test_a_call_that_fails_changes_nothing_and_one_in_chunks_goes_on(
    programs: Programs,
) -> None:
    mixing, executables = programs
    layer = Layer(mixing, executables[64])
    slot = layer.store.open()
    whole = [layer.run([(slot, 0, ROWS)]), *layer.state(slot)]
    layer.store.rewind(slot, 0)
    first = layer.run([(slot, 0, 6)])
    before = layer.state(slot)
    layer.run([(slot, 5, 9)], commit=False)
    same(layer.state(slot), before)
    layer.store.reserve(slot, ROWS)
    rest = []
    for start, stop in ((6, 8), (8, 9), (9, ROWS)):  # all of them before the commit
        given = dict(
            zip(mixing.widths, (array[start:stop] for array in mixing.texts(0)), strict=True)
        )
        batch = Batch.of([0] * (stop - start), start, slot)
        rest.append(layer.executable(batch, layer.store, given)["result"].copy())
        same(layer.state(slot), before)
    layer.store.commit(slot, ROWS)
    same([np.concatenate([first, *rest]), *layer.state(slot)], whole)


def test_a_sequence_goes_back_forks_and_leaves_its_room_to_others(
    programs: Programs,
) -> None:
    mixing, executables = programs
    layer = Layer(mixing, executables[64], slots=2)
    slot = layer.store.open()
    whole = [layer.run([(slot, 0, ROWS)]), *layer.state(slot)]
    layer.store.rewind(slot, 0)
    first = layer.run([(slot, 0, 10)])
    layer.store.checkpoint(slot)
    layer.run([(slot, 7, 4)])
    assert layer.store.rewind(slot, 12) == 10
    fork, length = layer.store.fork(slot)
    assert length == 10
    layer.run([(slot, 7, 4)])  # one of the two goes another way
    rest = layer.run([(fork, 0, ROWS - 10)])
    same([np.concatenate([first, rest]), *layer.state(fork)], whole)
    for each in (fork, slot):
        layer.store.close(each)
    for _ in range(2):  # in memory that others have written
        slot = layer.store.open()
        same([layer.run([(slot, 0, ROWS)]), *layer.state(slot)], whole)
    layer.store.rewind(slot, 0)
    layer.run([(slot, 0, 2)])
    same(layer.state(slot)[0], [np.zeros(WIDTH, np.float32), *mixing.texts(0)[0][:2]])


def test_a_store_of_other_states_is_refused() -> None:
    backend, name = make_backend("cpu", given={"threads": 1}), DELTA.state.name
    with pytest.raises(BackendError, match=f"keeps .*{name}.* which the store does not have"):
        backend.compile(DELTA.graph, Shape.of(1), CompileOptions((RecurrentState(name, ()),)))
    backend.close()


def test_memory_for_one_more_state_is_asked_for_before_a_call() -> None:
    (state,) = declared = [DELTA.state]
    place = 2 * sum(array.nbytes for array in state.arrays)
    free = [2 * place + 1]
    store = SequenceStore(declared, 64, 4, memory=Memory(lambda: free[0], spare_bytes=0))
    slots = [store.open() for _ in range(3)]
    assert store.room().slots == 1
    for slot in slots[:2]:
        store.reserve(slot, 1)
        free[0] -= place
    with pytest.raises(Full, match="states of 2 sequences, which are in use"):
        store.reserve(slots[2], 1)
    store.commit(slots[0], 1)
    with pytest.raises(Full):
        store.fork(slots[0])
    assert store.open() == 3  # which the fork has left
    store.close(3)
    store.checkpoint(slots[0])  # for which there is no memory either
    store.commit(slots[0], 2)
    assert store.rewind(slots[0], 1) == 0
    store.close(slots[1])
    assert store.room().slots == 1  # of two slots that are free
    store.reserve(slots[2], 1)
    assert store.room().slots == 0


@pytest.mark.parametrize(("mixing", "products"), [(DELTA, 3), (SPACE, 2)])
def test_estimates_count_what_is_moved_and_what_is_multiplied(
    mixing: Mixing, products: int
) -> None:
    elements, shape = 4 * 32 * 48, Shape.of(64)
    backend = make_backend("cpu", given={"threads": 1})
    free = {"fork_join_s": {1: 1e-30}}
    for bandwidth, rate, expected in ((1e9, 1e30, 12), (1e30, 1e9, products * 64)):
        rates = {"float/float32": {1: rate}}
        machine = MachineProfile(bandwidth={1: bandwidth}, rates=rates, threads=1, **free)
        backend.configure({"threads": 1, "machine": machine})
        seconds = backend.cost(mixing.graph, mixing.node, shape)
        assert seconds == pytest.approx(expected * elements / 1e9)
    calls = {"float/float32": (Call(32, 1000, 1e-6),)}
    device = DeviceProfile(calls, load_bytes_s=1e9, store_bytes_s=2e9)
    moved = 2 * (1 / 1e9 + 1 / 2e9) * sum(array.nbytes for array in mixing.state.arrays)
    macs = products * elements + 4 * WIDTH
    assert node_seconds(device, mixing.graph, mixing.node, shape) == pytest.approx(
        moved + 64 * macs / 1e9
    )
    backend.close()
