"""Reads the object files that kernels are compiled to, and moves them to where they will run.

LLVM writes a kernel as a relocatable ELF file with few kinds of sections and relocations. To load
it takes a page of code, where LLVM's own loader takes a library of 170 MB into the process.
Whatever is not understood here is refused, so that LLVM can do it.

Source: System V Application Binary Interface, chapters 4 and 5, and its AMD64 supplement,
section 4.4 (relocations).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QIIq")
MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE, X86_64 = 1, 62
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8
UNWIND = 0x70000001  # how to leave the code by an exception, which kernels do not raise
WRITE, ALLOC, EXECUTE = 1, 2, 4
UNDEFINED, FIRST_RESERVED = 0, 0xFF00
# By type of relocation: format of the word, and whether it is relative to its own place.
WORDS = {1: ("<Q", False), 2: ("<i", True), 4: ("<i", True), 24: ("<q", True)}
MAX_ALIGNMENT = 4096
LINE = 64  # code and constants have cache lines of their own


class UnknownObjectError(ValueError):
    """Not an object file of the kind that is understood here."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section header, as far as it matters."""

    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: its place in the image, or its name if it is defined elsewhere."""

    place: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Relocation:
    """A word of the image that depends on where things are.

    Attributes:
        place: offset in the image.
        kind: a key of ``WORDS``.
        symbol: what it refers to.
        addend: to be added to the symbol's address.
    """

    place: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True, slots=True)
class Image:
    """Code and constants of an object file in one piece.

    Attributes:
        content: the bytes, not yet relocated.
        entry: offset of the entry.
        relocations: what is left to do.
    """

    content: bytes
    entry: int
    relocations: tuple[Relocation, ...]

    def at(self, address: int, find: Callable[[str], int]) -> bytes:
        """The bytes to be put at ``address``.

        Args:
            address: where the image will begin, on a page.
            find: address of a symbol of the C library.

        Raises:
            UnknownObjectError: a target is too far away for its word.
        """
        moved = bytearray(self.content)
        for one in self.relocations:
            known = one.symbol.place
            target = find(one.symbol.name) if known is None else address + known
            form, relative = WORDS[one.kind]
            value = target + one.addend - (address + one.place if relative else 0)
            try:
                struct.pack_into(form, moved, one.place, value)
            except struct.error as error:
                raise UnknownObjectError(f"{one.symbol.name or 'a place'} is too far") from error
        return bytes(moved)


def read_image(data: bytes, entry: str) -> Image:
    """Reads an object file for x86-64.

    Args:
        data: its bytes.
        entry: name of the symbol that is called.

    Raises:
        UnknownObjectError: it is none, or holds something that is not understood here.
    """
    try:
        return _read(data, entry)
    except UnknownObjectError:
        raise
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnknownObjectError(f"the object file is broken: {error}") from error


def _read(data: bytes, entry: str) -> Image:
    sections = list(_sections(data))
    content, places = _laid_out(data, sections)
    tables = [index for index, one in enumerate(sections) if one.kind == SYMTAB]
    if len(tables) != 1:
        raise UnknownObjectError(f"it has {len(tables)} tables of symbols")
    symbols = list(_symbols(data, sections, tables[0], places))
    entries = [one.place for one in symbols if one.name == entry and one.place is not None]
    if len(entries) != 1:
        raise UnknownObjectError(f"it has {len(entries)} symbols {entry}")
    relocations: list[Relocation] = []
    for one in sections:
        if one.info not in places or one.kind in (PROGBITS, NOBITS, SYMTAB):
            continue
        if one.kind != RELA or one.link != tables[0]:
            raise UnknownObjectError(f"it has relocations of kind {one.kind}")
        relocations += _relocations(data, one, places[one.info], symbols)
    for known in relocations:
        size = struct.calcsize(WORDS[known.kind][0])
        if not 0 <= known.place <= len(content) - size:
            raise UnknownObjectError(f"it changes a word at {known.place}, outside of its sections")
    return Image(content, entries[0], tuple(relocations))


def _sections(data: bytes) -> Iterator[Section]:
    head = HEADER.unpack_from(data)
    if not head[0].startswith(MAGIC) or head[1:3] != (RELOCATABLE, X86_64):
        raise UnknownObjectError("it is no relocatable ELF file for x86-64")
    start, size, count = head[6], head[11], head[12]
    if size != SECTION.size:
        raise UnknownObjectError(f"its section headers have {size} bytes")
    for index in range(count):
        name, kind, flags, _, offset, length, link, info, alignment, _ = SECTION.unpack_from(
            data, start + index * size
        )
        yield Section(name, kind, flags, offset, length, link, info, alignment)


def _laid_out(data: bytes, sections: list[Section]) -> tuple[bytes, dict[int, int]]:
    """The sections that a program sees, code first, and where each begins."""
    content, places = bytearray(), {}
    needed = [(index, one) for index, one in enumerate(sections) if one.flags & ALLOC]
    seen = [entry for entry in needed if entry[1].kind != UNWIND]
    for index, one in sorted(seen, key=lambda entry: not entry[1].flags & EXECUTE):
        bytes_ = data[one.offset : one.offset + one.size]
        if one.kind != PROGBITS or one.flags & WRITE or len(bytes_) != one.size:
            raise UnknownObjectError(f"section {index} is truncated or no plain code or constants")
        alignment = max(LINE, one.alignment)
        if alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
            raise UnknownObjectError(f"section {index} is to be aligned to {alignment}")
        content += bytes(-len(content) % alignment)
        places[index] = len(content)
        content += bytes_
    return bytes(content), places


def _symbols(
    data: bytes, sections: list[Section], table: int, places: dict[int, int]
) -> Iterator[Symbol]:
    header = sections[table]
    names = sections[header.link]
    for start in range(header.offset, header.offset + header.size, SYMBOL.size):
        name, _, _, index, value, _ = SYMBOL.unpack_from(data, start)
        begin = names.offset + name
        text = data[begin : data.index(b"\0", begin)].decode("ascii")
        if index in places:
            yield Symbol(places[index] + value, text)
        else:  # elsewhere, or nothing that code refers to, such as the name of a source file
            yield Symbol(None, text if index == UNDEFINED else "")


def _relocations(
    data: bytes, section: Section, base: int, symbols: list[Symbol]
) -> Iterator[Relocation]:
    for start in range(section.offset, section.offset + section.size, RELOCATION.size):
        offset, kind, number, addend = RELOCATION.unpack_from(data, start)
        if kind not in WORDS:
            raise UnknownObjectError(f"it has a relocation of type {kind}")
        symbol = symbols[number]
        if symbol.place is None and not symbol.name:
            raise UnknownObjectError("it refers to a symbol that is nowhere")
        yield Relocation(base + offset, kind, symbol, addend)
