// The part of a command that says what is computed: gathers the four words that the queue sends.
module tlmm_order (
    input  logic        clk,
    input  logic        rst,
    output logic        wanted,
    input  logic        load,
    input  logic [ 1:0] load_step,
    input  logic [31:0] load_data,
    output logic        cmd_valid,
    input  logic        cmd_ready,
    output logic        cmd_mode,
    output logic        cmd_scale,
    output logic        cmd_attention,
    output logic [ 5:0] cmd_heads,
    output logic [ 4:0] cmd_units,
    output logic        cmd_glue,
    output logic [ 1:0] cmd_gate,
    output logic        cmd_norm,
    output logic [15:0] cmd_row_beats,
    output logic [15:0] cmd_tiles,
    output logic [ 7:0] cmd_columns
);
  assign wanted = !cmd_valid;

  always_ff @(posedge clk) begin
    if (rst) cmd_valid <= 1'b0;
    else if (load && load_step == 2'd3) cmd_valid <= 1'b1;
    else if (cmd_ready) cmd_valid <= 1'b0;

    if (load) begin
      case (load_step)
        2'd0: begin
          cmd_mode  <= load_data[tlmm_pkg::CMD_MODE_MULTIPLES_BIT];
          cmd_scale <= load_data[tlmm_pkg::CMD_MODE_SCALE_BIT];
          cmd_attention <= load_data[tlmm_pkg::CMD_MODE_ATTENTION_BIT];
          cmd_heads <= load_data[tlmm_pkg::CMD_MODE_KV_HEADS_LSB+:6];
          cmd_units <= load_data[tlmm_pkg::CMD_MODE_HEAD_UNITS_LSB+:5];
          cmd_glue <= load_data[tlmm_pkg::CMD_MODE_GLUE_BIT];
          cmd_gate <= load_data[tlmm_pkg::CMD_MODE_GATE_LSB+:2];
          cmd_norm <= load_data[tlmm_pkg::CMD_MODE_NORM_BIT];
        end
        2'd1: cmd_row_beats <= load_data[15:0];
        2'd2: cmd_tiles <= load_data[15:0];
        default: cmd_columns <= load_data[7:0];
      endcase
    end
  end

  // The intake refused lengths that need more.
  logic unused;
  assign unused = &{1'b0, load_data[31:16]};
endmodule
