// y = subtract ? a - b : a + b, one cycle later, in one LUT per bit. The lowest bit carries in.
// It is written as a difference because synthesis tells the operands of one apart: the second one
// is inverted in the LUT that feeds the carry chain, the first one goes past it.
module tlmm_addsub #(
    parameter int A_BITS = 12,
    parameter int B_BITS = 12,
    parameter int Y_BITS = 13
) (
    input  logic              clk,
    input  logic [A_BITS-1:0] a,  // signed, as are b and y
    input  logic [B_BITS-1:0] b,
    input  logic              subtract,
    output logic [Y_BITS-1:0] y
);
  logic [Y_BITS-1:0] wide_a, wide_b;
  logic [Y_BITS:0] difference;
  logic unused;

  assign wide_a = Y_BITS'($signed(a));
  assign wide_b = Y_BITS'($signed(b)) ^ {Y_BITS{!subtract}};
  assign difference = {wide_a, 1'b0} - {wide_b, !subtract};
  assign unused = difference[0];

  always_ff @(posedge clk) y <= difference[Y_BITS:1];
endmodule
