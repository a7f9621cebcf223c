"""Where a chain's values lie, and what it needs besides: one memory for all chains of a program.

Every scale lies before the constants of the command that reads it, and these before its row, so
that no command waits for the host. In beats of 16 bytes::

    1.0 | constants | attention's row
    codes for o, or for down | their scale
        constants | the residual | codes of its norm | their scale
        constants | gate | up
    what o or down gives
    queries, keys and values
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.graph.ir import Graph
from edgerun.graph.mapped_file import read_array
from edgerun_hw.backend.matrix import DeviceMatrix
from edgerun_hw.backend.native.chain import words
from edgerun_hw.backend.native.chain.search import Chain, Norm
from edgerun_hw.devices.native.memory import ContiguousBuffer
from edgerun_hw.devices.native.port import NativePort
from edgerun_hw.overlay.command import TERNARY_TILE, Capabilities, Command, expected_cycles, sizes
from edgerun_hw.overlay.glue import Constants, Gate
from edgerun_hw.overlay.glue_layout import pack_constants, split_norm
from edgerun_hw.overlay.packing import pack_scales
from edgerun_hw.overlay.register_map import BEAT_BYTES, PORT_ROWS

LINE_BYTES = 64
F32 = NDArray[np.float32]
LARGEST_CHECKED = 1 << 22  # of sums that are known from their scaled float32


def _codes(count: int) -> int:
    return -(-count // TERNARY_TILE)


def _lines(nbytes: int) -> int:
    return -(-nbytes // LINE_BYTES) * LINE_BYTES


@dataclass(frozen=True)
class Layout:
    """Offsets in the memory, in bytes.

    Attributes:
        row: attention's, behind its constants.
        slot: of the scale of what ``o`` or ``down`` multiplies; its codes end there.
        residual: behind its constants.
        codes: of the residual's norm, behind it.
        scale: theirs.
        gate: what gate and up give, behind its constants.
        up: its second half.
        added: what ``o`` or ``down`` gives.
        last: queries, keys and values.
        nbytes: of all.
    """

    row: int
    slot: int
    residual: int
    codes: int
    scale: int
    gate: int
    up: int
    added: int
    last: int
    nbytes: int

    @classmethod
    def of(cls, chains: Sequence[Chain]) -> Layout:
        """The layout of chains that are alike."""
        attended, width, hidden = chains[0].sizes
        row = 2 * BEAT_BYTES
        # In front of a slot at the end of a line, so that the residual begins a line.
        slot = _lines(row + 4 * attended + BEAT_BYTES * (_codes(max(attended, hidden)) + 2))
        slot -= 2 * BEAT_BYTES
        residual = slot + 2 * BEAT_BYTES
        codes = residual + 4 * width
        scale = codes + BEAT_BYTES * _codes(width)
        gate = scale + 2 * BEAT_BYTES
        added = _lines(gate + _results(chains, 1))
        last = _lines(added + max(_results(chains, 0), _results(chains, 2)))
        nbytes = _lines(last + _results(chains, 3))
        return cls(row, slot, residual, codes, scale, gate, gate + 4 * hidden, added, last, nbytes)


def _results(chains: Sequence[Chain], number: int) -> int:
    """Bytes of results of the chains' matrices of one kind, with what fills up row beats."""
    most = 0
    for chain in chains:
        for group in chain.matrices[number : number + 1]:
            piece = group.matrix.pieces[-1]
            rows = PORT_ROWS * len(piece.weights) * piece.row_beats
            most = max(most, 4 * (piece.first + rows) + BEAT_BYTES)
    return most


