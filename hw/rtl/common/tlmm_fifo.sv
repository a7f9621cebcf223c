// A small FIFO in distributed RAM. The oldest word stands on `head` while `valid`.
//
// It does not guard itself: whoever pushes knows by `level`, or by a reservation of its own, that
// there is room, and nobody pops an empty one. That keeps the guards where they are cheapest.
module tlmm_fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 16  // a power of two; 32 or less fits one LUT per bit pair
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic                   push,
    input  logic [WIDTH-1:0]       push_data,
    input  logic                   pop,
    output logic                   valid,
    output logic [WIDTH-1:0]       head,
    output logic [$clog2(DEPTH):0] level
);
  localparam int INDEX_BITS = $clog2(DEPTH);

  (* ram_style = "distributed" *) logic [WIDTH-1:0] words[DEPTH];
  logic [INDEX_BITS-1:0] write_index, read_index;

  always_ff @(posedge clk) if (push) words[write_index] <= push_data;
  assign head = words[read_index];

  always_ff @(posedge clk) begin
    if (rst) begin
      write_index <= '0;
      read_index  <= '0;
      level       <= '0;
      valid       <= 1'b0;
    end else begin
      if (push) write_index <= write_index + 1'b1;
      if (pop) read_index <= read_index + 1'b1;
      if (push && !pop) level <= level + 1'b1;
      if (pop && !push) level <= level - 1'b1;
      // A flip-flop of its own, as every handshake starts from it.
      if (push != pop) valid <= push || level != (INDEX_BITS + 1)'(1);
    end
  end

`ifdef VERILATOR
  // The guards are elsewhere; whether they guard is seen here.
  always_ff @(posedge clk) begin
    if (!rst) begin
      assert (!(push && level[INDEX_BITS]));
      assert (!(pop && !valid));
    end
  end
`endif
endmodule
