"""A top with a handful of pins around a module with hundreds: how to place it on a real part.

Every input comes from a shift register and every output goes into one, so that nothing of the
module can be optimised away and no path goes through a pad. The registers stand at the module's
edge, so the clock that place and route reports is that of the module's own paths.
"""

from __future__ import annotations

from edgerun_hw.overlay.register_map import BEAT_BYTES
from edgerun_hw.synthesis.xilinx import ENGINE_PARAMETERS

BEAT_BITS = 8 * BEAT_BYTES
HARNESS = "tlmm_pads"


def engine_ports(ports: int) -> tuple[dict[str, int], dict[str, int]]:
    """Returns names and widths of the inputs and outputs of ``tlmm_engine``, without the clock."""
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
        "w_data": BEAT_BITS * ports,
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


def engine_harness(parameters: dict[str, int]) -> str:
    """Returns Verilog of a top with four pins around ``tlmm_engine``.

    Args:
        parameters: the engine's parameters by name.
    """
    inputs, outputs = engine_ports(parameters["PORTS"])
    bits, connections, offset = sum(inputs.values()), [], 0
    for name, width in inputs.items():
        connections.append(f".{name}(given[{offset} +: {width}])")
        offset += width
    offset = 0
    for name, width in outputs.items():
        connections.append(f".{name}(result[{offset} +: {width}])")
        offset += width
    values = ", ".join(f".{name}({parameters[name]})" for name in ENGINE_PARAMETERS)
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
    tlmm_engine #({values}) engine (
        {joined}
    );
endmodule
"""
