// `tlmm_wrapper`, the module that Vivado builds, with the ports of `tlmm_top`, which the harness
// drives: the default co-simulation runs through the wrapper. Signals that the harness does not look
// at (size, burst, cache, prot) and ports that the geometry does not have are checked here.
module tlmm_wrapped #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0,
    parameter bit GLUE = 1'b0,
    parameter int QUEUE_DEPTH = 8,
    parameter int ADDR_BITS = 40,
    parameter int READ_AHEAD = 512
) (
    input  logic                       aclk,
    input  logic                       aresetn,
    output logic                       irq,
    input  logic [11:0]                s_axi_control_awaddr,
    input  logic                       s_axi_control_awvalid,
    output logic                       s_axi_control_awready,
    input  logic [31:0]                s_axi_control_wdata,
    input  logic [3:0]                 s_axi_control_wstrb,
    input  logic                       s_axi_control_wvalid,
    output logic                       s_axi_control_wready,
    output logic [1:0]                 s_axi_control_bresp,
    output logic                       s_axi_control_bvalid,
    input  logic                       s_axi_control_bready,
    input  logic [11:0]                s_axi_control_araddr,
    input  logic                       s_axi_control_arvalid,
    output logic                       s_axi_control_arready,
    output logic [31:0]                s_axi_control_rdata,
    output logic [1:0]                 s_axi_control_rresp,
    output logic                       s_axi_control_rvalid,
    input  logic                       s_axi_control_rready,
    output logic [PORTS*ADDR_BITS-1:0] m_axi_w_araddr,
    output logic [PORTS*8-1:0]         m_axi_w_arlen,
    output logic [PORTS-1:0]           m_axi_w_arvalid,
    input  logic [PORTS-1:0]           m_axi_w_arready,
    input  logic [PORTS*128-1:0]       m_axi_w_rdata,
    input  logic [PORTS*2-1:0]         m_axi_w_rresp,
    input  logic [PORTS-1:0]           m_axi_w_rlast,
    input  logic [PORTS-1:0]           m_axi_w_rvalid,
    output logic [PORTS-1:0]           m_axi_w_rready,
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
  localparam int MOST = 4;  // weight ports of the wrapper

  logic [ADDR_BITS-1:0] w_araddr [MOST];
  logic [7:0] w_arlen [MOST];
  logic [2:0] w_arsize [MOST], w_arprot [MOST];
  logic [1:0] w_arburst [MOST], w_rresp [MOST];
  logic [3:0] w_arcache [MOST];
  logic [127:0] w_rdata [MOST];
  logic w_arvalid [MOST], w_arready [MOST], w_rlast [MOST], w_rvalid [MOST], w_rready [MOST];
  logic [2:0] m_axi_d_arsize, m_axi_d_arprot, m_axi_d_awsize, m_axi_d_awprot;
  logic [1:0] m_axi_d_arburst, m_axi_d_awburst;
  logic [3:0] m_axi_d_arcache, m_axi_d_awcache;

  for (genvar p = 0; p < MOST; p++) begin : g_port
    if (p < PORTS) begin : g_used
      assign m_axi_w_araddr[p*ADDR_BITS+:ADDR_BITS] = w_araddr[p];
      assign m_axi_w_arlen[8*p+:8] = w_arlen[p];
      assign m_axi_w_arvalid[p] = w_arvalid[p];
      assign m_axi_w_rready[p] = w_rready[p];
      assign w_arready[p] = m_axi_w_arready[p];
      assign w_rdata[p] = m_axi_w_rdata[128*p+:128];
      assign w_rresp[p] = m_axi_w_rresp[2*p+:2];
      assign w_rlast[p] = m_axi_w_rlast[p];
      assign w_rvalid[p] = m_axi_w_rvalid[p];
    end else begin : g_idle
      assign w_arready[p] = 1'b1;
      assign w_rdata[p] = '0;
      assign w_rresp[p] = '0;
      assign w_rlast[p] = 1'b0;
      assign w_rvalid[p] = 1'b0;
    end

    axi_address_rules #(
        .ADDR_BITS(ADDR_BITS),
        .IDLE(p >= PORTS)
    ) rules (
        .clk(aclk),
        .resetn(aresetn),
        .valid(w_arvalid[p]),
        .ready(w_arready[p]),
        .addr(w_araddr[p]),
        .len(w_arlen[p]),
        .size(w_arsize[p]),
        .burst(w_arburst[p]),
        .cache(w_arcache[p]),
        .prot(w_arprot[p])
    );
  end

  axi_address_rules #(
      .ADDR_BITS(ADDR_BITS)
  ) read_rules (
      .clk(aclk),
      .resetn(aresetn),
      .valid(m_axi_d_arvalid),
      .ready(m_axi_d_arready),
      .addr(m_axi_d_araddr),
      .len(m_axi_d_arlen),
      .size(m_axi_d_arsize),
      .burst(m_axi_d_arburst),
      .cache(m_axi_d_arcache),
      .prot(m_axi_d_arprot)
  );

  axi_address_rules #(
      .ADDR_BITS(ADDR_BITS)
  ) write_rules (
      .clk(aclk),
      .resetn(aresetn),
      .valid(m_axi_d_awvalid),
      .ready(m_axi_d_awready),
      .addr(m_axi_d_awaddr),
      .len(m_axi_d_awlen),
      .size(m_axi_d_awsize),
      .burst(m_axi_d_awburst),
      .cache(m_axi_d_awcache),
      .prot(m_axi_d_awprot)
  );

  // A weight port of the wrapper, whose names a generate loop cannot reach.
`define WEIGHT_PORT(P) \
      .m_axi_w``P``_araddr(w_araddr[P]), \
      .m_axi_w``P``_arlen(w_arlen[P]), \
      .m_axi_w``P``_arsize(w_arsize[P]), \
      .m_axi_w``P``_arburst(w_arburst[P]), \
      .m_axi_w``P``_arcache(w_arcache[P]), \
      .m_axi_w``P``_arprot(w_arprot[P]), \
      .m_axi_w``P``_arvalid(w_arvalid[P]), \
      .m_axi_w``P``_arready(w_arready[P]), \
      .m_axi_w``P``_rdata(w_rdata[P]), \
      .m_axi_w``P``_rresp(w_rresp[P]), \
      .m_axi_w``P``_rlast(w_rlast[P]), \
      .m_axi_w``P``_rvalid(w_rvalid[P]), \
      .m_axi_w``P``_rready(w_rready[P])

  tlmm_wrapper #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .ATTENTION(ATTENTION),
      .GLUE(GLUE),
      .QUEUE_DEPTH(QUEUE_DEPTH),
      .ADDR_BITS(ADDR_BITS),
      .READ_AHEAD(READ_AHEAD)
  ) wrapper (
      `WEIGHT_PORT(0),
      `WEIGHT_PORT(1),
      `WEIGHT_PORT(2),
      `WEIGHT_PORT(3),
      .*  // the others have the names that they have here; one that has not is an error
  );
endmodule
`undef WEIGHT_PORT
