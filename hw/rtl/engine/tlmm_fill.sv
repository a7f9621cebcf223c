// Fills tables: takes the activations of a tile, one beat per column, and writes the 14 entries of
// all tables of all columns at once, into the half that lookups are not reading. Runs ahead of
// the lookups, also into the next command, so that only the first fill is waited for: a tile takes
// 15 cycles and one per column, a command one more, which a tile of as many row beats hides.
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
  // that of magnitude e is e * first, and the walk goes through them in order.
  localparam logic [3:0] LAST_TERNARY = 4'd9;
  localparam logic [3:0] LAST_MULTIPLE = 4'(tlmm_pkg::MAX_MAGNITUDE);
  localparam logic [1:0] FIRST = 2'd0, SECOND = 2'd1, THIRD = 2'd2;

  // From a magnitude to the next one: by which activation, whether it is subtracted, and where to.
  function automatic logic [6:0] ternary_step(input logic [3:0] from);
    case (from)
      4'd0: ternary_step = {THIRD, 1'b0, 4'd1};
      4'd1: ternary_step = {SECOND, 1'b0, 4'd4};
      4'd4: ternary_step = {THIRD, 1'b1, 4'd3};
      4'd3: ternary_step = {THIRD, 1'b1, 4'd2};
      4'd2: ternary_step = {FIRST, 1'b0, 4'd11};
      4'd11: ternary_step = {THIRD, 1'b0, 4'd12};
      4'd12: ternary_step = {THIRD, 1'b0, 4'd13};
      4'd13: ternary_step = {SECOND, 1'b1, 4'd10};
      4'd10: ternary_step = {SECOND, 1'b1, 4'd7};
      4'd7: ternary_step = {THIRD, 1'b1, 4'd6};
      4'd6: ternary_step = {THIRD, 1'b1, 4'd5};
      4'd5: ternary_step = {SECOND, 1'b0, 4'd8};
      4'd8: ternary_step = {THIRD, 1'b0, LAST_TERNARY};
      default: ternary_step = {THIRD, 1'b0, 4'd0};  // from the last one back to the start
    endcase
  endfunction

  logic filling, fill_half, read_half, last_entry, negate;
  logic [1:0] fulls, choice;
  logic [3:0] magnitude, next_magnitude;

  assign done = filling && last_entry;
  assign full = fulls[read_half];
  assign half = read_half;

  always_comb begin
    next_magnitude = 4'd0;  // where a walk starts
    if (filling) next_magnitude = multiples ? magnitude + 4'd1 : 4'(ternary_step(magnitude));
  end

  // The step away from the next magnitude is looked up as that is entered: adders wait for it.
  always_ff @(posedge clk) begin
    magnitude        <= next_magnitude;
    last_entry       <= next_magnitude == (multiples ? LAST_MULTIPLE : LAST_TERNARY);
    {choice, negate} <= multiples ? {FIRST, 1'b0} : 3'(ternary_step(next_magnitude) >> 4);
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      filling   <= 1'b0;
      fill_half <= 1'b0;
      read_half <= 1'b0;
      fulls     <= '0;
    end else begin
      filling <= filling ? !done : loaded && !fulls[fill_half];
      if (done) fulls[fill_half] <= 1'b1;
      if (done) fill_half <= !fill_half;
      if (release_half) fulls[read_half] <= 1'b0;
      if (release_half) read_half <= !read_half;
    end
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
        .choice,
        .negate,
        .entries(entries[BITS*m+:BITS])
    );
  end

  always_ff @(posedge clk) begin
    write         <= filling && !rst;
    write_address <= {fill_half, magnitude};
    write_entries <= entries;
  end

  logic unused;
  assign unused = &{1'b0, tile, cmd_columns};
endmodule
