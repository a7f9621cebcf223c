// Product of two numbers of the glue unit: sign, 8 bits of exponent, 15 of fraction, as the upper
// bits of a float32. Cut off, not rounded. Exponent 0 is zero, 255 no number, and so is a product
// that is too large. A new product every cycle, 10 cycles later.
module tlmm_glue_product (
    input  logic        clk,
    input  logic [23:0] a,
    input  logic [23:0] b,
    output logic [23:0] product
);
  localparam int MULTIPLY = 9;

  // ---- exponents, for a product below 2 and for one of 2 or more
  logic [8:0] sum;
  logic signed [9:0] base_low, base_high;
  logic [1:0] zero, none;
  logic [7:0] low, high;
  logic [2*8:0] late;
  logic sign_1, sign_2, sign_3;

  function automatic logic [7:0] exponent(input logic signed [9:0] base, input logic is_zero,
                                          input logic is_none);
    if (is_none || (!is_zero && base > 10'sd254)) exponent = 8'd255;
    else exponent = is_zero || base < 10'sd1 ? 8'd0 : base[7:0];
  endfunction

  always_ff @(posedge clk) begin
    sum <= {1'b0, a[22:15]} + {1'b0, b[22:15]};
    zero <= {zero[0], a[22:15] == '0 || b[22:15] == '0};
    none <= {none[0], &a[22:15] || &b[22:15]};
    base_low <= $signed({1'b0, sum}) - 10'sd127;
    base_high <= $signed({1'b0, sum}) - 10'sd126;
    low <= exponent(base_low, zero[1], none[1]);
    high <= exponent(base_high, zero[1], none[1]);
    {sign_3, sign_2, sign_1} <= {sign_2, sign_1, a[23] ^ b[23]};
  end
  tlmm_delay #(
      .WIDTH (17),
      .CYCLES(MULTIPLY - 3)
  ) delay_exponents (
      .clk,
      .in ({sign_3, high, low}),
      .out(late)
  );

  // ---- mantissas
  logic [17:0] mantissa;
  logic sticky;

  tlmm_multiply #(
      .BITS(16)
  ) multiply (
      .clk,
      .a({1'b1, a[14:0]}),
      .b({1'b1, b[14:0]}),
      .product(mantissa),
      .sticky
  );
  always_ff @(posedge clk) begin
    product <= mantissa[17] ? {late[16:8], mantissa[16:2]} : {late[16], late[7:0], mantissa[15:1]};
  end

  logic unused;
  assign unused = &{1'b0, sticky, mantissa[0]};
endmodule
