// Reads one stretch of memory after another and hands out the beats in order.
//
// Requests run ahead of the data: as soon as the last burst of a stretch is asked for, the next
// descriptor is wanted, so the next command's data come while this one's are in use. A burst is
// asked for only when the buffer has room for all of it: what memory sends is always taken, and
// a slow consumer never blocks the bus for others.
module tlmm_reader #(
    parameter int ADDR_BITS = 40,
    parameter int COUNT_BITS = 26,
    parameter int SLOT_BITS = 3,
    parameter int BURST = 64,       // most beats of a burst; a power of two, 4 KiB at most
    parameter int DEPTH = 512,      // beats of the buffer, at least two bursts
    parameter bit BLOCK_RAM = 1'b1
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 stop,        // ask for nothing more
    input  logic                 drain,       // a reset waits: take whatever comes
    // descriptor: three words from the queue's loader
    output logic                 load_ready,
    input  logic                 load,
    input  logic [1:0]           load_step,   // 0 and 1: address, 2: number of beats
    input  logic [31:0]          load_data,
    input  logic [SLOT_BITS-1:0] load_slot,
    // AXI read channels
    output logic [ADDR_BITS-1:0] araddr,
    output logic [7:0]           arlen,
    output logic                 arvalid,
    input  logic                 arready,
    input  logic [127:0]         rdata,
    input  logic [1:0]           rresp,
    input  logic                 rlast,
    input  logic                 rvalid,
    output logic                 rready,
    // data
    output logic                 data_valid,
    output logic [127:0]         data,
    input  logic                 data_ready,
    // state
    output logic                 idle,        // nothing asked for that has not come
    output logic                 burst_end,   // the answer to one request is complete
    output logic                 underrun,
    output logic                 overrun,
    output logic                 bad_response,
    output logic [SLOT_BITS-1:0] error_slot
);
  localparam int LENGTH_BITS = $clog2(BURST);
  localparam int LEVEL_BITS = $clog2(DEPTH) + 1;
  localparam int BURSTS = 16;  // outstanding at most

  typedef enum logic [1:0] {IDLE, MEASURE, RESERVE, ASK} state_t;
  state_t state;

  // ---- requests
  logic [ADDR_BITS-1:4] address;  // in beats
  logic [COUNT_BITS-1:0] remaining;
  logic [LENGTH_BITS:0] length, to_boundary;
  logic [SLOT_BITS-1:0] slot;
  logic [LEVEL_BITS-1:0] room;  // beats of the buffer that no burst has a claim on
  logic is_final, burst_room, go, take;

  // A burst ends at its natural boundary at the latest, hence never crosses 4 KiB.
  assign to_boundary = (LENGTH_BITS + 1)'(BURST) - {1'b0, address[4+:LENGTH_BITS]};
  assign is_final = !(|remaining[COUNT_BITS-1:LENGTH_BITS+1])
      && remaining[LENGTH_BITS:0] <= to_boundary;
  // Comparing with a whole burst instead of `length` costs no speed and saves a comparator.
  assign go = state == RESERVE && !stop && burst_room && |room[LEVEL_BITS-1:LENGTH_BITS];
  assign take = data_valid && data_ready;

  assign araddr = {address, 4'b0};
  assign arlen = 8'(length - 1'b1);
  assign arvalid = state == ASK;
  assign load_ready = state == IDLE;

  always_ff @(posedge clk) begin
    if (rst) begin
      state <= IDLE;
    end else begin
      case (state)
        IDLE: if (load && load_step == 2'd2) state <= MEASURE;
        MEASURE: state <= remaining == '0 ? IDLE : RESERVE;
        RESERVE: if (go) state <= ASK;
        default: if (arready) state <= MEASURE;
      endcase
    end
    if (load && load_step == 2'd0) begin
      address <= (ADDR_BITS - 4)'(load_data[31:4]);
      slot <= load_slot;
    end
    if (load && load_step == 2'd1) address <= (ADDR_BITS - 4)'({load_data, 28'(address)});
    if (load && load_step == 2'd2) remaining <= load_data[COUNT_BITS-1:0];
    if (state == MEASURE) begin
      length <= is_final ? remaining[LENGTH_BITS:0] : to_boundary;
    end
    if (go) remaining <= remaining - COUNT_BITS'(length);
    // Another burst of this stretch starts where this one had to end: on a boundary.
    if (arvalid && arready) address <= {address[ADDR_BITS-1:4+LENGTH_BITS] + 1'b1, LENGTH_BITS'(0)};
  end

  always_ff @(posedge clk) begin
    if (rst) room <= LEVEL_BITS'(DEPTH);
    else room <= room - (go ? LEVEL_BITS'(length) : '0) + LEVEL_BITS'(take);
  end

  // ---- answers
  logic burst_valid, last, accept;
  logic [LENGTH_BITS-1:0] burst_arlen, received;
  logic [SLOT_BITS-1:0] burst_slot;
  logic [4:0] burst_level;

  tlmm_fifo #(
      .WIDTH(LENGTH_BITS + SLOT_BITS),
      .DEPTH(BURSTS)
  ) bursts (
      .clk,
      .rst,
      .push(go),
      .push_data({arlen[LENGTH_BITS-1:0], slot}),
      .pop(burst_end),
      .valid(burst_valid),
      .head({burst_arlen, burst_slot}),
      .level(burst_level)
  );

  assign burst_room = !burst_level[4];
  // While draining, beats that a faulty memory sends unasked are swallowed, lest they stay on
  // the bus and be taken for answers after the reset.
  assign rready = burst_valid || drain;
  assign accept = rvalid && burst_valid;
  assign last = received == burst_arlen;
  // Either sign ends the burst: the memory that loses count must not hang the reset.
  assign burst_end = accept && (last || rlast);
  assign idle = !burst_valid && !arvalid;

  always_ff @(posedge clk) begin
    if (rst || burst_end) received <= '0;
    else if (accept) received <= received + 1'b1;
    underrun <= !rst && accept && rlast && !last;
    overrun <= !rst && accept && last && !rlast;
    bad_response <= !rst && accept && rresp[1];
    error_slot <= burst_slot;
  end

  if (BLOCK_RAM) begin : g_block
    tlmm_buffer #(
        .WIDTH(128),
        .DEPTH(DEPTH)
    ) buffer (
        .clk,
        .rst,
        .push(accept),
        .push_data(rdata),
        .pop(take),
        .valid(data_valid),
        .head(data)
    );
  end else begin : g_small
    logic [LEVEL_BITS-1:0] level;
    tlmm_fifo #(
        .WIDTH(128),
        .DEPTH(DEPTH)
    ) buffer (
        .clk,
        .rst,
        .push(accept),
        .push_data(rdata),
        .pop(take),
        .valid(data_valid),
        .head(data),
        .level(level)
    );
    logic unused;
    assign unused = &{1'b0, level};
  end

  logic unused_bits;
  assign unused_bits = &{1'b0, load_data, rresp[0], burst_level};
endmodule
