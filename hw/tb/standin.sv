// A stand-in for tlmm_top with the same ports, by which the harness itself is tested: it reads
// LENGTH bursts of 16 beats from every weight port and the data port, and writes the exclusive or
// of all of them. Bits of BUG break a rule of AXI each, so that tests see the harness notice.
//
// Registers: 0x00 ID, 0x10 START (write) / BUSY (read), 0x14 LENGTH, 0x18 BUG,
//            0x1c ERRORS (read responses that were not OKAY, RLAST in the wrong place, BRESP),
//            0x54 X, 0x64 Y, 0x70 + 8 p W (two words each).
module standin #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 64,
    parameter int ROW_SCALE = 0,
    parameter int ATTENTION = 0,
    parameter int GLUE = 0,
    parameter int QUEUE_DEPTH = 8,
    parameter int ADDR_BITS = 40,
    parameter int READ_AHEAD = 512
) (
    input  logic                       aclk,
    input  logic                       aresetn,
    output logic                       irq,
    input  logic [               11:0] s_axi_control_awaddr,
    input  logic                       s_axi_control_awvalid,
    output logic                       s_axi_control_awready,
    input  logic [               31:0] s_axi_control_wdata,
    input  logic [                3:0] s_axi_control_wstrb,
    input  logic                       s_axi_control_wvalid,
    output logic                       s_axi_control_wready,
    output logic [                1:0] s_axi_control_bresp,
    output logic                       s_axi_control_bvalid,
    input  logic                       s_axi_control_bready,
    input  logic [               11:0] s_axi_control_araddr,
    input  logic                       s_axi_control_arvalid,
    output logic                       s_axi_control_arready,
    output logic [               31:0] s_axi_control_rdata,
    output logic [                1:0] s_axi_control_rresp,
    output logic                       s_axi_control_rvalid,
    input  logic                       s_axi_control_rready,
    output logic [PORTS*ADDR_BITS-1:0] m_axi_w_araddr,
    output logic [        PORTS*8-1:0] m_axi_w_arlen,
    output logic [          PORTS-1:0] m_axi_w_arvalid,
    input  logic [          PORTS-1:0] m_axi_w_arready,
    input  logic [      PORTS*128-1:0] m_axi_w_rdata,
    input  logic [        PORTS*2-1:0] m_axi_w_rresp,
    input  logic [          PORTS-1:0] m_axi_w_rlast,
    input  logic [          PORTS-1:0] m_axi_w_rvalid,
    output logic [          PORTS-1:0] m_axi_w_rready,
    output logic [      ADDR_BITS-1:0] m_axi_d_araddr,
    output logic [                7:0] m_axi_d_arlen,
    output logic                       m_axi_d_arvalid,
    input  logic                       m_axi_d_arready,
    input  logic [              127:0] m_axi_d_rdata,
    input  logic [                1:0] m_axi_d_rresp,
    input  logic                       m_axi_d_rlast,
    input  logic                       m_axi_d_rvalid,
    output logic                       m_axi_d_rready,
    output logic [      ADDR_BITS-1:0] m_axi_d_awaddr,
    output logic [                7:0] m_axi_d_awlen,
    output logic                       m_axi_d_awvalid,
    input  logic                       m_axi_d_awready,
    output logic [              127:0] m_axi_d_wdata,
    output logic [               15:0] m_axi_d_wstrb,
    output logic                       m_axi_d_wlast,
    output logic                       m_axi_d_wvalid,
    input  logic                       m_axi_d_wready,
    input  logic [                1:0] m_axi_d_bresp,
    input  logic                       m_axi_d_bvalid,
    output logic                       m_axi_d_bready
);
  localparam int READERS = PORTS + 1;  // the data port comes last
  localparam logic [7:0] LAST = 8'd15;
  localparam int DROP_VALID = 0, CHANGE_ADDRESS = 1, CROSS_4K = 2, WRONG_WLAST = 3;
  localparam int CHANGE_DATA = 4, ASSERTION = 5;

  typedef enum logic [1:0] {IDLE, READ, WRITE, RESPONSE} state_t;
  state_t state;
  logic [31:0] registers[64];
  logic [31:0] done_bursts;
  logic [7:0] bug;
  logic [READERS-1:0] asked, complete;
  logic [7:0] beat[READERS];
  logic [7:0] write_beat;
  logic [127:0] sum[16];
  logic address_sent, jitter;
  logic [15:0] errors;

  assign bug = registers[6][7:0];
  assign irq = state == IDLE && done_bursts != 0;

  // All read ports alike.
  logic [READERS-1:0] arvalid, arready, rvalid, rlast, rready;
  logic [2*READERS-1:0] rresp;
  logic [128*READERS-1:0] rdata;
  assign arready = {m_axi_d_arready, m_axi_w_arready};
  assign rvalid = {m_axi_d_rvalid, m_axi_w_rvalid};
  assign rlast = {m_axi_d_rlast, m_axi_w_rlast};
  assign rresp = {m_axi_d_rresp, m_axi_w_rresp};
  assign rdata = {m_axi_d_rdata, m_axi_w_rdata};
  assign {m_axi_d_arvalid, m_axi_w_arvalid} = arvalid;
  assign {m_axi_d_rready, m_axi_w_rready} = rready;
  assign rready = {READERS{state == READ}} & ~complete;

  function automatic logic [ADDR_BITS-1:0] address(input logic [63:0] base, input logic odd);
    address = ADDR_BITS'(base) + ADDR_BITS'({done_bursts, 8'd0});
    if (bug[CROSS_4K]) address = address | ADDR_BITS'('hff0);
    if (bug[CHANGE_ADDRESS] && odd) address = address ^ ADDR_BITS'('h100);
  endfunction

  for (genvar p = 0; p < READERS; p++) begin : g_reader
    assign arvalid[p] = state == READ && !asked[p] && !(bug[DROP_VALID] && jitter);
    if (p < PORTS) begin : g_weights
      assign m_axi_w_araddr[ADDR_BITS*p+:ADDR_BITS] = address({registers[29+2*p], registers[28+2*p]}, jitter);
      assign m_axi_w_arlen[8*p+:8] = LAST;
    end else begin : g_data
      assign m_axi_d_araddr = address({registers[22], registers[21]}, jitter);
      assign m_axi_d_arlen = LAST;
    end
  end

  assign m_axi_d_awaddr = address({registers[26], registers[25]}, 1'b0);
  assign m_axi_d_awlen = LAST;
  assign m_axi_d_awvalid = state == WRITE && !address_sent;
  assign m_axi_d_wvalid = state == WRITE && write_beat <= LAST;
  assign m_axi_d_wdata = sum[write_beat[3:0]] ^ 128'(bug[CHANGE_DATA] && jitter);
  assign m_axi_d_wstrb = '1;
  assign m_axi_d_wlast = write_beat == (bug[WRONG_WLAST] ? 8'd3 : LAST);
  assign m_axi_d_bready = state == RESPONSE;

  always_ff @(posedge aclk) begin
    jitter <= !jitter;
    case (state)
      READ: begin
        for (int p = 0; p < READERS; p++) begin
          if (arvalid[p] && arready[p]) asked[p] <= 1'b1;
          if (rvalid[p] && rready[p]) begin
            beat[p] <= beat[p] + 8'd1;
            if (rlast[p] || beat[p] == LAST) complete[p] <= 1'b1;
            if (rlast[p] != (beat[p] == LAST) || rresp[2*p+:2] != 0) errors <= errors + 16'd1;
          end
        end
        for (int i = 0; i < 16; i++) begin
          logic [127:0] next;
          next = sum[i];
          for (int p = 0; p < READERS; p++) begin
            if (rvalid[p] && rready[p] && beat[p] == 8'(i)) next = next ^ rdata[128*p+:128];
          end
          sum[i] <= next;
        end
        if (&complete) state <= WRITE;
      end
      WRITE: begin
        if (m_axi_d_awvalid && m_axi_d_awready) address_sent <= 1'b1;
        if (m_axi_d_wvalid && m_axi_d_wready) write_beat <= write_beat + 8'd1;
        if (address_sent && write_beat > LAST) state <= RESPONSE;
      end
      RESPONSE:
      if (m_axi_d_bvalid) begin
        if (m_axi_d_bresp != 0) errors <= errors + 16'd1;
        done_bursts <= done_bursts + 1;
        state <= done_bursts + 1 == registers[5] ? IDLE : READ;
      end
      default: ;
    endcase
    if (state == IDLE || state == RESPONSE) begin
      asked <= '0;
      complete <= '0;
      address_sent <= 1'b0;
      write_beat <= '0;
      for (int p = 0; p < READERS; p++) beat[p] <= '0;
      for (int i = 0; i < 16; i++) sum[i] <= '0;
    end
    if (start) begin
      state <= READ;
      done_bursts <= '0;
      errors <= '0;
    end
    assert (!(bug[ASSERTION] && start)) else $error("asked to fail");
    if (!aresetn) begin
      state <= IDLE;
      done_bursts <= '0;
      jitter <= 1'b0;
    end
  end

  // Registers.
  logic have_address, have_data, start;
  logic [5:0] write_word;
  logic [31:0] write_data;
  assign s_axi_control_awready = !have_address && !s_axi_control_bvalid;
  assign s_axi_control_wready = !have_data && !s_axi_control_bvalid;
  assign s_axi_control_arready = !s_axi_control_rvalid;
  assign s_axi_control_bresp = '0;
  assign s_axi_control_rresp = '0;
  assign start = have_address && have_data && write_word == 6'd4;
  always_ff @(posedge aclk) begin
    if (s_axi_control_awvalid && s_axi_control_awready) begin
      have_address <= 1'b1;
      write_word <= s_axi_control_awaddr[7:2];
    end
    if (s_axi_control_wvalid && s_axi_control_wready) begin
      have_data <= 1'b1;
      write_data <= s_axi_control_wdata;
    end
    if (have_address && have_data) begin
      registers[write_word] <= write_data;
      {have_address, have_data, s_axi_control_bvalid} <= 3'b001;
    end
    if (s_axi_control_bvalid && s_axi_control_bready) s_axi_control_bvalid <= 1'b0;
    if (s_axi_control_rvalid && s_axi_control_rready) s_axi_control_rvalid <= 1'b0;
    if (s_axi_control_arvalid && s_axi_control_arready) begin
      s_axi_control_rvalid <= 1'b1;
      case (s_axi_control_araddr[7:2])
        6'd0: s_axi_control_rdata <= 32'h5354_4e44;
        6'd4: s_axi_control_rdata <= 32'(state != IDLE);
        6'd7: s_axi_control_rdata <= 32'(errors);
        default: s_axi_control_rdata <= registers[s_axi_control_araddr[7:2]];
      endcase
    end
    if (!aresetn) begin
      {have_address, have_data, s_axi_control_bvalid, s_axi_control_rvalid} <= '0;
      registers[5] <= 32'd1;
      registers[6] <= '0;
    end
  end
endmodule
