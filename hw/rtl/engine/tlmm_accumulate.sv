// The accumulators of one activation column, and its half of the result queue. Sums of a beat are
// added to the accumulators of the beat's rows; those of the last tile also go into the queue of
// results, from where they drain while the next command is already at its first tile.
module tlmm_accumulate #(
    parameter int ROWS = 5,
    parameter int SUM_BITS = 15,
    parameter int NB_MAX = 512
) (
    input logic clk,

    input logic [$clog2(NB_MAX)-1:0] read_beat,   // cycle 2 of a beat
    input logic                      first_tile,  // cycle 4
    input logic [ SUM_BITS*ROWS-1:0] sums,        // cycle 5
    input logic [          ROWS-1:0] negate,      // cycle 5
    input logic                      write,       // cycle 6
    input logic [$clog2(NB_MAX)-1:0] write_beat,  // cycle 6

    input  logic                                  result_write,  // cycle 6
    input  logic [            $clog2(NB_MAX)-1:0] result_tail,
    input  logic [            $clog2(NB_MAX)-1:0] result_head,
    output logic [tlmm_pkg::RESULT_BITS*ROWS-1:0] result         // two cycles later
);
  localparam int BITS = tlmm_pkg::RESULT_BITS;

  logic [BITS*ROWS-1:0] stored, old, new_sums;

  tlmm_ram #(
      .WIDTH(BITS * ROWS),
      .DEPTH(NB_MAX)
  ) accumulators (
      .clk,
      .write,
      .write_address(write_beat),
      .write_data(new_sums),
      .read_address(read_beat),
      .read_data(stored)
  );

  // The first tile overwrites, so that there is no clearing. A register's reset does it; a choice
  // in front of the adder would cost logic.
  always_ff @(posedge clk) begin
    if (first_tile) old <= '0;
    else old <= stored;
  end

  for (genvar r = 0; r < ROWS; r++) begin : g_row
    tlmm_addsub #(
        .A_BITS(BITS),
        .B_BITS(SUM_BITS),
        .Y_BITS(BITS)
    ) add (
        .clk,
        .a(old[BITS*r+:BITS]),
        .b(sums[SUM_BITS*r+:SUM_BITS]),
        .subtract(negate[r]),
        .y(new_sums[BITS*r+:BITS])
    );
  end

  tlmm_ram #(
      .WIDTH(BITS * ROWS),
      .DEPTH(NB_MAX)
  ) results (
      .clk,
      .write(result_write),
      .write_address(result_tail),
      .write_data(new_sums),
      .read_address(result_head),
      .read_data(result)
  );
endmodule
