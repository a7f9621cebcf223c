// Results of one query: the reciprocal of its weights' sum, bit by bit, then every element of a
// head as float32, four to a beat. All queries take the same steps at once (tlmm_attention_finish);
// as they leave one after another, a queue holds all but the first until their turn.
module tlmm_attention_result #(
    parameter int QUEUE = 64  // beats
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         used,     // the command has this query
    // the reciprocal
    input  logic         load,
    input  logic         align,
    output logic         aligned,
    input  logic         divide,   // 25 cycles
    input  logic         divided,  // in the last of them
    input  logic [ 39:0] total,
    input  logic [  4:0] top,
    // elements
    input  logic         reserve,  // the first of a beat is read
    output logic         room,
    output logic [  5:0] shift,
    input  logic         arrives,  // `word` has an element
    input  logic [ 24:0] word,
    input  logic         leaves,   // a result comes out of the multiplication
    input  logic         last,     // of its beat
    // beats
    output logic         y_valid,
    input  logic         y_taken,
    output logic [127:0] y_data,
    output logic         busy
);
  localparam logic [7:0] EXPONENT_BIAS = 8'd88;  // 127, and 39 of the formats

  // ---- the reciprocal: (2**47 - 1) / divisor, of 24 bits
  logic [39:0] divisor;
  logic [4:0] steps;
  logic [23:0] remainder, quotient;
  logic [25:0] difference;
  logic [31:0] scale;

  assign aligned = divisor[39:24] == '0;
  assign difference = {1'b0, remainder, 1'b1} - {2'b0, divisor[23:0]};
  assign shift = {1'b0, steps} + 6'd8;

  always_ff @(posedge clk) begin
    if (load) begin
      divisor <= total;
      steps <= '0;
      remainder <= 24'h7fffff;
    end
    if (align && !aligned) begin
      divisor <= divisor >> 1;
      steps <= steps + 1'b1;
    end
    if (divide) begin
      remainder <= difference[25] ? {remainder[22:0], 1'b1} : difference[23:0];
      if (divided) scale <= {1'b0, 8'(top) + EXPONENT_BIAS, quotient[22:0]};
      else quotient <= {quotient[22:0], !difference[25]};
    end
  end

  // ---- elements
  logic [31:0] result;
  logic [95:0] gathered;

  tlmm_scale scaler (
      .clk,
      .word(32'($signed(word))),
      .scale,
      .padding(!arrives),
      .result
  );
  always_ff @(posedge clk) if (leaves) gathered <= {result, gathered[95:32]};

  // ---- beats: a place is reserved with the first element of each
  logic [$clog2(QUEUE):0] reserved, level;

  assign room = !reserved[$clog2(QUEUE)];
  assign busy = reserved != '0;

  always_ff @(posedge clk) begin
    if (rst) reserved <= '0;
    else if (used && reserve && !y_taken) reserved <= reserved + 1'b1;
    else if (y_taken && !(used && reserve)) reserved <= reserved - 1'b1;
  end
  tlmm_fifo #(
      .WIDTH(128),
      .DEPTH(QUEUE)
  ) queue (
      .clk,
      .rst,
      .push(used && leaves && last),
      .push_data({result, gathered}),
      .pop(y_taken),
      .valid(y_valid),
      .head(y_data),
      .level
  );

  logic unused;
  assign unused = &{1'b0, level, difference[24], quotient[23]};
endmodule
