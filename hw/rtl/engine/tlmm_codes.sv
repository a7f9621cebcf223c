// Turns the codes of a beat into what the lanes of every activation column need: magnitudes, and
// signs in the order in which the lanes' adders use them.
//
// Terms are added with relative signs: an adder inverts its second operand if the signs of the two
// differ, the sum has the sign of the first, and only the accumulator adds or subtracts. That
// leaves every adder one inverted operand, which a LUT in front of a carry chain has room for.
module tlmm_codes #(
    parameter int PORTS = 1,
    parameter int ROWS  = tlmm_pkg::PORT_ROWS * PORTS
) (
    input  logic                                    clk,
    input  logic [8*tlmm_pkg::BEAT_BYTES*PORTS-1:0] w_data,
    output logic [     4*tlmm_pkg::TABLES*ROWS-1:0] magnitudes,  // [table][row]; cycle 1, last 3
    output logic [                        ROWS-1:0] differ_01,   // cycle 2
    output logic [                        ROWS-1:0] differ_23,   // cycle 2
    output logic [                        ROWS-1:0] differ_02,   // cycle 3
    output logic [                        ROWS-1:0] differ_04,   // cycle 4
    output logic [                        ROWS-1:0] negate       // cycle 5
);
  localparam int TABLES = tlmm_pkg::TABLES;
  localparam int PORT_ROWS = tlmm_pkg::PORT_ROWS;
  localparam int CODE_BITS = tlmm_pkg::CODE_BITS;
  localparam int PORT_BITS = 8 * tlmm_pkg::BEAT_BYTES;

  for (genvar r = 0; r < ROWS; r++) begin : g_row
    localparam int LSB = PORT_BITS * (r / PORT_ROWS) + CODE_BITS * TABLES * (r % PORT_ROWS);
    logic [TABLES-1:0] signs;
    logic differ_02_early;
    logic [1:0] differ_04_early;

    for (genvar t = 0; t < TABLES; t++) begin : g_table
      tlmm_delay #(
          .WIDTH (4),
          .CYCLES(t == TABLES - 1 ? 3 : 1)
      ) delay_magnitude (
          .clk,
          .in (w_data[LSB+CODE_BITS*t+:4]),
          .out(magnitudes[4*(ROWS*t+r)+:4])
      );
      always_ff @(posedge clk) signs[t] <= w_data[LSB+CODE_BITS*t+4];
    end

    always_ff @(posedge clk) begin
      differ_01[r]    <= signs[0] ^ signs[1];
      differ_23[r]    <= signs[2] ^ signs[3];
      differ_02_early <= signs[0] ^ signs[2];
      differ_02[r]    <= differ_02_early;
      differ_04_early <= {differ_04_early[0], signs[0] ^ signs[4]};
      differ_04[r]    <= differ_04_early[1];
    end
    tlmm_delay #(
        .CYCLES(4)
    ) delay_negate (
        .clk,
        .in (signs[0]),
        .out(negate[r])
    );
  end

  for (genvar p = 0; p < PORTS; p++) begin : g_port
    logic unused;
    assign unused = &{1'b0, w_data[PORT_BITS*(p+1)-1-:PORT_BITS-CODE_BITS*TABLES*PORT_ROWS]};
  end
endmodule
