// Leads the softmax through blocks of 64 tokens, the same for all queries: one walk makes scores of
// sums, the next one weights of scores, each on a block of its own. Between the walks, and before
// and behind them, there are two buffers of each kind.
module tlmm_attention_passes (
    input  logic        clk,
    input  logic        rst,
    input  logic        start,          // of a command
    input  logic [5:0]  heads,
    // blocks of keys that are taken, and those whose sums are here
    input  logic        keys_begin,
    input  logic        sums_here,
    output logic        scores_room,    // another block of keys may begin
    // the walk that makes scores
    output logic [5:0]  score_token,
    output logic        score_buffer,   // of sums
    output logic [1:0]  score_scales,   // buffer of scales
    output logic [4:0]  score_head,
    output logic [15:0] score_block,    // first token of the block
    output logic        score_write,    // 12 cycles later
    output logic [6:0]  score_place,
    output logic        score_begins,
    output logic        score_done,     // a cycle after the last one
    output logic        score_done_buffer,
    // the walk that makes weights
    output logic        compare,
    output logic        raise,
    output logic        finish,
    output logic        weight_fresh,
    output logic [4:0]  weight_head,
    output logic [6:0]  weight_place,   // {buffer of scores, token}
    output logic        weight_valid_1,
    output logic [1:0]  weight_scales,
    output logic        weight_write,   // 13 cycles later
    output logic [6:0]  weight_target,  // {buffer of weights, token}
    output logic        weight_buffer,  // of the block whose maximum rises
    // blocks of values
    input  logic        values_begin,
    input  logic        values_end,
    output logic        weights_ready
);
  // Counts of blocks that hold, or wait in, two buffers each.
  logic [1:0] open_keys, sums, score_blocks, scores, weight_blocks, weights;
  logic score_start, score_end, weight_start, weight_end, weight_done;

  function automatic logic [1:0] counted(input logic [1:0] count, input logic up, input logic down);
    counted = count + {1'b0, up} - {1'b0, down};
  endfunction

  always_ff @(posedge clk) begin
    if (rst) {open_keys, sums, score_blocks, scores, weight_blocks, weights} <= '0;
    else begin
      open_keys <= counted(open_keys, keys_begin, score_end);
      sums <= counted(sums, sums_here, score_start);
      score_blocks <= counted(score_blocks, score_start, weight_end);
      scores <= counted(scores, score_done, weight_start);
      weight_blocks <= counted(weight_blocks, weight_start, values_end);
      weights <= counted(weights, weight_done, values_begin);
    end
  end
  assign scores_room = !open_keys[1];
  assign weights_ready = weights != '0;

  // ---- scores
  logic scoring, score_last, score_target, score_head_last;

  assign score_last = &score_token;
  assign score_end = scoring && score_last;
  assign score_start = !scoring && sums != '0 && !score_blocks[1];

  always_ff @(posedge clk) begin
    if (rst) scoring <= 1'b0;
    else if (score_start) scoring <= 1'b1;
    else if (score_last) scoring <= 1'b0;
    score_token <= scoring ? score_token + 1'b1 : '0;
    if (start) begin
      score_buffer <= 1'b0;
      score_target <= 1'b0;
      score_scales <= '0;
      score_block <= '0;
    end else if (score_end) begin
      score_buffer <= !score_buffer;
      score_target <= !score_target;
      score_scales <= score_scales + 1'b1;
      if (score_head_last) score_block <= score_block + 16'd64;
    end
  end
  tlmm_loop #(
      .BITS(5)
  ) score_heads (
      .clk,
      .load (start),
      .limit(heads),
      .step (score_end),
      .index(score_head),
      .last (score_head_last)
  );

  logic [11:0] score_line;
  logic [5:0] score_token_12;
  logic score_target_12;
  tlmm_delay #(
      .WIDTH (7),
      .CYCLES(12)
  ) delay_score (
      .clk,
      .in ({score_target, score_token}),
      .out({score_target_12, score_token_12})
  );
  always_ff @(posedge clk) begin
    score_line <= rst ? '0 : {score_line[10:0], scoring};
    score_done <= !rst && score_write && &score_token_12;
    score_done_buffer <= score_target_12;
  end
  assign score_write = score_line[11];
  assign score_place = {score_target_12, score_token_12};
  assign score_begins = score_token_12 == '0;

  // ---- weights
  localparam logic [3:0] SETTLE = 4'd15;
  typedef enum logic [2:0] {IDLE, COMPARE, RAISE, WALK, SETTLING} state_t;
  state_t state;
  logic [5:0] token;
  logic [3:0] settled;
  logic source, weight_head_last;

  assign weight_start = state == IDLE && scores != '0 && !weight_blocks[1];
  assign compare = state == COMPARE;
  assign raise = state == RAISE;
  assign weight_end = state == WALK && &token;
  assign finish = state == SETTLING && settled == SETTLE;

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (weight_start) state <= COMPARE;
        COMPARE: state <= RAISE;
        RAISE: state <= WALK;
        WALK: if (weight_end) state <= SETTLING;
        default: if (finish) state <= IDLE;
      endcase
    end
    token <= state == WALK ? token + 1'b1 : '0;
    settled <= state == SETTLING ? settled + 1'b1 : '0;
    weight_done <= finish && !rst;
    if (start) begin
      source <= 1'b0;
      weight_buffer <= 1'b0;
      weight_scales <= '0;
      weight_fresh <= 1'b1;
    end else if (finish) begin
      source <= !source;
      weight_buffer <= !weight_buffer;
      weight_scales <= weight_scales + 1'b1;
      if (weight_head_last) weight_fresh <= 1'b0;
    end
  end
  tlmm_loop #(
      .BITS(5)
  ) weight_heads (
      .clk,
      .load (start),
      .limit(heads),
      .step (finish),
      .index(weight_head),
      .last (weight_head_last)
  );

  logic [12:0] weight_line;
  tlmm_delay #(
      .WIDTH (7),
      .CYCLES(13)
  ) delay_weight (
      .clk,
      .in ({weight_buffer, token}),
      .out(weight_target)
  );
  always_ff @(posedge clk) weight_line <= rst ? '0 : {weight_line[11:0], state == WALK};
  assign weight_place = {source, token};
  assign weight_valid_1 = weight_line[0];
  assign weight_write = weight_line[12];
endmodule
