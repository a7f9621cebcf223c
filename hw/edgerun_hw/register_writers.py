"""Writes the register description as SystemVerilog, Python and Markdown."""

from __future__ import annotations

from edgerun_hw.registers import Constant, Description, Register

NOTICE = "Made from registers.toml by `python -m edgerun_hw.registers --write`; do not edit."


def write_systemverilog(description: Description) -> str:
    """The package that the RTL imports.

    Every word has ``REG_<name>``, its offset. A field of one bit has ``<register>_<field>_BIT``;
    a wider one ``_LSB`` and ``_WIDTH``. Registers with a fixed reset value have ``RESET_<name>``.
    """
    address_bits = (description.window_bytes - 1).bit_length()
    lines = [
        f"// {description.title}: registers and shared constants.",
        f"// {NOTICE}",
        "/* verilator lint_off UNUSEDPARAM */",
        f"package {description.name}_pkg;",
    ]
    for constant in description.constants:
        lines.append(f"  // {constant.doc}")
        lines.append(f"  localparam int {constant.name} = {constant.value};")
    lines.append(f"  localparam int REG_ADDR_BITS = {address_bits};")
    for register in description.registers:
        lines += ["", f"  // {register.access}: {register.doc}"]
        for name, offset in register.words_by_name():
            lines.append(
                f"  localparam logic [{address_bits - 1}:0] REG_{name} = {_hex(offset, 3)};"
            )
        lines += _systemverilog_details(register)
    return "\n".join([*lines, "endpackage", ""])


def _systemverilog_details(register: Register) -> list[str]:
    lines = []
    if register.reset is not None:
        value = f"{register.reset:08x}"
        lines.append(f"  localparam logic [31:0] RESET_{register.name} = 32'h{value};")
    for field in register.fields:
        prefix = f"{register.name}_{field.name}"
        if field.width == 1:
            lines.append(f"  localparam int {prefix}_BIT = {field.lsb};  // {field.doc}")
        else:
            lines.append(f"  localparam int {prefix}_LSB = {field.lsb};  // {field.doc}")
            lines.append(f"  localparam int {prefix}_WIDTH = {field.width};")
    return lines


def _hex(offset: int, digits: int) -> str:
    return f"{4 * digits}'h{offset:0{digits}x}"


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


def write_markdown(description: Description) -> str:
    """The reference that people read."""
    major, minor, patch = description.version
    lines = [
        "# Registers of the FPGA overlay",
        "",
        f"<!-- {NOTICE} -->",
        "",
        f"{description.title}, `{description.vlnv}`, register map {major}.{minor}.{patch}:",
        f"an AXI4-Lite window of {description.window_bytes} bytes. A register is a 32-bit word;",
        "an address takes two, the low one first. Unknown addresses read as 0 and ignore writes.",
        "What a command does and how its operands lie in memory: [fpga.md](fpga.md).",
        "",
        "| offset | name | access | after reset | meaning |",
        "| --- | --- | --- | --- | --- |",
        *[_markdown_row(register) for register in description.registers],
        "",
        "`ro` reads only; `rw1c` writing 1 to a bit clears it; `wo` any write acts. Where no value",
        "after reset is given, it depends on the build or on what happened.",
    ]
    for register in description.registers:
        if register.fields:
            lines += [
                "",
                f"## {register.name}",
                "",
                "| bits | name | meaning |",
                "| --- | --- | --- |",
            ]
            lines += [
                f"| {_bits(field.lsb, field.width)} | `{field.name}` | {field.doc} |"
                for field in register.fields
            ]
    lines += ["", "## Constants", "", "| name | value | meaning |", "| --- | --- | --- |"]
    lines += [_constant_row(constant) for constant in description.constants]
    return "\n".join([*lines, ""])


def _markdown_row(register: Register) -> str:
    words = register.words_by_name()
    offsets = f"`{words[0][1]:#05x}`"
    if len(words) > 1:
        offsets += f" to `{words[-1][1]:#05x}`"
    reset = "" if register.reset is None else f"`{register.reset:#x}`"
    name = f"`{register.name}`" + (f" 0 to {register.count - 1}" if register.count > 1 else "")
    return f"| {offsets} | {name} | {register.access} | {reset} | {register.doc} |"


def _constant_row(constant: Constant) -> str:
    return f"| `{constant.name}` | {constant.value} | {constant.doc} |"


def _python_hex(value: int, digits: int = 3) -> str:
    return f"0x{value:0{digits}X}"


def _bits(lsb: int, width: int) -> str:
    return str(lsb) if width == 1 else f"{lsb + width - 1}:{lsb}"
