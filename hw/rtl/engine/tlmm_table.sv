// One table of one activation column: two halves of 16 entries, of which 14 are used. Lookups read
// one half while the other is filled. All rows of a beat read at the same time; one distributed
// memory with many read ports is cheaper than a copy per row, where the tools know how.
module tlmm_table #(
    parameter int READS = 5
) (
    input  logic                                  clk,
    input  logic                                  write,
    input  logic [                           4:0] write_address,  // half, magnitude
    input  logic [      tlmm_pkg::ENTRY_BITS-1:0] write_entry,
    input  logic                                  half,
    input  logic [                   4*READS-1:0] magnitudes,
    output logic [tlmm_pkg::ENTRY_BITS*READS-1:0] entries         // one cycle later
);
  localparam int BITS = tlmm_pkg::ENTRY_BITS;

  (* ram_style = "distributed" *) logic [BITS-1:0] store[32];

  always_ff @(posedge clk) if (write) store[write_address] <= write_entry;

  for (genvar i = 0; i < READS; i++) begin : g_read
    always_ff @(posedge clk) entries[BITS*i+:BITS] <= store[{half, magnitudes[4*i+:4]}];
  end
endmodule
