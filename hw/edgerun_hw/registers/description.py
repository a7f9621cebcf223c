"""Reads and checks ``registers.toml``, the one place where registers are written down.

Needs Python 3.11 (``tomllib``); nothing that is generated from it does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DESCRIPTION = Path(__file__).with_name("registers.toml")
NOTICE = "Made from registers.toml by `python -m edgerun_hw.registers --write`; do not edit."
WORD_BYTES = 4
WORD_BITS = 32
ACCESSES = ("ro", "rw", "rw1c", "wo")
NAME = re.compile(r"[A-Z][A-Z0-9_]*\Z")


class DescriptionError(ValueError):
    """The register description contradicts itself."""


@dataclass(frozen=True)
class Field:
    """Some bits of a register: bits ``lsb`` to ``lsb + width - 1``."""

    name: str
    lsb: int
    width: int
    doc: str


@dataclass(frozen=True)
class Register:
    """A register of ``words`` words of 32 bits (low word first), ``count`` of them in a row.

    Attributes:
        name: upper case.
        offset: bytes from the start of the window, of the first word of the first one.
        access: one of ``ACCESSES``.
        reset: value after reset, or None where it depends on the build or on what happens.
        doc: one or two sentences.
        fields: its named bits, lowest first; none when the register is one number.
    """

    name: str
    offset: int
    access: str
    reset: int | None
    doc: str
    fields: tuple[Field, ...] = ()
    words: int = 1
    count: int = 1

    @property
    def size_bytes(self) -> int:
        return WORD_BYTES * self.words * self.count

    def words_by_name(self) -> list[tuple[str, int]]:
        """Names and offsets of the single words: ``CMD_X_LO``, or ``CMD_W0_LO`` of a row."""
        numbers = [str(i) for i in range(self.count)] if self.count > 1 else [""]
        halves = ["_LO", "_HI"] if self.words > 1 else [""]
        names = [f"{self.name}{number}{half}" for number in numbers for half in halves]
        return [(name, self.offset + WORD_BYTES * i) for i, name in enumerate(names)]


@dataclass(frozen=True)
class Constant:
    """A number that hardware and software share."""

    name: str
    value: int
    doc: str


@dataclass(frozen=True)
class Description:
    """Everything in ``registers.toml``, checked."""

    name: str
    title: str
    vlnv: str
    window_bytes: int
    identity: int
    version: tuple[int, int, int]
    constants: tuple[Constant, ...]
    registers: tuple[Register, ...]

    @property
    def version_word(self) -> int:
        major, minor, patch = self.version
        return major << 16 | minor << 8 | patch


def read_description(path: Path = DESCRIPTION) -> Description:
    """Reads and checks the description.

    Raises:
        DescriptionError: registers overlap, leave the window, or a field leaves its register.
    """
    import tomllib

    return parse_description(tomllib.loads(path.read_text(encoding="utf-8")))


def parse_description(data: Mapping[str, Any]) -> Description:
    """Makes a description of parsed TOML.

    Raises:
        DescriptionError: registers overlap, leave the window, or a field leaves its register.
    """
    block = data["block"]
    major, minor, patch = block["version"]
    description = Description(
        name=block["name"],
        title=block["title"],
        vlnv=block["vlnv"],
        window_bytes=block["window_bytes"],
        identity=block["id"],
        version=(major, minor, patch),
        constants=tuple(Constant(name, **fields) for name, fields in data["constants"].items()),
        registers=tuple(_register(entry) for entry in data["register"]),
    )
    _check_layout(description)
    return description


def _register(entry: Mapping[str, Any]) -> Register:
    fields = tuple(Field(**field) for field in entry.get("fields", ()))
    register = Register(**{"reset": None, **entry, "fields": fields})
    _require(NAME.match(register.name) is not None, f"register name {register.name!r}")
    _require(register.access in ACCESSES, f"{register.name}: access {register.access!r}")
    _require(register.words in (1, 2) and register.count >= 1, f"{register.name}: its size")
    end = 0
    for field in fields:
        inside = end <= field.lsb and field.width >= 1 and field.lsb + field.width <= WORD_BITS
        named = NAME.match(field.name) is not None
        _require(inside and named, f"{register.name}.{field.name}: bits out of order or range")
        end = field.lsb + field.width
    return register


def _check_layout(description: Description) -> None:
    end = 0
    for register in description.registers:
        aligned = register.offset % WORD_BYTES == 0
        _require(
            aligned and register.offset >= end, f"{register.name}: offset {register.offset:#x}"
        )
        end = register.offset + register.size_bytes
    _require(end <= description.window_bytes, f"the window ends before {end:#x}")
    resets = {register.name: register.reset for register in description.registers}
    _require(resets["ID"] == description.identity, "ID's reset value is not the block's id")
    _require(
        resets["VERSION"] == description.version_word, "VERSION's reset value is not the block's"
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise DescriptionError(f"bad register description: {what}")
