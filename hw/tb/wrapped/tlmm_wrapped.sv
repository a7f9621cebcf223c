// `tlmm_wrapper`, the module that Vivado builds, with the ports of `tlmm_top`, which the harness
// drives: the default co-simulation runs through the wrapper. Signals that the harness does not look
// at (size, burst, cache, prot) and ports that the geometry does not have are checked here.
module tlmm_wrapped #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int QUEUE_DEPTH = 8,
    parameter int ADDR_BITS = 40
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
  logic [2:0] d_arsize, d_arprot, d_awsize, d_awprot;
  logic [1:0] d_arburst, d_awburst;
  logic [3:0] d_arcache, d_awcache;

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
      .size(d_arsize),
      .burst(d_arburst),
      .cache(d_arcache),
      .prot(d_arprot)
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
      .size(d_awsize),
      .burst(d_awburst),
      .cache(d_awcache),
      .prot(d_awprot)
  );

  tlmm_wrapper #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .QUEUE_DEPTH(QUEUE_DEPTH),
      .ADDR_BITS(ADDR_BITS)
  ) wrapper (
      .aclk,
      .aresetn,
      .irq,
      .s_axi_control_awaddr,
      .s_axi_control_awvalid,
      .s_axi_control_awready,
      .s_axi_control_wdata,
      .s_axi_control_wstrb,
      .s_axi_control_wvalid,
      .s_axi_control_wready,
      .s_axi_control_bresp,
      .s_axi_control_bvalid,
      .s_axi_control_bready,
      .s_axi_control_araddr,
      .s_axi_control_arvalid,
      .s_axi_control_arready,
      .s_axi_control_rdata,
      .s_axi_control_rresp,
      .s_axi_control_rvalid,
      .s_axi_control_rready,
      .m_axi_w0_araddr(w_araddr[0]),
      .m_axi_w0_arlen(w_arlen[0]),
      .m_axi_w0_arsize(w_arsize[0]),
      .m_axi_w0_arburst(w_arburst[0]),
      .m_axi_w0_arcache(w_arcache[0]),
      .m_axi_w0_arprot(w_arprot[0]),
      .m_axi_w0_arvalid(w_arvalid[0]),
      .m_axi_w0_arready(w_arready[0]),
      .m_axi_w0_rdata(w_rdata[0]),
      .m_axi_w0_rresp(w_rresp[0]),
      .m_axi_w0_rlast(w_rlast[0]),
      .m_axi_w0_rvalid(w_rvalid[0]),
      .m_axi_w0_rready(w_rready[0]),
      .m_axi_w1_araddr(w_araddr[1]),
      .m_axi_w1_arlen(w_arlen[1]),
      .m_axi_w1_arsize(w_arsize[1]),
      .m_axi_w1_arburst(w_arburst[1]),
      .m_axi_w1_arcache(w_arcache[1]),
      .m_axi_w1_arprot(w_arprot[1]),
      .m_axi_w1_arvalid(w_arvalid[1]),
      .m_axi_w1_arready(w_arready[1]),
      .m_axi_w1_rdata(w_rdata[1]),
      .m_axi_w1_rresp(w_rresp[1]),
      .m_axi_w1_rlast(w_rlast[1]),
      .m_axi_w1_rvalid(w_rvalid[1]),
      .m_axi_w1_rready(w_rready[1]),
      .m_axi_w2_araddr(w_araddr[2]),
      .m_axi_w2_arlen(w_arlen[2]),
      .m_axi_w2_arsize(w_arsize[2]),
      .m_axi_w2_arburst(w_arburst[2]),
      .m_axi_w2_arcache(w_arcache[2]),
      .m_axi_w2_arprot(w_arprot[2]),
      .m_axi_w2_arvalid(w_arvalid[2]),
      .m_axi_w2_arready(w_arready[2]),
      .m_axi_w2_rdata(w_rdata[2]),
      .m_axi_w2_rresp(w_rresp[2]),
      .m_axi_w2_rlast(w_rlast[2]),
      .m_axi_w2_rvalid(w_rvalid[2]),
      .m_axi_w2_rready(w_rready[2]),
      .m_axi_w3_araddr(w_araddr[3]),
      .m_axi_w3_arlen(w_arlen[3]),
      .m_axi_w3_arsize(w_arsize[3]),
      .m_axi_w3_arburst(w_arburst[3]),
      .m_axi_w3_arcache(w_arcache[3]),
      .m_axi_w3_arprot(w_arprot[3]),
      .m_axi_w3_arvalid(w_arvalid[3]),
      .m_axi_w3_arready(w_arready[3]),
      .m_axi_w3_rdata(w_rdata[3]),
      .m_axi_w3_rresp(w_rresp[3]),
      .m_axi_w3_rlast(w_rlast[3]),
      .m_axi_w3_rvalid(w_rvalid[3]),
      .m_axi_w3_rready(w_rready[3]),
      .m_axi_d_araddr,
      .m_axi_d_arlen,
      .m_axi_d_arsize(d_arsize),
      .m_axi_d_arburst(d_arburst),
      .m_axi_d_arcache(d_arcache),
      .m_axi_d_arprot(d_arprot),
      .m_axi_d_arvalid,
      .m_axi_d_arready,
      .m_axi_d_rdata,
      .m_axi_d_rresp,
      .m_axi_d_rlast,
      .m_axi_d_rvalid,
      .m_axi_d_rready,
      .m_axi_d_awaddr,
      .m_axi_d_awlen,
      .m_axi_d_awsize(d_awsize),
      .m_axi_d_awburst(d_awburst),
      .m_axi_d_awcache(d_awcache),
      .m_axi_d_awprot(d_awprot),
      .m_axi_d_awvalid,
      .m_axi_d_awready,
      .m_axi_d_wdata,
      .m_axi_d_wstrb,
      .m_axi_d_wlast,
      .m_axi_d_wvalid,
      .m_axi_d_wready,
      .m_axi_d_bresp,
      .m_axi_d_bvalid,
      .m_axi_d_bready
  );
endmodule
