// The path from the result queue to the result stream: picks the words of a unit, scales them if
// asked to, packs them into beats of four and queues these. It never stalls; tlmm_drain, which
// sends the units, has reserved a place in the queue for every beat.
module tlmm_output #(
    parameter int ROWS = 5,
    parameter int COLUMNS = 1,
    parameter int GROUPS = 2,
    parameter bit ROW_SCALE = 0,
    parameter int QUEUE = 32
) (
    input logic clk,
    input logic rst,

    input  logic [COLUMNS*GROUPS*128-1:0] groups,         // results of a row beat, a cycle late
    input  logic                          unit_valid,     // see tlmm_drain
    input  logic                          unit_scaled,
    input  logic [    COLUMNS*GROUPS-1:0] unit_select,
    input  logic [                   1:0] unit_word,
    input  logic [                   1:0] unit_phase,
    input  logic                          unit_complete,
    input  logic                          unit_last,
    input  logic [                  31:0] unit_scale,
    output logic                          scaled_passed,  // a scaled unit has left the scaler

    output logic         y_valid,
    input  logic         y_ready,
    output logic [127:0] y_data,
    output logic         y_last
);
  // ---- words of the unit, three cycles on
  logic [127:0] words;
  logic [2:0] valid_line;
  logic [1:0] phase, word;
  logic [COLUMNS*GROUPS-1:0] select;
  logic valid, scaled, complete, last, padding;
  logic [31:0] scale;

  tlmm_select #(
      .GROUPS(COLUMNS * GROUPS)
  ) choose (
      .clk,
      .groups,
      .select(select),
      .words
  );
  always_ff @(posedge clk) select <= unit_select;
  tlmm_delay #(
      .WIDTH (40),
      .CYCLES(3)
  ) delay_unit (
      .clk,
      .in ({unit_scaled, unit_phase, unit_complete, unit_last, unit_word, unit_select == '0,
            unit_scale}),
      .out({scaled, phase, complete, last, word, padding, scale})
  );
  always_ff @(posedge clk) valid_line <= rst ? '0 : {valid_line[1:0], unit_valid};
  assign valid = valid_line[2];

  // ---- scaled ones take a detour; tlmm_drain keeps others from overtaking them
  logic pack_valid, pack_complete, pack_last;
  logic [1:0] pack_phase;
  logic [127:0] pack_words;

  if (ROW_SCALE) begin : g_scale
    localparam int LATENCY = 22;
    logic [LATENCY-1:0] line;
    logic [31:0] scaled_word;
    logic [1:0] scaled_phase;
    logic scaled_complete, scaled_last;

    tlmm_scale scaler (
        .clk,
        .word(words[32*word+:32]),
        .scale,
        .padding,
        .result(scaled_word)
    );
    tlmm_delay #(
        .WIDTH (4),
        .CYCLES(LATENCY)
    ) delay_scaled (
        .clk,
        .in ({phase, complete, last}),
        .out({scaled_phase, scaled_complete, scaled_last})
    );
    always_ff @(posedge clk) line <= rst ? '0 : {line[LATENCY-2:0], valid && scaled};

    assign scaled_passed = line[LATENCY-1];
    assign pack_valid    = scaled_passed || (valid && !scaled);
    assign pack_words    = scaled_passed ? {4{scaled_word}} : words;
    assign pack_phase    = scaled_passed ? scaled_phase : phase;
    assign pack_complete = scaled_passed ? scaled_complete : complete;
    assign pack_last     = scaled_passed ? scaled_last : last;
  end else begin : g_straight
    logic unused;
    assign unused        = &{1'b0, scaled, word, padding, scale};
    assign scaled_passed = 1'b0;
    assign pack_valid    = valid;
    assign pack_words    = words;
    assign pack_phase    = phase;
    assign pack_complete = complete;
    assign pack_last     = last;
  end

  // ---- beats
  logic push, push_last;
  logic [127:0] push_beat;
  logic [$clog2(QUEUE):0] level;
  logic unused_level;

  tlmm_pack #(
      .ROTATE(ROWS % 4 != 0)
  ) packer (
      .clk,
      .rst,
      .in_valid(pack_valid),
      .in_words(pack_words),
      .in_phase(pack_phase),
      .in_complete(pack_complete),
      .in_last(pack_last),
      .out_valid(push),
      .out_beat(push_beat),
      .out_last(push_last)
  );
  tlmm_fifo #(
      .WIDTH(129),
      .DEPTH(QUEUE)
  ) queue (
      .clk,
      .rst,
      .push,
      .push_data({push_last, push_beat}),
      .pop(y_valid && y_ready),
      .valid(y_valid),
      .head({y_last, y_data}),
      .level
  );
  assign unused_level = &{1'b0, level};
endmodule
