// float32(word) * scale, rounded to nearest, ties to even. The word is an int32 below 2**24 in
// magnitude, the scale a finite float32 of which a subnormal one counts as zero. Products above
// the range become infinite; none is below it, as a word other than zero is at least one.
// A new product every cycle, 22 cycles later.
module tlmm_scale (
    input  logic        clk,
    input  logic [31:0] word,
    input  logic [31:0] scale,
    input  logic        padding,  // the result is 0, whatever the scale
    output logic [31:0] result
);
  // ---- cycles 1 to 6: the word's magnitude, its top bit moved to bit 23
  logic [24:0] negated;
  logic [23:0] magnitude, normal, fraction;
  logic [4:0] shift;

  assign negated = {24'd0, word[31]} + {word[23:0] ^ {24{word[31]}}, word[31]};
  always_ff @(posedge clk) magnitude <= negated[24:1];

  tlmm_normalise normalise (
      .clk,
      .value(magnitude),
      .shifted(normal),
      .shift
  );

  // ---- cycles 7 to 19: the product, 1 to 4 times 2**46
  logic [7:0] scale_exponent;
  logic [8:0] sum, exponent_early;
  logic [25:0] product;
  logic zero_early, zero, sign, sticky;

  tlmm_delay #(
      .WIDTH (8 + 24),
      .CYCLES(6)
  ) delay_scale (
      .clk,
      .in ({scale[30:23], 1'b1, scale[22:0]}),
      .out({scale_exponent, fraction})
  );
  tlmm_multiply multiply (
      .clk,
      .a(normal),
      .b(fraction),
      .product,
      .sticky
  );

  always_ff @(posedge clk) begin
    sum <= {1'b0, scale_exponent} + {4'd0, ~shift};  // 31 - shift, of which 23 - shift is meant
    zero_early <= scale_exponent == 8'd0 || !normal[23];
  end
  tlmm_delay #(
      .WIDTH (9),
      .CYCLES(12)
  ) delay_exponent (
      .clk,
      .in (sum),
      .out(exponent_early)
  );
  tlmm_delay #(
      .CYCLES(14)
  ) delay_zero (
      .clk,
      .in (zero_early),
      .out(zero)
  );
  tlmm_delay #(
      .CYCLES(21)
  ) delay_sign (
      .clk,
      .in ((word[31] ^ scale[31]) && !padding),
      .out(sign)
  );

  // ---- cycles 20 to 22: from 1 to 2, rounded, and what is no normal number
  logic [22:0] kept;
  logic [ 8:0] exponent;
  logic [31:0] rounded;
  logic up, unused;

  always_ff @(posedge clk) begin
    kept     <= product[25] ? product[24:2] : product[23:1];
    up       <= product[25] ? product[1] && (product[2] || product[0] || sticky)
                            : product[0] && (product[1] || sticky);
    exponent <= exponent_early - (product[25] ? 9'd7 : 9'd8);
    rounded  <= {exponent, kept} + 32'(up);  // a carry out of the fraction raises the exponent

    result[31] <= sign;
    if (zero) result[30:0] <= '0;
    else if (rounded[31:23] >= 9'd255) result[30:0] <= {8'd255, 23'd0};
    else result[30:0] <= rounded[30:0];
  end

  assign unused = &{1'b0, word[30:24], negated[0]};
endmodule
