// The overlay's memory masters: weight readers, one per port, and the data port's two readers and
// writer. Streams for the engine on one side, AXI on the other, descriptors from the queue.
module tlmm_masters #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0,     // queries of the attention unit
    parameter bit GLUE = 1'b0,
    parameter int ADDR_BITS = 40,
    parameter int SLOT_BITS = 3,
    parameter int W_BURST = 64,
    parameter int READ_AHEAD = 512,
    parameter int SOURCES = PORTS + 3  // of errors: weight ports, activations, scales, writer
) (
    input  logic                              clk,
    input  logic                              rst,
    input  logic                              stop,
    input  logic                              drain,
    // descriptors, in the order of SOURCES
    output logic [SOURCES-1:0]                wanted,
    input  logic [SOURCES-1:0]                load,
    input  logic [1:0]                        load_step,
    input  logic [31:0]                       load_data,
    input  logic [SLOT_BITS-1:0]              load_slot,
    // engine
    output logic                              w_valid,
    input  logic                              w_ready,
    output logic [PORTS*128-1:0]              w_data,
    output logic                              x_valid,
    input  logic                              x_ready,
    output logic [127:0]                      x_data,
    output logic                              s_valid,
    input  logic                              s_ready,
    output logic [127:0]                      s_data,
    input  logic                              y_valid,
    output logic                              y_ready,
    input  logic [127:0]                      y_data,
    // state
    output logic                              idle,       // nothing is under way on any port
    output logic                              completed,  // a command's last response has come
    output logic [SOURCES-1:0]                underrun,
    output logic [SOURCES-1:0]                overrun,
    output logic [SOURCES-1:0]                bad_response,
    output logic [SOURCES-1:0][SLOT_BITS-1:0] error_slot,
    // weights: the ports side by side, port 0 lowest; always 16-byte INCR bursts
    output logic [PORTS*ADDR_BITS-1:0] m_axi_w_araddr,
    output logic [PORTS*8-1:0]         m_axi_w_arlen,
    output logic [PORTS-1:0]           m_axi_w_arvalid,
    input  logic [PORTS-1:0]           m_axi_w_arready,
    input  logic [PORTS*128-1:0]       m_axi_w_rdata,
    input  logic [PORTS*2-1:0]         m_axi_w_rresp,
    input  logic [PORTS-1:0]           m_axi_w_rlast,
    input  logic [PORTS-1:0]           m_axi_w_rvalid,
    output logic [PORTS-1:0]           m_axi_w_rready,
    // data: activations and scales in, results out
    output logic [ADDR_BITS-1:0]       m_axi_d_araddr,
    output logic [7:0]                 m_axi_d_arlen,
    output logic                       m_axi_d_arvalid,
    input  logic                       m_axi_d_arready,
    input  logic [127:0]               m_axi_d_rdata,
    input  logic [1:0]                 m_axi_d_rresp,
    input  logic                       m_axi_d_rlast,
    input  logic                       m_axi_d_rvalid,
    output logic                       m_axi_d_rready,
    output logic [ADDR_BITS-1:0]       m_axi_d_awaddr,
    output logic [7:0]                 m_axi_d_awlen,
    output logic                       m_axi_d_awvalid,
    input  logic                       m_axi_d_awready,
    output logic [127:0]               m_axi_d_wdata,
    output logic [15:0]                m_axi_d_wstrb,
    output logic                       m_axi_d_wlast,
    output logic                       m_axi_d_wvalid,
    input  logic                       m_axi_d_wready,
    input  logic [1:0]                 m_axi_d_bresp,
    input  logic                       m_axi_d_bvalid,
    output logic                       m_axi_d_bready
);
  localparam int ACTIVATIONS = PORTS;
  localparam int WRITER = PORTS + 2;
  localparam int ROW_BITS = $clog2(NB_MAX * PORTS * tlmm_pkg::PORT_ROWS + 1);
  localparam int MATRIX_Y_BITS = ROW_BITS + $clog2(COLUMNS + 1);
  localparam int MATRIX_W_BITS = 16 + $clog2(NB_MAX + 1);
  // Attention: results of all queries; pairs of blocks. Glue: beats of a row, and its results.
  localparam int S_COUNT_BITS = GLUE && ROW_BITS < 12 ? 12 : ROW_BITS;
  localparam int Y_COUNT_BITS =
      (ATTENTION != 0 || GLUE) && MATRIX_Y_BITS < 14 ? 14 : MATRIX_Y_BITS;
  localparam int W_COUNT_BITS = ATTENTION != 0 && MATRIX_W_BITS < 26 ? 26 : MATRIX_W_BITS;

  logic [PORTS:0] reads_idle;  // the data port's as the last
  logic writer_idle;

  assign idle = &reads_idle && writer_idle;

  // ---- weights: the engine takes a beat of all ports at once
  logic [PORTS-1:0] port_valid;

  assign w_valid = &port_valid;

  for (genvar p = 0; p < PORTS; p++) begin : g_port
    logic burst_end;
    tlmm_reader #(
        .ADDR_BITS(ADDR_BITS),
        .COUNT_BITS(W_COUNT_BITS),
        .SLOT_BITS(SLOT_BITS),
        .BURST(W_BURST),
        .DEPTH(READ_AHEAD)
    ) weights (
        .clk,
        .rst,
        .stop,
        .drain,
        .load_ready(wanted[p]),
        .load(load[p]),
        .load_step,
        .load_data,
        .load_slot,
        .araddr(m_axi_w_araddr[p*ADDR_BITS+:ADDR_BITS]),
        .arlen(m_axi_w_arlen[p*8+:8]),
        .arvalid(m_axi_w_arvalid[p]),
        .arready(m_axi_w_arready[p]),
        .rdata(m_axi_w_rdata[p*128+:128]),
        .rresp(m_axi_w_rresp[p*2+:2]),
        .rlast(m_axi_w_rlast[p]),
        .rvalid(m_axi_w_rvalid[p]),
        .rready(m_axi_w_rready[p]),
        .data_valid(port_valid[p]),
        .data(w_data[p*128+:128]),
        .data_ready(w_valid && w_ready),
        .idle(reads_idle[p]),
        .burst_end,
        .underrun(underrun[p]),
        .overrun(overrun[p]),
        .bad_response(bad_response[p]),
        .error_slot(error_slot[p])
    );
    logic unused;
    assign unused = burst_end;
  end

  // ---- the data port
  tlmm_data_reads #(
      .ADDR_BITS(ADDR_BITS),
      .S_COUNT_BITS(S_COUNT_BITS),
      .SLOT_BITS(SLOT_BITS),
      .ROW_SCALE(ROW_SCALE)
  ) data_reads (
      .clk,
      .rst,
      .stop,
      .drain,
      .load_ready(wanted[ACTIVATIONS+:2]),
      .load(load[ACTIVATIONS+:2]),
      .load_step,
      .load_data,
      .load_slot,
      .araddr(m_axi_d_araddr),
      .arlen(m_axi_d_arlen),
      .arvalid(m_axi_d_arvalid),
      .arready(m_axi_d_arready),
      .rdata(m_axi_d_rdata),
      .rresp(m_axi_d_rresp),
      .rlast(m_axi_d_rlast),
      .rvalid(m_axi_d_rvalid),
      .rready(m_axi_d_rready),
      .x_valid,
      .x_data,
      .x_ready,
      .s_valid,
      .s_data,
      .s_ready,
      .idle(reads_idle[PORTS]),
      .underrun(underrun[ACTIVATIONS+:2]),
      .overrun(overrun[ACTIVATIONS+:2]),
      .bad_response(bad_response[ACTIVATIONS+:2]),
      .error_slot(error_slot[ACTIVATIONS+:2])
  );

  tlmm_writer #(
      .ADDR_BITS(ADDR_BITS),
      .COUNT_BITS(Y_COUNT_BITS),
      .SLOT_BITS(SLOT_BITS)
  ) writer (
      .clk,
      .rst,
      .stop,
      .drain,
      .load_ready(wanted[WRITER]),
      .load(load[WRITER]),
      .load_step,
      .load_data,
      .load_slot,
      .data_valid(y_valid),
      .data_ready(y_ready),
      .data(y_data),
      .awaddr(m_axi_d_awaddr),
      .awlen(m_axi_d_awlen),
      .awvalid(m_axi_d_awvalid),
      .awready(m_axi_d_awready),
      .wdata(m_axi_d_wdata),
      .wstrb(m_axi_d_wstrb),
      .wlast(m_axi_d_wlast),
      .wvalid(m_axi_d_wvalid),
      .wready(m_axi_d_wready),
      .bresp(m_axi_d_bresp),
      .bvalid(m_axi_d_bvalid),
      .bready(m_axi_d_bready),
      .idle(writer_idle),
      .completed,
      .bad_response(bad_response[WRITER]),
      .error_slot(error_slot[WRITER])
  );
  assign underrun[WRITER] = 1'b0;
  assign overrun[WRITER] = 1'b0;

endmodule
