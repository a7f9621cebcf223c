// The reading half of the data port: activations and row scales, in two streams that share it.
//
// Answers come in the order of the requests (there is one AXI id), so a FIFO of one bit per burst
// tells whose they are. Activations go first: a missing one stops the engine, a missing scale
// only the drain. That starves nobody, as each stream asks only for what its buffer can hold.
module tlmm_data_reads #(
    parameter int ADDR_BITS = 40,
    parameter int X_COUNT_BITS = 24,
    parameter int S_COUNT_BITS = 16,
    parameter int SLOT_BITS = 3,
    parameter bit ROW_SCALE = 1'b0,
    parameter int BURST = 16,
    parameter int DEPTH = 32
) (
    input  logic                      clk,
    input  logic                      rst,
    input  logic                      stop,
    input  logic                      drain,
    // descriptors; in pairs: activations [0], scales [1]
    output logic [1:0]                load_ready,
    input  logic [1:0]                load,
    input  logic [1:0]                load_step,
    input  logic [31:0]               load_data,
    input  logic [SLOT_BITS-1:0]      load_slot,
    // AXI read channels
    output logic [ADDR_BITS-1:0]      araddr,
    output logic [7:0]                arlen,
    output logic                      arvalid,
    input  logic                      arready,
    input  logic [127:0]              rdata,
    input  logic [1:0]                rresp,
    input  logic                      rlast,
    input  logic                      rvalid,
    output logic                      rready,
    // data
    output logic                      x_valid,
    output logic [127:0]              x_data,
    input  logic                      x_ready,
    output logic                      s_valid,
    output logic [127:0]              s_data,
    input  logic                      s_ready,
    // state
    output logic                      idle,
    output logic [1:0]                underrun,
    output logic [1:0]                overrun,
    output logic [1:0]                bad_response,
    output logic [1:0][SLOT_BITS-1:0] error_slot
);
  logic [1:0][ADDR_BITS-1:0] stream_araddr;
  logic [1:0][7:0] stream_arlen;
  logic [1:0] stream_arvalid, stream_arready, stream_rvalid, stream_rready, stream_idle;
  logic [1:0] burst_end;

  tlmm_reader #(
      .ADDR_BITS(ADDR_BITS),
      .COUNT_BITS(X_COUNT_BITS),
      .SLOT_BITS(SLOT_BITS),
      .BURST(BURST),
      .DEPTH(DEPTH),
      .BLOCK_RAM(1'b0)
  ) activations (
      .clk,
      .rst,
      .stop,
      .drain,
      .load_ready(load_ready[0]),
      .load(load[0]),
      .load_step,
      .load_data,
      .load_slot,
      .araddr(stream_araddr[0]),
      .arlen(stream_arlen[0]),
      .arvalid(stream_arvalid[0]),
      .arready(stream_arready[0]),
      .rdata,
      .rresp,
      .rlast,
      .rvalid(stream_rvalid[0]),
      .rready(stream_rready[0]),
      .data_valid(x_valid),
      .data(x_data),
      .data_ready(x_ready),
      .idle(stream_idle[0]),
      .burst_end(burst_end[0]),
      .underrun(underrun[0]),
      .overrun(overrun[0]),
      .bad_response(bad_response[0]),
      .error_slot(error_slot[0])
  );

  if (ROW_SCALE) begin : g_scales
    tlmm_reader #(
        .ADDR_BITS(ADDR_BITS),
        .COUNT_BITS(S_COUNT_BITS),
        .SLOT_BITS(SLOT_BITS),
        .BURST(BURST),
        .DEPTH(DEPTH),
        .BLOCK_RAM(1'b0)
    ) scales (
        .clk,
        .rst,
        .stop,
        .drain,
        .load_ready(load_ready[1]),
        .load(load[1]),
        .load_step,
        .load_data,
        .load_slot,
        .araddr(stream_araddr[1]),
        .arlen(stream_arlen[1]),
        .arvalid(stream_arvalid[1]),
        .arready(stream_arready[1]),
        .rdata,
        .rresp,
        .rlast,
        .rvalid(stream_rvalid[1]),
        .rready(stream_rready[1]),
        .data_valid(s_valid),
        .data(s_data),
        .data_ready(s_ready),
        .idle(stream_idle[1]),
        .burst_end(burst_end[1]),
        .underrun(underrun[1]),
        .overrun(overrun[1]),
        .bad_response(bad_response[1]),
        .error_slot(error_slot[1])
    );

    // ---- requests: who was offered stays on the bus until he is taken
    logic scales_turn, scales_held, owner, owner_valid, ar_taken, burst_taken;
    logic [5:0] owners_level;

    assign scales_turn = scales_held || !stream_arvalid[0];
    assign araddr = stream_araddr[scales_turn];
    assign arlen = stream_arlen[scales_turn];
    assign arvalid = |stream_arvalid;
    assign stream_arready = {arready && scales_turn, arready && !scales_turn};
    assign ar_taken = arvalid && arready;

    always_ff @(posedge clk) begin
      if (rst || ar_taken) scales_held <= 1'b0;
      else if (arvalid) scales_held <= scales_turn;
    end

    // ---- answers; each stream has 16 bursts outstanding at most
    tlmm_fifo #(
        .WIDTH(1),
        .DEPTH(32)
    ) owners (
        .clk,
        .rst,
        .push(ar_taken),
        .push_data(scales_turn),
        .pop(burst_taken),
        .valid(owner_valid),
        .head(owner),
        .level(owners_level)
    );

    assign rready = owner_valid || drain;
    assign stream_rvalid = {rvalid && owner_valid && owner, rvalid && owner_valid && !owner};
    assign burst_taken = |burst_end;

    logic unused;
    assign unused = &{1'b0, owners_level, stream_rready};
  end else begin : g_no_scales
    assign araddr = stream_araddr[0];
    assign arlen = stream_arlen[0];
    assign arvalid = stream_arvalid[0];
    assign stream_arready[0] = arready;
    assign stream_rvalid[0] = rvalid;
    assign rready = stream_rready[0];
    assign load_ready[1] = 1'b1;
    assign {stream_araddr[1], stream_arlen[1], stream_arvalid[1], stream_arready[1]} = '0;
    assign {stream_rvalid[1], stream_rready[1], burst_end[1]} = '0;
    assign {s_valid, s_data, stream_idle[1]} = 130'd1;
    assign {underrun[1], overrun[1], bad_response[1], error_slot[1]} = '0;

    logic unused;
    assign unused = &{1'b0, load[1], s_ready, burst_end, stream_araddr[1], stream_arlen[1],
                      stream_arvalid[1], stream_arready[1], stream_rvalid[1], stream_rready[1]};
  end

  assign idle = &stream_idle;
endmodule
