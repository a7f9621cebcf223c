// Carries what is known of a beat when it is taken (cycle 0) to the cycles in which the lanes and
// accumulators need it. Only the mark that there is a beat at all is reset.
module tlmm_pipeline #(
    parameter int NB_BITS = 9
) (
    input  logic               clk,
    input  logic               rst,
    input  logic               take,
    input  logic               half,
    input  logic [NB_BITS-1:0] beat,
    input  logic               first_tile,
    input  logic               last_tile,
    output logic               half_1,
    output logic               half_3,
    output logic [NB_BITS-1:0] beat_2,
    output logic               first_tile_4,
    output logic [NB_BITS-1:0] beat_6,
    output logic               valid_6,
    output logic               last_tile_6
);
  logic [6:1] valid;

  always_ff @(posedge clk) valid <= rst ? '0 : {valid[5:1], take};
  assign valid_6 = valid[6];

  tlmm_delay #(
      .CYCLES(1)
  ) delay_half_1 (
      .clk,
      .in (half),
      .out(half_1)
  );
  tlmm_delay #(
      .CYCLES(2)
  ) delay_half_3 (
      .clk,
      .in (half_1),
      .out(half_3)
  );
  tlmm_delay #(
      .WIDTH (NB_BITS),
      .CYCLES(2)
  ) delay_beat_2 (
      .clk,
      .in (beat),
      .out(beat_2)
  );
  tlmm_delay #(
      .WIDTH (NB_BITS),
      .CYCLES(4)
  ) delay_beat_6 (
      .clk,
      .in (beat_2),
      .out(beat_6)
  );
  tlmm_delay #(
      .CYCLES(4)
  ) delay_first (
      .clk,
      .in (first_tile),
      .out(first_tile_4)
  );
  tlmm_delay #(
      .CYCLES(6)
  ) delay_last (
      .clk,
      .in (last_tile),
      .out(last_tile_6)
  );
endmodule
