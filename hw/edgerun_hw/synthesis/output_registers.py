"""Moves registers behind block memories into the memories' own output registers (ECP5).

yosys maps memories without them, and without them a read takes 4.3 ns of a clock period. Vendor
tools do this by themselves. A register is moved if it is plain: no enable, no reset, the memory's
clock, and nothing else reads the memory's output.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

MEMORY, REGISTER = "DP16KD", "TRELLIS_FF"
SIDES = ("A", "B")
SIDE_BITS = 18
WIDE = 36  # at this width one port reads both sides

Cells = dict[str, dict[str, Any]]
Readers = dict[int, list[tuple[str, str]]]


def pack_output_registers(netlist: dict[str, Any], top: str) -> int:
    """Changes yosys' JSON netlist in place.

    Args:
        netlist: what ``write_json`` writes of a flattened design.
        top: its module.

    Returns:
        How many memories got output registers.
    """
    module = netlist["modules"][top]
    cells: Cells = module["cells"]
    readers = _readers(module)
    memories = [cell for cell in cells.values() if cell["type"] == MEMORY]
    return sum(_pack(memory, cells, readers) for memory in memories)


def _pack(memory: dict[str, Any], cells: Cells, readers: Readers) -> bool:
    """Packs what a memory reads, if all of it can be."""
    wide = _number(memory, "DATA_WIDTH_B") == WIDE
    packed = False
    for sides in [SIDES] if wide else [(side,) for side in SIDES]:
        registers = _registers_behind(memory, sides, cells, readers)
        if not registers:
            continue
        for pin, name in registers.items():
            memory["connections"][pin] = cells.pop(name)["connections"]["Q"]
        for side in sides:
            memory["parameters"][f"REGMODE_{side}"] = "OUTREG"
            memory["connections"][f"OCE{side}"] = ["1"]
        packed = True
    return packed


def _registers_behind(
    memory: dict[str, Any], sides: tuple[str, ...], cells: Cells, readers: Readers
) -> dict[str, str]:
    """Output pins and the registers that read them; empty if one pin is read by anything else."""
    clock = memory["connections"][f"CLK{sides[-1]}"]
    registers = {}
    for pin in (f"DO{side}{bit}" for side in sides for bit in range(SIDE_BITS)):
        for net in memory["connections"].get(pin, []):
            reading = readers.get(net, [])
            if not reading:
                continue
            name, port = reading[0]
            if len(reading) > 1 or name not in cells or not _plain(cells[name], port, clock):
                return {}
            registers[pin] = name
    return registers


def _plain(cell: dict[str, Any], port: str, clock: list[Any]) -> bool:
    """Whether a cell is a register that does nothing but wait a cycle."""
    connections, parameters = cell["connections"], cell["parameters"]
    never_reset = connections.get("LSR", ["0"]) in (["0"], []) and parameters["LSRMUX"] == "LSR"
    always_enabled = parameters["CEMUX"].strip() == "1" or connections.get("CE") == ["1"]
    return bool(
        cell["type"] == REGISTER
        and port == "DI"
        and connections["CLK"] == clock
        and parameters["CLKMUX"] == "CLK"
        and never_reset
        and always_enabled
    )


def _readers(module: dict[str, Any]) -> Readers:
    """Cells and pins that read each net; a port of the module is a reader without a name."""
    readers: Readers = defaultdict(list)
    for name, cell in module["cells"].items():
        for port, nets in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                for net in nets:
                    readers[net].append((name, port))
    for port in module["ports"].values():
        if port["direction"] == "output":
            for net in port["bits"]:
                readers[net].append(("", ""))
    return readers


def _number(cell: dict[str, Any], parameter: str) -> int:
    """A parameter, which yosys writes as binary digits."""
    return int(str(cell["parameters"][parameter]), 2)
