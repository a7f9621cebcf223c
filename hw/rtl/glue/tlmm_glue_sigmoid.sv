// The sigmoid of slope * x / log2(e), by the tables of powers of two and of reciprocals. A new one
// every cycle, 29 cycles later. Definition: `_sigmoids` in hw/edgerun_hw/overlay/glue.py.
module tlmm_glue_sigmoid (
    input  logic        clk,
    input  logic [23:0] x,
    input  logic [23:0] slope,
    output logic [23:0] sigmoid
);
  // ---- cycles 1 to 14: |slope * x|, as octaves and the power of two that takes them back
  logic [23:0] scaled;
  logic [7:0] places_off;
  logic [15:0] mantissa;
  logic [4:0] shift;
  logic saturated_11, negative_11;
  logic [16:0] doubled, rounded;
  logic [10:0] fraction;
  logic [5:0] octaves;

  tlmm_glue_product scaling (
      .clk,
      .a(x),
      .b(slope),
      .product(scaled)
  );
  assign places_off = 8'd131 - scaled[22:15];
  always_ff @(posedge clk) begin
    mantissa <= {scaled[22:15] != '0, scaled[14:0]};
    saturated_11 <= scaled[22:15] > 8'd131;
    shift <= places_off > 8'd17 ? 5'd17 : places_off[4:0];
    negative_11 <= scaled[23];
    doubled <= {mantissa, 1'b0} >> shift;
    rounded <= {1'b0, doubled[16:1]} + 17'(doubled[0]);
    fraction <= -rounded[10:0];
    octaves <= rounded[16:11] + 6'(rounded[10:0] != '0);
  end

  // ---- cycles 15 to 19: y = power / 2**octaves, and 1 / (1 + y)
  logic [15:0] power, power_17, power_19, reciprocal;
  logic [5:0] octaves_15, octaves_16, octaves_17, octaves_19;
  logic saturated_16, saturated_17, saturated_19, negative_19;
  logic [3:0] down;
  logic [10:0] place;
  logic whole;  // not even an octave: y is 1, or nearly

  tlmm_exp2 exp2 (
      .clk,
      .fraction,
      .power
  );
  tlmm_delay #(
      .WIDTH (1),
      .CYCLES(5)
  ) delay_saturated (
      .clk,
      .in (saturated_11),
      .out(saturated_16)
  );
  // A power has its top bit set, so it fills the table's 11 bits when an octave has been taken off.
  always_ff @(posedge clk) begin
    {octaves_16, octaves_15} <= {octaves_15, octaves};
    whole <= octaves_15 == '0;
    down <= octaves_15 > 6'd11 ? 4'd11 : octaves_15[3:0] - 4'd1;
    place <= saturated_16 ? '0 : whole ? '1 : power[15:5] >> down;
    {power_17, octaves_17, saturated_17} <= {power, octaves_16, saturated_16};
  end
  tlmm_glue_reciprocal reciprocals (
      .clk,
      .fraction(place),
      .reciprocal
  );
  tlmm_delay #(
      .WIDTH (16 + 6 + 1),
      .CYCLES(2)
  ) delay_power (
      .clk,
      .in ({power_17, octaves_17, saturated_17}),
      .out({power_19, octaves_19, saturated_19})
  );
  tlmm_delay #(
      .WIDTH (1),
      .CYCLES(8)
  ) delay_negative (
      .clk,
      .in (negative_11),
      .out(negative_19)
  );
  // ---- cycles 20 to 29: y / (1 + y) where x is negative, 1 / (1 + y) elsewhere
  logic [23:0] below;

  always_comb begin
    if (!negative_19) below = {1'b0, 8'd127, 15'd0};
    else if (saturated_19) below = '0;
    else below = {1'b0, 8'd127 - {2'b00, octaves_19}, power_19[14:0]};
  end
  tlmm_glue_product dividing (
      .clk,
      .a({1'b0, 8'd126, reciprocal[14:0]}),
      .b(below),
      .product(sigmoid)
  );

  logic unused;
  assign unused = &{1'b0, power_19[15], reciprocal[15]};
endmodule
