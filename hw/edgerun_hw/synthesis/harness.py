"""A top with a handful of pins around a module with hundreds: how to place it on a real part.

Every input comes from a shift register and every output goes into one, so that nothing of the
module can be optimised away and no path goes through a pad. The registers stand at the module's
edge, so the clock that place and route reports is that of the module's own paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import BackendError

HARNESS, CLOCK = "tlmm_pads", "clk"


@dataclass(frozen=True)
class Ports:
    """A module's inputs and outputs, without its clock: bits by name."""

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def ports_script(module: str, parameters: Mapping[str, int], file: str) -> str:
    """Returns the commands for yosys that write what ``ports_of`` reads, to a JSON file."""
    sets = "".join(f" -set {name} {value}" for name, value in parameters.items())
    chosen = f"chparam{sets} {module}\nhierarchy -check -top {module}\n"
    return f"{chosen}proc -noopt\nwrite_json {file}\n"  # JSON cannot hold processes


def ports_of(netlist: Mapping[str, Any]) -> Ports:
    """Returns the ports of a netlist's top.

    Args:
        netlist: what yosys' ``write_json`` writes.

    Raises:
        BackendError: it has no top, or one without a clock or without outputs.
    """
    tops = [m for m in netlist["modules"].values() if int(m["attributes"].get("top", "0"), 2)]
    if len(tops) != 1:
        raise BackendError(f"yosys names {len(tops)} modules as the top")
    widths = {
        direction: {
            name: len(port["bits"])
            for name, port in tops[0]["ports"].items()
            if port["direction"] == direction and name != CLOCK
        }
        for direction in ("input", "output")
    }
    if CLOCK not in tops[0]["ports"] or not widths["output"]:
        raise BackendError(f"a module that is to be placed needs outputs and the input {CLOCK!r}")
    return Ports(widths["input"], widths["output"])


def harness(module: str, parameters: Mapping[str, int], ports: Ports) -> str:
    """Returns Verilog of a top with four pins around a module.

    Args:
        module: its name.
        parameters: its parameters by name.
        ports: with these parameters.
    """
    bits, connections, offset = sum(ports.inputs.values()), [], 0
    for name, width in ports.inputs.items():
        connections.append(f".{name}(given[{offset} +: {width}])")
        offset += width
    offset = 0
    for name, width in ports.outputs.items():
        connections.append(f".{name}(result[{offset} +: {width}])")
        offset += width
    values = ", ".join(f".{name}({value})" for name, value in parameters.items())
    joined = ",\n        ".join([f".{CLOCK}(clk)", *connections])
    return f"""module {HARNESS}(input clk, input load, input serial_in, output reg serial_out);
    reg [{bits - 1}:0] shift, given;
    wire [{offset - 1}:0] result;
    reg [{offset - 1}:0] seen, chain;
    always @(posedge clk) begin
        shift <= {{shift[{bits - 2}:0], serial_in}};
        if (load) given <= shift;
        seen <= result;
        chain <= {{chain[{offset - 2}:0], 1'b0}} ^ seen;
        serial_out <= chain[{offset - 1}];
    end
    {module} #({values}) placed (
        {joined}
    );
endmodule
"""
