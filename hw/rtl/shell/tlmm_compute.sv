// What computes: the engine, attention and glue if the overlay has them. All take their operands from
// the same streams, so a command of one begins when the others have given their last result.
module tlmm_compute #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0,
    parameter bit GLUE = 1'b0
) (
    input  logic                 clk,
    input  logic                 rst,
    // the queue's words
    output logic                 wanted,
    input  logic                 load,
    input  logic [1:0]           load_step,
    input  logic [31:0]          load_data,
    // streams
    input  logic                 x_valid,
    output logic                 x_ready,
    input  logic [127:0]         x_data,
    input  logic                 w_valid,
    output logic                 w_ready,
    input  logic [PORTS*128-1:0] w_data,
    input  logic                 s_valid,
    output logic                 s_ready,
    input  logic [127:0]         s_data,
    output logic                 y_valid,
    input  logic                 y_ready,
    output logic [127:0]         y_data,
    // A busy cycle is one of these: of attention a beat of keys and values, waiting for one, for the
    // softmax or queries, and for results to be made; of glue a group of elements, waiting for a
    // stream, (nothing), and for results to be taken.
    output logic                 ev_lookup,
    output logic                 ev_stall_weights,
    output logic                 ev_stall_tables,
    output logic                 ev_stall_output
);
  logic cmd_valid, cmd_ready, cmd_mode, cmd_scale, cmd_attention, attends;
  logic cmd_glue, cmd_norm, glues;
  logic [1:0] cmd_gate;
  logic [5:0] cmd_heads;
  logic [4:0] cmd_units;
  logic [15:0] cmd_row_beats, cmd_tiles;
  logic [7:0] cmd_columns;

  tlmm_order order (
      .clk,
      .rst,
      .wanted,
      .load,
      .load_step,
      .load_data,
      .cmd_valid,
      .cmd_ready,
      .cmd_mode,
      .cmd_scale,
      .cmd_attention,
      .cmd_heads,
      .cmd_units,
      .cmd_glue,
      .cmd_gate,
      .cmd_norm,
      .cmd_row_beats,
      .cmd_tiles,
      .cmd_columns
  );
  assign attends = ATTENTION != 0 && cmd_attention;
  assign glues = GLUE && cmd_glue;

  // ---- engine
  logic engine_ready, engine_busy, engine_x_ready, engine_w_ready, engine_y_valid, y_last;
  logic attention_ready, attention_busy, attention_x_ready, attention_w_ready, attention_y_valid;
  logic engine_lookup, engine_stall_weights, engine_stall_tables, engine_stall_output;
  logic beat, stall_beats, stall_softmax, stall_results;
  logic glue_ready, glue_busy, glue_x_ready, glue_s_ready, glue_w_ready, glue_y_valid;
  logic group, stall_rows, stall_codes, engine_s_valid, engine_s_ready;
  logic [127:0] engine_y_data, attention_y_data, glue_y_data;
  logic others_busy;  // than the engine

  assign others_busy = attention_busy || glue_busy;

  tlmm_engine #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE)
  ) engine (
      .clk,
      .rst,
      .cmd_valid(cmd_valid && !attends && !glues && !others_busy),
      .cmd_ready(engine_ready),
      .cmd_mode,
      .cmd_scale,
      .cmd_row_beats,
      .cmd_tiles,
      .cmd_columns,
      .x_valid(x_valid && !others_busy),
      .x_ready(engine_x_ready),
      .x_data,
      .w_valid(w_valid && !others_busy),
      .w_ready(engine_w_ready),
      .w_data,
      .s_valid(engine_s_valid),
      .s_ready(engine_s_ready),
      .s_data,
      .y_valid(engine_y_valid),
      .y_ready(y_ready && !others_busy),
      .y_data(engine_y_data),
      .y_last,
      .busy(engine_busy),
      .ev_lookup(engine_lookup),
      .ev_stall_weights(engine_stall_weights),
      .ev_stall_tables(engine_stall_tables),
      .ev_stall_output(engine_stall_output)
  );

  // ---- attention
  if (ATTENTION != 0) begin : g_attention
    tlmm_attention #(
        .QUERIES(ATTENTION)
    ) attention (
        .clk,
        .rst,
        .cmd_valid(cmd_valid && attends && !engine_busy && !glue_busy),
        .cmd_ready(attention_ready),
        .cmd_heads,
        .cmd_units,
        .cmd_queries(cmd_columns[3:0]),
        .cmd_pairs(cmd_tiles),
        .x_valid(x_valid && attention_busy),
        .x_ready(attention_x_ready),
        .x_data,
        .w_valid(w_valid && attention_busy),
        .w_ready(attention_w_ready),
        .w_data,
        .y_valid(attention_y_valid),
        .y_ready(y_ready && attention_busy),
        .y_data(attention_y_data),
        .busy(attention_busy),
        .ev_beat(beat),
        .ev_stall_beats(stall_beats),
        .ev_stall_softmax(stall_softmax),
        .ev_stall_output(stall_results)
    );
  end else begin : g_no_attention
    assign {attention_ready, attention_busy, attention_x_ready, attention_w_ready} = '0;
    assign {attention_y_valid, attention_y_data} = '0;
    assign {beat, stall_beats, stall_softmax, stall_results} = '0;

    logic unused;
    assign unused = &{1'b0, cmd_heads, cmd_units, cmd_attention};
  end

  // ---- glue
  if (GLUE) begin : g_glue
    logic rows_valid, rows_ready, starts, engine_open;
    logic [127:0] rows_data;

    assign starts = cmd_valid && glues && !engine_busy && !attention_busy;
    tlmm_glue_rows #(
        .PORTS(PORTS)
    ) rows (
        .clk,
        .begins(starts && glue_ready),
        .cmd_gate,
        .cmd_length(cmd_tiles[13:0]),
        .s_valid(s_valid && glue_busy),
        .s_ready(glue_s_ready),
        .s_data,
        .w_valid(w_valid && glue_busy),
        .w_ready(glue_w_ready),
        .w_data,
        .valid(rows_valid),
        .ready(rows_ready),
        .data(rows_data)
    );
    tlmm_glue glue (
        .clk,
        .rst,
        .cmd_valid(starts),
        .cmd_ready(glue_ready),
        .cmd_gate,
        .cmd_norm,
        .cmd_length(cmd_tiles[13:0]),
        .x_valid(x_valid && glue_busy),
        .x_ready(glue_x_ready),
        .x_data,
        .w_valid(rows_valid),
        .w_ready(rows_ready),
        .w_data(rows_data),
        .y_valid(glue_y_valid),
        .y_ready(y_ready && glue_busy),
        .y_data(glue_y_data),
        .busy(glue_busy),
        .ev_group(group),
        .ev_stall_input(stall_rows),
        .ev_stall_output(stall_codes)
    );
    // The engine takes scales ahead, but none that are a row of glue's.
    tlmm_scale_credit #(
        .ROWS(PORTS * tlmm_pkg::PORT_ROWS)
    ) credit (
        .clk,
        .rst,
        .begins(cmd_valid && cmd_ready && !attends && !glues && cmd_scale),
        .row_beats(cmd_row_beats),
        .take(engine_s_valid && engine_s_ready),
        .open(engine_open)
    );
    assign engine_s_valid = s_valid && engine_open;
  end else begin : g_no_glue
    assign {glue_ready, glue_busy, glue_x_ready, glue_s_ready, glue_w_ready} = '0;
    assign {glue_y_valid, glue_y_data, group, stall_rows, stall_codes} = '0;
    assign engine_s_valid = s_valid;

    logic unused;
    assign unused = &{1'b0, cmd_glue, cmd_gate, cmd_norm};
  end

  // ---- whose turn it is
  always_comb begin
    cmd_ready = engine_ready && !others_busy;
    if (attends) cmd_ready = attention_ready && !engine_busy && !glue_busy;
    if (glues) cmd_ready = glue_ready && !engine_busy && !attention_busy;
    {x_ready, w_ready, s_ready} = {engine_x_ready, engine_w_ready, engine_s_valid && engine_s_ready};
    {y_valid, y_data} = {engine_y_valid, engine_y_data};
    {ev_lookup, ev_stall_weights} = {engine_lookup, engine_stall_weights};
    {ev_stall_tables, ev_stall_output} = {engine_stall_tables, engine_stall_output};
    if (attention_busy) begin
      {x_ready, w_ready, s_ready} = {attention_x_ready, attention_w_ready, 1'b0};
      {y_valid, y_data} = {attention_y_valid, attention_y_data};
      {ev_lookup, ev_stall_weights} = {beat, stall_beats};
      {ev_stall_tables, ev_stall_output} = {stall_softmax, stall_results};
    end
    if (glue_busy) begin
      {x_ready, w_ready, s_ready} = {glue_x_ready, glue_w_ready, glue_s_ready};
      {y_valid, y_data} = {glue_y_valid, glue_y_data};
      {ev_lookup, ev_stall_weights} = {group, stall_rows};
      {ev_stall_tables, ev_stall_output} = {1'b0, stall_codes};
    end
  end

  // The writer counts results itself; a command ends by its last response.
  logic unused_end;
  assign unused_end = &{1'b0, y_last};
endmodule
