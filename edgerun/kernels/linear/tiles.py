"""Inner loops of the integer linear kernels: a few vectors of weight rows times a few tokens.

Weight rows lie in the lanes (``layouts/stream.py``): a dword of a vector holds ``K_STEP``
consecutive codes of one row, the next dword those of the next row. A broadcast of as many
activations of one token multiplies them all, sums of a row stay in the row's lane, and results
are vectors of outputs: nothing is added across lanes, and scales apply to whole vectors. A vector
of codes is unpacked once for all tokens, a broadcast serves all vectors, and sums stay in
registers.

Codes are read as they lie in memory, or one byte each where ``gemm.py`` has unpacked them.
Activations lie in rows, or, beside unpacked codes, in tile order (``layouts/tile_order.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from edgerun.formats.trits import DIGITS
from edgerun.kernels.host.processor import INTEL, vendor
from edgerun.kernels.lang.dot import DOTS, register
from edgerun.kernels.lang.ir import (
    I32,
    I64,
    at_most,
    integer,
    load_from,
    offset,
    opaque,
    prefetch_line,
    shuffle,
    variable,
)
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.simd import Vec, broadcast, constant
from edgerun.kernels.layouts.panels import numbers_of, places_of
from edgerun.kernels.layouts.starts import middle_code
from edgerun.kernels.layouts.tile_order import K_STEP
from edgerun.kernels.linear.trit_tiles import Digits

UNROLL = 8  # steps in a loop's body, about
LINE = 64  # bytes of memory that are asked for at a time
AHEAD_BYTES, SCALES_AHEAD_BYTES = 1024, 256  # how far before their use weights are asked for
ALONE_AHEAD_BYTES = 2048  # by one batch row, where it asks for no other reason (``asks_alone``)
PACKED, TRITS, UNPACKED, ORDERED = "packed", "trits", "unpacked", "ordered"
MANY_REGISTERS = 32
PIECE_BYTES = 16 * 1024  # of unpacked codes: half of a small first cache


def asks_alone() -> bool:
    """Whether one batch row alone asks for codes ahead, too.

    On an Intel core reading and multiplying else come one after the other: ternary weights were
    read at 0.63 of memory's speed, and at 0.84 if asked for (docs/adr/0068).
    """
    return vendor() == INTEL


def parts(bits: int, isa: str) -> int:
    """Pieces that a code is multiplied in.

    Where sums of two products of 8-bit codes fill 16 bits, halves of the codes are faster: their
    sums are added up eight times before they are widened.
    """
    return 2 if DOTS[isa_of(isa).dots].depth(bits) == 1 else 1


def zero_point(bits: int, isa: str, form: str = PACKED) -> int:
    """What codes as they are multiplied are above the weights they stand for."""
    return 1 if form == TRITS else middle_code(bits, isa)


@dataclass(frozen=True)
class TileShape:
    """Compile-time constants of a tile.

    Attributes:
        vectors: of weight rows.
        tokens: batch rows.
        bits: of a code; 2 for trits, whose digits are like codes.
        form: how codes lie in memory: ``PACKED``, ``TRITS``, ``UNPACKED``, one byte each, or
            ``ORDERED``, which is the same beside activations in tile order.
        lanes: bytes of a vector.
        isa: instruction set.
        matrices: that the vectors belong to, as many of each.
    """

    vectors: int
    tokens: int
    bits: int
    form: str
    lanes: int
    isa: str
    matrices: int

    @property
    def planes(self) -> int:
        """Codes in a byte of memory."""
        return {PACKED: 8 // self.bits, TRITS: DIGITS}.get(self.form, 1)

    @property
    def is_unpacked(self) -> bool:
        """Whether codes have a byte each."""
        return self.form in (UNPACKED, ORDERED)

    @property
    def row_bytes(self) -> int:
        """From one step of a token to the next, and of other numbers of tokens."""
        return K_STEP * (self.tokens if self.form == ORDERED else 1)

    @property
    def cells(self) -> int:
        """Sums, each a vector of int32."""
        return self.tokens * self.vectors

    @property
    def parts(self) -> int:
        """Pieces of a code."""
        return parts(self.bits, self.isa)

    @property
    def part_bits(self) -> int:
        """Bits of a piece."""
        return self.bits // self.parts

    @property
    def paired(self) -> bool:
        """Whether codes of odd planes stay in their bits, which saves every other shift.

        Their sums are counted apart and are ``1 << bits`` times too large.
        """
        dots = DOTS[isa_of(self.isa).dots]
        narrow = self.form == PACKED and self.bits < 8 and self.tokens == 1
        return narrow and not dots.depth(self.part_bits) and not dots.centred

    @property
    def has_few_registers(self) -> bool:
        """Whether sums that wait, or a loose order of additions, leave too few registers."""
        return isa_of(self.isa).registers < MANY_REGISTERS

    @property
    def at_once(self) -> int:
        """Vectors of codes in a loop's body."""
        return max(1, UNROLL // self.planes)

    @property
    def steps(self) -> int:
        """Steps of a loop's body."""
        return self.at_once * self.planes


class Tile:
    """Emits steps along K; the operands are those that ``row_tile`` describes."""

    def __init__(
        self, builder: Any, shape: TileShape, w: list[Any], x: list[Any], prefetch: list[Any]
    ) -> None:
        self.builder, self.shape, self.dots = builder, shape, DOTS[isa_of(shape.isa).dots]
        address, panel_bytes, apart, last, between, self.w_step = w
        numbers = numbers_of(builder, shape, apart, last)
        self.w = places_of(builder, shape, address, numbers, panel_bytes, between)
        self.w_offset = variable(builder, integer(0))
        start, self.x_stride, self.last_token = x
        self.x = self.rows(start, self.x_stride)
        self.x_offset = variable(builder, integer(0))
        ahead, self.pace = prefetch
        self.prefetch_offset = variable(builder, ahead)
        self.partial = self.dots.partial(shape.lanes)
        zero = constant(self.partial, 0)
        sets = 1 if shape.is_unpacked else shape.parts * (1 + shape.paired)
        self.partials = [variable(builder, zero) for _ in range(sets * shape.cells)]
        self.depth = self.dots.depth(shape.part_bits)
        self.raising: list[Any] = []  # bytes that are added to the codes of each vector, if any

    def rows(self, start: Any, stride: Any) -> list[Any]:
        """Where something of each token begins: side by side in tile order, else apart.

        Of tokens beyond the last there is something in tile order, and else they are read as it.
        """
        builder, tokens = self.builder, range(self.shape.tokens)
        if self.shape.form == ORDERED:
            return [offset(builder, start, token * K_STEP) for token in tokens]
        numbers = [at_most(builder, integer(token), self.last_token) for token in tokens]
        return [builder.add(start, builder.mul(number, stride)) for number in numbers]

    def places(self, address: Any) -> list[Any]:
        """Where the sums of each cell lie in memory."""
        size = self.shape.lanes
        return [offset(self.builder, address, cell * size) for cell in range(self.shape.cells)]

    def variables(self, places: list[Any], kind: Vec, *, fresh: bool) -> list[Any]:
        """Variables that hold what lies in some places, or zeros."""
        builder, zero = self.builder, constant(kind, 0)
        values = [zero if fresh else load_from(builder, place, kind.llvm) for place in places]
        return [variable(builder, value) for value in values]

    def start(self, values: list[Any] | None = None) -> None:
        """Sets the partial sums, to zero unless told."""
        initial = dict(enumerate(values or ()))
        zero = constant(self.partial, 0)
        for index, place in enumerate(self.partials):
            self.builder.store(initial.get(index, zero), place)

    def totals(self) -> list[Any]:
        """The partial sums, where they are int32."""
        sums = [self.builder.load(place) for place in self.partials]
        if not self.shape.paired:
            return sums
        shift = constant(self.partial, self.shape.bits)
        even, odd = sums[: self.shape.cells], sums[self.shape.cells :]
        return [
            self.builder.add(total, self.builder.ashr(high, shift))
            for total, high in zip(even, odd, strict=True)
        ]

    def unit(self, bodies: Any, fold: Callable[[int, int], None], steps: int = 0) -> None:
        """Partial sums of ``bodies`` loop bodies (or of ``steps`` steps, if less than a body).

        ``fold(part, factor)`` moves them on. Pieces of unpacked codes lie apart and are
        multiplied one after the other, others together.
        """
        factors = {part: 1 << (part * self.shape.part_bits) for part in range(self.shape.parts)}
        if not self.shape.is_unpacked:
            self.start()
            self.bodies(bodies, list(factors), steps)
            for part, factor in factors.items():
                fold(part, factor)
            return
        w, x = self.builder.load(self.w_offset), self.builder.load(self.x_offset)
        for part, factor in factors.items():
            self.builder.store(w, self.w_offset)
            self.builder.store(x, self.x_offset)
            self.start()
            self.bodies(bodies, [part], steps)
            fold(0, factor)

    def bodies(self, count: Any, pieces: list[int], steps: int = 0) -> None:
        """Adds the products of ``count`` loop bodies with some pieces of the codes."""
        if isinstance(count, int) and count == 1:
            self._body(pieces, steps // self.shape.planes or self.shape.at_once)
            return
        count = integer(count) if isinstance(count, int) else count
        with cgutils.for_range(self.builder, count, intp=I64):
            self._body(pieces, self.shape.at_once)

    def fold(self, total: Any, cell: int, part: int, factor: int) -> Any:
        """An int32 vector plus ``factor`` times a partial sum of a cell."""
        partial = self.builder.load(self.partials[part * self.shape.cells + cell])
        return self.dots.fold(self.builder, total, partial, self.shape.lanes, factor)

    def _body(self, pieces: list[int], vectors: int) -> None:
        builder, shape = self.builder, self.shape
        w, x = builder.load(self.w_offset), builder.load(self.x_offset)
        kind = Vec("u8", shape.lanes).llvm
        ask = builder.load(self.prefetch_offset)
        if shape.form == UNPACKED:  # the next tile has other tokens
            ahead = builder.add(x, builder.mul(self.x_stride, integer(shape.tokens)))
            for base in self.x:
                prefetch_line(builder, builder.add(base, ahead))
        for index in range(vectors):
            at = builder.add(w, builder.mul(self.w_step, integer(index)))
            if shape.is_unpacked:
                at = offset(builder, at, pieces[0] * PIECE_BYTES // shape.parts)
            if index * shape.lanes % LINE == 0:
                self._prefetch(ask)
            ask = builder.add(ask, self.pace)
            if self._asks:  # else each of these places would have a register of its own
                ask = opaque(builder, ask)
            packed = [load_from(builder, builder.add(base, at), kind) for base in self.w]
            for first, group in self._together(packed):
                planes = [self._planes(vector, pieces) for vector in group]
                for plane in range(shape.planes):
                    step = integer((index * shape.planes + plane) * shape.row_bytes)
                    codes = [vector[plane]() for vector in planes]
                    if self.raising:
                        pairs = zip(codes, self.raising, strict=True)
                        codes = [[builder.add(code, by) for code in pieces] for pieces, by in pairs]
                    self._step(first, codes, builder.add(x, step), plane % 2 * shape.paired)
        whole = builder.mul(self.w_step, integer(vectors))
        builder.store(builder.add(w, whole), self.w_offset)
        moved = builder.add(x, integer(vectors * shape.planes * shape.row_bytes))
        builder.store(moved, self.x_offset)
        builder.store(ask, self.prefetch_offset)

    def _prefetch(self, at: Any) -> None:
        """Asks for codes ahead where the hardware does not."""
        if self._asks:
            for base in self.w:
                prefetch_line(self.builder, self.builder.add(base, at))

    @property
    def _asks(self) -> bool:
        """Whether a vector takes so long that the hardware does not ask for the next ones."""
        slow = self.shape.tokens > 1 or (self.depth > 0 and self.shape.planes > 2)
        return (slow or asks_alone()) and not self.shape.is_unpacked

    def _together(self, packed: list[Any]) -> list[tuple[int, list[Any]]]:
        """Vectors that are unpacked side by side; of trits few digits may be alive at a time."""
        if self.shape.form == TRITS:
            return [(index, [vector]) for index, vector in enumerate(packed)]
        return [(0, packed)]

    def _step(self, first: int, codes: list[list[Any]], x: Any, sums: int) -> None:
        """Multiplies vectors of codes, from number ``first`` on, by ``K_STEP`` of every token.

        ``codes`` has the pieces of each vector; ``sums`` is the set of sums they are added to.
        """
        builder, shape = self.builder, self.shape
        for t, base in enumerate(self.x):
            dword = load_from(builder, builder.add(base, x), I32)
            value = broadcast(builder, dword, Vec("i32", shape.lanes // 4))
            value = builder.bitcast(value, Vec("i8", shape.lanes).llvm)
            if isa_of(shape.isa).partial > 1:  # else one half of a vector is made from the other
                value = self.hidden(value)
            for v, pieces in enumerate(codes, first):
                for part, code in enumerate(pieces, sums):
                    place = self.partials[(part * shape.tokens + t) * shape.vectors + v]
                    total = self.dots.add(builder, builder.load(place), code, value, shape.lanes)
                    builder.store(self._in_order(total), place)

    def _planes(self, packed: Any, pieces: list[int]) -> list[Callable[[], list[Any]]]:
        """What makes the codes of each plane, piece by piece."""
        shape = self.shape
        if shape.form == TRITS:
            digits = Digits(self.builder, shape.lanes, shape.isa).unpack(packed)
            return [lambda plane=plane: [plane] for plane in digits]  # type: ignore[misc]
        if shape.is_unpacked:
            return [lambda: [self._centred(packed)]]
        offsets = [part * shape.part_bits for part in pieces]
        return [
            lambda plane=plane: [  # type: ignore[misc]
                self._codes(packed, plane * shape.bits + start) for start in offsets
            ]
            for plane in range(shape.planes)
        ]

    def _codes(self, packed: Any, shift: int) -> Any:
        """Codes that begin at a bit of their bytes; shifting words is one instruction on x86."""
        builder, shape = self.builder, self.shape
        codes, stay = packed, shift % (2 * shape.bits) if shape.paired else 0
        shift -= stay
        if shift:
            words = Vec("i16", shape.lanes // 2)
            codes = builder.lshr(builder.bitcast(codes, words.llvm), constant(words, shift))
            codes = builder.bitcast(codes, packed.type)
        if shape.planes * shape.parts > 1:
            mask = constant(Vec("u8", shape.lanes), ((1 << shape.part_bits) - 1) << stay)
            codes = builder.and_(codes, mask)
        return self._centred(codes)

    def _centred(self, codes: Any) -> Any:
        """8-bit codes less their zero point, where they are multiplied as signed bytes."""
        if self.shape.bits != 8 or not self.dots.centred:
            return codes
        return self.builder.xor(codes, constant(Vec("u8", self.shape.lanes), 128))

    def _in_order(self, value: Any) -> Any:
        """The value, hidden from the optimiser.

        It would turn the chain of additions of a cell into a tree, or do all steps of a token
        before the next token's, either of which needs more registers than there are.
        """
        if not self.depth:
            return value
        return self.hidden(value)

    def hidden(self, value: Any) -> Any:
        """The value, of which the optimiser knows nothing; register by register.

        With few registers the compiler also leaves all that is hidden in the order it is emitted
        in: of 16, 8 sums of AVX2 took most, and codes of all steps were moved out and in again for
        each token, for a third of the time (two cores of a Zen 3, 2026).
        """
        builder, count = self.builder, value.type.count
        size = count // max(1, value.type.element.width * count // 8 // self.shape.lanes)
        kind = ir.VectorType(value.type.element, size)
        same, ordered = f"={register()},0", self.shape.has_few_registers
        hide = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", same, side_effect=ordered)
        if size == count:
            return builder.call(hide, [value])
        low, high = (shuffle(builder, value, value, range(n, n + size)) for n in (0, size))
        hidden = [builder.call(hide, [half]) for half in (low, high)]
        return shuffle(builder, hidden[0], hidden[1], range(count))
