// Sum of two numbers of the glue unit (tlmm_glue_product says what they are). Of the smaller one the
// bits beyond three places behind the larger one's last are dropped, and of the sum what does not
// fit. A new sum every cycle, 7 cycles later. Definition: `add` in overlay/glue_numbers.py.
module tlmm_glue_sum (
    input  logic        clk,
    input  logic [23:0] a,
    input  logic [23:0] b,
    output logic [23:0] sum
);
  localparam int GUARD = 3;
  localparam int BITS = 16 + GUARD;

  // ---- 1 and 2: the larger one first
  logic swap;
  logic [23:0] a_1, b_1, upper, lower;
  logic [7:0] a_above, b_above, apart;
  logic [4:0] down;

  function automatic logic [BITS-1:0] mantissa(input logic [22:0] number);
    mantissa = number[22:15] == '0 ? '0 : {1'b1, number[14:0], GUARD'(0)};
  endfunction

  assign apart = swap ? b_above : a_above;
  always_ff @(posedge clk) begin
    swap <= b[22:0] > a[22:0];
    {a_1, b_1} <= {a, b};
    a_above <= a[22:15] - b[22:15];
    b_above <= b[22:15] - a[22:15];
    {upper, lower} <= swap ? {b_1, a_1} : {a_1, b_1};
    down <= apart > 8'(BITS) ? 5'(BITS) : apart[4:0];
  end

  // ---- 3 and 4: to one point, and added
  logic [BITS-1:0] moved, whole;
  logic [BITS:0] total;
  logic subtract;
  logic [8:0] top_3, top_4, top_5, top_6;  // sign and exponent of the larger one

  always_ff @(posedge clk) begin
    moved <= mantissa(lower[22:0]) >> down;
    whole <= mantissa(upper[22:0]);
    subtract <= upper[23] ^ lower[23];
    total <= {1'b0, whole} + ({(BITS + 1) {subtract}} ^ {1'b0, moved}) + (BITS + 1)'(subtract);
    {top_6, top_5, top_4, top_3} <= {top_5, top_4, top_3, upper[23:15]};
  end

  // ---- 5 to 7: the first bit to the top
  logic [4:0] places, places_5;
  logic [BITS:0] total_5;
  logic [14:0] fraction;
  logic signed [9:0] exponent;
  logic zero, none;

  always_comb begin
    places = '0;
    for (int i = 0; i <= BITS; i++) if (total[i]) places = 5'(BITS - i);
  end
  always_ff @(posedge clk) begin
    places_5 <= places;
    total_5  <= total;
    fraction <= 15'((total_5 << places_5) >> GUARD + 1);
    exponent <= $signed({2'b00, top_5[7:0]}) + 10'sd1 - 10'($signed({1'b0, places_5}));
    zero     <= total_5 == '0;
    none     <= &top_5[7:0];
    if (none || (!zero && exponent > 10'sd254)) sum <= {top_6[8], 8'd255, fraction};
    else if (zero || exponent < 10'sd1) sum <= '0;
    else sum <= {top_6[8], exponent[7:0], fraction};
  end

  logic unused;
  assign unused = &{1'b0, top_6[7:0]};
endmodule
