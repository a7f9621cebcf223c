"""The stream layout: how low-bit weights lie in memory while they are multiplied.

Rows are taken a panel at a time: as many as a vector has dwords. A vector of ``lanes`` bytes
holds a dword of each row of the panel: byte i of the dword has weights i, i + 4, i + 8, ... of
those that the vector stands for, in ascending bits, so that unpacking needs a shift and a mask
and no shuffle, and gives four consecutive weights of every row. The vectors of a panel follow
one another along K, then the next panel. One broadcast of four activations multiplies a panel,
and sums of a row stay in one lane.

Kernels take panels from a few places far apart: several streams reach the bandwidth of the
memory, one alone does not (27 against 19 GB/s on one Zen 3 core). Rows and K are padded: rows with
scale zero, K with any code, because the activations there are zero.

Zero points of blocks lie among the scales: for every ``32 // bits`` blocks a vector of dwords, in
front of their scales, in which each row has them packed as in the bundle. Scales may be float16,
those of two blocks in a vector. An offset lies beside its scale, in the upper half of the dword
whose lower one then has the scale, both float16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.formats.base import PackedWeight
from edgerun.kernels.host.cores import cores
from edgerun.kernels.host.huge_pages import zeroed_memory
from edgerun.kernels.jit.service import native
from edgerun.kernels.layouts.zero_kinds import (
    MIDDLE,
    NO_GAPS,
    OFFSETS,
    OWN,
    Gaps,
    has_own_vectors,
)

DWORD = 4
ROW_UNIT = 64  # of K: what loops over a row with one scale take at a time
LINE = 64
SLAB_ROWS = 256  # that a thread rearranges at a time
FLOAT_BITS = 32
PIECE_BYTES = 8 << 20  # of packed codes that are in memory at a time
SHARED_BYTES = 1 << 20  # of a matrix that several threads rearrange
Read: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


def _at_hand(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return rows


@dataclass(frozen=True, slots=True)
class StreamWeight:
    """A weight matrix in the stream layout.

    Attributes:
        codes: uint8 ``[panels, tiles, lanes]``; N is rounded up to whole panels.
        scales: float32 ``[panels, blocks, lanes / 4]``; ``blocks`` is 1 when a row has one scale.
            With zero points there are more vectors than blocks, with scales in half precision
            there are fewer.
        shape: ``(N, K)`` without padding.
        bits: of a code.
        block: weights that share a scale; the padded K when a row has one scale.
        lanes: bytes of a vector.
        ternary: whether all weights are -1, 0 or 1 times their scale.
        zeros: what zero points of blocks are (``zero_kinds.py``).
        halves: whether the memory of the scales holds float16.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    shape: tuple[int, int]
    bits: int
    block: int
    lanes: int
    ternary: bool
    zeros: int = MIDDLE
    halves: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.padded_k // self.block

    @property
    def tile(self) -> int:
        """Weights of one row in one vector."""
        return DWORD * 8 // self.bits

    @property
    def padded_k(self) -> int:
        """K rounded up to whole tiles."""
        return int(self.codes.shape[1]) * self.tile

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return self.codes.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True)
class Content:
    """What was noticed of a weight while it was rearranged.

    Attributes:
        ternary: all weights are -1, 0 or 1 times their scale.
        is_finite: no scale is infinite or no number.
    """

    ternary: bool
    is_finite: bool


