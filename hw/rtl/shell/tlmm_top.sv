// The table-lookup overlay: command queue, memory masters, and what computes between them.
//
//   AXI4-Lite - registers - queue -+-> weight readers (one per port) --w--+
//                                  +-> activations, scales (data port) -x,s-> engine or
//                                  +-> writer (data port) <-------y--------+ attention or glue
//
// A command's way: software stages and pushes it; the queue hands every unit its part as soon as
// the unit can take it; the engine works as data come; the writer's last response completes it.
// docs/fpga-registers.md describes the registers.
module tlmm_top #(
    parameter int PORTS = 1,        // weight ports, 1 to 4
    parameter int COLUMNS = 1,      // activation columns per weight beat
    parameter int NB_MAX = 512,     // row beats of the accumulators
    parameter bit ROW_SCALE = 1'b0, // results can be scaled to float32
    parameter int ATTENTION = 0,    // queries of an attention command; 0: there is no such unit
    parameter bit GLUE = 1'b0,      // norms, gates, residual sums and rounding are there
    parameter int QUEUE_DEPTH = 8,  // a power of two, 2 to 128
    parameter int ADDR_BITS = 40,   // 32 to 64
    parameter int W_BURST = 64,     // beats of a weight burst
    parameter int READ_AHEAD = 512  // beats that a weight port holds; a power of two, 128 or more
) (
    input  logic                       aclk,
    input  logic                       aresetn,
    output logic                       irq,
    // control
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
  localparam int SLOT_BITS = $clog2(QUEUE_DEPTH);

  // The units that the queue serves, in the order of tlmm_loader.
  localparam int ACTIVATIONS = 0;
  localparam int WEIGHTS = 1;
  localparam int SCALES = PORTS + 1;
  localparam int ENGINE = PORTS + 2;
  localparam int WRITER = PORTS + 3;
  localparam int TAG = PORTS + 4;
  localparam int UNITS = PORTS + 5;
  // The memory masters, which meet errors: weight readers, activations, scales, writer.
  localparam int SOURCES = PORTS + 3;

  logic clk;
  assign clk = aclk;

  // ---- reset, and what stops the masters
  logic clear, draining, resetting, reset_request, halted, stop, bus_idle, bus_quiet;
  logic masters_idle, queue_busy;

  assign stop = halted || draining;
  assign bus_idle = masters_idle && !queue_busy;
  assign bus_quiet = !(|m_axi_w_rvalid) && !m_axi_d_rvalid && !m_axi_d_bvalid;

  tlmm_reset reset (
      .clk,
      .aresetn,
      .request(reset_request),
      .bus_idle(bus_idle && bus_quiet),
      .draining,
      .resetting,
      .clear
  );

  // ---- registers and queue
  logic push, full, ev_submitted, ev_completed, bad_length, overflow;
  logic [4:0] staged_index;
  logic [31:0] staged_word, load_data, watchdog_limit;
  logic [31:0] error_tag, rejected_tag, counter_value;
  logic [SLOT_BITS:0] level;
  logic [SLOT_BITS-1:0] load_slot, oldest_slot, tag_slot;
  logic [UNITS-1:0] wanted, load;
  logic [1:0] load_step;
  logic [6:0] errors, error_acknowledge;
  logic [3:0] counter_visit;
  logic error_raised, written;

  tlmm_registers #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .ATTENTION(ATTENTION),
      .GLUE(GLUE),
      .ADDR_BITS(ADDR_BITS),
      .QUEUE_DEPTH(QUEUE_DEPTH)
  ) registers (
      .clk,
      .aresetn,
      .awaddr(s_axi_control_awaddr),
      .awvalid(s_axi_control_awvalid),
      .awready(s_axi_control_awready),
      .wdata(s_axi_control_wdata),
      .wstrb(s_axi_control_wstrb),
      .wvalid(s_axi_control_wvalid),
      .wready(s_axi_control_wready),
      .bresp(s_axi_control_bresp),
      .bvalid(s_axi_control_bvalid),
      .bready(s_axi_control_bready),
      .araddr(s_axi_control_araddr),
      .arvalid(s_axi_control_arvalid),
      .arready(s_axi_control_arready),
      .rdata(s_axi_control_rdata),
      .rresp(s_axi_control_rresp),
      .rvalid(s_axi_control_rvalid),
      .rready(s_axi_control_rready),
      .irq,
      .clear,
      .resetting,
      .reset_request,
      .push,
      .queue_busy,
      .staged_index,
      .staged_word,
      .level,
      .full,
      .ev_completed,
      .errors,
      .error_raised,
      .error_tag,
      .error_acknowledge,
      .watchdog_limit,
      .counter_visit,
      .counter_value
  );

  tlmm_queue #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .ATTENTION(ATTENTION),
      .GLUE(GLUE),
      .ADDR_BITS(ADDR_BITS),
      .DEPTH(QUEUE_DEPTH)
  ) queue (
      .clk,
      .rst(clear),
      .stop,
      .push,
      .busy(queue_busy),
      .staged_index,
      .staged_word,
      .wanted,
      .load,
      .load_step,
      .load_data,
      .load_slot,
      .tag_slot,
      // Once an error is known no result is known to be right.
      .completed(written && !halted),
      .oldest_slot,
      .level,
      .full,
      .ev_submitted,
      .ev_completed,
      .bad_length,
      .overflow,
      .rejected_tag
  );

  // ---- errors, watchdog, counters
  logic [SOURCES-1:0] underrun, overrun, bad_response;
  logic [SOURCES-1:0][SLOT_BITS-1:0] source_slot;
  logic watchdog;
  logic ev_lookup, ev_stall_weights, ev_stall_tables, ev_stall_output;

  tlmm_errors #(
      .SOURCES(SOURCES),
      .SLOT_BITS(SLOT_BITS)
  ) error_flags (
      .clk,
      .rst(clear),
      .underrun,
      .overrun,
      .bad_response,
      .source_slot,
      .watchdog,
      .oldest_slot,
      .bad_length,
      .overflow,
      .rejected_tag,
      .acknowledge(error_acknowledge),
      .tag_wanted(wanted[TAG]),
      .tag_slot,
      .tag_load(load[TAG] && load_step == 2'd0),
      .tag_data(load_data),
      .flags(errors),
      .raised(error_raised),
      .halted,
      .tag(error_tag)
  );

  tlmm_activity #(
      .PORTS(PORTS)
  ) activity (
      .clk,
      .rst(clear),
      .busy(level != '0),
      .watching((level != '0 && !halted) || draining),
      .watchdog_limit,
      .read_beats({m_axi_d_rvalid && m_axi_d_rready, m_axi_w_rvalid & m_axi_w_rready}),
      .write_beat(m_axi_d_wvalid && m_axi_d_wready),
      .response(m_axi_d_bvalid && m_axi_d_bready),
      .ev_submitted,
      .ev_completed,
      .ev_lookup,
      .ev_stall_weights,
      .ev_stall_tables,
      .ev_stall_output,
      .watchdog,
      .counter_visit,
      .counter_value
  );

  // ---- memory masters
  logic w_valid, w_ready, x_valid, x_ready, s_valid, s_ready, y_valid, y_ready;
  logic [PORTS*128-1:0] w_data;
  logic [127:0] x_data, s_data, y_data;
  logic [SOURCES-1:0] source_wanted, source_load;

  // The queue's units in the order of the sources: weights, activations, scales, writer.
  assign source_load = {load[WRITER], load[SCALES], load[ACTIVATIONS], load[WEIGHTS+:PORTS]};
  assign {wanted[WRITER], wanted[SCALES], wanted[ACTIVATIONS], wanted[WEIGHTS+:PORTS]} =
      source_wanted;

  tlmm_masters #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .ATTENTION(ATTENTION),
      .GLUE(GLUE),
      .ADDR_BITS(ADDR_BITS),
      .SLOT_BITS(SLOT_BITS),
      .W_BURST(W_BURST),
      .READ_AHEAD(READ_AHEAD)
  ) masters (
      .clk,
      .rst(clear),
      .stop,
      .drain(draining),
      .wanted(source_wanted),
      .load(source_load),
      .load_step,
      .load_data,
      .load_slot,
      .w_valid,
      .w_ready,
      .w_data,
      .x_valid,
      .x_ready,
      .x_data,
      .s_valid,
      .s_ready,
      .s_data,
      .y_valid,
      .y_ready,
      .y_data,
      .idle(masters_idle),
      .completed(written),
      .underrun,
      .overrun,
      .bad_response,
      .error_slot(source_slot),
      .m_axi_w_araddr,
      .m_axi_w_arlen,
      .m_axi_w_arvalid,
      .m_axi_w_arready,
      .m_axi_w_rdata,
      .m_axi_w_rresp,
      .m_axi_w_rlast,
      .m_axi_w_rvalid,
      .m_axi_w_rready,
      .m_axi_d_araddr,
      .m_axi_d_arlen,
      .m_axi_d_arvalid,
      .m_axi_d_arready,
      .m_axi_d_rdata,
      .m_axi_d_rresp,
      .m_axi_d_rlast,
      .m_axi_d_rvalid,
      .m_axi_d_rready,
      .m_axi_d_awaddr,
      .m_axi_d_awlen,
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

  // ---- what is computed
  tlmm_compute #(
      .PORTS(PORTS),
      .COLUMNS(COLUMNS),
      .NB_MAX(NB_MAX),
      .ROW_SCALE(ROW_SCALE),
      .ATTENTION(ATTENTION),
      .GLUE(GLUE)
  ) compute (
      .clk,
      .rst(clear),
      .wanted(wanted[ENGINE]),
      .load(load[ENGINE]),
      .load_step,
      .load_data,
      .x_valid,
      .x_ready,
      .x_data,
      .w_valid,
      .w_ready,
      .w_data,
      .s_valid,
      .s_ready,
      .s_data,
      .y_valid,
      .y_ready,
      .y_data,
      .ev_lookup,
      .ev_stall_weights,
      .ev_stall_tables,
      .ev_stall_output
  );
endmodule
