// From the sums of a block of keys to scores, for one query: logarithms to the base 2 with 11 bits
// behind the point, and the largest whole part of those that the query sees. A token a cycle.
module tlmm_attention_scores (
    input  logic             clk,
    // sums of products, a lane of four ports at a time
    input  logic             write,
    input  logic [4:0]       write_index,  // {buffer, lane}
    input  logic [4*36-1:0]  sums,
    // a walk through the 64 tokens of a block
    input  logic [4:0]       index,        // {buffer, lane}
    input  logic [1:0]       port,
    input  logic [15:0]      token,
    input  logic [15:0]      scale,        // of the token's key
    input  logic [6:0]       shift,        // of the query
    input  logic [16:0]      first,        // what the query sees
    input  logic [16:0]      limit,
    // 12 cycles later
    output logic             visible,
    output logic [20:0]      score,        // signed
    // the block's maximum, as the tokens come by
    input  logic             begins,       // with the first score
    output logic [9:0]       highest       // a cycle after a score; signed
);
  localparam int BITS = 31;  // of a sum

  // ---- cycle 1: sum, scale and what is seen
  logic [BITS-1:0] sum, port_sum[4];
  logic [11:0] mantissa;
  logic [4:0] exponent;
  logic [6:0] shift_1;
  logic seen;

  for (genvar p = 0; p < 4; p++) begin : g_port
    (* ram_style = "distributed" *) logic [BITS-1:0] store[32];
    always_ff @(posedge clk) if (write) store[write_index] <= sums[36*p+:BITS];
    assign port_sum[p] = store[index];
  end

  always_ff @(posedge clk) begin
    sum <= port_sum[port];
    exponent <= scale[15:11];
    mantissa <= scale[15:11] == '0 ? '0 : {1'b1, scale[10:0]};
    shift_1 <= shift;
    seen <= {1'b0, token} >= first && {1'b0, token} < limit;
  end

  // ---- cycles 2 to 8: the product, while the shift is worked out
  logic [BITS+12-1:0] product;
  logic [7:0] by;
  logic [5:0] by_2, by_8;

  tlmm_attention_multiply #(
      .A_BITS(BITS)
  ) multiply (
      .clk,
      .a(sum),
      .b(mantissa),
      .product
  );
  assign by = {1'b0, shift_1} - {3'b0, exponent};
  always_ff @(posedge clk) by_2 <= by[7] ? '0 : by[6] ? 6'd63 : by[5:0];
  tlmm_delay #(
      .WIDTH (6),
      .CYCLES(6)
  ) delay_by (
      .clk,
      .in (by_2),
      .out(by_8)
  );

  // ---- cycles 9 to 12: shifted, then held within its 21 bits
  logic [BITS+12-1:0] wide;
  logic [20:0] held;
  logic [9:0] whole, largest;  // from 0, the least, which is also what is not seen
  logic fits, seen_11;

  tlmm_attention_shift #(
      .BITS(BITS + 12)
  ) shifter (
      .clk,
      .value(product),
      .by(by_8),
      .shifted(wide)
  );
  tlmm_delay #(
      .CYCLES(10)
  ) delay_seen (
      .clk,
      .in (seen),
      .out(seen_11)
  );
  assign fits = wide[BITS+11:20] == {(BITS - 8) {wide[20]}};
  assign held = fits ? wide[20:0] : {wide[BITS+11], {20{!wide[BITS+11]}}};
  always_ff @(posedge clk) begin
    score <= held;
    whole <= seen_11 ? {!held[20], held[19:11]} : '0;
    visible <= seen_11;
  end

  // ---- the maximum: compared and kept in a cycle, so nothing else is chosen in it
  always_ff @(posedge clk) if (begins || whole > largest) largest <= whole;
  assign highest = {!largest[9], largest[8:0]};

  logic unused;
  assign unused = &{1'b0, sums};
endmodule
