// The command that software is putting together: 32 words of distributed RAM with byte strobes.
//
// Words keep their values over a push and over a soft reset: the next command often differs in
// two addresses only. The index is bits 6..2 of the register's offset.
module tlmm_staging (
    input  logic        clk,
    input  logic [3:0]  write,       // one strobe per byte
    input  logic [4:0]  write_index,
    input  logic [31:0] write_data,
    input  logic [4:0]  read_index,
    output logic [31:0] read_data     // a cycle after its index
);
  for (genvar b = 0; b < 4; b++) begin : g_byte
    (* ram_style = "distributed" *) logic [7:0] bytes[32];
    // Without this a board would start with arbitrary commands and simulation with unknown ones.
    initial for (int i = 0; i < 32; i++) bytes[i] = '0;
    always_ff @(posedge clk) if (write[b]) bytes[write_index] <= write_data[8*b+:8];
    always_ff @(posedge clk) read_data[8*b+:8] <= bytes[read_index];
  end
endmodule
