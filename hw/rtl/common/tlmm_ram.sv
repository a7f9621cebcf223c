// A block memory with one write and one read port. A read takes two cycles: block memories are slow
// without the register at their output. What a read gives of an address that is written in the same
// cycle is undefined, and nobody here relies on it.
module tlmm_ram #(
    parameter int WIDTH = 32,
    parameter int DEPTH = 512
) (
    input  logic                     clk,
    input  logic                     write,
    input  logic [$clog2(DEPTH)-1:0] write_address,
    input  logic [        WIDTH-1:0] write_data,
    input  logic [$clog2(DEPTH)-1:0] read_address,
    output logic [        WIDTH-1:0] read_data
);
  (* ram_style = "block", no_rw_check *) logic [WIDTH-1:0] store[DEPTH];

  logic [WIDTH-1:0] latch;

  always_ff @(posedge clk) begin
    if (write) store[write_address] <= write_data;
    latch     <= store[read_address];
    read_data <= latch;
  end
endmodule
