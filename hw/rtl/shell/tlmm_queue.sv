// The command queue: slots of 32 words in one block RAM, filled by the intake and emptied by the
// loader. A command holds its slot until it is complete, so the slots are also what limits how
// many commands may be pushed ahead, and where the tag of a command in error is found.
module tlmm_queue #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0,     // queries of the attention unit
    parameter bit GLUE = 1'b0,
    parameter int ADDR_BITS = 40,
    parameter int DEPTH = 8,  // a power of two
    parameter int SLOT_BITS = $clog2(DEPTH),
    parameter int UNITS = PORTS + 5
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 stop,
    // staged command
    input  logic                 push,
    output logic                 busy,        // the staged words are being read
    output logic [4:0]           staged_index,
    input  logic [31:0]          staged_word,
    // units
    input  logic [UNITS-1:0]     wanted,
    output logic [UNITS-1:0]     load,
    output logic [1:0]           load_step,
    output logic [31:0]          load_data,
    output logic [SLOT_BITS-1:0] load_slot,
    input  logic [SLOT_BITS-1:0] tag_slot,
    input  logic                 completed,   // by the writer
    // state
    output logic [SLOT_BITS-1:0] oldest_slot,
    output logic [SLOT_BITS:0]   level,
    output logic                 full,
    output logic                 ev_submitted,
    output logic                 ev_completed,
    output logic                 bad_length,
    output logic                 overflow,
    output logic [31:0]          rejected_tag  // with bad_length and overflow
);
  (* ram_style = "block" *) logic [31:0] words[DEPTH*32];
  logic [SLOT_BITS:0] oldest, newest;
  logic [DEPTH-1:0] dropped, after;
  logic [SLOT_BITS-1:0] read_slot;
  logic [4:0] read_word, copy_index;
  logic [31:0] copy_data, word;
  logic copy, commit, commit_bad, commit_after, drop;

  tlmm_intake #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .ATTENTION(ATTENTION),
      .GLUE(GLUE),
      .ADDR_BITS(ADDR_BITS)
  ) intake (
      .clk,
      .rst,
      .push,
      .full,
      .busy,
      .staged_index,
      .staged_word,
      .copy,
      .copy_index,
      .copy_data,
      .accepted(ev_submitted),
      .commit,
      .commit_bad,
      .commit_after,
      .overflow,
      .tag(rejected_tag)
  );

  tlmm_loader #(
      .PORTS(PORTS),
      .DEPTH(DEPTH)
  ) loader (
      .clk,
      .rst,
      .stop,
      .oldest,
      .newest,
      .dropped,
      .after,
      .wanted,
      .load,
      .load_step,
      .load_slot,
      .drop,
      .read_word,
      .read_slot,
      .tag_slot
  );

  always_ff @(posedge clk) begin
    if (copy) words[{newest[SLOT_BITS-1:0], copy_index}] <= copy_data;
    // Twice registered: a block RAM is slow to come out.
    word <= words[{read_slot, read_word}];
    load_data <= word;
  end

  assign ev_completed = completed || drop;
  assign bad_length = commit && commit_bad;
  assign level = newest - oldest;
  assign full = level[SLOT_BITS];
  assign oldest_slot = oldest[SLOT_BITS-1:0];

  always_ff @(posedge clk) begin
    if (rst) begin
      oldest <= '0;
      newest <= '0;
    end else begin
      if (commit) newest <= newest + 1'b1;
      if (ev_completed) oldest <= oldest + 1'b1;
    end
    if (commit) dropped[newest[SLOT_BITS-1:0]] <= commit_bad;
    if (commit) after[newest[SLOT_BITS-1:0]] <= commit_after;
  end
endmodule
