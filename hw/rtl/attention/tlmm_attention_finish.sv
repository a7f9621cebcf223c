// Makes results of sums, one head after another, of all queries at once (tlmm_attention_result).
// Begins with a head as soon as its last block is summed. Results leave by heads, and of each by
// queries.
module tlmm_attention_finish #(
    parameter int QUERIES = 2,
    parameter int QUEUE = 32  // beats of the first query; of the others it holds a head
) (
    input  logic                     clk,
    input  logic                     rst,
    input  logic                     start,
    input  logic [5:0]               heads,
    input  logic [4:0]               units,
    input  logic [3:0]               queries,
    input  logic [15:0]              pairs,
    input  logic                     summed,   // a block of values of a head is in the sums
    output logic                     busy,
    // a head's sums
    output logic [4:0]               head,
    input  logic [QUERIES-1:0][39:0] total,
    input  logic [QUERIES-1:0][4:0]  top,
    input  logic                     may_read,
    output logic [10:0]              address,
    output logic [QUERIES-1:0][5:0]  shift,
    input  logic [QUERIES-1:0][24:0] word,     // 5 cycles later
    // results
    output logic                     y_valid,
    input  logic                     y_ready,
    output logic [127:0]             y_data
);
  localparam int READ = 5;
  localparam int SCALE = 22;
  localparam int QUERY_BITS = QUERIES > 1 ? $clog2(QUERIES) : 1;
  localparam int HEAD_BEATS = 4 * tlmm_pkg::MAX_HEAD_UNITS;

  typedef enum logic [2:0] {IDLE, AWAIT, LOAD, ALIGN, DIVIDE, STREAM} state_t;
  state_t state;
  logic signed [17:0] ready;  // heads whose sums are complete, less those that are to come
  logic last_head, last_element, divided, read, reserve;
  logic [QUERIES-1:0] aligned, rooms, results_busy;
  logic [7:0] element;
  logic [4:0] digit;

  assign reserve = read && element[1:0] == 2'd0;
  assign read = state == STREAM && may_read && (&rooms || element[1:0] != 2'd0);
  assign last_element = element == {units[3:0] - 4'd1, 4'd15};
  assign last_head = {1'b0, head} == heads - 6'd1;
  assign divided = digit == 5'd24;
  assign busy = state != IDLE || results_busy != '0;

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (start) state <= AWAIT;
        AWAIT: if (ready > $signed({13'b0, head})) state <= LOAD;
        LOAD: state <= ALIGN;
        ALIGN: if (&aligned) state <= DIVIDE;
        DIVIDE: if (divided) state <= STREAM;
        default: if (read && last_element) state <= last_head ? IDLE : AWAIT;
      endcase
    end

    if (start) ready <= $signed({12'b0, heads}) + 18'(tlmm_pkg::KV_LEAD) - $signed({2'b0, pairs});
    else if (summed) ready <= ready + 18'sd1;

    digit <= state == DIVIDE ? digit + 1'b1 : '0;

    if (start) begin
      head <= '0;
      element <= '0;
      address <= '0;
    end else if (read) begin
      element <= last_element ? '0 : element + 1'b1;
      address <= address + 1'b1;
      if (last_element) head <= head + 1'b1;
    end
  end

  // ---- elements on their way, and their places in a beat
  logic [READ+SCALE-1:0] line;
  logic [1:0] place;
  logic leaves;

  assign leaves = line[READ+SCALE-1];
  always_ff @(posedge clk) begin
    line <= rst ? '0 : {line[READ+SCALE-2:0], read};
    if (rst) place <= '0;
    else if (leaves) place <= place + 1'b1;
  end

  // ---- the queries
  logic [QUERIES-1:0] valid, taken;
  logic [QUERIES-1:0][127:0] beat;
  logic [QUERY_BITS-1:0] turn;

  for (genvar q = 0; q < QUERIES; q++) begin : g_query
    tlmm_attention_result #(
        .QUEUE(q == 0 ? QUEUE : HEAD_BEATS)
    ) own (
        .clk,
        .rst,
        .used(queries > 4'(q)),
        .load(state == LOAD),
        .align(state == ALIGN),
        .aligned(aligned[q]),
        .divide(state == DIVIDE),
        .divided,
        .total(total[q]),
        .top(top[q]),
        .reserve,
        .room(rooms[q]),
        .shift(shift[q]),
        .arrives(line[READ-1]),
        .word(word[q]),
        .leaves,
        .last(&place),
        .y_valid(valid[q]),
        .y_taken(taken[q]),
        .y_data(beat[q]),
        .busy(results_busy[q])
    );
    assign taken[q] = y_ready && valid[q] && turn == QUERY_BITS'(q);
  end

  // ---- beats, query by query
  logic [5:0] left;  // beats of the head and query, less one

  assign y_valid = valid[turn];
  assign y_data  = beat[turn];
  always_ff @(posedge clk) begin
    if (rst || start) begin
      turn <= '0;
      left <= {units[3:0] - 4'd1, 2'd3};
    end else if (taken != '0) begin
      left <= left == '0 ? {units[3:0] - 4'd1, 2'd3} : left - 1'b1;
      if (left == '0) turn <= 4'(turn) == queries - 4'd1 ? '0 : turn + 1'b1;
    end
  end

  logic unused;
  assign unused = &{1'b0, units[4]};
endmodule
