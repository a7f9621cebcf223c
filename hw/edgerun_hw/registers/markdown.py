"""Writes the register description as the reference that people read."""

from __future__ import annotations

from edgerun_hw.registers.description import NOTICE, Constant, Description, Register


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


def _bits(lsb: int, width: int) -> str:
    return str(lsb) if width == 1 else f"{lsb + width - 1}:{lsb}"
