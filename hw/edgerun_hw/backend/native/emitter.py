"""Emits linear layers as instructions that multiply on the overlay.

An output head with a screen is emitted twice: whole, and as its screen with what multiplies exactly
what that cannot exclude. Words of the frame say which of them does something in a run.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, Binder, Rounded, Rounding
from edgerun.backends.cpu.buffers import Buffer as ProgramBuffer
from edgerun.backends.cpu.emit.emitter import Emitter
from edgerun.backends.cpu.emit.linear import EMITTER, emit_rounding
from edgerun.graph.ir import Node
from edgerun_hw.backend.native import multiply as code
from edgerun_hw.backend.native import rescore
from edgerun_hw.backend.native.placement import Placed, packed_weight
from edgerun_hw.backend.native.workspace import (
    ADJUSTMENT_WORDS,
    SCREENED_HEAD,
    WHOLE_HEAD,
    ScreenedHead,
    Workspace,
    append,
    argument_block,
)
from edgerun_hw.overlay.command import Capabilities, expected_cycles
from edgerun_hw.overlay.packing import LookupMode

NO_OUTPUT = 0


def fabric_emitter(
    placed: Mapping[str, Placed], workspace: Workspace, capabilities: Capabilities
) -> Emitter:
    """An emitter of linear layers; those that are not on the device are left to the CPU's.

    Args:
        placed: those on the device, by their outputs.
        workspace: of the program.
        capabilities: of the overlay.
    """

    def emit(binder: Binder, node: Node, index: int) -> None:
        group = placed.get(node.outputs[0])
        if group is None:
            EMITTER.emit(binder, node, index)
        elif group.nodes[0] is node and group.screen is None:
            _Emission(binder, group, workspace, capabilities).emit(index)
        elif group.nodes[0] is node:
            _emit_head(binder, group, workspace, capabilities)

    def rounding(binder: Binder, node: Node) -> Rounding | None:
        group = placed.get(node.outputs[0])
        if group is None:
            return EMITTER.rounding(binder, node)
        return None if group.screen else _rounding(group)  # a screened head reads two forms

    return Emitter(emit, EMITTER.supports, EMITTER.cost, rounding)


def _rounding(group: Placed) -> Rounding:
    """The form in which the overlay reads activations: as the CPU's kernels round them."""
    K, block = group.matrix.cut.shape[1], group.block
    if block:
        return Rounding("quantize_block", block, -(-K // block) * block)
    return Rounding("quantize_row", 0, K)


def _emit_head(
    binder: Binder, group: Placed, workspace: Workspace, capabilities: Capabilities
) -> None:
    """Emits a head whole and as a screen, both into the same logits."""
    assert group.screen is not None
    screen, matrix = group.screen
    node = group.nodes[0]
    out = binder.new(node.outputs[0], screen.weight.shape[0], binder.counted_by[node.inputs[0]])
    whole = _Emission(binder, group, workspace, capabilities)
    exact = whole.product(_words(out), {out.key}, WHOLE_HEAD)
    products = binder.pool.take(out.width)
    by_screen = _Emission(binder, Placed(group.nodes, matrix, 0), workspace, capabilities)
    rounded = by_screen.product(_words(products), {products.key}, SCREENED_HEAD)
    weight = packed_weight(binder.graph, node)
    adjustments = np.zeros((binder.shape.rows, ADJUSTMENT_WORDS), np.int64)
    workspace.heads.append(ScreenedHead(binder.frame, adjustments))
    w_codes = np.ascontiguousarray(weight.codes)
    w_scales = np.ascontiguousarray(weight.scales, np.float32)
    count = binder.count(binder.counted_by[node.inputs[0]])
    words = {
        rescore.STATE: workspace.state.ctypes.data,
        rescore.ROWS: count.ctypes.data,
        rescore.N: out.width,
        rescore.K: weight.shape[1],
        rescore.BLOCK: weight.block,
        rescore.CODES: exact.codes.array.ctypes.data,
        rescore.CODES_STRIDE: exact.codes.stride,
        rescore.X_SCALES: _scales(exact).array.ctypes.data,
        rescore.X_BLOCKS: exact.blocks,
        rescore.SCREEN_CODES: rounded.codes.array.ctypes.data,
        rescore.SCREEN_STRIDE: rounded.codes.stride,
        rescore.SCREEN_SCALES: _scales(rounded).array.ctypes.data,
        rescore.SCREENED: products.array.ctypes.data,
        rescore.SCREENED_STRIDE: products.stride,
        rescore.WEIGHTS: w_codes.ctypes.data,
        rescore.WEIGHTS_STRIDE: w_codes[0].nbytes,
        rescore.W_SCALES: w_scales.ctypes.data,
        rescore.W_BLOCKS: w_scales.shape[1],
        rescore.ERRORS: screen.errors.ctypes.data,
        rescore.NORMS: screen.norms.ctypes.data,
        rescore.OUT: out.array.ctypes.data,
        rescore.OUT_STRIDE: out.stride,
        rescore.COUNTS: workspace.screened.ctypes.data,
        rescore.ADJUSTMENTS: adjustments.ctypes.data,
    }
    binder.keep += [screen, w_codes, w_scales]
    reads = exact.keys() | rounded.keys() | {products.key}
    append(
        binder, rescore.rescore, argument_block(words), SCREENED_HEAD, reads, {out.key}, node.name
    )
    binder.pool.give(products)


def _words(out: ProgramBuffer) -> NDArray[np.int64]:
    """An output that is all of a matrix, with nothing added."""
    words = np.zeros((1, code.OUTPUT_WORDS), np.int64)
    words[0, code.O_ROWS] = out.width
    words[0, code.O_OUT], words[0, code.O_STRIDE] = out.array.ctypes.data, out.stride
    return words


class _Emission:
    """One instruction while it is emitted."""

    def __init__(
        self, binder: Binder, group: Placed, workspace: Workspace, capabilities: Capabilities
    ) -> None:
        self._binder, self._group = binder, group
        self._workspace, self._can = workspace, capabilities
        self._reads: set[str] = set()
        self._writes: set[str] = set()

    def emit(self, index: int) -> None:
        """Emits the rounding, unless it is there already, and the product."""
        first = self._group.nodes[0]
        counted_by = self._binder.counted_by[first.inputs[0]]
        emit_rounding(self._binder, first.inputs[0], _rounding(self._group), first)
        outputs = np.array([self._output(node, index) for node in self._group.nodes], np.int64)
        outputs[:, code.O_FIRST] = np.cumsum([0, *outputs[:-1, code.O_ROWS]])
        self.product(outputs, self._writes, ANY_LOGITS if counted_by == LOGIT_ROWS else ONE)

    def product(self, outputs: NDArray[np.int64], writes: set[str], size: int) -> Rounded:
        """Emits the rounding, unless it is there already, and the product into given outputs.

        Args:
            outputs: int64 ``[count, OUTPUT_WORDS]``.
            writes: keys of their buffers.
            size: word of the frame that is 0 if nothing is to be multiplied.

        Returns:
            The activations as the overlay reads them.
        """
        binder, first = self._binder, self._group.nodes[0]
        source = first.inputs[0]
        rounded = emit_rounding(binder, source, _rounding(self._group), first)
        arguments = self._arguments(rounded, outputs, binder.count(binder.counted_by[source]))
        reads = self._reads | rounded.keys()
        append(binder, code.multiply, arguments, size, reads, {*writes, "overlay"}, first.name)
        return rounded

    def _output(self, node: Node, index: int) -> list[int]:
        """Words of an output; a residual that ends here is added to in place."""
        binder, name = self._binder, node.outputs[0]
        _, weight, bias, residual = (*node.inputs, "", "")[:4]
        rows = binder.graph.matrix(weight).shape[0]
        added = binder.values[residual] if residual else None
        in_place = bool(residual) and binder.dies_at(residual, index)
        if in_place and self._group.matrix.cut.blocks == 1:
            out = binder.rename(residual, name)
        else:
            out = binder.new(name, rows, binder.counted_by[node.inputs[0]])
        vector = binder.vector(bias) if bias else None
        binder.keep.append(vector)
        self._writes.add(out.key)
        self._reads |= {added.key} if added is not None else set()
        words = [0] * code.OUTPUT_WORDS
        words[code.O_ROWS] = rows
        words[code.O_OUT], words[code.O_STRIDE] = out.array.ctypes.data, out.stride
        words[code.O_BIAS] = NO_OUTPUT if vector is None else vector.ctypes.data
        words[code.O_RESIDUAL] = NO_OUTPUT if added is None else added.array.ctypes.data
        words[code.O_RESIDUAL_STRIDE] = 0 if added is None else added.stride
        return words

    def _arguments(
        self, rounded: Rounded, outputs: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The argument block."""
        matrix, can, workspace = self._group.matrix, self._can, self._workspace
        cut, codes, scales = matrix.cut, rounded.codes, _scales(rounded)
        pieces, w_scales = self._pieces(), np.ascontiguousarray(matrix.scales)
        results = workspace.result_words()
        self._binder.keep += [pieces, results, outputs, matrix, workspace, w_scales]
        words = {
            **workspace.common_words(can),
            code.ROWS: rows.ctypes.data,
            code.CODES: codes.array.ctypes.data,
            code.CODES_STRIDE: codes.stride,
            code.X_SCALES: scales.array.ctypes.data,
            code.X_BLOCKS: rounded.blocks,
            code.COLUMNS: can.columns,
            code.DEPTH: len(workspace.results),
            code.MULTIPLES: int(cut.mode is LookupMode.MULTIPLES),
            code.DIGITS: cut.digits,
            code.BLOCK: cut.block,
            code.K: cut.shape[1],
            code.W_SCALES: w_scales.ctypes.data,
            code.W_BLOCKS: w_scales.shape[1],
            code.PIECES: pieces.ctypes.data,
            code.PIECE_COUNT: len(pieces),
            code.X_MEMORY: workspace.x.array.ctypes.data,
            code.X_ADDRESS: workspace.x.address,
            code.X_FIRST: workspace.x.span[0],
            code.X_BYTES: workspace.x.array.nbytes,
            code.RESULTS: results.ctypes.data,
            code.OUTPUTS: outputs.ctypes.data,
            code.OUTPUT_COUNT: len(outputs),
        }
        return argument_block(words)

    def _pieces(self) -> NDArray[np.int64]:
        """Words of the matrix's pieces, int64 ``[pieces, PIECE_WORDS]``."""
        matrix, can = self._group.matrix, self._can
        pieces: NDArray[np.int64] = np.zeros((len(matrix.pieces), code.PIECE_WORDS), np.int64)
        for words, piece in zip(pieces, matrix.pieces, strict=True):
            command = matrix.command(piece, can.columns, 0, 0)
            words[code.P_BLOCK], words[code.P_FIRST] = piece.block, piece.first
            words[code.P_ROWS], words[code.P_BEATS] = piece.rows, piece.row_beats
            words[code.P_TILES], words[code.P_SUMS] = piece.tiles, piece.sums.ctypes.data
            words[code.P_CYCLES] = expected_cycles(command, can.rows_per_beat)
            words[code.P_WEIGHTS : code.P_WEIGHTS + can.ports] = piece.weights
        return pieces


def _scales(rounded: Rounded) -> ProgramBuffer:
    assert rounded.scales is not None
    return rounded.scales
