// The second stream of the glue unit: first the row that a gate multiplies by or that is added, from
// the scales' stream, then the norm's weights, of which a beat of all ports has four elements a port.
module tlmm_glue_rows #(
    parameter int PORTS = 4  // a power of two
) (
    input  logic                 clk,
    input  logic                 begins,     // a command is taken
    input  logic [1:0]           cmd_gate,
    input  logic [13:0]          cmd_length,
    input  logic                 s_valid,
    output logic                 s_ready,
    input  logic [127:0]         s_data,
    input  logic                 w_valid,
    output logic                 w_ready,
    input  logic [PORTS*128-1:0] w_data,
    output logic                 valid,
    input  logic                 ready,
    output logic [127:0]         data
);
  localparam int PORT_BITS = PORTS > 1 ? $clog2(PORTS) : 1;

  logic [11:0] groups, left;  // of four elements: of the row, and of it still to come
  logic [PORT_BITS-1:0] port;
  logic second_row, take, ends, last_port;

  assign groups = 12'((15'(cmd_length) + 15'd3) >> 2);
  assign valid = second_row ? s_valid : w_valid;
  assign data = second_row ? s_data : w_data[128*port+:128];
  assign take = valid && ready;
  assign ends = left == 12'd1;
  assign last_port = port == PORT_BITS'(PORTS - 1);
  assign s_ready = second_row && ready;
  // What fills up the last beat of all ports goes with it.
  assign w_ready = !second_row && ready && (last_port || ends);

  logic [11:0] row;
  always_ff @(posedge clk) begin
    if (begins) begin
      row <= groups;
      left <= groups;
      second_row <= cmd_gate != '0;
      port <= '0;
    end else if (take) begin
      left <= ends ? row : left - 1'b1;
      if (ends) second_row <= 1'b0;
      if (!second_row) port <= last_port || ends ? '0 : port + 1'b1;
    end
  end
endmodule
