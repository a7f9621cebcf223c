// Makes beats of 15 codes of groups of four, the first code in the lowest byte. A beat comes a cycle
// after the group that completes it.
module tlmm_glue_tiles (
    input  logic         clk,
    input  logic         start,
    input  logic         push,
    input  logic [ 31:0] codes,
    output logic         beat_valid,
    output logic [127:0] beat
);
  localparam int TILE = 15;

  logic [TILE+3-1:0][7:0] line;  // the newest code is the highest
  logic [4:0] count, next;
  logic [1:0] behind;  // codes behind the end of a tile

  assign next = count + 5'd4;
  always_ff @(posedge clk) begin
    beat_valid <= !start && push && next >= 5'(TILE);
    if (push) begin
      line   <= {codes, line[TILE+3-1:4]};
      behind <= 2'(next - 5'(TILE));
    end
    if (start) count <= '0;
    else if (push) count <= next >= 5'(TILE) ? next - 5'(TILE) : next;
  end
  for (genvar i = 0; i < TILE; i++) begin : g_code
    assign beat[8*i+:8] = line[5'(i+3)-{3'd0, behind}];
  end
  assign beat[127:120] = '0;
endmodule
