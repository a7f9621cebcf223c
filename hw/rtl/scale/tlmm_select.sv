// Picks one group of four words out of a row beat's results, or zeros; two cycles. The registers
// of what is not selected are reset, and one OR joins all: cheaper than a multiplexer.
module tlmm_select #(
    parameter int GROUPS = 2
) (
    input  logic                  clk,
    input  logic [128*GROUPS-1:0] groups,
    input  logic [    GROUPS-1:0] select,
    output logic [         127:0] words
);
  logic [128*GROUPS-1:0] selected;
  logic [127:0] joined;

  for (genvar g = 0; g < GROUPS; g++) begin : g_group
    always_ff @(posedge clk) begin
      if (!select[g]) selected[128*g+:128] <= '0;
      else selected[128*g+:128] <= groups[128*g+:128];
    end
  end

  always_comb begin
    joined = '0;
    for (int g = 0; g < GROUPS; g++) joined |= selected[128*g+:128];
  end

  always_ff @(posedge clk) words <= joined;
endmodule
