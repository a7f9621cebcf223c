// Takes beats of weights: decides in which cycle the next one goes into the lanes, which never
// stall, and tells them what to do with it.
module tlmm_lookup #(
    parameter int NB_BITS = 9,
    parameter int SETTLE_CYCLES = 4  // from a beat to the next one with the same accumulators
) (
    input logic clk,
    input logic rst,

    input  logic             cmd_valid,
    output logic             cmd_ready,
    input  logic [NB_BITS:0] cmd_row_beats,
    input  logic [     15:0] cmd_tiles,

    input  logic w_valid,
    output logic w_ready,

    input  logic table_full,
    output logic release_half,
    input  logic result_room,

    output logic               take,        // a beat goes into the lanes
    output logic [NB_BITS-1:0] beat,
    output logic               first_tile,
    output logic               last_tile,

    output logic busy,
    output logic wait_tables,  // reasons for not taking a beat
    output logic wait_output,
    output logic wait_weights
);
  logic active, start, last_beat, tile_end, few_beats;
  logic [15:0] tile;

  assign tile_end     = take && last_beat;
  assign release_half = tile_end;
  assign cmd_ready    = !active || (tile_end && last_tile);
  assign start        = cmd_valid && cmd_ready;

  always_ff @(posedge clk) begin
    if (rst) active <= 1'b0;
    else if (cmd_ready) active <= cmd_valid;
    if (start) few_beats <= cmd_row_beats < (NB_BITS + 1)'(SETTLE_CYCLES);
    if (start) first_tile <= 1'b1;
    else if (tile_end) first_tile <= 1'b0;
  end

  tlmm_loop #(
      .BITS(NB_BITS)
  ) beats (
      .clk,
      .load (start),
      .limit(cmd_row_beats),
      .step (take),
      .index(beat),
      .last (last_beat)
  );
  tlmm_loop #(
      .BITS(16)
  ) tiles (
      .clk,
      .load (start),
      .limit({1'b0, cmd_tiles}),
      .step (tile_end),
      .index(tile),
      .last (last_tile)
  );

  // An accumulator must be written before the next tile reads it. With few row beats the next
  // tile could come too early; it then waits as if every beat had been the last one's.
  logic [SETTLE_CYCLES-2:0] settling;

  always_ff @(posedge clk) begin
    if (rst) settling <= '0;
    else if (tile_end && few_beats) settling <= '1;
    else settling <= settling >> 1;
  end

  assign busy         = active || cmd_valid;
  assign wait_tables  = !active || !table_full || settling[0];
  assign wait_output  = !wait_tables && last_tile && !result_room;
  assign w_ready      = !wait_tables && !wait_output;
  assign wait_weights = w_ready && !w_valid;
  assign take         = w_ready && w_valid;

  logic unused;
  assign unused = &{1'b0, tile};
endmodule
