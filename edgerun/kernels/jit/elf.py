"""Reads the object files that kernels are compiled to, and moves them to where they will run.

LLVM writes a kernel as a relocatable ELF file with few kinds of sections and relocations. To load
it takes a page of code, where LLVM's own loader takes a library of 170 MB into the process.
Whatever is not understood here is refused, so that LLVM can do it.

Source: System V Application Binary Interface, chapters 4 and 5; its AMD64 supplement, section 4.4,
and ELF for the Arm 64-bit Architecture, section 5.7 (relocations).
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import NamedTuple

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
Section = namedtuple("Section", "name kind flags address offset size link info alignment entry")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QIIq")
MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE = 1
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8
UNWIND = 0x70000001  # how to leave the code by an exception, which kernels do not raise
WRITE, ALLOC, EXECUTE = 1, 2, 4
UNDEFINED = 0
MAX_ALIGNMENT = 4096
LINE = 64  # code and constants have cache lines of their own


class UnknownObjectError(ValueError):
    """Not an object file of the kind that is understood here."""


class Word(NamedTuple):
    """What a type of relocation does with a target and a word.

    Attributes:
        fields: first bit of the value, number of bits, first bit of the word they go to.
        size: bytes of the word.
        grain: 0 if the value is the target; else it is the distance from the word's own place,
            both rounded down to so many bytes.
        reach: bits of a signed value that the word can hold; 0 where those above do not count.
        unit: what the value must be a multiple of.
    """

    fields: tuple[tuple[int, int, int], ...]
    size: int = 4
    grain: int = 0
    reach: int = 0
    unit: int = 1


ABSOLUTE = Word(((0, 64, 0),), 8)
RELATIVE = Word(((0, 32, 0),), grain=1, reach=32)
RELATIVE_64 = Word(((0, 64, 0),), 8, grain=1)
BRANCH = Word(((2, 26, 0),), grain=1, reach=28, unit=4)
PAGE = Word(((12, 2, 29), (14, 19, 5)), grain=4096, reach=33)
MOVE = [Word(((16 * part, 16, 5),)) for part in range(4)]  # of 16 bits each
LOW = [Word(((scale, 12 - scale, 10),), unit=1 << scale) for scale in range(5)]  # within a page
# A jump to anywhere: ldr x16, 8 bytes ahead; br x16; where to.
VENEER = bytes.fromhex("50000058 00021fd6") + bytes(8)
# By machine: its number, and what its types of relocations do.
MACHINES: Mapping[str, tuple[int, Mapping[int, Word]]] = {
    "x86_64": (62, {1: ABSOLUTE, 2: RELATIVE, 4: RELATIVE, 24: RELATIVE_64}),
    "aarch64": (
        183,
        {257: ABSOLUTE, 260: RELATIVE_64, 261: RELATIVE, 275: PAGE, 282: BRANCH, 283: BRANCH}
        | {264: MOVE[0], 266: MOVE[1], 268: MOVE[2], 269: MOVE[3], 277: LOW[0], 278: LOW[0]}
        | {284: LOW[1], 285: LOW[2], 286: LOW[3], 299: LOW[4]},
    ),
}


class Relocation(NamedTuple):
    """A word of the image that depends on where things are.

    Attributes:
        place: offset in the image.
        word: what becomes of the word there.
        target: offset in the image, or name of what is defined elsewhere.
        addend: to be added to the target's address.
    """

    place: int
    word: Word
    target: int | str
    addend: int


class Image(NamedTuple):
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
            UnknownObjectError: a word cannot hold what it is to say of its target.
        """
        moved = bytearray(self.content)
        for place, word, target, addend in self.relocations:
            value = addend + (find(target) if isinstance(target, str) else address + target)
            if word.grain:
                here = address + place
                value = value - value % word.grain - (here - here % word.grain)
            limit = 1 << word.reach >> 1
            if value % word.unit or (limit and not -limit <= value < limit):
                raise UnknownObjectError(f"{target} is too far from {place}, or between two words")
            bits = int.from_bytes(moved[place : place + word.size], "little")
            for first, count, at in word.fields:
                mask = (1 << count) - 1
                bits = bits & ~(mask << at) | (value >> first & mask) << at
            moved[place : place + word.size] = bits.to_bytes(word.size, "little")
        return bytes(moved)


