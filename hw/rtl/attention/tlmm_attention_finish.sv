// Makes results of sums, one head and query after another: the reciprocal of the weights' sum, bit
// by bit, and then every element as float32. Begins with a head as soon as its last block is summed.
module tlmm_attention_finish #(
    parameter int QUERIES = 2,
    parameter int QUEUE = 32  // beats
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
    output logic [5:0]               shift,
    input  logic [QUERIES-1:0][24:0] word,     // 5 cycles later
    // results
    output logic                     y_valid,
    input  logic                     y_ready,
    output logic [127:0]             y_data
);
  localparam int READ = 5;
  localparam int SCALE = 22;
  localparam logic [7:0] EXPONENT_BIAS = 8'd88;  // 127, and 39 of the formats
  localparam int QUERY_BITS = QUERIES > 1 ? $clog2(QUERIES) : 1;

  typedef enum logic [2:0] {IDLE, AWAIT, LOAD, ALIGN, DIVIDE, STREAM} state_t;
  state_t state;
  logic signed [17:0] ready;  // heads whose sums are complete, less those that are to come
  logic [QUERY_BITS-1:0] query;
  logic last_query, last_head, last_element, room, read;
  logic [7:0] element;
  logic [10:0] base;

  assign read = state == STREAM && may_read && room;
  assign last_element = element == {units[3:0] - 4'd1, 4'd15};
  assign last_query = 4'(query) == queries - 4'd1;
  assign last_head = {1'b0, head} == heads - 6'd1;

  // ---- the reciprocal: (2**47 - 1) / divisor, of 24 bits
  logic [39:0] divisor;
  logic [4:0] aligned, digit;
  logic [23:0] remainder, quotient;
  logic [25:0] difference;
  logic [31:0] scale;

  assign difference = {1'b0, remainder, 1'b1} - {2'b0, divisor[23:0]};
  assign shift = {1'b0, aligned} + 6'd8;

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (start) state <= AWAIT;
        AWAIT: if (ready > $signed({13'b0, head})) state <= LOAD;
        LOAD: state <= ALIGN;
        ALIGN: if (divisor[39:24] == '0) state <= DIVIDE;
        DIVIDE: if (digit == 5'd24) state <= STREAM;
        default:
        if (read && last_element) state <= !last_query ? LOAD : last_head ? IDLE : AWAIT;
      endcase
    end

    if (start) ready <= $signed({12'b0, heads}) + 18'(tlmm_pkg::KV_LEAD) - $signed({2'b0, pairs});
    else if (summed) ready <= ready + 18'sd1;

    if (state == LOAD) begin
      divisor <= total[query];
      aligned <= '0;
      digit <= '0;
      remainder <= 24'h7fffff;
    end
    if (state == ALIGN && divisor[39:24] != '0) begin
      divisor <= divisor >> 1;
      aligned <= aligned + 1'b1;
    end
    if (state == DIVIDE) begin
      digit <= digit + 1'b1;
      remainder <= difference[25] ? {remainder[22:0], 1'b1} : difference[23:0];
      if (digit == 5'd24) scale <= {1'b0, 8'(top[query]) + EXPONENT_BIAS, quotient[22:0]};
      else quotient <= {quotient[22:0], !difference[25]};
    end

    if (start) begin
      head <= '0;
      query <= '0;
      element <= '0;
      address <= '0;
      base <= '0;
    end else if (read) begin
      element <= last_element ? '0 : element + 1'b1;
      address <= last_element && !last_query ? base : address + 1'b1;
      if (last_element) begin
        query <= last_query ? '0 : query + 1'b1;
        if (last_query) begin
          head <= head + 1'b1;
          base <= address + 1'b1;
        end
      end
    end
  end

  // ---- elements
  logic [READ+SCALE-1:0] line;
  logic [QUERY_BITS-1:0] query_5;
  logic [31:0] result;

  tlmm_delay #(
      .WIDTH (QUERY_BITS),
      .CYCLES(READ)
  ) delay_query (
      .clk,
      .in (query),
      .out(query_5)
  );
  tlmm_scale scaler (
      .clk,
      .word(32'($signed(word[query_5]))),
      .scale,
      .padding(1'b0),
      .result
  );
  always_ff @(posedge clk) line <= rst ? '0 : {line[READ+SCALE-2:0], read};

  // ---- beats: a place is reserved with the first element of each
  logic [1:0] place;
  logic [95:0] gathered;
  logic [$clog2(QUEUE):0] reserved, level;
  logic reserve, push, taken;

  assign reserve = read && element[1:0] == 2'd0;
  assign room = !reserved[$clog2(QUEUE)] || element[1:0] != 2'd0;
  assign push = line[READ+SCALE-1] && &place;
  assign taken = y_valid && y_ready;
  assign busy = state != IDLE || reserved != '0;

  always_ff @(posedge clk) begin
    if (rst) begin
      place <= '0;
      reserved <= '0;
    end else begin
      if (line[READ+SCALE-1]) place <= place + 1'b1;
      if (reserve && !taken) reserved <= reserved + 1'b1;
      if (taken && !reserve) reserved <= reserved - 1'b1;
    end
    if (line[READ+SCALE-1]) gathered <= {result, gathered[95:32]};
  end
  tlmm_fifo #(
      .WIDTH(128),
      .DEPTH(QUEUE)
  ) queue (
      .clk,
      .rst,
      .push,
      .push_data({result, gathered}),
      .pop(taken),
      .valid(y_valid),
      .head(y_data),
      .level
  );

  logic unused;
  assign unused = &{1'b0, level, difference[24], quotient[23], units[4]};
endmodule
