// A deep FIFO in block RAM, or from 4096 words on in UltraRAM (which KV260s have and smaller parts
// have not), for read data that was asked for ahead of its use.
//
// A block RAM needs a cycle to read and is slow to come out, so two stages stand behind it: the
// RAM's own output latch and a register. Both are refilled in the cycle in which they empty: one
// word a cycle, and the consumer sees flip-flops. As in tlmm_fifo, whoever pushes has reserved
// the room.
module tlmm_buffer #(
    parameter int WIDTH = 128,
    parameter int DEPTH = 512  // a power of two
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             push,
    input  logic [WIDTH-1:0] push_data,
    input  logic             pop,
    output logic             valid,
    output logic [WIDTH-1:0] head
);
  localparam int INDEX_BITS = $clog2(DEPTH);

  logic [INDEX_BITS-1:0] read_index;
  logic [INDEX_BITS:0] write_count, read_count;  // one bit more, to tell full from empty
  logic [WIDTH-1:0] latch;
  logic latch_valid, refill_latch, refill_head;

  assign refill_head  = !valid || pop;
  assign refill_latch = !latch_valid || refill_head;
  assign read_index   = read_count[INDEX_BITS-1:0];

  // An attribute's value that depends on a parameter is not for every tool.
  if (DEPTH < 4096) begin : g_block
    (* ram_style = "block" *) logic [WIDTH-1:0] words[DEPTH];
    always_ff @(posedge clk) begin
      if (push) words[write_count[INDEX_BITS-1:0]] <= push_data;
      if (refill_latch) latch <= words[read_index];
    end
  end else begin : g_ultra
    (* ram_style = "ultra" *) logic [WIDTH-1:0] words[DEPTH];
    always_ff @(posedge clk) begin
      if (push) words[write_count[INDEX_BITS-1:0]] <= push_data;
      if (refill_latch) latch <= words[read_index];
    end
  end
  always_ff @(posedge clk) if (refill_head) head <= latch;

  always_ff @(posedge clk) begin
    if (rst) begin
      write_count <= '0;
      read_count  <= '0;
      latch_valid <= 1'b0;
      valid       <= 1'b0;
    end else begin
      if (push) write_count <= write_count + 1'b1;
      if (refill_latch) begin
        latch_valid <= read_count != write_count;
        if (read_count != write_count) read_count <= read_count + 1'b1;
      end
      if (refill_head) valid <= latch_valid;
    end
  end

`ifdef VERILATOR
  // The guards are elsewhere; whether they guard is seen here.
  logic [INDEX_BITS:0] level;
  assign level = write_count - read_count;
  always_ff @(posedge clk) begin
    if (!rst) begin
      assert (!(push && level[INDEX_BITS]));
      assert (!(pop && !valid));
    end
  end
`endif
endmodule
