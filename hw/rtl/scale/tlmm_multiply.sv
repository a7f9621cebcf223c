// Product of two numbers without DSP blocks: its upper BITS + 2 bits, and whether any of those below
// is set. A new product every cycle, BITS / 2 + 1 cycles later. Every stage adds the multiple of `a`
// that one base-4 digit of `b` names; with 3 * a made beforehand that is one LUT per bit.
module tlmm_multiply #(
    parameter int BITS = 24  // of each factor; even
) (
    input  logic            clk,
    input  logic [BITS-1:0] a,
    input  logic [BITS-1:0] b,
    output logic [BITS+1:0] product,
    output logic            sticky
);
  localparam int DIGITS = BITS / 2;

  // Entry d is what the stage of digit d starts from.
  logic [DIGITS:0][BITS-1:0] single;
  logic [DIGITS:0][BITS+1:0] triple;
  logic [DIGITS:0][BITS+1:0] sum;    // two bits of it are behind the point of the next stage
  logic [DIGITS:0]           rest;   // a bit that left at the end was set

  always_ff @(posedge clk) begin
    single[0] <= a;
    triple[0] <= (BITS + 2)'(a) + {1'b0, a, 1'b0};
  end
  assign sum[0]  = '0;
  assign rest[0] = 1'b0;

  for (genvar d = 0; d < DIGITS; d++) begin : g_digit
    logic [1:0] digit;
    logic [BITS+1:0] multiple;

    tlmm_delay #(
        .WIDTH (2),
        .CYCLES(d + 1)
    ) digit_delay (
        .clk,
        .in (b[2*d+:2]),
        .out(digit)
    );

    always_comb begin
      case (digit)
        2'd0: multiple = '0;
        2'd1: multiple = {2'b00, single[d]};
        2'd2: multiple = {1'b0, single[d], 1'b0};
        default: multiple = triple[d];
      endcase
    end

    always_ff @(posedge clk) begin
      sum[d+1]    <= {2'b00, sum[d][BITS+1:2]} + multiple;
      rest[d+1]   <= rest[d] || sum[d][1:0] != 2'd0;
      single[d+1] <= single[d];
      triple[d+1] <= triple[d];
    end
  end

  assign product = sum[DIGITS];
  assign sticky  = rest[DIGITS];

  logic unused;
  assign unused = &{1'b0, single[DIGITS], triple[DIGITS]};
endmodule
