// Top of the overlay as Vivado sees it: `tlmm_top` with a name for every AXI port, the constant AXI
// signals and the attributes from which the IP packager infers interfaces. Plain Verilog, because a
// block design takes nothing else as the top of a module.
//
// There are always four weight ports; those from PORTS on stay idle (the packager hides them).
`default_nettype none

module tlmm_wrapper #(
    parameter PORTS       = 4,
    parameter COLUMNS     = 1,
    parameter NB_MAX      = 512,
    parameter ROW_SCALE   = 0,
    parameter ATTENTION   = 0,
    parameter GLUE        = 0,
    parameter QUEUE_DEPTH = 8,
    parameter ADDR_BITS   = 40,
    parameter READ_AHEAD  = 512
) (
    (* X_INTERFACE_PARAMETER = "ASSOCIATED_BUSIF s_axi_control:m_axi_w0:m_axi_w1:m_axi_w2:m_axi_w3:m_axi_d, ASSOCIATED_RESET aresetn" *)
    (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 aclk CLK" *)
    input  wire aclk,
    (* X_INTERFACE_PARAMETER = "POLARITY ACTIVE_LOW" *)
    (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 aresetn RST" *)
    input  wire aresetn,
    (* X_INTERFACE_PARAMETER = "SENSITIVITY LEVEL_HIGH" *)
    (* X_INTERFACE_INFO = "xilinx.com:signal:interrupt:1.0 irq INTERRUPT" *)
    output wire irq,

    (* X_INTERFACE_PARAMETER = "PROTOCOL AXI4LITE, DATA_WIDTH 32, ADDR_WIDTH 12" *)
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control AWADDR" *)
    input  wire [11:0] s_axi_control_awaddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control AWVALID" *)
    input  wire s_axi_control_awvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control AWREADY" *)
    output wire s_axi_control_awready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control WDATA" *)
    input  wire [31:0] s_axi_control_wdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control WSTRB" *)
    input  wire [3:0] s_axi_control_wstrb,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control WVALID" *)
    input  wire s_axi_control_wvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control WREADY" *)
    output wire s_axi_control_wready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control BRESP" *)
    output wire [1:0] s_axi_control_bresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control BVALID" *)
    output wire s_axi_control_bvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control BREADY" *)
    input  wire s_axi_control_bready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control ARADDR" *)
    input  wire [11:0] s_axi_control_araddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control ARVALID" *)
    input  wire s_axi_control_arvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control ARREADY" *)
    output wire s_axi_control_arready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control RDATA" *)
    output wire [31:0] s_axi_control_rdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control RRESP" *)
    output wire [1:0] s_axi_control_rresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control RVALID" *)
    output wire s_axi_control_rvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 s_axi_control RREADY" *)
    input  wire s_axi_control_rready,

    (* X_INTERFACE_PARAMETER = "PROTOCOL AXI4, READ_WRITE_MODE READ_ONLY, MAX_BURST_LENGTH 64, SUPPORTS_NARROW_BURST 0, NUM_READ_OUTSTANDING 8" *)
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARADDR" *)
    output wire [ADDR_BITS-1:0] m_axi_w0_araddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARLEN" *)
    output wire [7:0] m_axi_w0_arlen,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARSIZE" *)
    output wire [2:0] m_axi_w0_arsize,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARBURST" *)
    output wire [1:0] m_axi_w0_arburst,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARCACHE" *)
    output wire [3:0] m_axi_w0_arcache,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARPROT" *)
    output wire [2:0] m_axi_w0_arprot,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARVALID" *)
    output wire m_axi_w0_arvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 ARREADY" *)
    input  wire m_axi_w0_arready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 RDATA" *)
    input  wire [127:0] m_axi_w0_rdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 RRESP" *)
    input  wire [1:0] m_axi_w0_rresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 RLAST" *)
    input  wire m_axi_w0_rlast,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 RVALID" *)
    input  wire m_axi_w0_rvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w0 RREADY" *)
    output wire m_axi_w0_rready,

    (* X_INTERFACE_PARAMETER = "PROTOCOL AXI4, READ_WRITE_MODE READ_ONLY, MAX_BURST_LENGTH 64, SUPPORTS_NARROW_BURST 0, NUM_READ_OUTSTANDING 8" *)
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARADDR" *)
    output wire [ADDR_BITS-1:0] m_axi_w1_araddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARLEN" *)
    output wire [7:0] m_axi_w1_arlen,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARSIZE" *)
    output wire [2:0] m_axi_w1_arsize,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARBURST" *)
    output wire [1:0] m_axi_w1_arburst,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARCACHE" *)
    output wire [3:0] m_axi_w1_arcache,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARPROT" *)
    output wire [2:0] m_axi_w1_arprot,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARVALID" *)
    output wire m_axi_w1_arvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 ARREADY" *)
    input  wire m_axi_w1_arready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 RDATA" *)
    input  wire [127:0] m_axi_w1_rdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 RRESP" *)
    input  wire [1:0] m_axi_w1_rresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 RLAST" *)
    input  wire m_axi_w1_rlast,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 RVALID" *)
    input  wire m_axi_w1_rvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w1 RREADY" *)
    output wire m_axi_w1_rready,

    (* X_INTERFACE_PARAMETER = "PROTOCOL AXI4, READ_WRITE_MODE READ_ONLY, MAX_BURST_LENGTH 64, SUPPORTS_NARROW_BURST 0, NUM_READ_OUTSTANDING 8" *)
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARADDR" *)
    output wire [ADDR_BITS-1:0] m_axi_w2_araddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARLEN" *)
    output wire [7:0] m_axi_w2_arlen,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARSIZE" *)
    output wire [2:0] m_axi_w2_arsize,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARBURST" *)
    output wire [1:0] m_axi_w2_arburst,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARCACHE" *)
    output wire [3:0] m_axi_w2_arcache,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARPROT" *)
    output wire [2:0] m_axi_w2_arprot,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARVALID" *)
    output wire m_axi_w2_arvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 ARREADY" *)
    input  wire m_axi_w2_arready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 RDATA" *)
    input  wire [127:0] m_axi_w2_rdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 RRESP" *)
    input  wire [1:0] m_axi_w2_rresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 RLAST" *)
    input  wire m_axi_w2_rlast,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 RVALID" *)
    input  wire m_axi_w2_rvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w2 RREADY" *)
    output wire m_axi_w2_rready,

    (* X_INTERFACE_PARAMETER = "PROTOCOL AXI4, READ_WRITE_MODE READ_ONLY, MAX_BURST_LENGTH 64, SUPPORTS_NARROW_BURST 0, NUM_READ_OUTSTANDING 8" *)
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARADDR" *)
    output wire [ADDR_BITS-1:0] m_axi_w3_araddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARLEN" *)
    output wire [7:0] m_axi_w3_arlen,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARSIZE" *)
    output wire [2:0] m_axi_w3_arsize,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARBURST" *)
    output wire [1:0] m_axi_w3_arburst,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARCACHE" *)
    output wire [3:0] m_axi_w3_arcache,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARPROT" *)
    output wire [2:0] m_axi_w3_arprot,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARVALID" *)
    output wire m_axi_w3_arvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 ARREADY" *)
    input  wire m_axi_w3_arready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 RDATA" *)
    input  wire [127:0] m_axi_w3_rdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 RRESP" *)
    input  wire [1:0] m_axi_w3_rresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 RLAST" *)
    input  wire m_axi_w3_rlast,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 RVALID" *)
    input  wire m_axi_w3_rvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_w3 RREADY" *)
    output wire m_axi_w3_rready,

    (* X_INTERFACE_PARAMETER = "PROTOCOL AXI4, READ_WRITE_MODE READ_WRITE, MAX_BURST_LENGTH 64, SUPPORTS_NARROW_BURST 0, NUM_READ_OUTSTANDING 8, NUM_WRITE_OUTSTANDING 8" *)
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARADDR" *)
    output wire [ADDR_BITS-1:0] m_axi_d_araddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARLEN" *)
    output wire [7:0] m_axi_d_arlen,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARSIZE" *)
    output wire [2:0] m_axi_d_arsize,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARBURST" *)
    output wire [1:0] m_axi_d_arburst,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARCACHE" *)
    output wire [3:0] m_axi_d_arcache,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARPROT" *)
    output wire [2:0] m_axi_d_arprot,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARVALID" *)
    output wire m_axi_d_arvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d ARREADY" *)
    input  wire m_axi_d_arready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d RDATA" *)
    input  wire [127:0] m_axi_d_rdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d RRESP" *)
    input  wire [1:0] m_axi_d_rresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d RLAST" *)
    input  wire m_axi_d_rlast,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d RVALID" *)
    input  wire m_axi_d_rvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d RREADY" *)
    output wire m_axi_d_rready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWADDR" *)
    output wire [ADDR_BITS-1:0] m_axi_d_awaddr,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWLEN" *)
    output wire [7:0] m_axi_d_awlen,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWSIZE" *)
    output wire [2:0] m_axi_d_awsize,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWBURST" *)
    output wire [1:0] m_axi_d_awburst,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWCACHE" *)
    output wire [3:0] m_axi_d_awcache,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWPROT" *)
    output wire [2:0] m_axi_d_awprot,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWVALID" *)
    output wire m_axi_d_awvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d AWREADY" *)
    input  wire m_axi_d_awready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d WDATA" *)
    output wire [127:0] m_axi_d_wdata,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d WSTRB" *)
    output wire [15:0] m_axi_d_wstrb,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d WLAST" *)
    output wire m_axi_d_wlast,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d WVALID" *)
    output wire m_axi_d_wvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d WREADY" *)
    input  wire m_axi_d_wready,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d BRESP" *)
    input  wire [1:0] m_axi_d_bresp,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d BVALID" *)
    input  wire m_axi_d_bvalid,
    (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 m_axi_d BREADY" *)
    output wire m_axi_d_bready
);

    // 16 bytes a beat, incrementing addresses.
    localparam [2:0] SIZE = 3'd4;
    localparam [1:0] INCR = 2'b01;
    // Normal memory, modifiable and bufferable, never in a cache: the driver flushes buffers itself.
    localparam [3:0] CACHE = 4'b0011;
    localparam [2:0] PROT = 3'b000;
    localparam MOST = 4;

    wire [MOST*ADDR_BITS-1:0] w_araddr;
    wire [MOST*8-1:0]         w_arlen;
    wire [MOST-1:0]           w_arvalid, w_arready;
    wire [MOST*128-1:0]       w_rdata;
    wire [MOST*2-1:0]         w_rresp;
    wire [MOST-1:0]           w_rlast, w_rvalid, w_rready;

    generate
        if (PORTS < MOST) begin : gen_idle
            assign w_araddr[MOST*ADDR_BITS-1:PORTS*ADDR_BITS] = {(MOST-PORTS)*ADDR_BITS{1'b0}};
            assign w_arlen[MOST*8-1:PORTS*8] = {(MOST-PORTS)*8{1'b0}};
            assign w_arvalid[MOST-1:PORTS] = {MOST-PORTS{1'b0}};
            assign w_rready[MOST-1:PORTS] = {MOST-PORTS{1'b0}};
            wire unused = &{1'b0, w_arready[MOST-1:PORTS], w_rdata[MOST*128-1:PORTS*128],
                            w_rresp[MOST*2-1:PORTS*2], w_rlast[MOST-1:PORTS],
                            w_rvalid[MOST-1:PORTS]};
        end
    endgenerate

    assign m_axi_w0_araddr = w_araddr[1*ADDR_BITS-1:0*ADDR_BITS];
    assign m_axi_w0_arlen = w_arlen[7:0];
    assign m_axi_w0_arsize = SIZE;
    assign m_axi_w0_arburst = INCR;
    assign m_axi_w0_arcache = CACHE;
    assign m_axi_w0_arprot = PROT;
    assign m_axi_w0_arvalid = w_arvalid[0];
    assign m_axi_w0_rready = w_rready[0];

    assign m_axi_w1_araddr = w_araddr[2*ADDR_BITS-1:1*ADDR_BITS];
    assign m_axi_w1_arlen = w_arlen[15:8];
    assign m_axi_w1_arsize = SIZE;
    assign m_axi_w1_arburst = INCR;
    assign m_axi_w1_arcache = CACHE;
    assign m_axi_w1_arprot = PROT;
    assign m_axi_w1_arvalid = w_arvalid[1];
    assign m_axi_w1_rready = w_rready[1];

    assign m_axi_w2_araddr = w_araddr[3*ADDR_BITS-1:2*ADDR_BITS];
    assign m_axi_w2_arlen = w_arlen[23:16];
    assign m_axi_w2_arsize = SIZE;
    assign m_axi_w2_arburst = INCR;
    assign m_axi_w2_arcache = CACHE;
    assign m_axi_w2_arprot = PROT;
    assign m_axi_w2_arvalid = w_arvalid[2];
    assign m_axi_w2_rready = w_rready[2];

    assign m_axi_w3_araddr = w_araddr[4*ADDR_BITS-1:3*ADDR_BITS];
    assign m_axi_w3_arlen = w_arlen[31:24];
    assign m_axi_w3_arsize = SIZE;
    assign m_axi_w3_arburst = INCR;
    assign m_axi_w3_arcache = CACHE;
    assign m_axi_w3_arprot = PROT;
    assign m_axi_w3_arvalid = w_arvalid[3];
    assign m_axi_w3_rready = w_rready[3];

    assign w_arready = {m_axi_w3_arready, m_axi_w2_arready, m_axi_w1_arready, m_axi_w0_arready};
    assign w_rdata = {m_axi_w3_rdata, m_axi_w2_rdata, m_axi_w1_rdata, m_axi_w0_rdata};
    assign w_rresp = {m_axi_w3_rresp, m_axi_w2_rresp, m_axi_w1_rresp, m_axi_w0_rresp};
    assign w_rlast = {m_axi_w3_rlast, m_axi_w2_rlast, m_axi_w1_rlast, m_axi_w0_rlast};
    assign w_rvalid = {m_axi_w3_rvalid, m_axi_w2_rvalid, m_axi_w1_rvalid, m_axi_w0_rvalid};

    assign m_axi_d_arsize = SIZE;
    assign m_axi_d_arburst = INCR;
    assign m_axi_d_arcache = CACHE;
    assign m_axi_d_arprot = PROT;
    assign m_axi_d_awsize = SIZE;
    assign m_axi_d_awburst = INCR;
    assign m_axi_d_awcache = CACHE;
    assign m_axi_d_awprot = PROT;

    tlmm_top #(
        .PORTS(PORTS),
        .COLUMNS(COLUMNS),
        .NB_MAX(NB_MAX),
        .ROW_SCALE(ROW_SCALE),
        .ATTENTION(ATTENTION),
        .GLUE(GLUE),
        .QUEUE_DEPTH(QUEUE_DEPTH),
        .ADDR_BITS(ADDR_BITS),
        .READ_AHEAD(READ_AHEAD)
    ) top (
        .aclk(aclk),
        .aresetn(aresetn),
        .irq(irq),
        .s_axi_control_awaddr(s_axi_control_awaddr),
        .s_axi_control_awvalid(s_axi_control_awvalid),
        .s_axi_control_awready(s_axi_control_awready),
        .s_axi_control_wdata(s_axi_control_wdata),
        .s_axi_control_wstrb(s_axi_control_wstrb),
        .s_axi_control_wvalid(s_axi_control_wvalid),
        .s_axi_control_wready(s_axi_control_wready),
        .s_axi_control_bresp(s_axi_control_bresp),
        .s_axi_control_bvalid(s_axi_control_bvalid),
        .s_axi_control_bready(s_axi_control_bready),
        .s_axi_control_araddr(s_axi_control_araddr),
        .s_axi_control_arvalid(s_axi_control_arvalid),
        .s_axi_control_arready(s_axi_control_arready),
        .s_axi_control_rdata(s_axi_control_rdata),
        .s_axi_control_rresp(s_axi_control_rresp),
        .s_axi_control_rvalid(s_axi_control_rvalid),
        .s_axi_control_rready(s_axi_control_rready),
        .m_axi_w_araddr(w_araddr[PORTS*ADDR_BITS-1:0]),
        .m_axi_w_arlen(w_arlen[PORTS*8-1:0]),
        .m_axi_w_arvalid(w_arvalid[PORTS-1:0]),
        .m_axi_w_arready(w_arready[PORTS-1:0]),
        .m_axi_w_rdata(w_rdata[PORTS*128-1:0]),
        .m_axi_w_rresp(w_rresp[PORTS*2-1:0]),
        .m_axi_w_rlast(w_rlast[PORTS-1:0]),
        .m_axi_w_rvalid(w_rvalid[PORTS-1:0]),
        .m_axi_w_rready(w_rready[PORTS-1:0]),
        .m_axi_d_araddr(m_axi_d_araddr),
        .m_axi_d_arlen(m_axi_d_arlen),
        .m_axi_d_arvalid(m_axi_d_arvalid),
        .m_axi_d_arready(m_axi_d_arready),
        .m_axi_d_rdata(m_axi_d_rdata),
        .m_axi_d_rresp(m_axi_d_rresp),
        .m_axi_d_rlast(m_axi_d_rlast),
        .m_axi_d_rvalid(m_axi_d_rvalid),
        .m_axi_d_rready(m_axi_d_rready),
        .m_axi_d_awaddr(m_axi_d_awaddr),
        .m_axi_d_awlen(m_axi_d_awlen),
        .m_axi_d_awvalid(m_axi_d_awvalid),
        .m_axi_d_awready(m_axi_d_awready),
        .m_axi_d_wdata(m_axi_d_wdata),
        .m_axi_d_wstrb(m_axi_d_wstrb),
        .m_axi_d_wlast(m_axi_d_wlast),
        .m_axi_d_wvalid(m_axi_d_wvalid),
        .m_axi_d_wready(m_axi_d_wready),
        .m_axi_d_bresp(m_axi_d_bresp),
        .m_axi_d_bvalid(m_axi_d_bvalid),
        .m_axi_d_bready(m_axi_d_bready)
    );

endmodule

`default_nettype wire
