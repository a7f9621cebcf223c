"""Multiplies quantised activations by matrices on the device, with many commands in flight.

The products of one call do not depend on one another (q, k and v; gate and up), so all their
commands go into the queue one after the other, and the host scales the results of the oldest while
the device works on the next. Arithmetic on the host follows the CPU back-end's kernels:

* one scale a row: ``(float32(sum) * x_scale) * w_scale``, the same bits;
* a scale per block of K: ``out += float32(sum) * (w_scale * x_scale)``, block by block in the order
  of K; the CPU's kernels add up other parts first, so the last bits may differ. The error is at
  most ``(blocks + 2) * 2**-24`` of the sum of magnitudes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.ops.linear import quantize_block, quantize_row
from edgerun_hw.backend.matrix import DeviceMatrix, Piece
from edgerun_hw.backend.scratch import Scratch
from edgerun_hw.overlay.errors import OverlayError
from edgerun_hw.overlay.packing import LookupMode, pack_activations, result_words
from edgerun_hw.overlay.port import Buffer, Overlay, Ticket

I8: TypeAlias = NDArray[np.int8]
I32: TypeAlias = NDArray[np.int32]
F32: TypeAlias = NDArray[np.float32]
WORD_BYTES = 4


class WrongResultError(OverlayError):
    """The device's sums are not what its weights and activations add up to."""


@dataclass(frozen=True)
class Quantised:
    """Activations as the device sees them.

    Attributes:
        codes: int8 ``[rows, K]``.
        scales: float32 ``[rows, 1]``, or ``[rows, blocks]`` with a scale per block of K.
    """

    codes: I8
    scales: F32


def quantise_activations(x: F32, activations: str, block: int) -> Quantised:
    """Quantises float32 ``[rows, K]`` as a linear layer asks for.

    Args:
        x: the values.
        activations: ``"int8_row"`` or ``"int8_block"``.
        block: weights that share a scale, for ``"int8_block"``.
    """
    # What is not a number stays one: it is in the scale, whatever the code.
    with np.errstate(all="ignore"):
        if activations == "int8_block":
            return Quantised(*quantize_block(x, block))
        codes, scale = quantize_row(x)
        return Quantised(codes, scale[:, None])


@dataclass
class Product:
    """One matrix times some activations.

    Attributes:
        matrix: on the device.
        x: the activations.
        out: float32 ``[rows, N]``, written by ``multiply``.
    """

    matrix: DeviceMatrix
    x: Quantised
    out: F32 = field(init=False)

    def __post_init__(self) -> None:
        self.out = np.zeros((len(self.x.codes), self.matrix.cut.shape[0]), np.float32)

    def add(self, piece: Piece, rows: slice, sums: I32) -> None:
        """Scales a piece's sums, int32 ``[rows, piece.rows]``, and adds them to ``out``."""
        span = slice(piece.first, piece.first + piece.rows)
        out, values = self.out[rows, span], sums.astype(np.float32)
        x_scales, w_scales = self.x.scales[rows], self.matrix.scales[span]
        with np.errstate(all="ignore"):
            if w_scales.shape[1] == 1 and x_scales.shape[1] == 1:
                np.multiply(values * x_scales, w_scales[:, 0], out=out)
                return
            x_scale = x_scales[:, min(piece.block, x_scales.shape[1] - 1), None]
            w_scale = w_scales[:, min(piece.block, w_scales.shape[1] - 1)]
            out += values * (w_scale * x_scale)


@dataclass(frozen=True)
class _Job:
    """A command and where its results belong."""

    product: Product
    piece: Piece
    rows: slice
    x: int

    @property
    def columns(self) -> int:
        return int(self.rows.stop - self.rows.start)


