// The arithmetic that a row needs once: the slope of its sigmoids, the factor of its codes, its
// scale. Numbers are not negative: a mantissa of 16 bits, 0 or with its top bit set, and an exponent
// of 12 bits that cannot overflow. A bit in two cycles; a command's steps one after another.
// Definition: `Scalar` in hw/edgerun_hw/overlay/glue_numbers.py.
module tlmm_glue_scalar (
    input  logic        clk,
    input  logic        rst,
    input  logic        begin_slope,  // the constants are here
    input  logic        begin_scale,  // the row's largest element and squares are, too
    input  logic [ 1:0] gate,
    input  logic        norm,
    // exponent and fraction
    input  logic [22:0] gain,
    input  logic [22:0] steepness,
    input  logic [22:0] share,
    input  logic [22:0] floor,
    input  logic [22:0] largest,
    input  logic [44:0] squares,
    input  logic [ 7:0] squares_top,  // exponent of the element whose square has 31 or 32 bits
    output logic        slope_ready,
    output logic        factor_ready,
    output logic        scale_ready,
    output logic [23:0] slope,
    output logic [23:0] factor,
    output logic [31:0] scale
);
  localparam logic [1:0] RELU2 = 2'd2;
  localparam logic signed [11:0] ONE = 12'sd127;
  localparam logic signed [11:0] POINT = 12'sd142;

  typedef struct packed {
    logic signed [11:0] exponent;
    logic [15:0] mantissa;
  } scalar_t;

  function automatic scalar_t scalar(input logic [22:0] number);
    scalar = {4'd0, number[22:15], number[22:15] == '0 ? 16'd0 : {1'b1, number[14:0]}};
  endfunction

  // ---- what is made of what, in this order
  typedef enum logic [3:0] {
    REST,
    SLOPE,      // gain * steepness
    FACTOR,     // 127 / largest, as a share of its power of two
    SQUARES,    // their sum as a number
    POWER_2,    // gain * gain
    POWER_3,    // and once more
    SIZE,       // largest * power
    SPREAD,     // squares * power
    SPREAD_2,   // and once more
    MEAN,       // squares + floor
    ROOT,
    SHARE,      // size * share
    QUOTIENT    // size / root
  } step_t;
  typedef enum logic [2:0] {PICK, LOAD, COMPARE, ORDER, RUN, ADJUST, ROUND, PUT} phase_t;
  typedef enum logic [2:0] {MULTIPLY, DIVIDE, ADD, SQUARE_ROOT, NORMALISE} operation_t;

  step_t step, after;
  phase_t phase;
  operation_t operation, operation_next;
  scalar_t power, size, spread, a, b, a_next, b_next, a_picked, b_picked, result, result_next;
  logic gated;

  assign gated = ^gate;  // a sum has its gain already
  always_comb begin
    case (step)
      SLOPE, QUOTIENT: after = REST;
      FACTOR: after = norm ? SQUARES : gated ? POWER_2 : SHARE;
      SQUARES: after = gated ? POWER_2 : MEAN;
      POWER_2: after = gate == RELU2 ? POWER_3 : SIZE;
      POWER_3: after = SIZE;
      SIZE: after = norm ? SPREAD : SHARE;
      SPREAD: after = SPREAD_2;
      SPREAD_2: after = MEAN;
      MEAN: after = ROOT;
      ROOT: after = SHARE;
      SHARE: after = norm ? QUOTIENT : REST;
      default: after = REST;
    endcase
    case (step)
      FACTOR, QUOTIENT: operation_next = DIVIDE;
      SQUARES: operation_next = NORMALISE;
      MEAN: operation_next = ADD;
      ROOT: operation_next = SQUARE_ROOT;
      default: operation_next = MULTIPLY;
    endcase
    case (step)
      SLOPE, POWER_2: a_next = scalar(gain);
      FACTOR: a_next = {12'sd133, 16'd65024};
      POWER_3: a_next = power;
      SQUARES: a_next = {12'sd112 + 12'($signed({1'b0, squares_top, 1'b0})) - 12'sd254, 16'd0};
      SPREAD, SPREAD_2, MEAN, ROOT: a_next = spread;
      default: a_next = size;
    endcase
    case (step)
      SLOPE: b_next = scalar(steepness);
      FACTOR: b_next = {ONE, 1'b1, largest[14:0]};
      POWER_2, POWER_3: b_next = scalar(gain);
      MEAN: b_next = scalar(floor);
      SHARE: b_next = scalar(share);
      QUOTIENT: b_next = spread;
      default: b_next = power;
    endcase
  end

  // ---- a bit in two cycles: what would be had or left, and whether that is taken
  logic [44:0] wide;      // the product; the sum of squares; the radicand
  logic [17:0] rest;      // of a quotient or a root
  logic [16:0] bits;      // of either; the smaller summand
  logic [ 4:0] count;
  logic last, ends, second, swap, root_odd, dividend_zero, adds, b_above, a_zero, b_zero;
  logic [31:0] with_product;
  logic [17:0] less_divisor;
  logic [19:0] root_rest, less_root;
  logic signed [11:0] apart, root_power;

  always_ff @(posedge clk) operation <= operation_next;  // it is not looked at before COMPARE

  // The larger summand is `a`; a zero is smaller than anything.
  assign swap = adds && (a_zero || (!b_zero && b_above));
  always_ff @(posedge clk) begin
    adds <= operation == ADD;
    // They stay picked for the whole step.
    b_above <= b_picked.exponent > a_picked.exponent;
    {a_zero, b_zero} <= {a_picked.mantissa == '0, b_picked.mantissa == '0};
    apart <= a.exponent - b.exponent;
    root_power <= a.exponent - POINT - 12'sd16;
  end
  assign root_rest = {rest, wide[31:30]};
  assign root_odd = root_power[0];

  always_comb begin
    case (operation)
      DIVIDE: last = count == 5'd16;
      ADD: last = 12'(count) == apart || count == 5'd17;
      NORMALISE: last = wide[44:16] == '0;
      default: last = count == 5'd15;
    endcase
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      step  <= REST;
      phase <= PICK;
    end else if (step == REST) begin
      if (begin_slope) step <= SLOPE;
      else if (begin_scale) step <= FACTOR;
      phase <= PICK;
    end else begin
      case (phase)
        PICK: phase <= LOAD;
        LOAD: phase <= COMPARE;
        COMPARE: phase <= ORDER;
        ORDER: phase <= RUN;
        RUN: if (second && ends) phase <= ADJUST;
        ADJUST: phase <= ROUND;
        ROUND: phase <= PUT;
        default: phase <= PICK;
      endcase
      if (phase == PUT) step <= after;
    end

    {a_picked, b_picked} <= {a_next, b_next};
    if (phase == LOAD) {a, b} <= {a_picked, b_picked};
    if (phase == ORDER) begin
      if (swap) {a, b} <= {b, a};
      dividend_zero <= a.mantissa == '0;
      count <= '0;
      rest <= operation == DIVIDE ? {2'b00, a.mantissa} : '0;
      bits <= operation == ADD ? {1'b0, swap ? a.mantissa : b.mantissa} : '0;
      wide <= '0;
      if (operation == NORMALISE) wide <= squares;
      if (operation == SQUARE_ROOT) begin
        wide[31:0] <= {a.mantissa, 16'd0} >> root_odd;
        a.exponent <= (root_power + 12'($signed({1'b0, root_odd}))) >>> 1;
      end
    end
    second <= phase == RUN && !second;
    ends <= last;
    with_product <= {wide[30:0], 1'b0} + (a.mantissa[15] ? {16'd0, b.mantissa} : '0);
    less_divisor <= rest - {2'b00, b.mantissa};
    less_root <= root_rest - {1'b0, bits, 2'b01};
    if (phase == RUN && second) begin
      count <= count + 1'b1;
      case (operation)
        MULTIPLY: begin
          wide[31:0] <= with_product;
          a.mantissa <= a.mantissa << 1;
        end
        DIVIDE: begin
          bits <= {bits[15:0], !less_divisor[17]};
          rest <= (less_divisor[17] ? rest : less_divisor) << 1;
        end
        ADD: if (!ends) bits <= bits >> 1;
        SQUARE_ROOT: begin
          bits <= {bits[15:0], !less_root[19]};
          rest <= less_root[19] ? root_rest[17:0] : less_root[17:0];
          wide[31:0] <= {wide[29:0], 2'b00};
        end
        default: if (!ends) begin
          wide <= wide >> 1;
          a.exponent <= a.exponent + 12'sd1;
        end
      endcase
    end
  end

  // ---- results
  logic [16:0] total;
  logic signed [11:0] joined;  // the operands' exponents

  always_ff @(posedge clk) begin
    total <= {1'b0, a.mantissa} + bits;
    case (operation)
      MULTIPLY: joined <= a.exponent + b.exponent;
      DIVIDE: joined <= a.exponent - b.exponent;
      default: joined <= a.exponent;
    endcase
  end

  always_comb begin
    case (operation)
      MULTIPLY: begin
        result_next.mantissa = wide[31] ? wide[31:16] : wide[30:15];
        result_next.exponent = joined - ONE + 12'($signed({1'b0, wide[31]}));
      end
      DIVIDE: begin
        result_next.mantissa = dividend_zero ? '0 : bits[16] ? bits[16:1] : bits[15:0];
        result_next.exponent = joined + ONE - 12'sd1 + 12'($signed({1'b0, bits[16]}));
      end
      ADD: begin
        result_next.mantissa = total[16] ? total[16:1] : total[15:0];
        result_next.exponent = joined + 12'($signed({1'b0, total[16]}));
      end
      SQUARE_ROOT: begin
        result_next.mantissa = bits[15:0];
        result_next.exponent = POINT + joined;
      end
      default: begin
        result_next.mantissa = wide[15:0];
        result_next.exponent = joined;
      end
    endcase
  end
  always_ff @(posedge clk) if (phase == ROUND) result <= result_next;

  function automatic logic [7:0] in_range(input scalar_t number);
    if (!number.mantissa[15] || number.exponent < 12'sd1) in_range = 8'd0;
    else in_range = number.exponent > 12'sd254 ? 8'd254 : number.exponent[7:0];
  endfunction

  always_ff @(posedge clk) begin
    slope_ready  <= step == SLOPE && phase == PUT;
    factor_ready <= step == FACTOR && phase == PUT;
    if (phase == PUT) begin
      case (step)
        SLOPE: slope <= {1'b0, in_range(result), result.mantissa[14:0]};
        FACTOR: begin
          factor <= {1'b0, result.exponent[7:0], result.mantissa[14:0]};
          size   <= scalar(largest);
        end
        POWER_2, POWER_3: power <= result;
        SQUARES, SPREAD, SPREAD_2, MEAN, ROOT: spread <= result;
        default: size <= result;
      endcase
    end
    if (rst || begin_slope) scale_ready <= 1'b0;
    else if (phase == PUT && after == REST && step != SLOPE) scale_ready <= 1'b1;
  end
  always_comb begin
    if (!size.mantissa[15] || size.exponent < 12'sd1) scale = '0;
    else if (size.exponent > 12'sd254) scale = 32'h7fc00000;
    else scale = {1'b0, size.exponent[7:0], size.mantissa[14:0], 8'd0};
  end

  logic unused;
  assign unused = &{1'b0, less_root[18]};
endmodule
