// Shifts a 24-bit number left until its top bit is set, and says how far. Five cycles. Zero stays.
module tlmm_normalise (
    input  logic        clk,
    input  logic [23:0] value,
    output logic [23:0] shifted,
    output logic [ 4:0] shift
);
  localparam int STAGES = 5;

  logic [STAGES:0][23:0] at;
  logic [STAGES:0][ 4:0] shift_at;

  assign at[0] = value;
  assign shift_at[0] = '0;

  for (genvar i = 0; i < STAGES; i++) begin : g_stage
    localparam int STEP = 16 >> i;
    logic empty;
    assign empty = at[i][23-:STEP] == '0;

    always_ff @(posedge clk) begin
      at[i+1] <= empty ? at[i] << STEP : at[i];
      shift_at[i+1] <= shift_at[i];
      shift_at[i+1][STAGES-1-i] <= empty;
    end
  end

  assign shifted = at[STAGES];
  assign shift   = shift_at[STAGES];
endmodule
