// One element a cycle: what a gate makes of it, its square, its product with a norm's weight, its
// code. Elements come in by the first pass and are kept outside; the other passes bring them back.
module tlmm_glue_lane (
    input  logic               clk,
    // the first pass
    input  logic        [ 1:0] gate,
    input  logic        [22:0] gain,
    input  logic        [23:0] slope,
    input  logic        [23:0] x,
    input  logic        [23:0] up,
    // the others
    input  logic               again,    // not the first pass
    input  logic               coding,   // the last one
    input  logic        [23:0] element,
    input  logic        [23:0] weight,
    input  logic        [ 7:0] top,      // the largest element's exponent
    input  logic        [23:0] factor,   // of codes
    output logic        [23:0] product,  // 51 cycles after `x`, 12 after `element`
    output logic        [31:0] square,   // 14 after `element`
    output logic signed [ 7:0] code      // 15 after `element`
);
  localparam logic [1:0] SWIGLU = 2'd1;
  localparam logic [1:0] RELU2 = 2'd2;
  localparam logic [1:0] RESIDUAL = 2'd3;
  localparam logic [23:0] ONE = {1'b0, 8'd127, 15'd0};
  localparam int SIGMOID = 29;
  localparam int PRODUCT = 10;
  localparam int SUM = 7;

  // ---- first pass: x times its sigmoid, or itself, or one; or the gain times up, plus x
  logic [23:0] sigmoid, x_late, x_later, up_early, up_late, first, positive, sum;

  tlmm_glue_sigmoid sigmoids (
      .clk,
      .x,
      .slope,
      .sigmoid
  );
  tlmm_delay #(
      .WIDTH (24),
      .CYCLES(SIGMOID)
  ) delay_x (
      .clk,
      .in (x),
      .out(x_late)
  );
  // A sum takes as long after the product as the product has begun before.
  tlmm_delay #(
      .WIDTH (24),
      .CYCLES(SIGMOID - SUM)
  ) delay_up (
      .clk,
      .in (up),
      .out(up_early)
  );
  tlmm_delay #(
      .WIDTH (24),
      .CYCLES(SUM + 1 + PRODUCT)
  ) delay_up_more (
      .clk,
      .in (up_early),
      .out(up_late)
  );
  tlmm_delay #(
      .WIDTH (24),
      .CYCLES(1 + PRODUCT - SUM)
  ) delay_x_more (
      .clk,
      .in (x_late),
      .out(x_later)
  );
  assign positive = x_late[23] ? '0 : x_late;  // what is no number is one factor still
  assign first = gate == SWIGLU ? sigmoid : gate == RELU2 ? positive : ONE;

  // ---- other passes: elements as shares of the power of two of the largest
  logic signed [9:0] relative, offset;
  logic [23:0] share, element_1, weight_1;

  assign relative = $signed({2'b00, element[22:15]}) + offset;
  always_ff @(posedge clk) begin
    offset <= 10'sd127 - $signed({2'b00, top});  // which stands still during a pass
    share[23] <= element[23];
    share[22:15] <= element[22:15] == '0 || relative < 10'sd1 ? '0 : relative[7:0];
    share[14:0] <= element[14:0];
    {element_1, weight_1} <= {element, weight};
  end

  // ---- the two products
  logic [23:0] square_a, square_b, squared, product_a, product_b;

  always_ff @(posedge clk) begin
    square_a  <= again ? share : gate == RESIDUAL ? {1'b0, gain} : first;
    square_b  <= again ? share : gate == RESIDUAL ? up_early : x_late;
    product_a <= !again ? (gate == RESIDUAL ? sum : squared) : coding ? share : element_1;
    product_b <= !again ? (^gate ? up_late : ONE) : coding ? factor : weight_1;
  end
  tlmm_glue_product squares (
      .clk,
      .a(square_a),
      .b(square_b),
      .product(squared)
  );
  tlmm_glue_sum sums (
      .clk,
      .a(x_later),
      .b(squared),
      .sum
  );
  tlmm_glue_product products (
      .clk,
      .a(product_a),
      .b(product_b),
      .product
  );

  // ---- squares to one point: the square of the largest has 31 or 32 bits
  logic [ 7:0] down;
  logic [ 5:0] square_shift;
  logic [15:0] square_mantissa;

  assign down = 8'd128 - squared[22:15];
  always_ff @(posedge clk) begin
    square_mantissa <= {squared[22:15] != '0, squared[14:0]};
    square_shift <= down > 8'd32 ? 6'd32 : down[5:0];
    square <= {square_mantissa, 16'd0} >> square_shift;
  end

  // ---- codes, rounded to the nearest, halves away from zero
  logic [ 7:0] places;
  logic [ 4:0] code_shift;
  logic [15:0] code_mantissa;
  logic [ 7:0] halves;
  logic [1:0] negative;

  assign places = 8'd141 - product[22:15];
  always_ff @(posedge clk) begin
    code_mantissa <= {product[22:15] != '0, product[14:0]};
    code_shift <= places > 8'd16 ? 5'd16 : places[4:0];
    negative <= {negative[0], product[23]};
    halves <= 8'(code_mantissa >> code_shift);
    code <= ({1'b0, halves[7:1]} + 8'(halves[0]) ^ {8{negative[1]}}) + 8'(negative[1]);
  end
endmodule
