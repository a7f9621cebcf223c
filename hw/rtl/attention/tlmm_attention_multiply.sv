// a * b without DSP blocks, whose multipliers are for the keys and values: 12 bits of b, two a
// stage, of which each adds the multiple that they name. A new product every cycle, 7 cycles later.
module tlmm_attention_multiply #(
    parameter int A_BITS = 31
) (
    input  logic                   clk,
    input  logic [A_BITS-1:0]      a,       // signed
    input  logic [11:0]            b,       // unsigned
    output logic [A_BITS+12-1:0]   product  // signed
);
  localparam int DIGITS = 6;
  localparam int BITS = A_BITS + 2;

  logic [DIGITS:0][A_BITS-1:0] single;
  logic [DIGITS:0][BITS-1:0] triple, sum;
  logic [DIGITS:0][2*DIGITS-3:0] low;  // bits that have left the sum

  always_ff @(posedge clk) begin
    single[0] <= a;
    triple[0] <= BITS'($signed(a)) + {BITS'($signed(a)) << 1};
  end
  assign sum[0] = '0;
  assign low[0] = '0;

  for (genvar d = 0; d < DIGITS; d++) begin : g_digit
    logic [1:0] digit;
    logic [BITS-1:0] multiple;

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
        2'd1: multiple = BITS'($signed(single[d]));
        2'd2: multiple = BITS'($signed(single[d])) << 1;
        default: multiple = triple[d];
      endcase
    end

    always_ff @(posedge clk) begin
      sum[d+1]    <= BITS'($signed(sum[d][BITS-1:2])) + multiple;
      low[d+1]    <= (2*DIGITS-2)'({sum[d][1:0], low[d]} >> 2);
      single[d+1] <= single[d];
      triple[d+1] <= triple[d];
    end
  end

  assign product = {sum[DIGITS], low[DIGITS]};

  logic unused;
  assign unused = &{1'b0, single[DIGITS], triple[DIGITS]};
endmodule
