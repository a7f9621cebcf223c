// Hands every command to the three parts of the engine that follow it, each in its own time, and
// knows whether any is on its way.
module tlmm_commands #(
    parameter int NB_BITS = 9
) (
    input logic clk,
    input logic rst,

    input  logic        cmd_valid,
    output logic        cmd_ready,
    input  logic        cmd_mode,
    input  logic        cmd_scale,
    input  logic [15:0] cmd_row_beats,
    input  logic [15:0] cmd_tiles,
    input  logic [ 7:0] cmd_columns,

    output logic        fill_valid,
    input  logic        fill_ready,
    output logic        fill_multiples,
    output logic [15:0] fill_tiles,
    output logic [ 7:0] fill_columns,

    output logic             lookup_valid,
    input  logic             lookup_ready,
    output logic [NB_BITS:0] lookup_row_beats,
    output logic [     15:0] lookup_tiles,

    output logic             drain_valid,
    input  logic             drain_ready,
    output logic             drain_scale,
    output logic [NB_BITS:0] drain_row_beats,
    output logic [      7:0] drain_columns,

    input  logic ended,  // the last result of a command was taken
    output logic busy
);
  localparam int DEPTH = 4;  // commands that wait for one part while another is at work on them

  logic [2:0] fill_level, lookup_level, drain_level;
  logic accept;

  assign cmd_ready = !fill_level[2] && !lookup_level[2] && !drain_level[2];
  assign accept = cmd_valid && cmd_ready;

  tlmm_fifo #(
      .WIDTH(25),
      .DEPTH(DEPTH)
  ) to_fill (
      .clk,
      .rst,
      .push(accept),
      .push_data({cmd_mode, cmd_tiles, cmd_columns}),
      .pop(fill_valid && fill_ready),
      .valid(fill_valid),
      .head({fill_multiples, fill_tiles, fill_columns}),
      .level(fill_level)
  );
  tlmm_fifo #(
      .WIDTH(NB_BITS + 17),
      .DEPTH(DEPTH)
  ) to_lookup (
      .clk,
      .rst,
      .push(accept),
      .push_data({cmd_row_beats[NB_BITS:0], cmd_tiles}),
      .pop(lookup_valid && lookup_ready),
      .valid(lookup_valid),
      .head({lookup_row_beats, lookup_tiles}),
      .level(lookup_level)
  );
  tlmm_fifo #(
      .WIDTH(NB_BITS + 10),
      .DEPTH(DEPTH)
  ) to_drain (
      .clk,
      .rst,
      .push(accept),
      .push_data({cmd_scale, cmd_row_beats[NB_BITS:0], cmd_columns}),
      .pop(drain_valid && drain_ready),
      .valid(drain_valid),
      .head({drain_scale, drain_row_beats, drain_columns}),
      .level(drain_level)
  );

  logic ended_before;  // a cycle late: the result stream's path ends here
  always_ff @(posedge clk) ended_before <= ended && !rst;

  // The queue in front of the drain and the one behind it bound how many there can be.
  tlmm_credit #(
      .MOST(63)
  ) on_their_way (
      .clk,
      .rst,
      .give(accept),
      .take(ended_before),
      .available(busy)
  );

  logic unused;
  assign unused = &{1'b0, cmd_row_beats, fill_level[1:0], lookup_level[1:0], drain_level[1:0]};
endmodule
