// Fills tables: takes the activations of a tile, one beat per column, and writes the 14 entries of
// all tables of all columns at once, into the half that lookups are not reading. Runs ahead of
// the lookups, also into the next command, so that only the first fill is waited for.
module tlmm_fill #(
    parameter int COLUMNS = 1
) (
    input logic clk,
    input logic rst,

    input  logic        cmd_valid,
    output logic        cmd_ready,
    input  logic        cmd_multiples,
    input  logic [15:0] cmd_tiles,
    input  logic [ 7:0] cmd_columns,

    input  logic         x_valid,
    output logic         x_ready,
    input  logic [127:0] x_data,

    output logic       full,         // of the half that lookups read next
    input  logic       release_half, // lookups are done with that half
    output logic       half,         // that half

    output logic       write,
    output logic [4:0] write_address,
    output logic [COLUMNS*tlmm_pkg::TABLES*tlmm_pkg::ENTRY_BITS-1:0] write_entries
);
  localparam int BITS = tlmm_pkg::TABLES * tlmm_pkg::ENTRY_BITS;
  localparam int COLUMN_BITS = COLUMNS > 1 ? $clog2(COLUMNS) : 1;
  localparam logic [3:0] LAST_STEP = 4'(tlmm_pkg::MAX_MAGNITUDE);

  // ---- command
  logic active, multiples, start, last_tile, last_column;
  logic [COLUMN_BITS-1:0] column;
  logic [15:0] tile;
  logic take, done;

  assign cmd_ready = !active;
  assign start = cmd_valid && cmd_ready;

  always_ff @(posedge clk) begin
    if (rst) active <= 1'b0;
    else if (start) active <= 1'b1;
    else if (done && last_tile) active <= 1'b0;
    if (start) multiples <= cmd_multiples;
  end

  tlmm_loop #(
      .BITS(16)
  ) tiles (
      .clk,
      .load (start),
      .limit({1'b0, cmd_tiles}),
      .step (done),
      .index(tile),
      .last (last_tile)
  );
  tlmm_loop #(
      .BITS(COLUMN_BITS)
  ) columns (
      .clk,
      .load (start),
      .limit(COLUMNS == 1 ? (COLUMN_BITS + 1)'(1) : cmd_columns[COLUMN_BITS:0]),
      .step (take),
      .index(column),
      .last (last_column)
  );

  // ---- activations of one tile
  logic loaded;

  assign x_ready = active && !loaded;
  assign take = x_valid && x_ready;

  always_ff @(posedge clk) begin
    if (rst || done) loaded <= 1'b0;
    else if (take && last_column) loaded <= 1'b1;
  end

  // ---- walk through the entries
  // A table is a running sum: entries follow one another such that each differs from the one
  // before by one activation, which takes one adder per table. In ternary mode the entry of
  // magnitude 9 * t0 + 3 * t1 + t2 is t0 * first + t1 * second + t2 * third; in multiples mode
  // that of magnitude e is e * first.
  typedef struct packed {
    logic [3:0] magnitude;  // of the entry that is written in this step
    logic [1:0] choice;     // the activation on the way to the next one
    logic       negate;
  } step_t;

  function automatic step_t ternary_step(input logic [3:0] number);
    case (number)
      4'd0: ternary_step = {4'd0, 2'd2, 1'b0};
      4'd1: ternary_step = {4'd1, 2'd1, 1'b0};
      4'd2: ternary_step = {4'd4, 2'd2, 1'b1};
      4'd3: ternary_step = {4'd3, 2'd2, 1'b1};
      4'd4: ternary_step = {4'd2, 2'd0, 1'b0};
      4'd5: ternary_step = {4'd11, 2'd2, 1'b0};
      4'd6: ternary_step = {4'd12, 2'd2, 1'b0};
      4'd7: ternary_step = {4'd13, 2'd1, 1'b1};
      4'd8: ternary_step = {4'd10, 2'd1, 1'b1};
      4'd9: ternary_step = {4'd7, 2'd2, 1'b1};
      4'd10: ternary_step = {4'd6, 2'd2, 1'b1};
      4'd11: ternary_step = {4'd5, 2'd1, 1'b0};
      4'd12: ternary_step = {4'd8, 2'd2, 1'b0};
      default: ternary_step = {4'd9, 2'd2, 1'b0};  // the last one; no next entry
    endcase
  endfunction

  logic [3:0] number;
  logic filling, fill_half, read_half, just_released;
  logic [1:0] fulls;
  step_t now;

  assign now = multiples ? step_t'({number, 2'd0, 1'b0}) : ternary_step(number);
  assign filling = loaded && !fulls[fill_half] && !just_released;
  assign done = filling && number == LAST_STEP;
  assign full = fulls[read_half];
  assign half = read_half;

  always_ff @(posedge clk) begin
    if (rst) begin
      number    <= '0;
      fill_half <= 1'b0;
      read_half <= 1'b0;
      fulls     <= '0;
    end else begin
      if (filling) number <= done ? '0 : number + 4'd1;
      if (done) fulls[fill_half] <= 1'b1;
      if (done) fill_half <= !fill_half;
      if (release_half) fulls[read_half] <= 1'b0;
      if (release_half) read_half <= !read_half;
    end
    just_released <= release_half;
  end

  // ---- write port, a cycle later, for the sake of its fan-out
  // `full` may rise while the last entry is still being written: a beat that is then taken reads
  // a cycle after that. The beat that releases a half reads it up to three cycles later, in the
  // cycle in which it can be written first; a read gives what was there before.
  logic [COLUMNS*BITS-1:0] entries;

  for (genvar m = 0; m < COLUMNS; m++) begin : g_column
    tlmm_entries column_entries (
        .clk,
        .load(take && column == COLUMN_BITS'(m)),
        .multiples,
        .x_data,
        .step(filling),
        .choice(now.choice),
        .negate(now.negate),
        .entries(entries[BITS*m+:BITS])
    );
  end

  always_ff @(posedge clk) begin
    write         <= filling && !rst;
    write_address <= {fill_half, now.magnitude};
    write_entries <= entries;
  end

  logic unused;
  assign unused = &{1'b0, tile, cmd_columns};
endmodule
