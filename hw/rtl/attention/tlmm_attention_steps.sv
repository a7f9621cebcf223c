// Takes the beats of a command in their order: pairs of a block of keys, with its scales before it,
// and a block of values, which belongs to the keys of two pairs before. The first two blocks of
// values and the last two of keys are of no use here and are passed over.
module tlmm_attention_steps (
    input  logic        clk,
    input  logic        rst,
    input  logic        start,
    input  logic [5:0]  heads,
    input  logic [4:0]  units,
    input  logic [15:0] pairs,
    output logic        busy,
    input  logic        w_valid,
    output logic        w_ready,
    // blocks: whether one may begin, and when one does or has ended
    input  logic        scores_room,
    input  logic [5:0]  loaded,         // heads whose queries are here
    input  logic        weights_ready,
    output logic        keys_begin,
    output logic        values_begin,
    output logic        values_end,
    output logic        fresh,          // the block of values is the head's first
    output logic        last_head,      // and the last of its tokens
    // beats, in the cycle in which one is taken
    output logic        take_scales,
    output logic [1:0]  scale_beat,
    output logic        take_keys,
    output logic        take_values,
    output logic [10:0] element,        // of the query, that a beat of keys is multiplied by
    output logic [3:0]  token,          // of a beat of values
    output logic        run_first,
    output logic        run_last
);
  localparam int LEAD = tlmm_pkg::KV_LEAD;

  typedef enum logic [2:0] {IDLE, KEYS_WAIT, SCALES, KEYS, VALUES_WAIT, VALUES} state_t;
  state_t state;
  logic [7:0] beat, last_index;
  logic [15:0] keys_left, pairs_left;
  logic [1:0] lead;  // blocks of values still to be passed over
  logic keys_useful, values_useful, keys_go, values_go, take, last_beat, key_head_last;
  logic value_head_last;
  logic [4:0] key_head, value_head;

  assign keys_useful = keys_left != '0;
  assign values_useful = lead == '0;
  assign busy = state != IDLE;
  assign w_ready = state == SCALES || state == KEYS || state == VALUES;
  assign take = w_valid && w_ready;
  assign last_beat = beat == last_index;
  assign keys_go = state == KEYS_WAIT && (!keys_useful || (scores_room && loaded > {1'b0, key_head}));
  assign values_go = state == VALUES_WAIT && (!values_useful || weights_ready);
  assign keys_begin = keys_go && keys_useful;
  assign values_begin = values_go && values_useful;
  assign values_end = take && state == VALUES && last_beat && values_useful;

  assign scale_beat = beat[1:0];
  assign token = beat[3:0];
  assign take_scales = take && state == SCALES && keys_useful;
  assign take_keys = take && state == KEYS && keys_useful;
  assign take_values = take && state == VALUES && values_useful;
  assign run_first = state == KEYS ? beat == '0 : beat[3:0] == '0;
  assign run_last = state == KEYS ? last_beat : &beat[3:0];

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (start) state <= KEYS_WAIT;
        KEYS_WAIT: if (keys_go) state <= SCALES;
        SCALES: if (take && &beat[1:0]) state <= KEYS;
        KEYS: if (take && last_beat) state <= VALUES_WAIT;
        VALUES_WAIT: if (values_go) state <= VALUES;
        default: if (take && last_beat) state <= pairs_left == 16'd1 ? IDLE : KEYS_WAIT;
      endcase
    end
    if (start || (take && (state == SCALES ? &beat[1:0] : last_beat))) beat <= '0;
    else if (take) beat <= beat + 1'b1;

    if (start) begin
      last_index <= {units[3:0] - 4'd1, 4'd15};
      pairs_left <= pairs;
      keys_left <= pairs - 16'(LEAD);
      lead <= 2'(LEAD);
      fresh <= 1'b1;
    end else if (take && last_beat) begin
      if (state == KEYS && keys_useful) keys_left <= keys_left - 1'b1;
      if (state == VALUES) begin
        pairs_left <= pairs_left - 1'b1;
        if (lead != '0) lead <= lead - 1'b1;
        if (values_useful && value_head_last) fresh <= 1'b0;
      end
    end
  end
  assign last_head = value_head_last;

  always_ff @(posedge clk) begin
    if (start || (take && state == KEYS && last_beat && key_head_last)) element <= '0;
    else if (take && state == KEYS) element <= element + 1'b1;
  end

  tlmm_loop #(
      .BITS(5)
  ) key_heads (
      .clk,
      .load (start),
      .limit(heads),
      .step (take && state == KEYS && last_beat),
      .index(key_head),
      .last (key_head_last)
  );
  tlmm_loop #(
      .BITS(5)
  ) value_heads (
      .clk,
      .load (start),
      .limit(heads),
      .step (values_end),
      .index(value_head),
      .last (value_head_last)
  );

  logic unused;
  assign unused = &{1'b0, value_head, units[4]};
endmodule
