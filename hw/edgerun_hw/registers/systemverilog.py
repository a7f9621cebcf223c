"""Writes the register description as the SystemVerilog package that the RTL imports."""

from __future__ import annotations

from edgerun_hw.registers.description import NOTICE, Description, Register


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
