// Delays a value by a number of cycles. No reset: tools make it a shift register in a LUT.
module tlmm_delay #(
    parameter int WIDTH  = 1,
    parameter int CYCLES = 1   // 1 or more
) (
    input  logic             clk,
    input  logic [WIDTH-1:0] in,
    output logic [WIDTH-1:0] out
);
  logic [WIDTH*CYCLES-1:0] line;

  if (CYCLES == 1) begin : g_one
    always_ff @(posedge clk) line <= in;
    assign out = line;
  end else begin : g_many
    always_ff @(posedge clk) line <= {line[WIDTH*(CYCLES-1)-1:0], in};
    assign out = line[WIDTH*CYCLES-1-:WIDTH];
  end
endmodule
