// What moves: the event counters, and the watchdog that bites when nothing does.
module tlmm_activity #(
    parameter int PORTS = 1
) (
    input  logic           clk,
    input  logic           rst,
    input  logic           busy,           // a command is queued or running
    input  logic           watching,
    input  logic [31:0]    watchdog_limit,
    input  logic [PORTS:0] read_beats,     // a beat was taken, of each port
    input  logic           write_beat,
    input  logic           response,
    input  logic           ev_submitted,
    input  logic           ev_completed,
    input  logic           ev_lookup,
    input  logic           ev_stall_weights,
    input  logic           ev_stall_tables,
    input  logic           ev_stall_output,
    output logic           watchdog,
    output logic [3:0]     counter_visit,
    output logic [31:0]    counter_value
);
  logic [2:0] read_amount;
  logic [15:0] pulses;
  logic progress;

  // All registered: what watches must not lengthen the paths that it watches.
  always_ff @(posedge clk) begin
    progress <= |read_beats || write_beat || response || ev_lookup;
    read_amount <= 3'($countones(read_beats));
    // A counter's index is {bit 7, bits 4 to 2} of its register's offset.
    pulses <= {
      write_beat,
      1'b0,  // READ_BEATS, which grows by `read_amount`
      ev_stall_output,
      ev_stall_tables,
      ev_stall_weights,
      ev_lookup,
      busy,
      1'b1,  // CYCLES
      5'b0,
      ev_completed,
      ev_submitted,
      1'b0
    };
  end

  tlmm_watchdog dog (
      .clk,
      .rst,
      .watching,
      .progress,
      .limit(watchdog_limit),
      .expired(watchdog)
  );

  tlmm_counters #(
      .USED(16'hff06),
      .AMOUNT_INDEX(14)
  ) counters (
      .clk,
      .rst,
      .pulses,
      .amount(read_amount),
      .visit(counter_visit),
      .value(counter_value)
  );
endmodule
