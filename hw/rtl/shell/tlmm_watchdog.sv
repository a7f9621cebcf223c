// Says when something that should move has not moved for `limit` cycles; 0 never says so.
module tlmm_watchdog (
    input  logic        clk,
    input  logic        rst,
    input  logic        watching,
    input  logic        progress,
    input  logic [31:0] limit,
    output logic        expired    // one cycle, and again every `limit` cycles
);
  logic [31:0] left;
  logic restart, at_end;

  assign at_end = watching && !progress && left == 32'd0 && limit != 32'd0;
  assign restart = rst || !watching || progress || at_end;

  always_ff @(posedge clk) expired <= at_end && !rst;
  always_ff @(posedge clk) left <= restart ? limit : left - {31'b0, left != 32'd0};
endmodule
