// Keeps the books of the queue of results, whose memories are in tlmm_accumulate: a slot for the
// sums of every beat of a last tile, reserved when the beat is taken, for lanes never stall.
module tlmm_results #(
    parameter int NB_MAX = 512
) (
    input  logic                      clk,
    input  logic                      rst,
    input  logic                      reserve,
    output logic                      room,
    input  logic                      write,
    output logic [$clog2(NB_MAX)-1:0] tail,       // where it is written to
    input  logic                      pop,
    output logic [$clog2(NB_MAX)-1:0] head,       // where it is read from
    output logic                      available
);
  localparam int BITS = $clog2(NB_MAX);

  tlmm_credit #(
      .MOST(NB_MAX),
      .INITIAL(NB_MAX)
  ) free (
      .clk,
      .rst,
      .give(pop),
      .take(reserve),
      .available(room)
  );
  tlmm_credit #(
      .MOST(NB_MAX)
  ) written (
      .clk,
      .rst,
      .give(write),
      .take(pop),
      .available
  );

  always_ff @(posedge clk) begin
    if (rst) begin
      head <= '0;
      tail <= '0;
    end else begin
      if (write) tail <= tail + BITS'(1);
      if (pop) head <= head + BITS'(1);
    end
  end
endmodule
