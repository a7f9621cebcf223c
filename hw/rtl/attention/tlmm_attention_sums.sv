// The output sums of a query: adds what the four ports have of a run of values to what was there
// before, shifted by what the maximum rose. One element a cycle; in cycles in which none comes the
// finisher may read, through the same shifter.
module tlmm_attention_sums #(
    parameter int DEPTH = 2048
) (
    input  logic                     clk,
    // a run's elements
    input  logic                     add,
    input  logic                     fresh,    // nothing was there before
    input  logic [5:0]               rise,
    input  logic [$clog2(DEPTH)-1:0] address,
    input  logic [4*36-1:0]          sums,
    // the finisher's reads, in cycles without `add`
    input  logic [$clog2(DEPTH)-1:0] read_address,
    input  logic [5:0]               read_shift,
    output logic [24:0]              word      // 5 cycles later
);
  localparam int BITS = 48;

  // ---- cycles 1 and 2: the sum of the ports, and what was there
  logic [36:0] left, right;
  logic [37:0] sum_2, sum_5;
  logic [BITS-1:0] before_2, shifted_5, total_6;
  logic [5:0] shift_2;
  logic add_5, add_6, fresh_5;
  logic [$clog2(DEPTH)-1:0] address_6;

  tlmm_ram #(
      .WIDTH(BITS),
      .DEPTH(DEPTH)
  ) totals (
      .clk,
      .write(add_6),
      .write_address(address_6),
      .write_data(total_6),
      .read_address(add ? address : read_address),
      .read_data(before_2)
  );
  always_ff @(posedge clk) begin
    left  <= 37'($signed(sums[0+:36])) + 37'($signed(sums[36+:36]));
    right <= 37'($signed(sums[72+:36])) + 37'($signed(sums[108+:36]));
    sum_2 <= 38'($signed(left)) + 38'($signed(right));
  end
  tlmm_delay #(
      .WIDTH (6),
      .CYCLES(2)
  ) delay_shift (
      .clk,
      .in (add ? rise : read_shift),
      .out(shift_2)
  );

  // ---- cycles 3 to 5: what was there is shifted
  tlmm_attention_shift #(
      .BITS(BITS)
  ) shift (
      .clk,
      .value(before_2),
      .by(shift_2),
      .shifted(shifted_5)
  );
  tlmm_delay #(
      .WIDTH (38),
      .CYCLES(3)
  ) delay_sum (
      .clk,
      .in (sum_2),
      .out(sum_5)
  );
  tlmm_delay #(
      .WIDTH (2),
      .CYCLES(5)
  ) delay_add (
      .clk,
      .in ({add, fresh}),
      .out({add_5, fresh_5})
  );
  tlmm_delay #(
      .WIDTH ($clog2(DEPTH)),
      .CYCLES(6)
  ) delay_address (
      .clk,
      .in (address),
      .out(address_6)
  );
  assign word = shifted_5[24:0];

  // ---- cycle 6: the new sum
  always_ff @(posedge clk) begin
    total_6 <= (fresh_5 ? '0 : shifted_5) + BITS'($signed(sum_5));
    add_6 <= add_5;
  end
endmodule