class ChainMemory:
    """Memory of the device for the chains of a program: values, scales, the norms' weights.

    Attributes:
        layout: of ``values``.
        values: where chains work.
        scratch: of the processor's, as large: for what is computed again.
        checks: int64 ``[CHECK_WORDS]``.
    """

    def __init__(
        self, segment: Graph, chains: Sequence[Chain], port: NativePort, ports: int
    ) -> None:
        """Writes what does not change.

        Raises:
            MemoryError: the device has no room for it.
        """
        self.layout = Layout.of(chains)
        self.scratch = np.zeros(self.layout.nbytes, np.uint8)
        self.checks = np.zeros(words.CHECK_WORDS, np.int64)
        self._ports, self._buffers = ports, list[ContiguousBuffer]()
        self._norms: dict[str, tuple[F32, tuple[int, ...]]] = {}
        self._scales: dict[tuple[int, int], tuple[F32, int]] = {}
        try:
            self.values = self._allocated(port, self.layout.nbytes)
            for chain in chains:
                self._place(segment, chain, port)
        except BaseException:
            self.free()
            raise
        self.write_constants(chains[0], self.values.array)
        self.values.flush()

    def free(self) -> None:
        """Gives the device's memory back."""
        while self._buffers:
            self._buffers.pop().free()

    def write_constants(self, chain: Chain, memory: NDArray[np.uint8]) -> None:
        """Writes what no command writes into a memory of the layout."""
        attended, width, hidden = chain.sizes
        layout, norms = self.layout, chain.norms
        floats = memory.view(np.float32)
        for at, count, norm in (
            (layout.row, attended, norms[0]),
            (layout.residual, width, norms[1]),
            (layout.gate, hidden, norms[2]),
        ):
            epsilon = None if norm is None else norm.epsilon
            packed = pack_constants(Constants.make(count, epsilon=epsilon))
            floats[at // 4 - packed.size : at // 4] = packed

    def commands(
        self, chain: Chain, integers: Sequence[NDArray[np.int8]] = ()
    ) -> NDArray[np.int64]:
        """Words of a chain's commands, int64 ``[commands, COMMAND_WORDS]``.

        Args:
            chain: which one.
            integers: of its matrices, where they are to be computed.
        """
        at, (attended, width, hidden) = self.layout, chain.sizes
        codes_a = at.slot - BEAT_BYTES * _codes(attended)
        codes_c = at.slot - BEAT_BYTES * _codes(hidden)
        glue, norms, header = self._glue, chain.norms, 2 * BEAT_BYTES
        residual = at.residual - header, at.residual
        table = [glue(Gate.NONE, norms[0], attended, at.row - header, codes_a, 0)]
        table += self._products(chain, 0, codes_a, at.added, integers)
        table.append(glue(Gate.RESIDUAL, norms[1], width, *residual, at.added))
        table += self._products(chain, 1, at.codes, at.gate, integers)
        table.append(glue(chain.gate, norms[2], hidden, at.gate - header, codes_c, at.up))
        table += self._products(chain, 2, codes_c, at.added, integers)
        table.append(glue(Gate.RESIDUAL, norms[3], width, *residual, at.added))
        if len(chain.matrices) > 3:
            table += self._products(chain, 3, at.codes, at.last, integers)
        return np.array(table, np.int64)

    def _allocated(self, port: NativePort, nbytes: int) -> ContiguousBuffer:
        self._buffers.append(port.allocate(nbytes))
        return self._buffers[-1]

    def _place(self, segment: Graph, chain: Chain, port: NativePort) -> None:
        """Writes the norms' weights and the matrices' scales, all in one stretch a chain."""
        parts: list[NDArray[np.uint8]] = []
        norms = {norm.weight: norm for norm in chain.norms if norm is not None}
        weights = {
            name: np.ascontiguousarray(read_array(segment.array(name)), np.float32)
            for name in norms
            if name not in self._norms
        }
        for weight in weights.values():
            parts += split_norm(weight, self._ports)
        pieces = [
            (group.matrix, number, piece)
            for group in chain.matrices
            for number, piece in enumerate(group.matrix.pieces)
        ]
        scales = [
            pack_scales(matrix.scales[piece.first : piece.first + piece.rows, 0], self._ports)
            for matrix, _, piece in pieces
        ]
        parts += [part.view(np.uint8) for part in scales]
        sizes_ = [_lines(part.size) for part in parts]
        buffer = self._allocated(port, max(1, sum(sizes_)))
        starts = np.cumsum([0, *sizes_])
        for start, part in zip(starts[:-1], parts, strict=True):
            buffer.array[start : start + part.size] = part
        buffer.flush()
        addresses = [buffer.address + int(start) for start in starts[:-1]]
        for name, weight in weights.items():
            self._norms[name] = weight, tuple(addresses[: self._ports])
            addresses = addresses[self._ports :]
        for (matrix, number, _), scale, address in zip(pieces, scales, addresses, strict=True):
            self._scales[id(matrix), number] = scale, address

    def _glue(
        self, gate: Gate, norm: Norm | None, count: int, x: int, y: int, second: int
    ) -> list[int]:
        weight, places = (None, ()) if norm is None else self._norms[norm.weight]
        places = places or (self.values.address,) * self._ports
        command = Command(
            0,
            0,
            places,
            _codes(count),
            count,
            glue=True,
            gate=gate,
            norm=norm is not None,
            after=True,
            scales=0 if gate else None,
        )
        line = self._words(command, x, y)
        line[words.S_AT] = second
        line[words.Y_BYTES] = sizes(command, self._ports * PORT_ROWS).y
        line[words.NORM] = 0 if weight is None else weight.ctypes.data
        return line

    def _products(
        self, chain: Chain, number: int, x: int, y: int, integers: Sequence[NDArray[np.int8]]
    ) -> list[list[int]]:
        matrix = chain.matrices[number].matrix
        lines = []
        for place, piece in enumerate(matrix.pieces):
            scales, address = self._scales[id(matrix), place]
            command = Command(
                0, 0, piece.weights, piece.row_beats, piece.tiles, scales=address, after=place == 0
            )
            line = self._words(command, x, y + 4 * piece.first)
            line[words.S_ADDRESS] = address
            line[words.ROWS], line[words.K] = piece.rows, matrix.cut.shape[1]
            line[words.SCALES] = scales.ctypes.data
            if _can_be_checked(matrix, scales[: piece.rows]):
                line[words.SUMS] = piece.sums.ctypes.data
            if integers:
                rows = integers[number][piece.first : piece.first + piece.rows]
                line[words.INTEGERS] = rows.ctypes.data
            lines.append(line)
        return lines

    def _words(self, command: Command, x: int, y: int) -> list[int]:
        line = [0] * words.COMMAND_WORDS
        line[words.MODE], line[words.X], line[words.Y] = command.mode_word, x, y
        line[words.BEATS], line[words.TILES] = command.row_beats, command.tiles
        line[words.CYCLES] = expected_cycles(command, self._ports * PORT_ROWS)
        line[words.WEIGHTS : words.WEIGHTS + self._ports] = command.weights
        return line


def _can_be_checked(matrix: DeviceMatrix, scales: F32) -> bool:
    """Whether sums are known from what they are scaled to."""
    ordinary = np.isfinite(scales) & (np.abs(scales) > 1e-30)
    return bool(ordinary.all()) and 127 * matrix.cut.shape[1] < LARGEST_CHECKED


def chain_capable(can: Capabilities) -> bool:
    """Whether an overlay can run chains."""
    return can.glue and can.row_scale and can.ternary