@dataclass(frozen=True, slots=True)
class StreamForm:
    """Sizes of a weight in the stream layout, which need no weight to be known.

    Attributes:
        shape: ``(N, K)`` without padding.
        bits: of a code.
        block: weights that share a scale; the padded K when a row has one scale.
        lanes: bytes of a vector.
        tiles: vectors of a row.
        zeros: what zero points of blocks are (``zero_kinds.py``).
        halves: whether scales are float16.
    """

    shape: tuple[int, int]
    bits: int
    block: int
    lanes: int
    tiles: int
    zeros: int = MIDDLE
    halves: bool = False

    @classmethod
    def of(
        cls, packed: PackedWeight, lanes: int, *, row_scale: bool, halves: bool = False
    ) -> StreamForm:
        """The form of a packed weight; ``row_scale`` demands equal scales along each row.

        ``halves`` demands scales of blocks that float16 holds exactly, and no offsets.
        """
        tile, unit = DWORD * 8 // packed.bits, ROW_UNIT if row_scale else packed.block
        tiles = -(-packed.shape[1] // unit) * unit // tile
        block = tiles * tile if row_scale else packed.block
        own = MIDDLE if packed.zeros is None else OWN
        zeros = own if packed.offsets is None else OFFSETS
        return cls(packed.shape, packed.bits, block, lanes, tiles, zeros, halves)

    @property
    def codes_shape(self) -> tuple[int, int, int]:
        """``(panels, tiles, lanes)``."""
        return -(-self.shape[0] // (self.lanes // DWORD)), self.tiles, self.lanes

    @property
    def scales_shape(self) -> tuple[int, int, int]:
        """``(panels, blocks, lanes / 4)``; zero points of codes have vectors, two halves one."""
        vectors = -(-self._blocks // 2) if self.halves else self._blocks
        return self.codes_shape[0], vectors + self.words, self.lanes // DWORD

    @property
    def gaps(self) -> Gaps:
        """Vectors of zero points among those of the scales."""
        return Gaps.of(self.bits, self.halves) if has_own_vectors(self.zeros) else NO_GAPS

    @property
    def _blocks(self) -> int:
        return self.tiles * (DWORD * 8 // self.bits) // self.block

    @property
    def words(self) -> int:
        """Vectors with zero points of a panel."""
        return -(-self._blocks * self.bits // (DWORD * 8)) if has_own_vectors(self.zeros) else 0

    def fill(
        self,
        packed: PackedWeight,
        codes: NDArray[np.uint8],
        scales: NDArray[np.float32],
        read: Read = _at_hand,
        *,
        alone: bool = False,
    ) -> Content:
        """Rearranges a packed weight into memory, of which every byte is written.

        Args:
            packed: what ``of`` was given, or another like it.
            codes: of ``codes_shape``, on a cache line.
            scales: of ``scales_shape``, likewise.
            read: see ``to_stream``.
            alone: no other threads are to help.
        """
        numbers = np.ascontiguousarray(packed.scales, np.float32)
        # The scales first: ``read`` may use their memory for the codes.
        is_infinite = self._fill_scales(numbers, packed, scales, alone)
        rows = np.ascontiguousarray(packed.codes.reshape(packed.shape[0], -1))
        has_zero = _rearrange(rows, codes, packed.bits, read, alone)
        return Content(packed.bits == 2 and not has_zero, not is_infinite)

    def _fill_scales(
        self,
        numbers: NDArray[np.float32],
        packed: PackedWeight,
        scales: NDArray[np.float32],
        alone: bool,
    ) -> bool:
        """Rearranges scales and what belongs to them; whether one is infinite or no number."""
        panels, _, height = scales.shape
        words, gaps = numbers, self.gaps
        if self.zeros == OFFSETS:
            words = _with_offsets(numbers, packed)
        vectors, vector_gaps = scales, gaps
        if self.halves:
            vectors, vector_gaps = _empty_scales((panels, self._blocks, height)), NO_GAPS
        places = vectors.view(np.uint8).reshape(panels, -1, height * DWORD)
        is_infinite = _rearrange(
            words.view(np.uint8), places, FLOAT_BITS, _at_hand, alone, vector_gaps
        )
        if gaps is not NO_GAPS:
            assert packed.zeros is not None
            places = scales.view(np.uint8).reshape(panels, -1, height * DWORD)
            _place_zeros(packed.zeros, places, self.words, gaps)
        if self.halves:
            _store_halves(vectors, scales, gaps)
        if self.zeros == OFFSETS:  # words that may look like anything
            return not np.isfinite(numbers).all()
        return is_infinite

    def weight(
        self, codes: NDArray[np.uint8], scales: NDArray[np.float32], *, ternary: bool = False
    ) -> StreamWeight:
        """A weight of this form that lies in some memory."""
        shape, bits, block, lanes = self.shape, self.bits, self.block, self.lanes
        return StreamWeight(
            codes, scales, shape, bits, block, lanes, ternary, self.zeros, self.halves
        )


def to_stream(
    packed: PackedWeight,
    lanes: int,
    *,
    row_scale: bool,
    halves: bool = False,
    arena: Arena | None = None,
    read: Read = _at_hand,
) -> StreamWeight:
    """Rearranges a packed weight; see ``StreamForm.of``.

    The result lies in ``arena``, or in memory of its own. ``read`` brings some rows of packed
    codes into memory, where they must stay until its next call, so that no large matrix is in
    memory twice.
    """
    form = StreamForm.of(packed, lanes, row_scale=row_scale, halves=halves)
    arena = arena or Arena(piece=0)
    codes, scales = arena.zeros(form.codes_shape), _empty_scales(form.scales_shape)
    return form.weight(codes, scales, ternary=form.fill(packed, codes, scales, read).ternary)


def _with_offsets(scales: NDArray[np.float32], packed: PackedWeight) -> NDArray[np.float32]:
    """Scales of each row and their offsets, both in half precision, in dwords ``[N, blocks]``."""
    assert packed.offsets is not None
    pairs = np.stack([scales.astype(np.float16), packed.offsets.T], axis=-1)
    return pairs.view(np.float32).reshape(scales.shape)


def _store_halves(vectors: NDArray[np.float32], scales: NDArray[np.float32], gaps: Gaps) -> None:
    """Writes scales ``[panels, blocks, lanes / 4]`` to vectors of ``scales``, as float16.

    Vectors of zero points, each in front of the scales of its blocks, stay as they are.
    """
    panels, count, height = scales.shape
    halves = scales.view(np.float16).reshape(panels, 2 * count, height)
    halves[:, -1] = 0  # which an odd number of blocks leaves free
    at_once = 2 * gaps.group or vectors.shape[1]
    for first in range(0, vectors.shape[1], at_once):
        following = vectors[:, first : first + at_once]
        at = first + 2 * (gaps.group > 0) * (first // at_once + 1)
        halves[:, at : at + following.shape[1]] = following


def _place_zeros(
    zeros: NDArray[np.uint8], vectors: NDArray[np.uint8], words: int, gaps: Gaps
) -> None:
    """Writes zero points uint8 ``[N, bytes]`` to their vectors of uint8 ``[panels, n, lanes]``."""
    panels, count, lanes = vectors.shape
    rows, flags = np.ascontiguousarray(zeros), np.zeros(lanes, np.uint8)
    fields = [rows.ctypes.data, vectors.ctypes.data, *rows.shape]
    fields += [words, count, gaps.group, gaps.shift, panels, flags.ctypes.data]
    arguments = np.array(fields, np.int64)
    _native("repack_zeros", lanes=lanes)(arguments.ctypes.data, 0)


def _empty_scales(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Memory for float32 that starts on a cache line."""
    size = int(np.prod(shape)) * DWORD
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(np.float32).reshape(shape)


def _rearrange(
    rows: NDArray[np.uint8],
    vectors: NDArray[np.uint8],
    bits: int,
    read: Read,
    alone: bool,
    gaps: Gaps = NO_GAPS,
) -> bool:
    """Runs the ``repack`` kernel over all panels, on all cores unless ``alone``.

    Args:
        rows: uint8 ``[rows, row_bytes]``.
        vectors: uint8 ``[panels, vectors, lanes]``, on a cache line.
        bits: of a code; ``FLOAT_BITS`` for scales.
        read: see ``to_stream``.
        alone: no other threads are to help.
        gaps: vectors that are left alone.

    Returns:
        whether there is a code 0 of two bits, or a scale that is not finite.
    """
    panels, count, lanes = vectors.shape
    tiles = count - -(-count // (gaps.group + 1)) if gaps.group else count
    step = SLAB_ROWS * DWORD // lanes
    chunks = -(-panels // step)
    flags = np.zeros((chunks, lanes), np.uint8)
    fields = [0, vectors.ctypes.data, *rows.shape, tiles, count, gaps.group, gaps.shift, step]
    fields.append(flags.ctypes.data)
    assert fields[1] % lanes == 0
    arguments = np.array(fields, np.int64)
    function = _native("repack", bits=bits, lanes=lanes)
    at_once = max(1, PIECE_BYTES // (SLAB_ROWS * rows.shape[1]))
    for first in range(0, chunks, at_once):
        slabs = range(first, min(chunks, first + at_once))
        row = slabs.start * SLAB_ROWS
        piece = read(rows[row : slabs.stop * SLAB_ROWS])
        arguments[0] = piece.ctypes.data - row * rows.shape[1]  # where row 0 would lie
        on_all_cores(function, arguments, slabs, 0 if alone else rows.nbytes)
    return bool(flags.any())


@cache
def _native(kernel: str, **constants: int) -> Callable[[int, int], None]:
    """A kernel, looked up once: a fork in the middle of that would leave a lock behind."""
    return native(kernel, **constants)


def on_all_cores(
    function: Callable[[int, int], None],
    arguments: NDArray[np.int64],
    chunks: Iterable[int],
    nbytes: int,
) -> None:
    """Calls a kernel for every chunk, on as many threads as there are cores if that pays.

    ``nbytes`` is the size of the matrix: a small one is done before threads have started.
    """
    address = arguments.ctypes.data
    if nbytes < SHARED_BYTES:
        for chunk in chunks:
            function(address, chunk)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(cores().usable) as pool:
        list(pool.map(lambda chunk: function(address, chunk), chunks))


class Arena:
    """Zeroed memory for many matrices, on pages of 2 MiB where the system has them.

    With pages of 4 KiB a core that streams weights spends a sixth of its time on translation.
    Matrices lie one after the other, so that no more than the last page of a piece is wasted.
    """

    def __init__(self, piece: int = 64 << 20) -> None:
        """Makes an empty arena that grows by ``piece`` bytes, or more for a larger matrix."""
        self._piece = piece
        self._free: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def zeros(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """A zeroed uint8 array that starts on a cache line and keeps its memory alive."""
        size = int(np.prod(shape))
        room = -(-size // LINE) * LINE
        if room > len(self._free):
            self._free = zeroed_memory(max(room, self._piece))
        memory, self._free = self._free[:room], self._free[room:]
        return memory[:size].reshape(shape)
