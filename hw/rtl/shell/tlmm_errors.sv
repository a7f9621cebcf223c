// Collects errors: what is set, whether the queue must stop, and which command was first.
//
// The tag of a command in error is not carried along with its bursts; a slot number is, and the
// queue still holds the command, as a stopped queue completes nothing.
module tlmm_errors #(
    parameter int SOURCES = 3,    // readers, and the writer as the last
    parameter int SLOT_BITS = 3
) (
    input  logic                              clk,
    input  logic                              rst,
    input  logic [SOURCES-1:0]                underrun,
    input  logic [SOURCES-1:0]                overrun,
    input  logic [SOURCES-1:0]                bad_response,
    input  logic [SOURCES-1:0][SLOT_BITS-1:0] source_slot,
    input  logic                              watchdog,
    input  logic [SLOT_BITS-1:0]              oldest_slot,   // the command that the watchdog blames
    input  logic                              bad_length,    // these two with the command's tag
    input  logic                              overflow,
    input  logic [31:0]                       rejected_tag,
    input  logic [6:0]                        acknowledge,   // clears bits of `flags`
    // the queue looks up the tag of a slot
    output logic                              tag_wanted,
    output logic [SLOT_BITS-1:0]              tag_slot,
    input  logic                              tag_load,
    input  logic [31:0]                       tag_data,
    output logic [6:0]                        flags,
    output logic                              raised,        // a bit was set
    output logic                              halted,
    output logic [31:0]                       tag
);
  logic [6:0] events;
  logic [SOURCES-1:0] hit;
  logic [SLOT_BITS-1:0] first_slot;
  logic fatal, first;

  always_comb begin
    events = '0;
    events[tlmm_pkg::ERROR_BAD_LENGTH_BIT] = bad_length;
    events[tlmm_pkg::ERROR_UNDERRUN_BIT] = |underrun;
    events[tlmm_pkg::ERROR_OVERRUN_BIT] = |overrun;
    events[tlmm_pkg::ERROR_READ_RESPONSE_BIT] = |bad_response[SOURCES-2:0];
    events[tlmm_pkg::ERROR_WRITE_RESPONSE_BIT] = bad_response[SOURCES-1];
    events[tlmm_pkg::ERROR_WATCHDOG_BIT] = watchdog;
    events[tlmm_pkg::ERROR_QUEUE_OVERFLOW_BIT] = overflow;
  end

  assign hit = underrun | overrun | bad_response;
  assign fatal = |hit || watchdog;
  assign first = flags == '0;

  always_comb begin
    first_slot = oldest_slot;
    for (int i = 0; i < SOURCES; i++) if (hit[i]) first_slot = source_slot[i];
  end

  always_ff @(posedge clk) begin
    raised <= events != '0;
    if (rst) begin
      flags <= '0;
      halted <= 1'b0;
      tag_wanted <= 1'b0;
      tag <= '0;
    end else begin
      flags <= (flags & ~acknowledge) | events;
      // Apart from the flags, so that acknowledging one does not set a stopped queue going.
      if (fatal) halted <= 1'b1;
      if (fatal && first) tag_wanted <= 1'b1;
      else if (tag_load) tag_wanted <= 1'b0;
      if (tag_load) tag <= tag_data;
      else if ((bad_length || overflow) && first && !fatal) tag <= rejected_tag;
    end
    if (fatal && first) tag_slot <= first_slot;
  end
endmodule
