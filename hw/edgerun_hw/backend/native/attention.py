"""Attention layers as instructions of a program that drive the overlay's attention unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.base import Values
from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, ROWS, Binder
from edgerun.backends.cpu.buffers import Buffer
from edgerun.backends.cpu.emit.attention import EMITTER, emit_write, patch_cache, state_of
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Graph, Node
from edgerun.kernels.attention.units import CACHE
from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import State, attention_of
from edgerun_hw.backend.attention import obstacle
from edgerun_hw.backend.native import attention_words as words
from edgerun_hw.backend.native.attend import attend
from edgerun_hw.backend.native.sequence_copy import COPY_WORDS, SequenceCopy
from edgerun_hw.backend.native.workspace import Workspace, append, argument_block
from edgerun_hw.backend.native.write_rows import write_rows
from edgerun_hw.backend.session import Session
from edgerun_hw.overlay.attention import MAX_TOKENS
from edgerun_hw.overlay.attention_layout import KvLayout
from edgerun_hw.overlay.command import RESULT_BYTES, Capabilities
from edgerun_hw.overlay.register_map import BEAT_BYTES

LINE_BYTES = 64  # of a cache; two commands' queries share none


def attending(segment: Graph, states: tuple[State, ...], can: Capabilities) -> list[Node]:
    """The attention layers of a segment that the overlay can run."""
    nodes = []
    for node in segment.nodes:
        if node.op == "attention":
            state = attention_of(states, node.attrs["layer"])
            if state is not None and not obstacle(node, state.codec, can.attention):
                nodes.append(node)
    return nodes


def layout_of(node: Node) -> KvLayout:
    """How a layer's keys and values lie on the device."""
    return KvLayout(node.attrs["num_kv_heads"], node.attrs["head_dim"])


