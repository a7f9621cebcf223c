// Takes the staged command into the queue: checks it, works out its sizes, copies it.
//
// The command's words pass by one a cycle, so there is one comparator for each kind of check and
// the products are made serially, without a multiplier. The registers hold writes back meanwhile
// (27 cycles), so the staged words stand still.
module tlmm_intake #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0,     // queries of the attention unit
    parameter bit GLUE = 1'b0,
    parameter int ADDR_BITS = 40
) (
    input  logic        clk,
    input  logic        rst,
    input  logic        push,
    input  logic        full,
    output logic        busy,
    // the staged words
    output logic [4:0]  staged_index,
    input  logic [31:0] staged_word,  // a cycle after its index
    // the queue's free slot; words 4 to 7 become the sizes
    output logic        copy,
    output logic [4:0]  copy_index,
    output logic [31:0] copy_data,
    output logic        accepted,    // there is a slot for it
    output logic        commit,      // the slot is complete
    output logic        commit_bad,  // and must be dropped
    output logic        commit_after,  // reads data when all before it is complete
    output logic        overflow,
    output logic [31:0] tag          // with these three
);
  // A word's index is bits 6..2 of its register's offset: 16 to 31, then 0 to 7.
  localparam logic [4:0] MODE = 5'(tlmm_pkg::REG_CMD_MODE >> 2);
  localparam logic [4:0] ROW_BEATS = 5'(tlmm_pkg::REG_CMD_ROW_BEATS >> 2);
  localparam logic [4:0] TILES = 5'(tlmm_pkg::REG_CMD_TILES >> 2);
  localparam logic [4:0] ACTIVE_COLUMNS = 5'(tlmm_pkg::REG_CMD_COLUMNS >> 2);
  localparam logic [4:0] TAG = 5'(tlmm_pkg::REG_CMD_TAG >> 2);
  localparam logic [4:0] X_LO = 5'(tlmm_pkg::REG_CMD_X_LO >> 2);
  localparam logic [4:0] S_LO = 5'(tlmm_pkg::REG_CMD_S_LO >> 2);
  localparam logic [4:0] Y_LO = 5'(tlmm_pkg::REG_CMD_Y_LO >> 2);
  localparam logic [4:0] W0_LO = 5'(tlmm_pkg::REG_CMD_W0_LO >> 2);
  localparam logic [4:0] LAST = 5'd7;

  localparam int ROWS = PORTS * tlmm_pkg::PORT_ROWS;
  localparam int X_BITS = 24;                                // tiles * columns
  localparam int S_BITS = $clog2(NB_MAX * ROWS + 1);         // rows
  localparam int MATRIX_Y_BITS = S_BITS + $clog2(COLUMNS + 1);  // rows * columns
  localparam int MATRIX_W_BITS = 16 + $clog2(NB_MAX + 1);       // row beats * tiles
  localparam int Y_BITS = (ATTENTION != 0 || GLUE) && MATRIX_Y_BITS < 14 ? 14 : MATRIX_Y_BITS;
  localparam int W_BITS = ATTENTION != 0 && MATRIX_W_BITS < 26 ? 26 : MATRIX_W_BITS;

  typedef enum logic [1:0] {IDLE, WALK, REPORT} state_t;
  state_t state;
  // The word in hand is that of the index of a cycle before.
  logic [4:0] index;
  logic [31:0] word;
  logic in_hand, was_full, bad;
  logic judging, word_bad;  // of the checks below

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (push) state <= WALK;
        WALK: if (index == LAST && in_hand) state <= REPORT;
        default: state <= IDLE;
      endcase
    end
    in_hand <= state == WALK;
    index <= staged_index;
    if (state == IDLE) begin
      staged_index <= MODE;
      was_full <= full;
      bad <= 1'b0;
    end else begin
      // The tag comes past once more, for the report of a command that is refused.
      staged_index <= staged_index == LAST ? TAG : staged_index + 1'b1;
      bad <= bad || (judging && word_bad);
    end
  end

  assign word = staged_word;
  assign busy = state != IDLE;
  // In a full queue the next slot belongs to a command that still runs.
  assign copy = state == WALK && in_hand && !was_full;
  assign copy_index = index;
  assign accepted = state == IDLE && push && !full;
  assign commit = state == REPORT && !was_full;
  assign commit_bad = bad;
  assign overflow = state == REPORT && was_full;
  assign tag = word;

  // ---- checks, in two steps: what a word is like, then whether its register may be like that.
  // The sizes that end the walk are not checked, so the verdict is there in time.
  logic [4:0] judged;
  logic wants_scale, scale, attention;
  logic is_zero, is_wide, is_misaligned, is_beyond, exceeds_rows, exceeds_columns;
  // Attention: heads of keys, elements of one and of all over 16, and what is wrong with them.
  logic [5:0] heads;
  logic [4:0] units;
  logic [10:0] all_units;
  logic bad_heads, is_short, is_pair, exceeds_queries;
  // Glue: elements that its beats of codes hold at most, and what is wrong with the row.
  localparam logic [1:0] RESIDUAL = 2'd3;
  logic glue, norm;
  logic [1:0] gate;
  logic [13:0] most;
  logic signed [14:0] unfilled;
  logic bad_length, exceeds_beats, exceeds_one, second_row;

  assign unfilled = {1'b0, most} - {1'b0, word[13:0]};

  always_ff @(posedge clk) begin
    judging <= in_hand;
    judged <= index;
    is_zero <= word == '0;
    is_wide <= word[31:16] != '0;
    is_misaligned <= word[3:0] != '0;
    is_beyond <= (word >> (ADDR_BITS - 32)) != '0;
    exceeds_rows <= word > 32'(NB_MAX);
    exceeds_columns <= word > 32'(COLUMNS);
    exceeds_queries <= word > 32'(ATTENTION);
    exceeds_one <= word[31:1] != '0;
    // A row ends in its last beat of 15 codes.
    bad_length <= word[31:14] != '0 || word[13:0] > 14'(tlmm_pkg::MAX_GLUE_LENGTH)
        || unfilled < 15'sd0 || unfilled > 15'sd14;
    exceeds_beats <= word[31:10] != '0;
    is_short <= word[31:2] == '0 && word[1:0] != 2'd3;
    is_pair <= word == {22'd0, units, 5'(tlmm_pkg::KV_SCALE_BEATS)};
    bad_heads <= units == '0 || 32'(units) > tlmm_pkg::MAX_HEAD_UNITS || heads == '0
        || 32'(heads) > tlmm_pkg::MAX_KV_HEADS || 32'(all_units) > tlmm_pkg::MAX_KV_UNITS;
  end

  always_comb begin
    word_bad = 1'b0;
    case (judged)
      MODE: word_bad = wants_scale && (!ROW_SCALE || attention || glue) || (attention && glue);
      ROW_BEATS: word_bad = glue ? exceeds_beats : attention ? !is_pair : is_zero || exceeds_rows;
      TILES: word_bad = is_zero || is_wide || (attention && is_short) || (glue && bad_length);
      ACTIVE_COLUMNS: word_bad = is_zero || (attention ? exceeds_queries : exceeds_columns)
          || (glue && exceeds_one);
      TAG: word_bad = attention && bad_heads;
      X_LO, Y_LO: word_bad = is_misaligned;
      X_LO + 5'd1, Y_LO + 5'd1: word_bad = is_beyond;
      S_LO: word_bad = (scale || second_row) && is_misaligned;
      S_LO + 5'd1: word_bad = (scale || second_row) && is_beyond;
      default: begin
        for (int p = 0; p < PORTS; p++) begin
          if (judged == W0_LO + 5'(2 * p)) word_bad = is_misaligned;
          if (judged == W0_LO + 5'(2 * p + 1)) word_bad = is_beyond;
        end
      end
    endcase
  end

  // ---- sizes: the factors are known at TAG, and 16 words later the products are
  assign scale = wants_scale && ROW_SCALE && !attention && !glue;
  assign second_row = glue && gate != '0;

  logic [11:0] groups;  // of four elements of a row
  logic [9:0] code_beats;
  logic [15:0] tiles, row_beats_left, columns_left;
  logic [S_BITS-1:0] rows;
  // Of one column, or query.
  logic [X_BITS-1:0] column_beats;
  logic [Y_BITS-1:0] column_results;
  logic [W_BITS-1:0] w_beats;
  logic [X_BITS-1:0] x_beats;
  logic [Y_BITS-1:0] y_results;

  // Sums instead of a product: synthesis must not take a DSP for it.
  function automatic logic [S_BITS-1:0] rows_of(input logic [S_BITS-1:0] row_beats);
    rows_of = '0;
    for (int i = 0; i < 5; i++) if (ROWS[i]) rows_of = rows_of + (row_beats << i);
  endfunction

  // PORTS is a power of two where there is glue.
  function automatic logic [15:0] stripes_of(input logic [13:0] length);
    stripes_of = 16'((16'(length) + 16'(4 * PORTS - 1)) >> 2 + $clog2(PORTS));
  endfunction

  function automatic logic [10:0] product_of(input logic [5:0] count, input logic [4:0] size);
    product_of = '0;
    for (int i = 0; i < 5; i++) if (size[i]) product_of = product_of + (11'(count) << i);
  endfunction

  always_comb begin
    column_beats = X_BITS'(tiles);
    column_results = Y_BITS'(rows);
    if (attention) begin
      column_beats = X_BITS'({all_units, 1'b0}) + X_BITS'(heads);
      column_results = Y_BITS'({all_units, 4'b0});
    end
    if (glue) begin
      column_beats = X_BITS'(groups) + X_BITS'(2);
      column_results = Y_BITS'({12'(code_beats) + 12'd1 + (gate == RESIDUAL ? groups : '0), 2'b0});
    end
  end

  always_ff @(posedge clk) begin
    if (index == MODE) begin
      wants_scale <= word[tlmm_pkg::CMD_MODE_SCALE_BIT];
      attention <= ATTENTION != 0 && word[tlmm_pkg::CMD_MODE_ATTENTION_BIT];
      commit_after <= word[tlmm_pkg::CMD_MODE_AFTER_BIT];
      glue <= GLUE && word[tlmm_pkg::CMD_MODE_GLUE_BIT];
      gate <= word[tlmm_pkg::CMD_MODE_GATE_LSB+:tlmm_pkg::CMD_MODE_GATE_WIDTH];
      norm <= word[tlmm_pkg::CMD_MODE_NORM_BIT];
      heads <= word[tlmm_pkg::CMD_MODE_KV_HEADS_LSB+:tlmm_pkg::CMD_MODE_KV_HEADS_WIDTH];
      units <= word[tlmm_pkg::CMD_MODE_HEAD_UNITS_LSB+:tlmm_pkg::CMD_MODE_HEAD_UNITS_WIDTH];
    end
    all_units <= product_of(heads, units);
    // The norm's weights are a row over all ports; its length is no product.
    if (index == TILES) tiles <= glue ? stripes_of(word[13:0]) : word[15:0];
    if (index == TILES) groups <= 12'((word[14:0] + 15'd3) >> 2);
    if (index == ROW_BEATS) code_beats <= word[9:0];
    if (index == ROW_BEATS) most <= {word[9:0], 4'd0} - 14'(word[9:0]);
    if (index == ROW_BEATS) rows <= rows_of(word[S_BITS-1:0]);
    if (index == ROW_BEATS) row_beats_left <= glue ? 16'(norm) : word[15:0];
    else if (index != TILES && index != ACTIVE_COLUMNS)
      row_beats_left <= row_beats_left << 1;
    columns_left <= index == ACTIVE_COLUMNS ? word[15:0] : columns_left << 1;
    if (index == ACTIVE_COLUMNS) begin
      w_beats <= '0;
      x_beats <= '0;
      y_results <= '0;
    end else if (index >= TAG || index < 5'd4) begin
      w_beats <= (w_beats << 1) + (row_beats_left[15] ? W_BITS'(tiles) : '0);
      x_beats <= (x_beats << 1) + (columns_left[15] ? column_beats : '0);
      y_results <= (y_results << 1) + (columns_left[15] ? column_results : '0);
    end
  end

  always_comb begin
    case (index)
      5'd4: copy_data = 32'(w_beats);
      5'd5: copy_data = 32'(x_beats);
      5'd6: copy_data = scale ? (32'(rows) + 32'd3) >> 2 : second_row ? 32'(groups) : '0;
      5'd7: copy_data = 32'(y_results);
      default: copy_data = word;
    endcase
  end
endmodule
