// Packs units of one to four words into beats of four, without gaps. The first word of a unit
// goes to place `phase` of the beat; what does not fit waits for the next one.
module tlmm_pack #(
    parameter bit ROTATE = 1  // 0: words already stand at the places they go to
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         in_valid,
    input  logic [127:0] in_words,
    input  logic [  1:0] in_phase,
    input  logic         in_complete,
    input  logic         in_last,
    output logic         out_valid,
    output logic [127:0] out_beat,
    output logic         out_last
);
  // ---- words to their places; a register only where there is something to do
  logic valid, complete, last;
  logic [1:0] phase;
  logic [127:0] placed;

  if (ROTATE) begin : g_rotate
    always_ff @(posedge clk) begin
      valid    <= in_valid && !rst;
      complete <= in_complete;
      last     <= in_last;
      phase    <= in_phase;
    end
    for (genvar i = 0; i < 4; i++) begin : g_place
      logic [1:0] source;
      assign source = 2'(i) - in_phase;
      always_ff @(posedge clk) placed[32*i+:32] <= in_words[32*source+:32];
    end
  end else begin : g_straight
    assign valid    = in_valid;
    assign complete = in_complete;
    assign last     = in_last;
    assign phase    = in_phase;
    assign placed   = in_words;
  end

  // ---- beats
  logic [127:0] held;

  always_ff @(posedge clk) begin
    out_valid <= valid && complete && !rst;
    out_last  <= last;
    for (int i = 0; i < 4; i++) begin
      out_beat[32*i+:32] <= 2'(i) < phase ? held[32*i+:32] : placed[32*i+:32];
      if (valid && (complete || 2'(i) >= phase)) held[32*i+:32] <= placed[32*i+:32];
    end
  end
endmodule