def query_bytes(node: Node, can: Capabilities) -> int:
    """Bytes of a command's queries, in whole lines of a cache."""
    layout = layout_of(node)
    nbytes = can.attention * layout.kv_heads * layout.query_beats * BEAT_BYTES
    return -(-nbytes // LINE_BYTES) * LINE_BYTES


def output_bytes(node: Node, can: Capabilities) -> int:
    """Bytes of a command's results."""
    layout = layout_of(node)
    return RESULT_BYTES * can.attention * layout.kv_heads * layout.head_dim


@dataclass(frozen=True)
class AttentionLayers:
    """The layers of a program that attend on the device, and what it has of their sequences.

    Attributes:
        nodes: the layers.
        copies: int64 ``[layers, rows, COPY_WORDS]``: for each run of rows of one sequence.
        checks: int64 ``[CHECK_WORDS]``: how often results were computed again.
    """

    nodes: tuple[Node, ...]
    copies: NDArray[np.int64]
    checks: NDArray[np.int64]

    @classmethod
    def of(cls, nodes: list[Node], rows: int) -> AttentionLayers:
        """Layers of a program of so many rows."""
        copies = np.zeros((len(nodes), rows, COPY_WORDS), np.int64)
        return cls(tuple(nodes), copies, np.zeros(words.CHECK_WORDS, np.int64))

    def fit(self, batch: Batch) -> bool:
        """Whether the unit's numbers are wide enough for the contexts of a batch."""
        return int(batch.positions.max()) < MAX_TOKENS

    def attend(
        self,
        session: Session,
        batch: Batch,
        cache: SequenceStore,
        run: Callable[[], Values],
    ) -> Values:
        """Runs the program of a batch, and remembers then that its keys and values were copied.

        Raises:
            MemoryError: the device has no room for them.
        """
        assert session.native is not None  # else there were no native program
        port, copies = session.native[1], []
        for number, (start, stop) in enumerate(batch.runs()):
            copy = self._copy(session, int(batch.sequences[start]), cache)
            end = int(batch.positions[stop - 1]) + 1
            try:
                copy.begin(port, cache, end)
            except MemoryError:
                if not session.forget_copies(batch.sequences):
                    raise
                copy.begin(port, cache, end)
            self.copies[:, number] = copy.words
            copies.append(copy)
        outputs = run()
        self.checks[words.K_RUNS] += 1  # now: a batch that is run again is checked alike
        for copy in copies:
            copy.complete()
        return outputs

    def _copy(self, session: Session, slot: int, cache: SequenceStore) -> SequenceCopy:
        key = tuple(node.name for node in self.nodes), slot
        if key not in session.sequence_copies:
            layouts = [layout_of(node) for node in self.nodes]
            session.sequence_copies[key] = SequenceCopy(layouts, slot)
        return session.sequence_copies[key]


def attention_emitter(
    layers: AttentionLayers, workspace: Workspace, capabilities: Capabilities
) -> Emitter:
    """An emitter of attention; layers that are not on the device are left to the CPU's."""
    places = {node.outputs[0]: place for place, node in enumerate(layers.nodes)}

    def emit(binder: Binder, node: Node, index: int) -> None:
        place = places.get(node.outputs[0])
        if place is None:
            EMITTER.emit(binder, node, index)
            return
        _emit(binder, node, layers, place, workspace, capabilities)

    return Emitter(emit, EMITTER.supports, EMITTER.cost)


def _emit(
    binder: Binder,
    node: Node,
    layers: AttentionLayers,
    place: int,
    workspace: Workspace,
    can: Capabilities,
) -> None:
    """Emits writing into the cache, copying to the device, and attention."""
    attrs, q = node.attrs, binder.values[node.inputs[0]]
    counted_by = binder.counted_by[node.inputs[0]]
    cached, copied = f"cache{attrs['layer']}", f"copy{attrs['layer']}"
    emit_write(binder, node, cached)
    out = binder.new(node.outputs[0], attrs["num_heads"] * attrs["head_dim"], counted_by)
    bounds = np.zeros((len(workspace.results), can.attention, attrs["num_kv_heads"]), np.float32)
    expected = np.zeros((len(workspace.results), attrs["head_dim"]), np.float32)
    scale = np.array([attrs["scale"]], np.float32)
    results = workspace.result_words()
    positions, sequences = binder.rows_of(counted_by)
    binder.keep += [bounds, expected, scale, results, layers, workspace]
    block = {
        **workspace.common_words(can),
        words.ROWS: binder.count(ROWS).ctypes.data,
        words.SEQUENCES: binder.sequences.ctypes.data,
        words.QUERY_ROWS: binder.count(counted_by).ctypes.data,
        words.QUERY_POSITIONS: positions.ctypes.data,
        words.QUERY_SEQUENCES: sequences.ctypes.data,
        words.COPIES: layers.copies[place].ctypes.data,
        words.KV_HEADS: attrs["num_kv_heads"],
        words.HEAD_DIM: attrs["head_dim"],
        words.GROUP: attrs["num_heads"] // attrs["num_kv_heads"],
        words.WINDOW: attrs["window"],
        words.SCALE: scale.ctypes.data,
        **_places(q, out),
        words.X_MEMORY: workspace.x.array.ctypes.data,
        words.X_ADDRESS: workspace.x.address,
        words.X_FIRST: workspace.x.span[0],
        words.X_BYTES: query_bytes(node, can),
        words.MOST_QUERIES: can.attention,
        words.BOUNDS: bounds.ctypes.data,
        words.CHECKS: layers.checks.ctypes.data,
        words.EXPECTED: expected.ctypes.data,
        words.RESULTS: results.ctypes.data,
        words.DEPTH: len(results),
    }
    arguments = argument_block(
        block | {words.CACHE_WORDS + place: 0 for place in range(len(CACHE))}
    )
    fields = ("",) * words.CACHE_WORDS + CACHE
    patch_cache(binder, arguments, fields, state_of(binder, node))
    append(binder, write_rows, arguments, ONE, {cached}, {copied, "overlay"}, f"{node.name}/copy")
    size = ANY_LOGITS if counted_by == LOGIT_ROWS else ONE
    append(binder, attend, arguments, size, {q.key, copied}, {out.key, "overlay"}, node.name)


def _places(q: Buffer, out: Buffer) -> Mapping[int, int]:
    return {
        words.Q: q.array.ctypes.data,
        words.Q_STRIDE: q.stride,
        words.OUT: out.array.ctypes.data,
        words.OUT_STRIDE: out.stride,
    }
