// The 64 multipliers of a query: each adds up a run of beats in an accumulator of its own. In a run
// of keys a lane is a token and the operand an element of the query; in one of values a lane is an
// element and the operand the weight of the port's token. A finished run is set aside and leaves in
// 16 cycles, a lane of all four ports at a time, while the next one is added up.
//
// Cycles of a beat that is taken in cycle 0, and is here in cycle 2:
//   3 operands   4 product   5 sum   6 set aside   7 to 22 out
module tlmm_attention_lanes (
    input  logic            clk,
    input  logic [511:0]    beat,     // cycle 2
    input  logic [4*25-1:0] operand,  // cycle 2, signed
    input  logic            valid_4,
    input  logic            first_4,  // of a run
    input  logic            last_5,
    input  logic [3:0]      lane,     // to leave
    output logic [4*36-1:0] sums      // a cycle later, signed
);
  for (genvar p = 0; p < 4; p++) begin : g_port
    logic [24:0] factor;
    logic [16*36-1:0] held;
    logic [35:0] chosen;

    always_ff @(posedge clk) factor <= operand[25*p+:25];

    for (genvar i = 0; i < 16; i++) begin : g_lane
      logic [7:0] element;
      logic [32:0] product;
      logic [35:0] total;

      always_ff @(posedge clk) begin
        element <= beat[128*p+8*i+:8];
        product <= 33'($signed(element) * $signed(factor));
        if (valid_4) total <= (first_4 ? '0 : total) + 36'($signed(product));
        if (last_5) held[36*i+:36] <= total;
      end
    end

    always_comb begin
      chosen = '0;
      for (int i = 0; i < 16; i++) if (lane == 4'(i)) chosen = held[36*i+:36];
    end
    always_ff @(posedge clk) sums[36*p+:36] <= chosen;
  end
endmodule
