// How many beats of the scales' stream are the engine's: those of the commands that it has begun.
module tlmm_scale_credit #(
    parameter int ROWS = 20  // of a row beat
) (
    input  logic        clk,
    input  logic        rst,
    input  logic        begins,     // a command with scales
    input  logic [15:0] row_beats,
    input  logic        take,       // a beat
    output logic        open        // there is one to take
);
  localparam int BITS = 20;

  logic [BITS-1:0] rows, granted, beats, next;
  logic grants;

  // Sums instead of a product: synthesis must not take a DSP for it.
  always_comb begin
    rows = '0;
    for (int i = 0; i < 5; i++) if (ROWS[i]) rows = rows + (BITS'(row_beats) << i);
  end
  assign next = beats + (grants ? granted : '0) - BITS'(take);

  always_ff @(posedge clk) begin
    granted <= (rows + BITS'(3)) >> 2;
    grants  <= begins && !rst;
    beats   <= rst ? '0 : next;
    open    <= !rst && next != '0;
  end
endmodule