def read_image(data: bytes, entry: str, machine: str) -> Image:
    """Reads an object file.

    Args:
        data: its bytes.
        entry: name of the symbol that is called.
        machine: what it is to be for, as ``uname`` says it.

    Raises:
        UnknownObjectError: it is none, or holds something that is not understood here.
    """
    if machine not in MACHINES:
        raise UnknownObjectError(f"relocations of {machine} are not known")
    try:
        return _read(data, entry, *MACHINES[machine])
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnknownObjectError(f"the object file is broken: {error}") from error


def _read(data: bytes, entry: str, machine: int, words: Mapping[int, Word]) -> Image:
    sections = _sections(data, machine)
    content, places = _laid_out(data, sections)
    (table,) = (index for index, section in enumerate(sections) if section.kind == SYMTAB)
    symbols = _symbols(data, sections, sections[table], places)
    (start,) = (place for place, name in symbols if name == entry and place is not None)
    relocations, veneers = [], dict[str, int]()
    for section in sections:
        if section.info not in places or section.kind in (PROGBITS, NOBITS, SYMTAB):
            continue
        if section.kind != RELA or section.link != table:
            raise UnknownObjectError(f"relocations of kind {section.kind}")
        for offset, kind, number, addend in RELOCATION.iter_unpack(_bytes(data, section)):
            (target, name), place = symbols[number], places[section.info] + offset
            if kind not in words or (target is None and not name):
                raise UnknownObjectError(f"a relocation of type {kind} to {name or 'nothing'}")
            if place + words[kind].size > len(content):
                raise UnknownObjectError(f"a relocation at {place}, outside of the sections")
            aim = name if target is None else target
            if target is None and words[kind] is BRANCH:
                aim = veneers.setdefault(name, len(content) + len(veneers) * len(VENEER))
            relocations.append(Relocation(place, words[kind], aim, addend))
    relocations += [Relocation(at + 8, ABSOLUTE, name, 0) for name, at in veneers.items()]
    return Image(content + VENEER * len(veneers), start, tuple(relocations))


def _sections(data: bytes, machine: int) -> list[Section]:
    head = HEADER.unpack_from(data)
    if not head[0].startswith(MAGIC) or head[1:3] != (RELOCATABLE, machine):
        raise UnknownObjectError("no relocatable ELF file for this machine")
    start, size, count = head[6], head[11], head[12]
    return [Section(*SECTION.unpack_from(data, start + n * size)) for n in range(count)]


def _bytes(data: bytes, section: Section) -> bytes:
    content = data[section.offset : section.offset + section.size]
    if len(content) != section.size:
        raise UnknownObjectError("a truncated section")
    return content


def _laid_out(data: bytes, sections: list[Section]) -> tuple[bytes, dict[int, int]]:
    """The sections that a program sees, code first, and where each begins."""
    content, places = bytearray(), {}
    seen = [n for n, part in enumerate(sections) if part.flags & ALLOC and part.kind != UNWIND]
    for index in sorted(seen, key=lambda n: not sections[n].flags & EXECUTE):
        section = sections[index]
        if section.kind != PROGBITS or section.flags & WRITE or section.alignment > MAX_ALIGNMENT:
            raise UnknownObjectError(f"section {index} is no plain code or constants")
        content += bytes(-len(content) % max(LINE, section.alignment))
        places[index] = len(content)
        content += _bytes(data, section)
    return bytes(content) + bytes(-len(content) % LINE), places


def _symbols(
    data: bytes, sections: list[Section], table: Section, places: Mapping[int, int]
) -> list[tuple[int | None, str]]:
    """Offset in the image, or nothing, and name, if it is defined there or elsewhere."""
    names, symbols = _bytes(data, sections[table.link]), []
    for start, _, _, index, value, _ in SYMBOL.iter_unpack(_bytes(data, table)):
        name = names[start:].partition(b"\0")[0].decode("ascii")
        place = places[index] + value if index in places else None
        symbols.append((place, name if place is not None or index == UNDEFINED else ""))
    return symbols
