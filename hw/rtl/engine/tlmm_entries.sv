// Makes the entries of one activation column's tables, one per cycle and table, by adding or
// subtracting one activation at a time: a walk through the entries, planned by tlmm_fill.
module tlmm_entries (
    input  logic         clk,
    input  logic         load,       // take the tile's activations and start from entry 0
    input  logic         multiples,
    input  logic [127:0] x_data,
    input  logic         step,
    input  logic [1:0]   choice,     // which activation of the group
    input  logic         negate,
    output logic [tlmm_pkg::TABLES*tlmm_pkg::ENTRY_BITS-1:0] entries
);
  localparam int TABLES = tlmm_pkg::TABLES;
  localparam int GROUP = tlmm_pkg::GROUP;
  localparam int ENTRY_BITS = tlmm_pkg::ENTRY_BITS;
  localparam int BITS = tlmm_pkg::ACTIVATION_BITS;

  for (genvar t = 0; t < TABLES; t++) begin : g_table
    logic [BITS-1:0] first, second, third, chosen;
    logic [ENTRY_BITS-1:0] entry, change;
    logic [ENTRY_BITS:0] sum;

    always_ff @(posedge clk) begin
      if (load) begin
        first  <= multiples ? x_data[BITS*t+:BITS] : x_data[BITS*GROUP*t+:BITS];
        second <= x_data[BITS*(GROUP*t+1)+:BITS];
        third  <= x_data[BITS*(GROUP*t+2)+:BITS];
      end
    end

    assign chosen = choice == 2'd0 ? first : choice == 2'd1 ? second : third;
    assign change = ENTRY_BITS'($signed(chosen)) ^ {ENTRY_BITS{negate}};
    assign sum = {entry, negate} + {change, negate};  // the lowest bit carries `negate` in

    always_ff @(posedge clk) begin
      if (load) entry <= '0;
      else if (step) entry <= sum[ENTRY_BITS:1];
    end
    assign entries[ENTRY_BITS*t+:ENTRY_BITS] = entry;

    logic unused;
    assign unused = sum[0];
  end
  logic unused_last;
  assign unused_last = &{1'b0, x_data[127:120]};  // a tile has 15 activations
endmodule
