// The lanes of one activation column: its tables, and for every row of a beat the sum of the five
// entries that the row's codes name. A new beat every cycle. The last table is read two cycles
// after the others, when its entry is needed: delaying codes costs less than delaying entries.
module tlmm_lanes #(
    parameter int ROWS = 5,
    parameter int SUM_BITS = 15
) (
    input logic clk,

    input logic       write,
    input logic [4:0] write_address,
    input logic [tlmm_pkg::TABLES*tlmm_pkg::ENTRY_BITS-1:0] write_entries,

    input  logic                               half_1,      // cycle 1 of a beat
    input  logic                               half_3,      // cycle 3
    input  logic [4*tlmm_pkg::TABLES*ROWS-1:0] magnitudes,  // as the halves; [table][row]
    input  logic [                   ROWS-1:0] differ_01,   // cycle 2; see tlmm_codes
    input  logic [                   ROWS-1:0] differ_23,   // cycle 2
    input  logic [                   ROWS-1:0] differ_02,   // cycle 3
    input  logic [                   ROWS-1:0] differ_04,   // cycle 4
    output logic [          SUM_BITS*ROWS-1:0] sums         // cycle 5; signed as code 0
);
  localparam int TABLES = tlmm_pkg::TABLES;
  localparam int BITS = tlmm_pkg::ENTRY_BITS;

  logic [TABLES*ROWS*BITS-1:0] entries;  // [table][row]

  for (genvar t = 0; t < TABLES; t++) begin : g_table
    tlmm_table #(
        .READS(ROWS)
    ) entry_table (
        .clk,
        .write,
        .write_address,
        .write_entry(write_entries[BITS*t+:BITS]),
        .half(t == TABLES - 1 ? half_3 : half_1),
        .magnitudes(magnitudes[4*ROWS*t+:4*ROWS]),
        .entries(entries[BITS*ROWS*t+:BITS*ROWS])
    );
  end

  for (genvar r = 0; r < ROWS; r++) begin : g_row
    logic [BITS-1:0] entry_0, entry_1, entry_2, entry_3, entry_4;
    logic [BITS:0] sum_01, sum_23;
    logic [BITS+1:0] sum_0123;

    assign entry_0 = entries[BITS*r+:BITS];
    assign entry_1 = entries[BITS*(ROWS+r)+:BITS];
    assign entry_2 = entries[BITS*(2*ROWS+r)+:BITS];
    assign entry_3 = entries[BITS*(3*ROWS+r)+:BITS];
    assign entry_4 = entries[BITS*(4*ROWS+r)+:BITS];

    tlmm_addsub #(
        .A_BITS(BITS),
        .B_BITS(BITS),
        .Y_BITS(BITS + 1)
    ) add_01 (
        .clk,
        .a(entry_0),
        .b(entry_1),
        .subtract(differ_01[r]),
        .y(sum_01)
    );
    tlmm_addsub #(
        .A_BITS(BITS),
        .B_BITS(BITS),
        .Y_BITS(BITS + 1)
    ) add_23 (
        .clk,
        .a(entry_2),
        .b(entry_3),
        .subtract(differ_23[r]),
        .y(sum_23)
    );
    tlmm_addsub #(
        .A_BITS(BITS + 1),
        .B_BITS(BITS + 1),
        .Y_BITS(BITS + 2)
    ) add_0123 (
        .clk,
        .a(sum_01),
        .b(sum_23),
        .subtract(differ_02[r]),
        .y(sum_0123)
    );
    tlmm_addsub #(
        .A_BITS(BITS + 2),
        .B_BITS(BITS),
        .Y_BITS(SUM_BITS)
    ) add_01234 (
        .clk,
        .a(sum_0123),
        .b(entry_4),
        .subtract(differ_04[r]),
        .y(sums[SUM_BITS*r+:SUM_BITS])
    );
  end
endmodule
