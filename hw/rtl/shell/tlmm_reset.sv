// The order of a reset: stop asking, let memory finish what it was asked for, clear, run.
//
// AXI has no way to call a burst back. A reset in mid-transfer therefore waits until every
// outstanding burst is done; while it waits, and if memory never answers, the registers go on
// answering. `aresetn` resets the bus as well, so it skips the wait.
module tlmm_reset #(
    parameter int QUIET_CYCLES = 16  // without a beat on the bus, before it counts as drained
) (
    input  logic clk,
    input  logic aresetn,
    input  logic request,    // soft reset
    input  logic bus_idle,   // nothing outstanding and nothing on the read and response channels
    output logic draining,
    output logic resetting,
    output logic clear       // resets everything but the AXI4-Lite side
);
  localparam int COUNT_BITS = $clog2(QUIET_CYCLES);

  typedef enum logic [1:0] {CLEAR, RUN, DRAIN} state_t;
  state_t state;
  // CLEAR lasts as long as tlmm_counters needs for one round over its RAM.
  logic [COUNT_BITS-1:0] count;

  // Powers up in CLEAR: nothing stirs before the first edge with `aresetn` low.
  initial state = CLEAR;

  assign clear = state == CLEAR;
  assign draining = state == DRAIN;
  assign resetting = state != RUN;

  always_ff @(posedge clk) begin
    if (!aresetn) begin
      state <= CLEAR;
      count <= '0;
    end else begin
      case (state)
        RUN: begin
          count <= '0;
          if (request) state <= DRAIN;
        end
        DRAIN: begin
          count <= bus_idle ? count + 1'b1 : '0;
          if (bus_idle && &count) state <= CLEAR;
        end
        default: begin
          count <= count + 1'b1;
          if (&count) state <= RUN;
        end
      endcase
    end
  end
endmodule
