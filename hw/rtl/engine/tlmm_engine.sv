// Multiplies matrices by table lookup, without multipliers.
//
// A command is a matrix of 5-bit codes, a few columns of int8 activations, and the sums of their
// products in int32, or float32 after a scale per row. Activations are taken a tile at a time and
// turned into tables of all the sums that a code can name (tlmm_fill); every beat of weights looks
// up five entries per row (tlmm_lookup, tlmm_lanes), whose sum is added to the row's accumulator
// (tlmm_accumulate); results leave through a queue (tlmm_drain, tlmm_output). Layout of the
// streams: hw/edgerun_hw/overlay/packing.py.
//
// The three parts that follow a command run ahead of one another, up to the next commands: tables
// are filled while the tile before is looked up, and results drain while the next command's beats
// go in. A beat takes these cycles, and never stalls once it is taken (cycle 0):
//   1 codes   2 entries of four tables   3 sums of two   4 sum of four, entry of the last table
//   5 sum of five, accumulator   6 new accumulator, written to its memory and, in the last tile, to
//   the queue of results
//
// Lengths must be within the limits: 1 to NB_MAX row beats, 1 to 65535 tiles, 1 to COLUMNS columns.
module tlmm_engine #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,   // a power of two
    parameter bit ROW_SCALE = 0
) (
    input logic clk,
    input logic rst,

    input  logic        cmd_valid,
    output logic        cmd_ready,
    input  logic        cmd_mode,       // 0: ternary, 1: multiples
    input  logic        cmd_scale,
    input  logic [15:0] cmd_row_beats,
    input  logic [15:0] cmd_tiles,
    input  logic [ 7:0] cmd_columns,

    input  logic         x_valid,
    output logic         x_ready,
    input  logic [127:0] x_data,

    input  logic                 w_valid,
    output logic                 w_ready,
    input  logic [128*PORTS-1:0] w_data,

    input  logic         s_valid,
    output logic         s_ready,
    input  logic [127:0] s_data,

    output logic         y_valid,
    input  logic         y_ready,
    output logic [127:0] y_data,
    output logic         y_last,

    output logic busy,
    // A busy cycle is one of these.
    output logic ev_lookup,
    output logic ev_stall_weights,
    output logic ev_stall_tables,
    output logic ev_stall_output
);
  localparam int ROWS = tlmm_pkg::PORT_ROWS * PORTS;
  localparam int GROUPS = (ROWS + 3) / 4;
  localparam int NB_BITS = $clog2(NB_MAX);
  localparam int TABLES = tlmm_pkg::TABLES;
  localparam int ENTRY_BITS = tlmm_pkg::ENTRY_BITS;
  localparam int RESULT_BITS = tlmm_pkg::RESULT_BITS;
  localparam int SUM_BITS = ENTRY_BITS + 3;  // of five entries
  localparam int OUTPUT_QUEUE = 32;

  // ---- commands
  logic fill_valid, fill_ready, fill_multiples;
  logic lookup_valid, lookup_ready;
  logic drain_valid, drain_ready, drain_scale;
  logic [15:0] fill_tiles, lookup_tiles;
  logic [7:0] fill_columns, drain_columns;
  logic [NB_BITS:0] lookup_row_beats, drain_row_beats;

  tlmm_commands #(
      .NB_BITS(NB_BITS)
  ) commands (
      .clk,
      .rst,
      .cmd_valid,
      .cmd_ready,
      .cmd_mode,
      .cmd_scale,
      .cmd_row_beats,
      .cmd_tiles,
      .cmd_columns,
      .fill_valid,
      .fill_ready,
      .fill_multiples,
      .fill_tiles,
      .fill_columns,
      .lookup_valid,
      .lookup_ready,
      .lookup_row_beats,
      .lookup_tiles,
      .drain_valid,
      .drain_ready,
      .drain_scale,
      .drain_row_beats,
      .drain_columns,
      .ended(y_valid && y_ready && y_last),
      .busy
  );

  // ---- tables
  logic table_full, table_half, release_half, write;
  logic [4:0] write_address;
  logic [COLUMNS*TABLES*ENTRY_BITS-1:0] write_entries;

  tlmm_fill #(
      .COLUMNS(COLUMNS)
  ) fill (
      .clk,
      .rst,
      .cmd_valid(fill_valid),
      .cmd_ready(fill_ready),
      .cmd_multiples(fill_multiples),
      .cmd_tiles(fill_tiles),
      .cmd_columns(fill_columns),
      .x_valid,
      .x_ready,
      .x_data,
      .full(table_full),
      .half(table_half),
      .release_half,
      .write,
      .write_address,
      .write_entries
  );

  // ---- beats of weights
  logic take, first_tile, last_tile, result_room;
  logic lookup_busy, wait_tables, wait_output, wait_weights;
  logic [NB_BITS-1:0] beat;

  tlmm_lookup #(
      .NB_BITS(NB_BITS),
      .SETTLE_CYCLES(5)  // accumulators are read in cycle 2 and written at the end of cycle 6
  ) lookup (
      .clk,
      .rst,
      .cmd_valid(lookup_valid),
      .cmd_ready(lookup_ready),
      .cmd_row_beats(lookup_row_beats),
      .cmd_tiles(lookup_tiles),
      .w_valid,
      .w_ready,
      .table_full,
      .release_half,
      .result_room,
      .take,
      .beat,
      .first_tile,
      .last_tile,
      .busy(lookup_busy),
      .wait_tables,
      .wait_output,
      .wait_weights
  );

  // ---- a beat on its way, and the queue of results
  logic half_1, half_3, first_tile_4, valid_6, last_tile_6;
  logic result_write, result_pop, result_available;
  logic [NB_BITS-1:0] beat_2, beat_6, result_head, result_tail;

  assign result_write = valid_6 && last_tile_6;

  tlmm_pipeline #(
      .NB_BITS(NB_BITS)
  ) pipeline (
      .clk,
      .rst,
      .take,
      .half(table_half),
      .beat,
      .first_tile,
      .last_tile,
      .half_1,
      .half_3,
      .beat_2,
      .first_tile_4,
      .beat_6,
      .valid_6,
      .last_tile_6
  );
  tlmm_results #(
      .NB_MAX(NB_MAX)
  ) results (
      .clk,
      .rst,
      .reserve(take && last_tile),
      .room(result_room),
      .write(result_write),
      .tail(result_tail),
      .pop(result_pop),
      .head(result_head),
      .available(result_available)
  );

  // ---- lanes and accumulators
  logic [4*TABLES*ROWS-1:0] magnitudes;
  logic [ROWS-1:0] differ_01, differ_23, differ_02, differ_04, negate;
  logic [COLUMNS*GROUPS*128-1:0] groups;

  tlmm_codes #(
      .PORTS(PORTS)
  ) codes (
      .clk,
      .w_data,
      .magnitudes,
      .differ_01,
      .differ_23,
      .differ_02,
      .differ_04,
      .negate
  );

  for (genvar m = 0; m < COLUMNS; m++) begin : g_column
    logic [SUM_BITS*ROWS-1:0] sums;
    logic [RESULT_BITS*ROWS-1:0] result;

    tlmm_lanes #(
        .ROWS(ROWS),
        .SUM_BITS(SUM_BITS)
    ) lanes (
        .clk,
        .write,
        .write_address,
        .write_entries(write_entries[TABLES*ENTRY_BITS*m+:TABLES*ENTRY_BITS]),
        .half_1,
        .half_3,
        .magnitudes,
        .differ_01,
        .differ_23,
        .differ_02,
        .differ_04,
        .sums
    );
    tlmm_accumulate #(
        .ROWS(ROWS),
        .SUM_BITS(SUM_BITS),
        .NB_MAX(NB_MAX)
    ) accumulate (
        .clk,
        .read_beat(beat_2),
        .first_tile(first_tile_4),
        .sums,
        .negate,
        .write(valid_6),
        .write_beat(beat_6),
        .result_write,
        .result_tail,
        .result_head,
        .result
    );
    assign groups[128*GROUPS*m+:128*GROUPS] = (128 * GROUPS)'(result);
  end

  // ---- results
  logic out_room, out_reserve, scaled_passed, scaler_busy;
  logic scale_active, scales_ready, scales_pop, scales_end;
  logic unit_valid, unit_scaled, unit_complete, unit_last;
  logic [COLUMNS*GROUPS-1:0] unit_select;
  logic [1:0] unit_word, unit_phase;
  logic [ 4:0] scale_row;
  logic [31:0] unit_scale;

  tlmm_drain #(
      .ROWS(ROWS),
      .COLUMNS(COLUMNS),
      .GROUPS(GROUPS),
      .NB_BITS(NB_BITS),
      .ROW_SCALE(ROW_SCALE)
  ) drain (
      .clk,
      .rst,
      .cmd_valid(drain_valid),
      .cmd_ready(drain_ready),
      .cmd_scale(drain_scale),
      .cmd_row_beats(drain_row_beats),
      .cmd_columns(drain_columns),
      .result_available,
      .result_pop,
      .out_room,
      .out_reserve,
      .scale_active,
      .scales_ready,
      .scales_pop,
      .scales_end,
      .scale_row,
      .scaler_idle(!scaler_busy && !(unit_valid && unit_scaled)),
      .unit_valid,
      .unit_scaled,
      .unit_select,
      .unit_word,
      .unit_phase,
      .unit_complete,
      .unit_last
  );
  tlmm_credit #(
      .MOST(OUTPUT_QUEUE),
      .INITIAL(OUTPUT_QUEUE)
  ) output_slots (
      .clk,
      .rst,
      .give(y_valid && y_ready),
      .take(out_reserve),
      .available(out_room)
  );
  tlmm_output #(
      .ROWS(ROWS),
      .COLUMNS(COLUMNS),
      .GROUPS(GROUPS),
      .ROW_SCALE(ROW_SCALE),
      .QUEUE(OUTPUT_QUEUE)
  ) out (
      .clk,
      .rst,
      .groups,
      .unit_valid,
      .unit_scaled,
      .unit_select,
      .unit_word,
      .unit_phase,
      .unit_complete,
      .unit_last,
      .unit_scale,
      .scaled_passed,
      .y_valid,
      .y_ready,
      .y_data,
      .y_last
  );

  if (ROW_SCALE) begin : g_scale
    tlmm_scales #(
        .ROWS(ROWS)
    ) scales (
        .clk,
        .rst,
        .s_valid,
        .s_ready,
        .s_data,
        .active(scale_active),
        .ready(scales_ready),
        .pop(scales_pop),
        .last(scales_end),
        .row(scale_row),
        .scale(unit_scale)
    );
    tlmm_credit #(
        .MOST(63)  // more than the cycles through it
    ) in_scaler (
        .clk,
        .rst,
        .give(unit_valid && unit_scaled),
        .take(scaled_passed),
        .available(scaler_busy)
    );
  end else begin : g_no_scale
    logic unused;
    assign unused = &{1'b0, s_valid, s_data, scale_active, scales_pop, scales_end, scale_row,
                      scaled_passed};
    assign s_ready = 1'b0;
    assign scales_ready = 1'b0;
    assign unit_scale = '0;
    assign scaler_busy = 1'b0;
  end

  // ---- events
  // With nothing left to look up, the engine waits for its results to leave.
  assign ev_lookup        = take;
  assign ev_stall_weights = wait_weights;
  assign ev_stall_tables  = lookup_busy && wait_tables;
  assign ev_stall_output  = wait_output || (busy && !lookup_busy);
endmodule
