// From scores to weights, for one query: powers of two below the running maximum, their sum, and
// the same times the scales of the values. A token a cycle.
//
// A block takes a cycle in which the maximum is compared, one in which what it rose by is known, and
// its 64 tokens; meanwhile the sum of what came before is shifted, a bit a cycle.
module tlmm_attention_weights (
    input  logic             clk,
    // scores of a block
    input  logic             write,
    input  logic [6:0]       write_index,  // {buffer, token}
    input  logic             visible,
    input  logic [20:0]      score,
    // a block
    input  logic [4:0]       head,         // here a cycle before `compare`
    input  logic             fresh,        // nothing of this head came before
    input  logic             compare,
    input  logic [9:0]       highest,      // largest whole part of the block; a cycle before, too
    input  logic             raise,        // a cycle later
    input  logic             finish,       // when all weights are done
    output logic [5:0]       rise,         // of the maximum; two cycles after `raise`
    // a walk through its tokens
    input  logic [6:0]       index,
    input  logic [15:0]      scale,        // of the token's value
    input  logic [4:0]       top,
    input  logic             valid_1,      // a cycle after `index`
    // 13 cycles after `index`
    output logic [23:0]      weight,
    // the sum of a head's weights, for the quotient
    input  logic [4:0]       total_head,
    output logic [39:0]      total
);
  // ---- the running maximum and what it rises by
  (* ram_style = "distributed" *) logic [9:0] peaks[32];
  logic [9:0] peak, earlier_peak, highest_1, higher;
  logic [10:0] difference;
  logic [5:0] risen;

  assign higher = fresh || !difference[10] ? highest_1 : earlier_peak;
  always_comb begin
    risen = difference[5:0];
    if (difference[10]) risen = '0;
    else if (difference[9:6] != '0) risen = 6'd63;
  end

  // Read, subtracted and chosen from in a cycle each: two of these in one are the longest path.
  always_ff @(posedge clk) begin
    {earlier_peak, highest_1} <= {peaks[head], highest};
    if (compare) difference <= {highest_1[9], highest_1} - {earlier_peak[9], earlier_peak};
    if (raise) begin
      peaks[head] <= higher;
      peak <= higher;
      rise <= risen;
    end
  end

  // ---- cycle 1: a score
  (* ram_style = "distributed" *) logic [21:0] scores[128];
  logic [20:0] score_1;
  logic [11:0] mantissa_1, mantissa_3;
  logic [4:0] exponent_1;
  logic seen_1;

  always_ff @(posedge clk) begin
    if (write) scores[write_index] <= {visible, score};
    {seen_1, score_1} <= scores[index];
    exponent_1 <= scale[15:11];
    mantissa_1 <= scale[15:11] == '0 ? '0 : {1'b1, scale[10:0]};
  end

  // ---- cycles 2 and 3: the power of its fraction, and how far both weights lie below it
  logic [15:0] power;
  logic [10:0] distance;
  logic [5:0] below_2, below_3;
  logic [4:0] lower_2;
  logic [6:0] all_2;
  logic [5:0] all_3;
  logic seen_3;

  tlmm_exp2 exp2 (
      .clk,
      .fraction(score_1[10:0]),
      .power
  );
  assign distance = {peak[9], peak} - {score_1[20], score_1[20:11]};
  assign all_2 = {1'b0, below_2} + {2'b0, lower_2} + 7'd4;

  always_ff @(posedge clk) begin
    below_2 <= distance[10:6] != '0 ? 6'd63 : distance[5:0];
    lower_2 <= top > exponent_1 ? top - exponent_1 : '0;
    below_3 <= below_2;
    all_3 <= all_2[6] ? 6'd63 : all_2[5:0];
  end
  tlmm_delay #(
      .WIDTH (12),
      .CYCLES(2)
  ) delay_mantissa (
      .clk,
      .in (mantissa_1),
      .out(mantissa_3)
  );
  tlmm_delay #(
      .CYCLES(2)
  ) delay_seen (
      .clk,
      .in (seen_1 && valid_1),
      .out(seen_3)
  );

  // ---- cycles 4 to 13: the weight of the value
  logic [28:0] product, shifted;
  logic [5:0] all_10;
  logic seen_13;

  tlmm_attention_multiply #(
      .A_BITS(17)
  ) multiply (
      .clk,
      .a({1'b0, power}),
      .b(mantissa_3),
      .product
  );
  tlmm_delay #(
      .WIDTH (6),
      .CYCLES(7)
  ) delay_all (
      .clk,
      .in (all_3),
      .out(all_10)
  );
  tlmm_attention_shift #(
      .BITS(29)
  ) shift_weight (
      .clk,
      .value(product),
      .by(all_10),
      .shifted
  );
  tlmm_delay #(
      .CYCLES(10)
  ) delay_to_weight (
      .clk,
      .in (seen_3),
      .out(seen_13)
  );
  assign weight = seen_13 ? shifted[23:0] : '0;

  // ---- cycles 4 to 6: the weight itself, and the sum of all
  (* ram_style = "distributed" *) logic [39:0] totals[32];
  logic [24:0] plain;
  logic [39:0] earlier, sum;
  logic [5:0] left;
  logic seen_6;

  tlmm_attention_shift #(
      .BITS(25)
  ) shift_plain (
      .clk,
      .value({1'b0, power, 8'b0}),
      .by(below_3),
      .shifted(plain)
  );
  tlmm_delay #(
      .CYCLES(3)
  ) delay_to_plain (
      .clk,
      .in (seen_3),
      .out(seen_6)
  );

  always_ff @(posedge clk) begin
    if (raise) begin
      sum <= '0;
      earlier <= fresh ? '0 : totals[head];
      left <= risen;
    end else begin
      if (seen_6) sum <= sum + 40'(plain);
      if (left != '0) begin
        earlier <= earlier >> 1;
        left <= left - 1'b1;
      end
    end
    if (finish) totals[head] <= earlier + sum;
  end
  assign total = totals[total_head];

  logic unused;
  assign unused = &{1'b0, shifted[28:24]};
endmodule
