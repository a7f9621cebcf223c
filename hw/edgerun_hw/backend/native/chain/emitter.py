"""Emits chains: on the overlay, or in its stead on the processor with the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.graph.ir import Graph, Node
from edgerun_hw.backend.matrix import integers_of
from edgerun_hw.backend.native.chain import words
from edgerun_hw.backend.native.chain.memory import ChainMemory
from edgerun_hw.backend.native.chain.search import Chain
from edgerun_hw.backend.native.placement import packed_weight
from edgerun_hw.backend.native.request import COMMON_WORDS
from edgerun_hw.backend.native.workspace import Workspace, append, argument_block
from edgerun_hw.overlay.command import Capabilities

Words = dict[int, int]


def queueing(
    chains: Sequence[Chain], memory: ChainMemory, workspace: Workspace, can: Capabilities
) -> Emitter:
    """An emitter of chains that queues them on the overlay."""
    # Compiles for ten seconds what no overlay without the unit has a use for.
    from edgerun_hw.backend.native.chain.code import queue_chain

    values = memory.values
    place = {
        **workspace.common_words(can),
        words.MEMORY: values.array.ctypes.data,
        words.ADDRESS: values.address,
        words.FIRST: values.span[0],
        words.DEPTH: can.queue_depth,
    }

    def emit(binder: Binder, node: Node, index: int) -> None:
        chain = _chain_of(chains, node)
        binder.keep += [memory, workspace]
        arguments, reads, writes = _arguments(binder, chain, chains, memory, place, ())
        append(binder, queue_chain, arguments, ONE, reads, {*writes, "overlay"}, node.name)

    return Emitter(emit)


def computing(chains: Sequence[Chain], memory: ChainMemory, segment: Graph) -> Emitter:
    """An emitter of chains that computes them by the definition, in memory of the processor's."""
    from edgerun_hw.backend.native.chain.code import compute_chain

    values = np.zeros(memory.layout.nbytes + 64, np.uint8)
    start = -values.ctypes.data % 64
    values = values[start : start + memory.layout.nbytes]
    memory.write_constants(chains[0], values)
    place = {
        **dict.fromkeys(range(COMMON_WORDS), 0),
        words.MEMORY: values.ctypes.data,
        words.ADDRESS: 0,
        words.FIRST: 0,
        words.DEPTH: 0,
    }

    def emit(binder: Binder, node: Node, index: int) -> None:
        chain = _chain_of(chains, node)
        integers = [_integers(segment, group.nodes) for group in chain.matrices]
        binder.keep += [memory, values, integers]
        arguments, reads, writes = _arguments(binder, chain, chains, memory, place, integers)
        append(binder, compute_chain, arguments, ONE, reads, {*writes, "chain"}, node.name)

    return Emitter(emit)


def _chain_of(chains: Sequence[Chain], node: Node) -> Chain:
    return next(chain for chain in chains if chain.result == node.outputs[-1])


def _integers(segment: Graph, nodes: Sequence[Node]) -> NDArray[np.int8]:
    weights = [packed_weight(segment, node) for node in nodes]
    rows = [integers_of(weight, 0, weight.shape[0]) for weight in weights]
    return np.ascontiguousarray(np.concatenate(rows).astype(np.int8))


def _arguments(
    binder: Binder,
    chain: Chain,
    chains: Sequence[Chain],
    memory: ChainMemory,
    place: Words,
    integers: Sequence[NDArray[np.int8]],
) -> tuple[NDArray[np.int64], set[str], set[str]]:
    """The argument block, and the buffers that are read and written."""
    layout, at = memory.layout, binder.values
    counted_by = binder.counted_by[chain.row]
    commands = memory.commands(chain, integers)
    row, reads, writes = at[chain.row], {at[chain.row].key}, set[str]()
    begins, ends = chain is chains[0], chain is chains[-1]
    residual = at[chain.residual].array.ctypes.data if begins else 0
    if begins:
        reads.add(at[chain.residual].key)

    def new(name: str, width: int) -> int:
        buffer = binder.new(name, width, counted_by)
        writes.add(buffer.key)
        return int(buffer.array.ctypes.data)

    outputs = np.zeros((len(chain.outputs), words.OUTPUT_WORDS), np.int64)
    first = 0
    for line, name, node in zip(
        outputs, chain.outputs, chain.matrices[3].nodes if chain.outputs else (), strict=True
    ):
        rows = packed_weight(binder.graph, node).shape[0]
        line[:] = first, rows, new(name, rows)
        first += rows
    # It stays on the device but for whoever reads it behind the last chain.
    result = new(chain.result, chain.sizes[1])
    binder.keep += [commands, outputs]
    block = {
        **place,
        words.NBYTES: layout.nbytes,
        words.COMMANDS: commands.ctypes.data,
        words.COUNT: len(commands),
        words.ROW: row.array.ctypes.data,
        words.ROW_AT: layout.row,
        words.ROW_COUNT: chain.sizes[0],
        words.RESIDUAL_IN: residual,
        words.RESIDUAL_OUT: result if ends else 0,
        words.RESIDUAL_AT: layout.residual,
        words.RESIDUAL_COUNT: chain.sizes[1],
        words.OUTPUTS: outputs.ctypes.data,
        words.OUTPUT_COUNT: len(outputs),
        words.LAST_AT: layout.last,
        words.LAST_COUNT: first,
        words.SCALE_AT: layout.scale,
        words.CHECKS: memory.checks.ctypes.data,
        words.SCRATCH: memory.scratch.ctypes.data,
    }
    return argument_block(block), reads, writes
