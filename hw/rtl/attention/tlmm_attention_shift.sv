// Shifts a signed number right by 0 to 63, rounding down. A new one every cycle, 3 cycles later.
module tlmm_attention_shift #(
    parameter int BITS = 48
) (
    input  logic            clk,
    input  logic [BITS-1:0] value,
    input  logic [5:0]      by,
    output logic [BITS-1:0] shifted
);
  logic [BITS-1:0] coarse, middle;
  logic [3:0] by_1;
  logic [1:0] by_2;

  always_ff @(posedge clk) begin
    coarse  <= BITS'($signed(value) >>> {by[5:4], 4'b0});
    by_1    <= by[3:0];
    middle  <= BITS'($signed(coarse) >>> {by_1[3:2], 2'b0});
    by_2    <= by_1[1:0];
    shifted <= BITS'($signed(middle) >>> by_2);
  end
endmodule
