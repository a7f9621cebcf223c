// Writes the results of one command after another to memory.
//
// A burst starts only when all of its data are here. So the engine never makes the bus wait, and
// a reset that comes in mid-burst has the data at hand to finish it properly.
module tlmm_writer #(
    parameter int ADDR_BITS = 40,
    parameter int COUNT_BITS = 24,  // of 32-bit results
    parameter int SLOT_BITS = 3,
    parameter int BURST = 16,       // most beats of a burst; a power of two
    parameter int DEPTH = 32        // beats of the buffer, at least one burst
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 stop,        // start no further burst
    input  logic                 drain,       // a reset waits: take whatever comes
    // descriptor: three words from the queue's loader
    output logic                 load_ready,
    input  logic                 load,
    input  logic [1:0]           load_step,   // 0 and 1: address, 2: number of results
    input  logic [31:0]          load_data,
    input  logic [SLOT_BITS-1:0] load_slot,
    // data
    input  logic                 data_valid,
    output logic                 data_ready,
    input  logic [127:0]         data,
    // AXI write channels
    output logic [ADDR_BITS-1:0] awaddr,
    output logic [7:0]           awlen,
    output logic                 awvalid,
    input  logic                 awready,
    output logic [127:0]         wdata,
    output logic [15:0]          wstrb,
    output logic                 wlast,
    output logic                 wvalid,
    input  logic                 wready,
    input  logic [1:0]           bresp,
    input  logic                 bvalid,
    output logic                 bready,
    // state
    output logic                 idle,        // no burst is under way
    output logic                 completed,   // a command's last response has come
    output logic                 bad_response,
    output logic [SLOT_BITS-1:0] error_slot
);
  localparam int LENGTH_BITS = $clog2(BURST);
  localparam int BEATS_BITS = COUNT_BITS - 2;
  localparam int LEVEL_BITS = $clog2(DEPTH) + 1;
  localparam int BURSTS = 16;  // without a response at most

  typedef enum logic [1:0] {IDLE, MEASURE, GATHER, SEND} state_t;
  state_t state;

  // ---- bursts
  logic [ADDR_BITS-1:4] address;  // in beats
  logic [BEATS_BITS-1:0] full_beats;  // still to come, with four results
  logic [1:0] tail;  // results of the last beat; 0: it is a full one
  logic partial;
  logic [LENGTH_BITS:0] length, to_boundary, unsent;
  logic final_burst;  // the command's last
  logic [SLOT_BITS-1:0] slot;
  logic [LEVEL_BITS-1:0] level;  // beats waiting for their burst
  logic is_final, go, sent, bursts_room;

  // As in tlmm_reader: a burst that ends at its natural boundary does not cross 4 KiB.
  assign to_boundary = (LENGTH_BITS + 1)'(BURST) - {1'b0, address[4+:LENGTH_BITS]};
  assign partial = tail != 2'd0;
  assign go = state == GATHER && !stop && bursts_room && level >= LEVEL_BITS'(length);
  assign is_final = !(|full_beats[BEATS_BITS-1:LENGTH_BITS+1])
      && (full_beats[LENGTH_BITS:0] < to_boundary
          || (full_beats[LENGTH_BITS:0] == to_boundary && !partial));
  assign sent = (!awvalid || awready) && (!wvalid || (wready && wlast));
  assign load_ready = state == IDLE;

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
      awvalid <= 1'b0;
      wvalid <= 1'b0;
    end else begin
      case (state)
        IDLE: if (load && load_step == 2'd2) state <= MEASURE;
        MEASURE: state <= GATHER;
        GATHER: if (go) state <= SEND;
        default: if (sent) state <= final_burst ? IDLE : MEASURE;
      endcase
      if (go) awvalid <= 1'b1;
      else if (awready) awvalid <= 1'b0;
      if (go) wvalid <= 1'b1;
      else if (wready && wlast) wvalid <= 1'b0;
    end
    if (load && load_step == 2'd0) begin
      address <= (ADDR_BITS - 4)'(load_data[31:4]);
      slot <= load_slot;
    end
    if (load && load_step == 2'd1) address <= (ADDR_BITS - 4)'({load_data, 28'(address)});
    if (load && load_step == 2'd2) {full_beats, tail} <= load_data[COUNT_BITS-1:0];
    if (state == MEASURE) begin
      final_burst <= is_final;
      length <= is_final ? full_beats[LENGTH_BITS:0] + (LENGTH_BITS + 1)'(partial) : to_boundary;
    end
    if (go) full_beats <= full_beats - BEATS_BITS'(length);
    if (go) unsent <= length;
    else if (wvalid && wready) unsent <= unsent - 1'b1;
    // `awaddr` stays until both channels are done, long after AW was taken.
    if (state == SEND && sent)
      address <= {address[ADDR_BITS-1:4+LENGTH_BITS] + 1'b1, LENGTH_BITS'(0)};
  end

  assign awaddr = {address, 4'b0};
  assign awlen = 8'(length - 1'b1);
  assign wlast = unsent == (LENGTH_BITS + 1)'(1);

  // The words that pad the last beat belong to nobody: memory behind the results stays as it is.
  always_comb begin
    wstrb = 16'hffff;
    if (final_burst && wlast && partial) begin
      wstrb[7:4] = {4{tail != 2'd1}};
      wstrb[11:8] = {4{tail == 2'd3}};
      wstrb[15:12] = 4'h0;
    end
  end

  // ---- results waiting for their burst
  logic wait_valid;
  assign data_ready = !level[LEVEL_BITS-1];

  tlmm_fifo #(
      .WIDTH(128),
      .DEPTH(DEPTH)
  ) buffer (
      .clk,
      .rst,
      .push(data_valid && data_ready),
      .push_data(data),
      .pop(wvalid && wready),
      .valid(wait_valid),
      .head(wdata),
      .level(level)
  );

  // ---- responses
  logic burst_valid, burst_final, accept;
  logic [SLOT_BITS-1:0] burst_slot;
  logic [4:0] bursts_level;

  tlmm_fifo #(
      .WIDTH(1 + SLOT_BITS),
      .DEPTH(BURSTS)
  ) bursts (
      .clk,
      .rst,
      .push(go),
      .push_data({final_burst, slot}),
      .pop(accept),
      .valid(burst_valid),
      .head({burst_final, burst_slot}),
      .level(bursts_level)
  );

  assign bursts_room = !bursts_level[4];
  assign bready = burst_valid || drain;
  assign accept = bvalid && burst_valid;
  assign idle = !burst_valid && !awvalid && !wvalid;

  always_ff @(posedge clk) begin
    bad_response <= !rst && accept && bresp[1];
    completed <= !rst && accept && !bresp[1] && burst_final;
    error_slot <= burst_slot;
  end

  logic unused;
  assign unused = &{1'b0, load_data, wait_valid, bursts_level, bresp[0]};
endmodule
