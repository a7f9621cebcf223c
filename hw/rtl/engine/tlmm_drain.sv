// Walks through the results of a command in the order [row beat][column][row], a unit per cycle:
// up to four words of one column, or one word where results are scaled. Says which words a unit
// takes and where in the beats of the result stream they go.
//
// Nothing behind this module ever waits: a unit that completes a beat of results reserves its
// place in the output queue before it sets off.
module tlmm_drain #(
    parameter int ROWS = 5,
    parameter int COLUMNS = 1,
    parameter int GROUPS = 2,  // groups of up to four rows in a beat's rows
    parameter int NB_BITS = 9,
    parameter bit ROW_SCALE = 0
) (
    input logic clk,
    input logic rst,

    input  logic             cmd_valid,
    output logic             cmd_ready,
    input  logic             cmd_scale,
    input  logic [NB_BITS:0] cmd_row_beats,
    input  logic [      7:0] cmd_columns,

    input  logic result_available,
    output logic result_pop,
    input  logic out_room,
    output logic out_reserve,

    output logic       scale_active,  // a command with scales is being drained
    input  logic       scales_ready,  // those of the row beat are there
    output logic       scales_pop,
    output logic       scales_end,    // the row beat is the command's last
    output logic [4:0] scale_row,
    input  logic       scaler_idle,

    // the unit, a cycle later
    output logic                      unit_valid,
    output logic                      unit_scaled,
    output logic [COLUMNS*GROUPS-1:0] unit_select,   // its group, one-hot; none: padding
    output logic [               1:0] unit_word,     // scaled: its only word of the group
    output logic [               1:0] unit_phase,    // place of its first word in a beat
    output logic                      unit_complete, // it completes a beat
    output logic                      unit_last      // of the command
);
  localparam int COLUMN_BITS = COLUMNS > 1 ? $clog2(COLUMNS) : 1;
  localparam int TAIL = ROWS % 4;  // rows in the last group, unless it is whole

  // ---- command and loops
  logic active, scaled, padding, start, go, done, finish;
  logic last_unit, last_column, last_beat, step_column;
  logic [4:0] unit;
  logic [COLUMN_BITS-1:0] column;
  logic [NB_BITS-1:0] beat;

  // A cycle is lost between commands; taking the next one in the last cycle of this one would make
  // a path from the queues at the end of the engine to those at its start.
  assign cmd_ready = !active;
  assign start = cmd_valid && cmd_ready;
  assign step_column = go && !padding && last_unit;
  assign result_pop = step_column && last_column;

  always_ff @(posedge clk) begin
    if (rst || done) active <= 1'b0;
    else if (start) active <= 1'b1;
    if (start) scaled <= ROW_SCALE && cmd_scale;
  end

  tlmm_loop #(
      .BITS(5)
  ) units (
      .clk,
      .load (start),
      .limit(ROW_SCALE && cmd_scale ? 6'(ROWS) : 6'(GROUPS)),
      .step (go && !padding),
      .index(unit),
      .last (last_unit)
  );
  tlmm_loop #(
      .BITS(COLUMN_BITS)
  ) columns (
      .clk,
      .load (start),
      .limit(COLUMNS == 1 ? (COLUMN_BITS + 1)'(1) : cmd_columns[COLUMN_BITS:0]),
      .step (step_column),
      .index(column),
      .last (last_column)
  );
  tlmm_loop #(
      .BITS(NB_BITS)
  ) beats (
      .clk,
      .load (start),
      .limit(cmd_row_beats),
      .step (result_pop),
      .index(beat),
      .last (last_beat)
  );

  // ---- places in the result stream
  // After the last result of a command a unit of zeros completes its last beat, if need be.
  logic [1:0] phase;
  logic [2:0] words, filled;

  always_comb begin
    words = 3'd4;
    if (TAIL != 0 && last_unit) words = 3'(TAIL);
    if (scaled) words = 3'd1;
    if (padding) words = 3'd4 - {1'b0, phase};
  end

  assign filled = {1'b0, phase} + words;
  assign finish = last_unit && last_column && last_beat;
  assign go = active && out_room
      && (padding || (result_available && (scaled ? scales_ready : scaler_idle)));
  assign done = go && (padding || (finish && filled[1:0] == 2'd0));
  assign out_reserve = go && filled[2];

  always_ff @(posedge clk) begin
    if (rst) begin
      phase   <= '0;
      padding <= 1'b0;
    end else if (go) begin
      phase   <= filled[1:0];
      padding <= finish && !done;
    end
  end

  // ---- scales
  assign scale_active = active && scaled;
  assign scales_pop = result_pop && scaled;
  assign scales_end = last_beat;
  assign scale_row = unit;

  // ---- the unit
  logic [4:0] group;
  assign group = scaled ? {2'd0, unit[4:2]} : unit;

  always_ff @(posedge clk) begin
    unit_valid    <= go && !rst;
    unit_scaled   <= scaled;
    unit_word     <= unit[1:0];
    unit_phase    <= phase;
    unit_complete <= filled[2];
    unit_last     <= done;
    for (int m = 0; m < COLUMNS; m++)
      for (int g = 0; g < GROUPS; g++)
        unit_select[m*GROUPS+g] <=
            !padding && column == COLUMN_BITS'(m) && group == 5'(g);
  end

  logic unused;
  assign unused = &{1'b0, beat, cmd_columns, cmd_scale};
endmodule
