// Attention of a few queries to the int8 keys and values of a layer, in one pass over them.
//
// A command is a sequence of blocks of 64 tokens and one head (tlmm_attention_steps). Four ports give
// 64 elements a cycle, and each query has a multiplier for every one of them: keys are added up to
// scores, values to results (tlmm_attention_lanes). Between the two is the softmax, a token a
// cycle, on a block while the next ones are read (tlmm_attention_passes, _scores, _weights). What
// the values add up to is kept for every head (tlmm_attention_sums) until its last block, and then
// divided (tlmm_attention_finish). Definition: hw/edgerun_hw/overlay/attention.py; layout of the
// streams: attention_layout.py there.
//
// Lengths must be within the limits: 1 to 32 heads of 1 to 16 units, 128 units in all, 1 to QUERIES
// queries, and at least three pairs.
module tlmm_attention #(
    parameter int QUERIES = 2
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         cmd_valid,
    output logic         cmd_ready,
    input  logic [5:0]   cmd_heads,
    input  logic [4:0]   cmd_units,
    input  logic [3:0]   cmd_queries,
    input  logic [15:0]  cmd_pairs,
    input  logic         x_valid,
    output logic         x_ready,
    input  logic [127:0] x_data,
    input  logic         w_valid,
    output logic         w_ready,
    input  logic [511:0] w_data,
    output logic         y_valid,
    input  logic         y_ready,
    output logic [127:0] y_data,
    output logic         busy,
    // A busy cycle is one of these.
    output logic         ev_beat,
    output logic         ev_stall_beats,
    output logic         ev_stall_softmax,
    output logic         ev_stall_output
);
  localparam int DEPTH = 16 * tlmm_pkg::MAX_KV_UNITS;

  // ---- command
  logic start, steps_busy, finish_busy;
  logic [5:0] heads;
  logic [4:0] units;
  logic [3:0] queries;
  logic [15:0] pairs;

  assign cmd_ready = !busy;

  always_ff @(posedge clk) begin
    start <= !rst && cmd_valid && cmd_ready;
    if (rst) busy <= 1'b0;
    else if (cmd_ready) busy <= cmd_valid;
    else if (!start && !steps_busy && !finish_busy) busy <= 1'b0;
    if (cmd_ready) {heads, units, queries, pairs} <= {cmd_heads, cmd_units, cmd_queries, cmd_pairs};
  end

  // ---- queries
  logic [5:0] loaded;
  logic [10:0] element;
  logic [4:0] score_head, weight_head, finish_head;
  logic [QUERIES-1:0][15:0] query_element;
  logic [QUERIES-1:0][6:0] query_shift;
  logic [QUERIES-1:0][16:0] query_first, query_limit;
  logic [QUERIES-1:0][4:0] weight_top, finish_top;

  tlmm_attention_queries #(
      .QUERIES(QUERIES)
  ) load (
      .clk,
      .rst,
      .start,
      .heads,
      .units,
      .queries,
      .x_valid,
      .x_ready,
      .x_data,
      .loaded,
      .index(element),
      .element(query_element),
      .score_head,
      .shift(query_shift),
      .first(query_first),
      .limit(query_limit),
      .weight_head,
      .weight_top,
      .finish_head,
      .finish_top
  );

  // ---- beats
  logic scores_room, weights_ready, keys_begin, values_begin, values_end, fresh, last_head;
  logic take_scales, take_keys, take_values, run_first, run_last;
  logic [1:0] scale_beat;
  logic [3:0] token;

  tlmm_attention_steps steps (
      .clk,
      .rst,
      .start,
      .heads,
      .units,
      .pairs,
      .busy(steps_busy),
      .w_valid,
      .w_ready,
      .scores_room,
      .loaded,
      .weights_ready,
      .keys_begin,
      .values_begin,
      .values_end,
      .fresh,
      .last_head,
      .take_scales,
      .scale_beat,
      .take_keys,
      .take_values,
      .element,
      .token,
      .run_first,
      .run_last
  );
  assign ev_beat = w_valid && w_ready;
  assign ev_stall_beats = w_ready && !w_valid;
  assign ev_stall_softmax = busy && !w_ready && steps_busy;
  assign ev_stall_output = busy && !w_ready && !steps_busy;

  // ---- the softmax's walks
  logic sums_here, score_buffer, score_write, score_begins, score_done, score_done_buffer;
  logic compare, raise, finish, weight_fresh, weight_valid_1, weight_write, weight_buffer;
  logic [1:0] score_scales, weight_scales;
  logic [5:0] score_token;
  logic [6:0] score_place, weight_place, weight_target;
  logic [15:0] score_block;

  tlmm_attention_passes passes (
      .clk,
      .rst,
      .start,
      .heads,
      .keys_begin,
      .sums_here,
      .scores_room,
      .score_token,
      .score_buffer,
      .score_scales,
      .score_head,
      .score_block,
      .score_write,
      .score_place,
      .score_begins,
      .score_done,
      .score_done_buffer,
      .compare,
      .raise,
      .finish,
      .weight_fresh,
      .weight_head,
      .weight_place,
      .weight_valid_1,
      .weight_scales,
      .weight_write,
      .weight_target,
      .weight_buffer,
      .values_begin,
      .values_end,
      .weights_ready
  );

  // ---- scales: four buffers, each of a beat of 8 tokens twice
  logic [1:0] scale_buffer;
  logic [3:0][7:0][15:0] key_words, value_words;
  logic [15:0] key_scale, value_scale;

  always_ff @(posedge clk) begin
    if (start) scale_buffer <= '0;
    else if (take_keys && run_last) scale_buffer <= scale_buffer + 1'b1;
  end
  for (genvar p = 0; p < 4; p++) begin : g_scales
    (* ram_style = "distributed" *) logic [127:0] keys[8];
    (* ram_style = "distributed" *) logic [127:0] values[8];
    always_ff @(posedge clk) begin
      if (take_scales && !scale_beat[1])
        keys[{scale_buffer, scale_beat[0]}] <= w_data[128*p+:128];
      if (take_scales && scale_beat[1])
        values[{scale_buffer, scale_beat[0]}] <= w_data[128*p+:128];
    end
    assign key_words[p] = keys[{score_scales, score_token[3]}];
    assign value_words[p] = values[{weight_scales, weight_place[3]}];
  end
  assign key_scale = key_words[score_token[5:4]][score_token[2:0]];
  assign value_scale = value_words[weight_place[5:4]][weight_place[2:0]];

  // ---- a beat on its way, see tlmm_attention_lanes
  logic [511:0] beat_2;
  logic [4:0] last_line, key_line, end_line;
  logic [3:0] valid_line, first_line;
  logic key_2;

  tlmm_delay #(
      .WIDTH (512),
      .CYCLES(2)
  ) delay_beat (
      .clk,
      .in (w_data),
      .out(beat_2)
  );
  always_ff @(posedge clk) begin
    valid_line <= rst ? '0 : {valid_line[2:0], take_keys || take_values};
    last_line <= rst ? '0 : {last_line[3:0], (take_keys || take_values) && run_last};
    first_line <= {first_line[2:0], run_first};
    key_line <= {key_line[3:0], take_keys};
    end_line <= {end_line[3:0], values_end};
  end
  assign key_2 = key_line[1];

  // ---- a run on its way out
  logic leaving, leaving_keys, leaving_end, leaving_last_head, out_keys, out_values, sum_buffer;
  logic value_last_head, values_fresh, run_fresh, add_fresh, value_buffer, out_wraps, out_ends;
  logic [3:0] lane, out_lane;
  logic [10:0] sum_address, finish_address;
  logic [QUERIES-1:0][5:0] finish_shift;
  logic [7:0] summed_line;  // at its end the run is in memory

  always_ff @(posedge clk) begin
    if (values_begin) {value_last_head, values_fresh} <= {last_head, fresh};
    if (start) value_buffer <= 1'b0;
    else if (values_end) value_buffer <= !value_buffer;

    if (rst) leaving <= 1'b0;
    else if (last_line[4]) leaving <= 1'b1;
    else if (&lane) leaving <= 1'b0;
    lane <= last_line[4] ? '0 : lane + 1'b1;
    if (last_line[4]) begin
      leaving_keys <= key_line[4];
      leaving_end <= end_line[4];
      leaving_last_head <= value_last_head;
      run_fresh <= values_fresh;
    end
    out_keys <= !rst && leaving && leaving_keys;
    out_values <= !rst && leaving && !leaving_keys;
    out_lane <= lane;
    add_fresh <= run_fresh;
    sums_here <= !rst && out_keys && &out_lane;

    if (start) sum_buffer <= 1'b0;
    else if (sums_here) sum_buffer <= !sum_buffer;
    if (start) sum_address <= '0;
    else if (out_values) begin
      sum_address <= &out_lane && out_wraps ? '0 : sum_address + 1'b1;
    end
  end

  always_ff @(posedge clk) begin
    {out_wraps, out_ends} <= {leaving_end && leaving_last_head, leaving_end};
    summed_line <= rst ? '0 : {summed_line[6:0], out_values && &out_lane && out_ends};
  end

  // ---- the queries
  logic [QUERIES-1:0][39:0] total;
  logic [QUERIES-1:0][24:0] word;

  for (genvar q = 0; q < QUERIES; q++) begin : g_query
    logic [4*25-1:0] operand;
    logic [4*36-1:0] sums;
    logic visible;
    logic [20:0] score;
    logic [9:0] highest, maxima[2], block_highest;
    logic [5:0] rise, rises[2], values_rise, run_rise, add_rise;
    logic [23:0] weight;

    // Weights: a buffer of 16 tokens for each port, and another.
    for (genvar p = 0; p < 4; p++) begin : g_weights
      (* ram_style = "distributed" *) logic [23:0] store[32];
      logic [23:0] weight_1, weight_2;
      always_ff @(posedge clk) begin
        if (weight_write && weight_target[5:4] == 2'(p))
          store[{weight_target[6], weight_target[3:0]}] <= weight;
        weight_1 <= store[{value_buffer, token}];
        weight_2 <= weight_1;
      end
      assign operand[25*p+:25] = key_2 ? 25'($signed(query_element[q])) : {1'b0, weight_2};
    end

    tlmm_attention_lanes lanes (
        .clk,
        .beat(beat_2),
        .operand,
        .valid_4(valid_line[3]),
        .first_4(first_line[3]),
        .last_5(last_line[4]),
        .lane,
        .sums
    );
    tlmm_attention_scores scores (
        .clk,
        .write(out_keys),
        .write_index({sum_buffer, out_lane}),
        .sums,
        .index({score_buffer, score_token[3:0]}),
        .port(score_token[5:4]),
        .token(score_block + {10'b0, score_token}),
        .scale(key_scale),
        .shift(query_shift[q]),
        .first(query_first[q]),
        .limit(query_limit[q]),
        .visible,
        .score,
        .begins(score_begins),
        .highest
    );
    always_ff @(posedge clk) begin
      if (score_done) maxima[score_done_buffer] <= highest;
      if (finish) rises[weight_buffer] <= rise;
      if (values_begin) values_rise <= rises[value_buffer];
      if (last_line[4]) run_rise <= values_rise;
      add_rise <= run_rise;
    end
    assign block_highest = maxima[weight_place[6]];

    tlmm_attention_weights weights (
        .clk,
        .write(score_write),
        .write_index(score_place),
        .visible,
        .score,
        .head(weight_head),
        .fresh(weight_fresh),
        .compare,
        .highest(block_highest),
        .raise,
        .finish,
        .rise,
        .index(weight_place),
        .scale(value_scale),
        .top(weight_top[q]),
        .valid_1(weight_valid_1),
        .weight,
        .total_head(finish_head),
        .total(total[q])
    );
    tlmm_attention_sums #(
        .DEPTH(DEPTH)
    ) sums_of_values (
        .clk,
        .add(out_values),
        .fresh(add_fresh),
        .rise(add_rise),
        .address(sum_address),
        .sums,
        .read_address(finish_address),
        .read_shift(finish_shift[q]),
        .word(word[q])
    );
  end

  // ---- results
  tlmm_attention_finish #(
      .QUERIES(QUERIES)
  ) results (
      .clk,
      .rst,
      .start,
      .heads,
      .units,
      .queries,
      .pairs,
      .summed(summed_line[7]),
      .busy(finish_busy),
      .head(finish_head),
      .total,
      .top(finish_top),
      .may_read(!out_values),
      .address(finish_address),
      .shift(finish_shift),
      .word,
      .y_valid,
      .y_ready,
      .y_data
  );
endmodule