class Multiplier:
    """Runs products on one overlay, with buffers that all of them share.

    Attributes:
        commands: how many were submitted so far.
        round_trips: how often it was called.
    """

    def __init__(self, overlay: Overlay) -> None:
        """Buffers are allocated as they are needed."""
        self._overlay = overlay
        self._columns = overlay.capabilities.columns
        self._ports = overlay.capabilities.ports
        self._scratch = Scratch(overlay)
        self._y: list[Buffer] = []
        self._y_bytes = 0
        self.commands = self.round_trips = 0

    def multiply(self, products: Sequence[Product]) -> None:
        """Computes every product's ``out``.

        Raises:
            WrongResultError: sums came back that cannot be right.
            OverlayError: the device failed; what ``out`` holds then is not to be used.
            MemoryError: the device has no room for activations and results.
        """
        self.round_trips += 1
        inputs = _inputs(products, self._columns)
        self._write(inputs)
        jobs = [job for product in products for job in self._jobs(product, inputs)]
        self._make_room(max((self._result_bytes(job) for job in jobs), default=0))
        free = deque(self._y)
        flying: deque[tuple[_Job, Ticket, Buffer]] = deque()
        for job in jobs:
            if not free:
                free.append(self._finish(*flying.popleft(), inputs))
            y = free.popleft()
            command = job.product.matrix.command(job.piece, job.columns, job.x, y.address)
            flying.append((job, self._overlay.submit(command), y))
            self.commands += 1
        while flying:
            self._finish(*flying.popleft(), inputs)

    def free(self) -> None:
        """Gives the buffers back."""
        self._scratch.free()
        for buffer in self._y:
            buffer.free()
        self._y, self._y_bytes = [], 0

    def _write(self, inputs: dict[_Key, _Input]) -> None:
        """Packs the activations and writes them to the device, one input after the other."""
        x = self._scratch.take("x", sum(operand.nbytes for operand in inputs.values()))
        offset = 0
        for operand in inputs.values():
            operand.address = x.address + offset
            x.array[offset : offset + operand.nbytes] = operand.packed
            offset += operand.nbytes
        x.flush()

    def _jobs(self, product: Product, inputs: dict[_Key, _Input]) -> Iterator[_Job]:
        total = len(product.x.codes)
        for index, first in enumerate(range(0, total, self._columns)):
            rows = slice(first, min(total, first + self._columns))
            for piece in product.matrix.pieces:
                where = inputs[_key(product)]
                yield _Job(product, piece, rows, where.address + where.offset(index, piece.block))

    def _result_bytes(self, job: _Job) -> int:
        rows = job.piece.rows * job.product.matrix.cut.digits
        return int(WORD_BYTES * result_words(rows, job.columns, self._ports))

    def _make_room(self, nbytes: int) -> None:
        if nbytes <= self._y_bytes:
            return
        for buffer in self._y:
            buffer.free()
        self._y, self._y_bytes = [], 0
        depth = self._overlay.capabilities.queue_depth + 1  # one more for the host to read
        for _ in range(depth):
            self._y.append(self._overlay.allocate(nbytes))
        self._y_bytes = nbytes

    def _finish(self, job: _Job, ticket: Ticket, y: Buffer, inputs: dict[_Key, _Input]) -> Buffer:
        """Waits for a job and takes its results; returns its buffer."""
        self._overlay.wait(ticket)
        y.invalidate()
        matrix, piece = job.product.matrix, job.piece
        words = y.array[: self._result_bytes(job)].view(np.int32)
        results = matrix.results(piece, words, job.columns)
        first, last = matrix.cut.columns(piece.block)
        seen = inputs[_key(job.product)].wide[job.rows, first:last]
        if not matrix.check(piece, results, seen):
            raise WrongResultError(
                f"the device's sums of {piece.rows} rows do not add up to what they should"
            )
        job.product.add(piece, job.rows, matrix.joined(results))
        return y


_Key = tuple[int, LookupMode, int]


def _key(product: Product) -> _Key:
    cut = product.matrix.cut
    return id(product.x.codes), cut.mode, cut.block


class _Input:
    """Activations packed for one mode and block size; several matrices may read them.

    Attributes:
        packed: uint8 ``[nbytes]``: for every group of columns, for every block, its beats.
        wide: the codes as int32, for checks.
        address: on the device.
    """

    def __init__(self, product: Product, columns: int) -> None:
        cut, codes = product.matrix.cut, product.x.codes
        spans = [cut.columns(block) for block in range(cut.blocks)]
        blocks = [pack_activations(codes[:, first:last], cut.mode) for first, last in spans]
        groups = [
            [block[:, first : first + columns].tobytes() for block in blocks]
            for first in range(0, len(codes), columns)
        ]
        self._sizes = [[len(part) for part in group] for group in groups]
        self.packed = np.frombuffer(b"".join(part for group in groups for part in group), np.uint8)
        self.wide = codes.astype(np.int32)
        self.address = 0

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    def offset(self, group: int, block: int) -> int:
        """Bytes before the beats of a block of a group of columns."""
        before = sum(map(sum, self._sizes[:1])) * group  # all groups but the last are alike
        return before + sum(self._sizes[group][:block])


def _inputs(products: Sequence[Product], columns: int) -> dict[_Key, _Input]:
    inputs: dict[_Key, _Input] = {}
    for product in products:
        if _key(product) not in inputs:
            inputs[_key(product)] = _Input(product, columns)
    return inputs
