// A row of a layer's values becomes int8 activations and their scale: a gate or a sum, a norm,
// rounding.
//
// Four elements a cycle (tlmm_glue_lane), in two or three passes over a row that is kept here: the
// first takes it in and through the gate or the sum; the second multiplies by the norm's weights and adds up
// squares; the last makes codes, when the largest element is known. The scale is worked out beside
// it (tlmm_glue_scalar). Definition: hw/edgerun_hw/overlay/glue.py.
//
// Streams, in beats of four words: `x` has the gain (word 0), the constants (slope, factor, floor),
// the row; `w` the row that a gate multiplies by or that is added, then the norm's weights. What
// fills up the last beat of a row is ignored. Results: of a sum the row, then beats of 15 codes, then
// one whose first word is the scale.
//
// The length must be 1 to 8192.
module tlmm_glue (
    input  logic         clk,
    input  logic         rst,
    input  logic         cmd_valid,
    output logic         cmd_ready,
    input  logic [  1:0] cmd_gate,    // 0: none, 1: SwiGLU, 2: ReLU squared, 3: a sum
    input  logic         cmd_norm,
    input  logic [ 13:0] cmd_length,
    input  logic         x_valid,
    output logic         x_ready,
    input  logic [127:0] x_data,
    input  logic         w_valid,
    output logic         w_ready,
    input  logic [127:0] w_data,
    output logic         y_valid,
    input  logic         y_ready,
    output logic [127:0] y_data,
    output logic         busy,
    // Of busy cycles: one that takes a group of elements, waits for a stream, or for results to be
    // taken.
    output logic         ev_group,
    output logic         ev_stall_input,
    output logic         ev_stall_output
);
  localparam int LANES = 4;
  localparam int DEPTH = 2048;
  localparam int TILE = 15;
  localparam int READ = 2;
  // From an element's arrival to its product, in the first pass and in others; and what follows.
  localparam int FIRST = 52;
  localparam int AGAIN = READ + 12;
  localparam int SQUARE = READ + 14 + 2;  // with those of the other lanes
  localparam int CODE = READ + 15;
  localparam int QUEUE = 64;  // beats
  localparam logic [1:0] RESIDUAL = 2'd3;
  localparam logic [31:0] NO_NUMBER = 32'h7fc00000;
  localparam int ROOM = 8;  // with so many in the queue all that is under way still fits

  // ---- command and passes
  typedef enum logic [3:0] {
    IDLE, GAIN, CONSTANTS, SLOPE, FIRST_PASS, FIRST_END, NORM, NORM_END, FACTOR, CODES, CODES_END,
    SCALE, LEAVE
  } state_t;
  state_t state;
  logic [1:0] gate;
  logic norm, begins, take, last_group, empty, slope_ready, factor_ready, scale_ready, room, live;
  logic again, coding, emits, waits_for_room;
  logic [13:0] length, index, tile_end, next;
  logic [LANES-1:0][31:0] x_words, w_words;
  logic [LANES-1:0] in_row;  // lanes whose element is one of the row

  assign cmd_ready = state == IDLE;
  assign busy = state != IDLE;
  assign begins = cmd_valid && cmd_ready;
  assign next = index + 14'(LANES);
  assign live = state == FIRST_PASS || state == NORM || state == CODES;
  assign last_group = state == CODES ? next >= tile_end && tile_end >= length : next >= length;
  always_comb begin
    case (state)
      FIRST_PASS: take = x_valid && (gate == '0 || w_valid) && !waits_for_room;
      NORM: take = w_valid;
      CODES: take = room;
      default: take = 1'b0;
    endcase
    for (int i = 0; i < LANES; i++) in_row[i] = index + 14'(i) < length;
  end
  assign emits = !again && gate == RESIDUAL;
  assign waits_for_room = state == FIRST_PASS && emits && !room;
  assign {x_words, w_words} = {x_data, w_data};
  assign x_ready = state == GAIN || state == CONSTANTS || (state == FIRST_PASS && take);
  assign w_ready = (state == FIRST_PASS && gate != '0 && take) || state == NORM;
  assign ev_group = live && take;
  assign ev_stall_input = ((state == GAIN || state == CONSTANTS) && !x_valid)
      || ((state == FIRST_PASS || state == NORM) && !take && !waits_for_room);
  assign ev_stall_output = (state == CODES && !room) || waits_for_room
      || (state == LEAVE && !y_ready);

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (cmd_valid) state <= GAIN;
        GAIN: if (x_valid) state <= CONSTANTS;
        CONSTANTS: if (x_valid) state <= SLOPE;
        SLOPE: if (slope_ready) state <= FIRST_PASS;
        FIRST_PASS: if (take && last_group) state <= FIRST_END;
        FIRST_END: if (empty) state <= norm ? NORM : FACTOR;
        NORM: if (take && last_group) state <= NORM_END;
        NORM_END: if (empty) state <= FACTOR;
        FACTOR: if (factor_ready) state <= CODES;
        CODES: if (take && last_group) state <= CODES_END;
        CODES_END: if (empty) state <= SCALE;
        SCALE: if (scale_ready && room) state <= LEAVE;
        default: if (!y_valid) state <= IDLE;
      endcase
    end
    if (cmd_ready) {gate, norm, length} <= {cmd_gate, cmd_norm, cmd_length};
    if (live && take) begin
      index <= last_group ? '0 : next;
      if (next >= tile_end) tile_end <= tile_end + 14'(TILE);
    end
    if (begins) index <= '0;
    if (state == FACTOR) tile_end <= 14'(TILE);
  end

  // ---- constants
  logic [22:0] gain, steepness, share, floor;

  always_ff @(posedge clk) begin
    if (state == GAIN) gain <= x_words[0][30:8];
    if (state == CONSTANTS) begin
      steepness <= x_words[0][30:8];
      share <= x_words[1][30:8];
      floor <= x_words[2][30:8];
    end
  end

  // ---- the way of a group
  logic [LANES-1:0][23:0] x, up, kept, element, weight, product;
  logic [LANES-1:0][31:0] square;
  logic [LANES-1:0][7:0] code;
  logic [LANES-1:0] in_row_2, in_row_late;
  logic [23:0] slope, factor;
  logic [7:0] top, squares_top;
  logic [FIRST-1:0] line;
  logic stored, stored_1, stored_2, coded, summed;
  logic [10:0] write_index;

  assign again = state != FIRST_PASS && state != FIRST_END;
  assign coding = state == CODES || state == CODES_END;
  assign stored = again ? line[AGAIN-1] && !coding : line[FIRST-1];
  assign summed = again && !coding && line[SQUARE-1];
  assign coded = coding && line[CODE-1];
  assign empty = line == '0 && !stored_1 && !stored_2;

  // Only in the first pass groups are under way for longer than to their squares.
  always_ff @(posedge clk) begin
    line <= {line[FIRST-2:SQUARE-1] & {(FIRST - SQUARE) {!again}}, line[SQUARE-2:0], live && take};
    if (rst) line <= '0;
  end

  for (genvar i = 0; i < LANES; i++) begin : g_lane
    always_ff @(posedge clk) begin
      x[i]  <= in_row[i] ? x_words[i][31:8] : '0;
      up[i] <= in_row[i] ? w_words[i][31:8] : '0;
    end
    assign element[i] = in_row_2[i] ? kept[i] : '0;

    tlmm_glue_lane lane (
        .clk,
        .gate,
        .gain,
        .slope,
        .x(x[i]),
        .up(up[i]),
        .again,
        .coding,
        .element(element[i]),
        .weight(weight[i]),
        .top,
        .factor,
        .product(product[i]),
        .square(square[i]),
        .code(code[i])
    );
  end
  tlmm_delay #(
      .WIDTH (LANES * 24),
      .CYCLES(READ - 1)
  ) delay_weights (
      .clk,
      .in (up),
      .out(weight)
  );
  tlmm_delay #(
      .WIDTH (LANES),
      .CYCLES(READ)
  ) delay_in_row (
      .clk,
      .in (in_row),
      .out(in_row_2)
  );
  tlmm_delay #(
      .WIDTH (LANES),
      .CYCLES(FIRST - READ)
  ) delay_in_row_more (
      .clk,
      .in (in_row_2),
      .out(in_row_late)
  );
  tlmm_ram #(
      .WIDTH(LANES * 24),
      .DEPTH(DEPTH)
  ) row (
      .clk,
      .write(stored),
      .write_address(write_index),
      .write_data(product),
      .read_address(index[12:2]),
      .read_data(kept)
  );
  always_ff @(posedge clk) begin
    if (begins || state == FIRST_END && empty) write_index <= '0;
    else if (stored) write_index <= write_index + 1'b1;
  end

  // ---- the largest, the sum of squares, what is no number
  logic [1:0][22:0] pair;
  logic [22:0] group, largest;
  logic none_1, broken;
  logic [1:0][32:0] pair_sum;
  logic [33:0] group_sum;
  logic [44:0] squares;

  function automatic logic [22:0] larger(input logic [22:0] a, input logic [22:0] b);
    larger = a > b ? a : b;
  endfunction

  always_ff @(posedge clk) begin
    stored_1 <= stored && !rst;
    stored_2 <= stored_1 && !rst;
    none_1   <= 1'b0;
    for (int i = 0; i < LANES; i++) if (&product[i][22:15]) none_1 <= 1'b1;
    for (int i = 0; i < 2; i++) pair[i] <= larger(product[2*i][22:0], product[2*i+1][22:0]);
    group <= larger(pair[0], pair[1]);
    if (begins || (state == FIRST_END && empty && norm)) largest <= '0;
    else if (stored_2) largest <= larger(largest, group);

    if (begins) broken <= 1'b0;
    else if (stored_1 && none_1) broken <= 1'b1;
    else if (state == SLOPE && (&gain[22:15] || &steepness[22:15] || &share[22:15] || &floor[22:15]))
      broken <= 1'b1;

    for (int i = 0; i < 2; i++) pair_sum[i] <= {1'b0, square[2*i]} + {1'b0, square[2*i+1]};
    group_sum <= {1'b0, pair_sum[0]} + {1'b0, pair_sum[1]};
    if (begins) squares <= '0;
    else if (summed) squares <= squares + 45'(group_sum);

    if (empty && (state == FIRST_END || state == NORM_END)) begin
      top <= largest[22:15];
      squares_top <= top;
    end
  end

  logic [31:0] scale;
  tlmm_glue_scalar scalar (
      .clk,
      .rst,
      .begin_slope(state == CONSTANTS && x_valid),
      .begin_scale(empty && (state == NORM_END || (state == FIRST_END && !norm))),
      .gate,
      .norm,
      .gain,
      .steepness,
      .share,
      .floor,
      .largest,
      .squares,
      .squares_top,
      .slope_ready,
      .factor_ready,
      .scale_ready,
      .slope,
      .factor,
      .scale
  );

  // ---- results
  logic tile_valid, push, leave_scale, leave_group;
  logic [127:0] tile, result;
  logic [LANES-1:0][31:0] sum_words;
  logic [$clog2(QUEUE):0] level;

  tlmm_glue_tiles tiles (
      .clk,
      .start(begins || rst),
      .push(coded),
      .codes(broken ? '0 : code),
      .beat_valid(tile_valid),
      .beat(tile)
  );
  assign room = level < ($clog2(QUEUE) + 1)'(ROOM);
  assign leave_scale = state == SCALE && scale_ready && room;
  assign leave_group = emits && stored;
  assign push = tile_valid || leave_scale || leave_group;
  for (genvar i = 0; i < LANES; i++) begin : g_word
    always_comb begin
      sum_words[i] = {product[i], 8'd0};
      if (&product[i][22:15]) sum_words[i] = NO_NUMBER;
      if (product[i][22:15] == '0 || !in_row_late[i]) sum_words[i] = '0;
    end
  end
  always_comb begin
    result = tile;
    if (leave_group) result = sum_words;
    if (leave_scale) result = {96'd0, broken ? NO_NUMBER : scale};
  end
  tlmm_fifo #(
      .WIDTH(128),
      .DEPTH(QUEUE)
  ) queue (
      .clk,
      .rst,
      .push,
      .push_data(result),
      .pop(y_valid && y_ready),
      .valid(y_valid),
      .head(y_data),
      .level
  );

  // What is cut off.
  logic [LANES-1:0][15:0] unused_bits;
  for (genvar i = 0; i < LANES; i++) begin : g_unused
    assign unused_bits[i] = {x_words[i][7:0], w_words[i][7:0]};
  end
  logic unused;
  assign unused = &{1'b0, unused_bits};
endmodule
