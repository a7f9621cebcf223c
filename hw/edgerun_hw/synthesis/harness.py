"""A top with a handful of pins around a module with hundreds: how to place it on a real part.

Every input comes from a shift register and every output goes into one, so that nothing of the
module can be optimised away and no path goes through a pad. The registers stand at the module's
edge, so the clock that place and route reports is that of the module's own paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from edgerun_hw.overlay.register_map import BEAT_BYTES
from edgerun_hw.synthesis.xilinx import ENGINE, GLUE

BEAT_BITS = 8 * BEAT_BYTES
HARNESS = "tlmm_pads"
# Names and widths of a module's inputs and outputs, without the clock.
Ports: TypeAlias = tuple[dict[str, int], dict[str, int]]


def engine_ports(parameters: Mapping[str, int]) -> Ports:
    """Those of ``tlmm_engine``."""
    inputs = {
        "rst": 1,
        "cmd_valid": 1,
        "cmd_mode": 1,
        "cmd_scale": 1,
        "cmd_row_beats": 16,
        "cmd_tiles": 16,
        "cmd_columns": 8,
        "x_valid": 1,
        "x_data": BEAT_BITS,
        "w_valid": 1,
        "w_data": BEAT_BITS * parameters["PORTS"],
        "s_valid": 1,
        "s_data": BEAT_BITS,
        "y_ready": 1,
    }
    outputs = {
        "cmd_ready": 1,
        "x_ready": 1,
        "w_ready": 1,
        "s_ready": 1,
        "y_valid": 1,
        "y_data": BEAT_BITS,
        "y_last": 1,
        "busy": 1,
        "ev_lookup": 1,
        "ev_stall_weights": 1,
        "ev_stall_tables": 1,
        "ev_stall_output": 1,
    }
    return inputs, outputs


def glue_ports(parameters: Mapping[str, int]) -> Ports:
    """Those of ``tlmm_glue``."""
    del parameters  # it has none
    inputs = {
        "rst": 1,
        "cmd_valid": 1,
        "cmd_gate": 2,
        "cmd_norm": 1,
        "cmd_length": 14,
        "x_valid": 1,
        "x_data": BEAT_BITS,
        "w_valid": 1,
        "w_data": BEAT_BITS,
        "y_ready": 1,
    }
    outputs = {
        "cmd_ready": 1,
        "x_ready": 1,
        "w_ready": 1,
        "y_valid": 1,
        "y_data": BEAT_BITS,
        "busy": 1,
        "ev_group": 1,
        "ev_stall_input": 1,
        "ev_stall_output": 1,
    }
    return inputs, outputs


PORTS: dict[str, Callable[[Mapping[str, int]], Ports]] = {ENGINE: engine_ports, GLUE: glue_ports}


def harness(module: str, parameters: Mapping[str, int]) -> str:
    """Returns Verilog of a top with four pins around a module.

    Args:
        module: one of ``PORTS``.
        parameters: its parameters by name.
    """
    inputs, outputs = PORTS[module](parameters)
    bits, connections, offset = sum(inputs.values()), [], 0
    for name, width in inputs.items():
        connections.append(f".{name}(given[{offset} +: {width}])")
        offset += width
    offset = 0
    for name, width in outputs.items():
        connections.append(f".{name}(result[{offset} +: {width}])")
        offset += width
    values = ", ".join(f".{name}({value})" for name, value in parameters.items())
    joined = ",\n        ".join([".clk(clk)", *connections])
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
