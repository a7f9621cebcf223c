// What computes: the engine, and attention if the overlay has it. Both take their operands from the
// same streams, so a command of one begins when the other has given its last result.
module tlmm_compute #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0
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
    // softmax or queries, and for results to be made.
    output logic                 ev_lookup,
    output logic                 ev_stall_weights,
    output logic                 ev_stall_tables,
    output logic                 ev_stall_output
);
  logic cmd_valid, cmd_ready, cmd_mode, cmd_scale, cmd_attention, attends;
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
      .cmd_row_beats,
      .cmd_tiles,
      .cmd_columns
  );
  assign attends = ATTENTION != 0 && cmd_attention;

  // ---- engine
  logic engine_ready, engine_busy, engine_x_ready, engine_w_ready, engine_y_valid, y_last;
  logic attention_ready, attention_busy, attention_x_ready, attention_w_ready, attention_y_valid;
  logic engine_lookup, engine_stall_weights, engine_stall_tables, engine_stall_output;
  logic beat, stall_beats, stall_softmax, stall_results;
  logic [127:0] engine_y_data, attention_y_data;

  tlmm_engine #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE)
  ) engine (
      .clk,
      .rst,
      .cmd_valid(cmd_valid && !attends && !attention_busy),
      .cmd_ready(engine_ready),
      .cmd_mode,
      .cmd_scale,
      .cmd_row_beats,
      .cmd_tiles,
      .cmd_columns,
      .x_valid(x_valid && !attention_busy),
      .x_ready(engine_x_ready),
      .x_data,
      .w_valid(w_valid && !attention_busy),
      .w_ready(engine_w_ready),
      .w_data,
      .s_valid,
      .s_ready,
      .s_data,
      .y_valid(engine_y_valid),
      .y_ready(y_ready && !attention_busy),
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
        .cmd_valid(cmd_valid && attends && !engine_busy),
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

  // ---- whose turn it is
  assign cmd_ready = attends ? attention_ready && !engine_busy : engine_ready && !attention_busy;
  assign x_ready = attention_busy ? attention_x_ready : engine_x_ready;
  assign w_ready = attention_busy ? attention_w_ready : engine_w_ready;
  assign y_valid = attention_busy ? attention_y_valid : engine_y_valid;
  assign y_data = attention_busy ? attention_y_data : engine_y_data;

  assign ev_lookup = attention_busy ? beat : engine_lookup;
  assign ev_stall_weights = attention_busy ? stall_beats : engine_stall_weights;
  assign ev_stall_tables = attention_busy ? stall_softmax : engine_stall_tables;
  assign ev_stall_output = attention_busy ? stall_results : engine_stall_output;

  // The writer counts results itself; a command ends by its last response.
  logic unused_end;
  assign unused_end = &{1'b0, y_last};
endmodule
