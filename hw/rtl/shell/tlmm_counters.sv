// The event counters: 32 bits each, in one distributed RAM with one adder.
//
// Registers of 32 bits with an adder each would be the largest part of the shell. Instead a round
// visits one counter a cycle and adds what came in since its last visit, which a few bits hold. A
// reader waits for the counter's turn, 16 cycles at most, and gets the value of 3 cycles before.
module tlmm_counters #(
    parameter logic [15:0] USED = 16'hffff,  // the counters that there are
    parameter int AMOUNT_INDEX = 14,         // the one that may grow by more than one a cycle
    parameter int AMOUNT_BITS = 3
) (
    input  logic                   clk,
    input  logic                   rst,      // for 16 cycles at least: one round clears them all
    input  logic [15:0]            pulses,   // one per counter; that of AMOUNT_INDEX is ignored
    input  logic [AMOUNT_BITS-1:0] amount,
    output logic [3:0]             visit,    // the counter whose turn it was
    output logic [31:0]            value     // and its value
);
  localparam int WAITING_BITS = AMOUNT_BITS + 4;  // grows for 16 cycles

  (* ram_style = "distributed" *) logic [31:0] totals[16];
  logic [15:0][WAITING_BITS-1:0] waiting;

  // A visit takes two cycles, so that the choice and the addition share none: `turn` chooses,
  // `turn_before` is added up. `visit` and `value` come a third cycle later.
  logic [3:0] turn, turn_before;
  logic [31:0] total, sum;
  logic [WAITING_BITS-1:0] growth;

  // Any turn may be the first, but it must be one: simulation starts with unknown ones.
  initial turn = '0;

  assign sum = rst ? '0 : total + 32'(growth);
  always_ff @(posedge clk) totals[turn_before] <= sum;

  always_ff @(posedge clk) begin
    turn <= turn + 1'b1;
    turn_before <= turn;
    total <= totals[turn];
    growth <= waiting[turn];
    visit <= turn_before;
    value <= sum;
  end

  for (genvar i = 0; i < 16; i++) begin : g_waiting
    if (!USED[i]) begin : g_none
      assign waiting[i] = '0;
    end else begin : g_counter
      localparam int BITS = i == AMOUNT_INDEX ? WAITING_BITS : 5;
      logic [BITS-1:0] news, kept;
      assign news = i == AMOUNT_INDEX ? BITS'(amount) : BITS'(pulses[i]);
      assign waiting[i] = WAITING_BITS'(kept);
      always_ff @(posedge clk) kept <= rst ? '0 : (turn == 4'(i) ? news : kept + news);
    end
  end

  logic unused;
  assign unused = &{1'b0, pulses};
endmodule
