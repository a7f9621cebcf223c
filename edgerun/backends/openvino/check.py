"""A look at what a network computes, before anything is believed that it says.

Compilers for NPUs were seen to make networks that compute wrong keys and values without a word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Executable, Values
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import input_shapes
from edgerun.ops.registry import OPS
from edgerun.state import AttentionState, Batch, SequenceStore, State
from edgerun.state.store import Block

TOKENS = 16
# Of the size (root of the sum of squares) of what a head keeps, or of an output. Half precision,
# and activations that the CPU rounds and devices do not, come to 0.17 after 30 layers of a real
# model; what is wrong is wrong by half and more.
ALLOWED = 0.4

Run = Callable[[Batch, SequenceStore, Values], Values]


def difference(
    run: Run,
    reference: Executable,
    segment: Graph,
    states: tuple[State, ...],
    step: int,
    logits: str,
) -> str:
    """Says what a device computes otherwise; empty if it computes what it should.

    Args:
        run: computes a batch on the device.
        reference: computes it elsewhere.
        segment: what they compute.
        states: what the model remembers.
        step: rows of a call.
        logits: which are compared, see ``Batch.of``.
    """
    ids = _ids(segment)
    stores = [SequenceStore(states, TOKENS) for _ in range(2)]
    slots = [store.open() for store in stores]
    outputs: dict[str, list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = {}
    for store, slot in zip(stores, slots, strict=True):
        store.reserve(slot, TOKENS)
        for read in _read_only(segment, states):
            store.write_block(read.name, slot, 0, _block(read))
    for start in range(0, TOKENS, step):
        stop = min(start + step, TOKENS)
        batch = Batch.of(ids[start:stop], start, slots[0], logits=logits)
        values = _values(segment, batch, start)
        computed = {name: array.copy() for name, array in run(batch, stores[0], values).items()}
        expected = reference(batch, stores[1], values)
        for name, array in computed.items():
            outputs.setdefault(name, []).append((array, expected[name].copy()))
        for store, slot in zip(stores, slots, strict=True):
            store.commit(slot, stop)
    # All tokens together: one alone may be near to nothing, as the first often is.
    worst = {
        name: _error(*map(np.concatenate, zip(*pairs, strict=True)))
        for name, pairs in outputs.items()
    }
    for state in states:
        if isinstance(state, AttentionState):
            blocks = [
                store.read_block(state.name, slot, 0, TOKENS)
                for store, slot in zip(stores, slots, strict=True)
            ]
            for part, ours, theirs in zip(("keys", "values"), *blocks, strict=True):
                worst[f"{part} of {state.name}"] = _error(ours, theirs)
    name = max(worst, key=lambda each: worst[each], default="")
    if not name or worst[name] <= ALLOWED:
        return ""
    return f"{name} differ by {worst[name]:.2g} of their size, {ALLOWED} is allowed"


def _read_only(segment: Graph, states: tuple[State, ...]) -> list[AttentionState]:
    """States of earlier segments whose keys and values this one reads."""
    sharing = [(OPS[node.op], node.attrs) for node in segment.nodes]
    own = {op.state(attrs).name for op, attrs in sharing if op.state is not None}
    read = {op.reads(attrs).name for op, attrs in sharing if op.reads is not None} - own
    return [each for each in states if isinstance(each, AttentionState) and each.name in read]


def _block(state: AttentionState) -> Block:
    """Something for what an earlier segment has written."""
    rng = np.random.default_rng(TOKENS)
    keys, values = (
        rng.standard_normal((TOKENS, state.kv_heads, dim)).astype(np.float32)
        for dim in (state.key_dim, state.value_dim)
    )
    return keys, values


def _error(computed: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Size of the difference, of what is expected; of heads, the worst; infinite if no number."""
    axes = (0, 2) if expected.ndim == 3 else None
    sizes = np.sqrt(np.square(expected, dtype=np.float64).sum(axis=axes))
    errors = np.sqrt(np.square(computed - expected, dtype=np.float64).sum(axis=axes))
    error = float(np.max(errors / np.where(sizes > 0, sizes, 1)))
    return error if np.isfinite(error) else float("inf")


def _ids(segment: Graph) -> NDArray[np.int32]:
    """Token ids that the segment's table has rows for."""
    tables = [segment.constants[node.inputs[1]] for node in segment.nodes if node.op == "embedding"]
    rows = min((int(table.shape[0]) for table in tables), default=1)
    return np.random.default_rng(0).integers(0, rows, TOKENS).astype(np.int32)


def _values(segment: Graph, batch: Batch, seed: int) -> Values:
    """Something for what the segment reads from earlier ones."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(
            (len(batch.logit_rows) if shape.selected else batch.rows, shape.width)
        ).astype(np.float32)
        for name, shape in input_shapes(segment).items()
    }
