// Counts tokens: free slots, or filled ones. `available` is a register; it may be used to take a
// token in every cycle in which it is high.
module tlmm_credit #(
    parameter int MOST    = 16,
    parameter int INITIAL = 0
) (
    input  logic clk,
    input  logic rst,
    input  logic give,
    input  logic take,
    output logic available
);
  localparam int BITS = $clog2(MOST + 1);

  logic [BITS-1:0] count, change;

  assign change = {{(BITS - 1) {take && !give}}, take != give};  // -1, 0 or 1

  always_ff @(posedge clk) begin
    if (rst) begin
      count     <= BITS'(INITIAL);
      available <= INITIAL != 0;
    end else begin
      count     <= count + change;
      available <= give || count > BITS'(1) || (count == BITS'(1) && !take);
    end
  end
endmodule
