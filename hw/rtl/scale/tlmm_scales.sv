// Holds the row scales that the drain will need next: a ring of words, filled one at a time and
// freed a row beat at a time, with room for the largest row beat and the next one. Every column of
// a row beat reads the same ones again.
module tlmm_scales #(
    parameter int ROWS = 5
) (
    input logic clk,
    input logic rst,

    input  logic         s_valid,
    output logic         s_ready,
    input  logic [127:0] s_data,

    input  logic        active,
    output logic        ready,   // the row beat's scales are all there
    input  logic        pop,     // the row beat is done
    input  logic        last,    // it is the command's last; a beat of scales may end in padding
    input  logic [ 4:0] row,
    output logic [31:0] scale    // of the row, a cycle later
);
  localparam int BITS = 6;
  localparam int WORDS = 1 << BITS;

  (* ram_style = "distributed" *) logic [31:0] ring[WORDS];
  logic [BITS:0] head, tail, level, after, next_head, spare;
  logic [BITS-1:0] address;
  logic room, put;

  // ---- filling
  assign level   = tail - head;
  assign put     = s_valid && room;
  assign s_ready = room && tail[1:0] == 2'd3;

  always_ff @(posedge clk) begin
    if (put) ring[tail[BITS-1:0]] <= s_data[32*tail[1:0]+:32];
    if (rst) begin
      tail <= '0;
      room <= 1'b0;
    end else begin
      if (put) tail <= tail + (BITS + 1)'(1);
      room <= level < (BITS + 1)'(WORDS - 1);  // one less than there is: it is a cycle late
    end
  end

  // ---- reading
  assign after     = head + (BITS + 1)'(ROWS);
  assign next_head = last ? (after + (BITS + 1)'(3)) & ~(BITS + 1)'(3) : after;
  assign spare     = tail - next_head;  // negative: not all there yet
  assign address   = head[BITS-1:0] + BITS'(row);

  always_ff @(posedge clk) begin
    scale <= ring[address];
    if (rst) begin
      head  <= '0;
      ready <= 1'b0;
    end else begin
      if (pop) head <= next_head;
      ready <= active && !pop && !spare[BITS];
    end
  end

  logic unused;
  assign unused = &{1'b0, spare[BITS-1:0]};
endmodule
