// One level of a loop nest: counts from 0 to limit - 1 and starts again.
// `last` is a register, not a comparison of `index`: it decides in the same cycle whether the
// enclosing level steps, and so stands at the start of long paths.
module tlmm_loop #(
    parameter int BITS = 8
) (
    input  logic            clk,
    input  logic            load,   // take a new limit and start from 0
    input  logic [  BITS:0] limit,  // 1 to 2**BITS
    input  logic            step,
    output logic [BITS-1:0] index,
    output logic            last
);
  logic [BITS-1:0] before_last;
  logic single;

  always_ff @(posedge clk) begin
    if (load) begin
      index       <= '0;
      before_last <= BITS'(limit - (BITS + 1)'(2));
      single      <= limit == (BITS + 1)'(1);
      last        <= limit == (BITS + 1)'(1);
    end else if (step) begin
      index <= last ? '0 : index + BITS'(1);
      last  <= single || (!last && index == before_last);
    end
  end
endmodule
