// Hands each unit (reader, engine, writer) its part of one queued command after another.
//
// Every unit goes through the queue at its own pace, so readers fetch for later commands while
// the engine works on an earlier one. Visits are in turn: a unit that wants work gets four words
// of the command's slot over one shared bus. The writer, last in a turn, takes a command only
// when all others have, so a slot that it has finished is behind everybody and can be used again.
// What reads data for a command that works on earlier results waits until these are complete.
module tlmm_loader #(
    parameter int PORTS = 1,
    parameter int DEPTH = 8,
    parameter int SLOT_BITS = $clog2(DEPTH),
    // activations, weight readers, scales, engine, writer, tag of the first error
    parameter int UNITS = PORTS + 5
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 stop,         // hand out nothing but the tag
    input  logic [SLOT_BITS:0]   oldest,       // first command that is not complete
    input  logic [SLOT_BITS:0]   newest,       // behind the last command
    input  logic [DEPTH-1:0]     dropped,      // slots whose command must not run
    input  logic [DEPTH-1:0]     after,        // whose data are results of those before
    input  logic [UNITS-1:0]     wanted,
    output logic [UNITS-1:0]     load,
    output logic [1:0]           load_step,
    output logic [SLOT_BITS-1:0] load_slot,
    output logic                 drop,         // a dropped command is done with
    // the queue's RAM, whose word comes two cycles later
    output logic [4:0]           read_word,
    output logic [SLOT_BITS-1:0] read_slot,
    input  logic [SLOT_BITS-1:0] tag_slot
);
  // First, as tables are made of them before weights are of use.
  localparam int ACTIVATIONS = 0;
  localparam int WEIGHTS = 1;
  localparam int SCALES = PORTS + 1;
  localparam int ENGINE = PORTS + 2;
  localparam int WRITER = PORTS + 3;
  localparam int TAG = PORTS + 4;
  localparam int UNIT_BITS = $clog2(UNITS);

  logic [UNIT_BITS-1:0] unit;  // whose turn it is
  logic [UNITS-1:0][SLOT_BITS:0] position;  // each unit's next command; that of TAG is idle
  logic [UNITS-1:0] can_start, can_skip, abreast;
  logic [1:0] step;
  logic [SLOT_BITS-1:0] slot;  // being handed out
  logic loading, is_writer, is_tag, lagging, held, start, skip, advance;

  // ---- what each unit could do, worked out a cycle ahead of its turn. A unit's own position does
  // not change between its turns, so nothing here is out of date when it counts.
  for (genvar i = 0; i < UNITS; i++) begin : g_unit
    if (i == TAG) begin : g_tag
      always_ff @(posedge clk) begin
        position[i] <= '0;
        can_start[i] <= !rst && wanted[i];
        can_skip[i] <= 1'b0;
        abreast[i] <= 1'b0;
      end
    end else begin : g_follower
      logic [SLOT_BITS:0] here;
      logic pending, is_dropped, may_drop, must_wait;
      assign here = position[i];
      assign pending = !rst && !stop && here != newest;
      assign is_dropped = dropped[here[SLOT_BITS-1:0]];
      // Commands complete in order: the writer passes a dropped one when it is the oldest.
      assign may_drop = i != WRITER || here == oldest;
      assign must_wait = (i == ACTIVATIONS || i == SCALES) && after[here[SLOT_BITS-1:0]]
          && here != oldest;
      always_ff @(posedge clk) begin
        can_start[i] <= pending && !is_dropped && wanted[i] && !must_wait;
        can_skip[i] <= pending && is_dropped && may_drop;
        abreast[i] <= here == position[WRITER];
        if (rst) position[i] <= '0;
        else if (advance && unit == UNIT_BITS'(i)) position[i] <= here + 1'b1;
      end
    end
  end

  // ---- turns
  assign is_writer = unit == UNIT_BITS'(WRITER);
  assign is_tag = unit == UNIT_BITS'(TAG);
  assign held = loading || (is_writer && lagging);
  assign start = can_start[unit] && !held;
  assign skip = can_skip[unit] && !held;
  assign advance = skip || (start && !is_tag);
  assign drop = skip && is_writer;

  always_ff @(posedge clk) begin
    if (rst) begin
      unit <= '0;
      loading <= 1'b0;
      lagging <= 1'b0;
      step <= '0;
    end else begin
      if (start || loading) step <= step + 1'b1;
      if (start) loading <= 1'b1;
      else if (step == 2'd3) loading <= 1'b0;
      if (loading ? step == 2'd3 : !start) unit <= is_tag ? '0 : unit + 1'b1;
      // Of this turn: somebody has not taken the command that is the writer's next.
      if (!loading && is_tag) lagging <= 1'b0;
      else if (!loading && !advance && abreast[unit]) lagging <= 1'b1;
    end
  end

  // ---- which words of its slot a unit gets: an address and a size; the engine gets four
  logic [4:0] first_word, size_word;

  always_comb begin
    case (unit)
      UNIT_BITS'(ACTIVATIONS): first_word = 5'(tlmm_pkg::REG_CMD_X_LO >> 2);
      UNIT_BITS'(SCALES): first_word = 5'(tlmm_pkg::REG_CMD_S_LO >> 2);
      UNIT_BITS'(ENGINE): first_word = 5'(tlmm_pkg::REG_CMD_MODE >> 2);
      UNIT_BITS'(WRITER): first_word = 5'(tlmm_pkg::REG_CMD_Y_LO >> 2);
      UNIT_BITS'(TAG): first_word = 5'(tlmm_pkg::REG_CMD_TAG >> 2);
      default: first_word = 5'(tlmm_pkg::REG_CMD_W0_LO >> 2) + (5'(unit - UNIT_BITS'(WEIGHTS)) << 1);
    endcase
    case (unit)
      UNIT_BITS'(ACTIVATIONS): size_word = 5'd5;
      UNIT_BITS'(SCALES): size_word = 5'd6;
      UNIT_BITS'(WRITER): size_word = 5'd7;
      default: size_word = 5'd4;
    endcase
  end

  always_comb begin
    read_word = first_word + 5'(step);
    if (step == 2'd2 && unit != UNIT_BITS'(ENGINE)) read_word = size_word;
    read_slot = position[unit][SLOT_BITS-1:0];
    if (is_tag) read_slot = tag_slot;
    if (loading) read_slot = slot;
  end

  // The RAM takes two cycles, and so do the strobes.
  logic [UNITS-1:0] load_next;
  logic [1:0] step_next;

  always_ff @(posedge clk) begin
    load_next <= rst || !(start || loading) ? '0 : UNITS'(1) << unit;
    load <= rst ? '0 : load_next;
    step_next <= step;
    load_step <= step_next;
    if (start) slot <= read_slot;
    load_slot <= slot;
  end
endmodule
