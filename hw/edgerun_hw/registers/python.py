"""Writes the register description as constants for the driver."""

from __future__ import annotations

from edgerun_hw.registers.description import NOTICE, Description, Register


def write_python(description: Description) -> str:
    """Constants for the driver; the file imports nothing but `typing` and needs no TOML."""
    lines = [
        f'"""{description.title}: registers and shared constants.',
        "",
        NOTICE,
        '"""',
        "",
        "from typing import Final, NamedTuple",
        "",
        "",
        "class Field(NamedTuple):",
        '    """Some bits of the register at ``offset``."""',
        "",
        "    offset: int",
        "    lsb: int",
        "    width: int",
        "",
        "    @property",
        "    def mask(self) -> int:",
        '        """The field\'s bits, in place."""',
        "        return ((1 << self.width) - 1) << self.lsb",
        "",
        "    def of(self, word: int) -> int:",
        '        """The field\'s value in the register\'s value ``word``."""',
        "        return (word & self.mask) >> self.lsb",
        "",
        "",
        f'VLNV: Final = "{description.vlnv}"',
        f"WINDOW_BYTES: Final = {description.window_bytes}",
        f"ID_VALUE: Final = {_python_hex(description.identity, 8)}",
        f"VERSION_MAJOR_VALUE: Final = {description.version[0]}",
        f"VERSION_VALUE: Final = {_python_hex(description.version_word, 8)}",
        "",
        *[f"{constant.name}: Final = {constant.value}" for constant in description.constants],
    ]
    for register in description.registers:
        lines += ["", *_python_register(register)]
    lines += ["", "OFFSETS: Final = {"]
    for register in description.registers:
        lines += [
            f'    "{name}": {_python_hex(offset)},' for name, offset in register.words_by_name()
        ]
    return "\n".join([*lines, "}", ""])


def _python_register(register: Register) -> list[str]:
    stride = 4 * register.words
    if register.count > 1:
        offsets = [f"{_python_hex(register.offset + stride * i)}" for i in range(register.count)]
        lines = [f"{register.name}: Final = ({', '.join(offsets)})"]
    else:
        lines = [f"{register.name}: Final = {_python_hex(register.offset)}"]
    if register.reset is not None:
        lines.append(f"{register.name}_RESET: Final = {_python_hex(register.reset, 8)}")
    for field in register.fields:
        place = f"Field({_python_hex(register.offset)}, {field.lsb}, {field.width})"
        lines.append(f"{register.name}_{field.name}: Final = {place}")
    return lines


def _python_hex(value: int, digits: int = 3) -> str:
    return f"0x{value:0{digits}X}"
