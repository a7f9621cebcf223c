// The AXI4-Lite side: registers, the staged command, the interrupt.
//
// It depends on nothing that can stop: every access ends within 64 cycles, whatever the engine or
// memory do. Write address and write data may come in any order and are held until both are here.
module tlmm_registers #(
    parameter int PORTS = 1,
    parameter int COLUMNS = 1,
    parameter int NB_MAX = 512,
    parameter bit ROW_SCALE = 1'b0,
    parameter int ATTENTION = 0,
    parameter bit GLUE = 1'b0,
    parameter int ADDR_BITS = 40,
    parameter int QUEUE_DEPTH = 8,
    parameter int LEVEL_BITS = $clog2(QUEUE_DEPTH) + 1
) (
    input  logic                  clk,
    input  logic                  aresetn,
    input  logic [11:0]           awaddr,
    input  logic                  awvalid,
    output logic                  awready,
    input  logic [31:0]           wdata,
    input  logic [3:0]            wstrb,
    input  logic                  wvalid,
    output logic                  wready,
    output logic [1:0]            bresp,
    output logic                  bvalid,
    input  logic                  bready,
    input  logic [11:0]           araddr,
    input  logic                  arvalid,
    output logic                  arready,
    output logic [31:0]           rdata,
    output logic [1:0]            rresp,
    output logic                  rvalid,
    input  logic                  rready,
    output logic                  irq,
    // reset
    input  logic                  clear,
    input  logic                  resetting,
    output logic                  reset_request,
    // queue
    output logic                  push,
    input  logic                  queue_busy,
    input  logic [4:0]            staged_index,
    output logic [31:0]           staged_word,
    input  logic [LEVEL_BITS-1:0] level,
    input  logic                  full,
    input  logic                  ev_completed,
    // errors
    input  logic [6:0]            errors,
    input  logic                  error_raised,
    input  logic [31:0]           error_tag,
    output logic [6:0]            error_acknowledge,
    output logic [31:0]           watchdog_limit,
    // counters
    input  logic [3:0]            counter_visit,
    input  logic [31:0]           counter_value
);
  // ---- channels
  logic [11:0] write_address, read_address;
  logic [31:0] write_data, read_data;
  logic [3:0] write_strobes;
  logic address_held, data_held, read_held, hold, hold_write, write, read, read_ready;

  assign awready = !address_held;
  assign wready = !data_held;
  assign arready = !read_held;
  assign bresp = 2'b00;
  assign rresp = 2'b00;
  // Accesses wait for the few cycles in which the queue reads the staged words, which must not
  // change then, and in which a reset clears everything: software never sees half of it. Writes
  // may learn of it a cycle late: after a push it takes two cycles until the next one is here.
  assign hold = queue_busy || clear;
  always_ff @(posedge clk) hold_write <= hold;
  assign write = address_held && data_held && !hold_write && (!bvalid || bready);
  assign read = read_held && read_ready && (!rvalid || rready);

  always_ff @(posedge clk) begin
    if (!aresetn) begin
      address_held <= 1'b0;
      data_held <= 1'b0;
      read_held <= 1'b0;
      bvalid <= 1'b0;
      rvalid <= 1'b0;
    end else begin
      if (awvalid && awready) address_held <= 1'b1;
      else if (write) address_held <= 1'b0;
      if (wvalid && wready) data_held <= 1'b1;
      else if (write) data_held <= 1'b0;
      if (arvalid && arready) read_held <= 1'b1;
      else if (read) read_held <= 1'b0;
      if (write) bvalid <= 1'b1;
      else if (bready) bvalid <= 1'b0;
      if (read) rvalid <= 1'b1;
      else if (rready) rvalid <= 1'b0;
    end
    if (awready) write_address <= awaddr;
    if (wready) {write_data, write_strobes} <= {wdata, wstrb};
    if (arready) read_address <= araddr;
    if (read) rdata <= read_data;
  end

  // ---- the staged command: the words from CMD_MODE to CMD_PUSH, except a hole
  function automatic logic is_staged(input logic [9:0] index);
    is_staged = index >= tlmm_pkg::REG_CMD_MODE[11:2] && index < tlmm_pkg::REG_CMD_PUSH[11:2]
        && index != tlmm_pkg::REG_CMD_Y_HI[11:2] + 10'd1;
  endfunction

  logic [3:0] staging_write;
  localparam logic [31:0] MODE_BITS =
      32'h7 | (ATTENTION != 0 ? 32'hfff0_0000 : '0) | (GLUE ? 32'h78 : '0);
  logic [31:0] staging_data;
  logic writes_mode;

  // Bits of CMD_MODE that have no meaning read as 0, as everywhere.
  assign writes_mode = write_address[11:2] == tlmm_pkg::REG_CMD_MODE[11:2];
  assign staging_data = writes_mode ? write_data & MODE_BITS : write_data;
  assign staging_write = write && is_staged(write_address[11:2]) ? write_strobes : '0;

  tlmm_staging staging (
      .clk,
      .write(staging_write),
      .write_index(write_address[6:2]),
      .write_data(staging_data),
      .read_index(queue_busy ? staged_index : read_address[6:2]),
      .read_data(staged_word)
  );

  // ---- writes
  logic irq_enable, irq_completed, irq_error;
  logic [6:0] low_bits;

  assign low_bits = write_strobes[0] ? write_data[6:0] : '0;
  assign error_acknowledge = write && write_address[11:2] == tlmm_pkg::REG_ERROR[11:2] ? low_bits : '0;
  // What is pushed while a reset drains would be lost with the queue: it is not taken at all.
  assign push = write && write_address[11:2] == tlmm_pkg::REG_CMD_PUSH[11:2] && !resetting;

  always_ff @(posedge clk) begin
    reset_request <= 1'b0;
    if (!aresetn) begin
      irq_enable <= 1'b0;
      watchdog_limit <= tlmm_pkg::RESET_WATCHDOG;
    end else if (write && write_address[11:2] == tlmm_pkg::REG_CONTROL[11:2] && write_strobes[0]) begin
      irq_enable <= low_bits[tlmm_pkg::CONTROL_IRQ_ENABLE_BIT];
      reset_request <= low_bits[tlmm_pkg::CONTROL_SOFT_RESET_BIT];
    end else if (write && write_address[11:2] == tlmm_pkg::REG_WATCHDOG[11:2]) begin
      for (int b = 0; b < 4; b++)
        if (write_strobes[b]) watchdog_limit[8*b+:8] <= write_data[8*b+:8];
    end

    if (clear) begin
      irq_completed <= 1'b0;
      irq_error <= 1'b0;
    end else begin
      if (write && write_address[11:2] == tlmm_pkg::REG_IRQ[11:2]) begin
        if (low_bits[tlmm_pkg::IRQ_COMPLETED_BIT]) irq_completed <= 1'b0;
        if (low_bits[tlmm_pkg::IRQ_ERROR_BIT]) irq_error <= 1'b0;
      end
      // Last, so that an event in the cycle of its acknowledgement is not lost.
      if (ev_completed) irq_completed <= 1'b1;
      if (error_raised) irq_error <= 1'b1;
    end
    irq <= irq_enable && (irq_completed || irq_error);
  end

  // ---- reads
  logic [31:0] geometry, limits, status;
  logic is_counter, fetched;

  // SUBMITTED, COMPLETED (bit 7 clear) and the event counters: 4 bits tell them apart.
  assign is_counter = read_address[11:2] == tlmm_pkg::REG_SUBMITTED[11:2]
      || read_address[11:2] == tlmm_pkg::REG_COMPLETED[11:2]
      || read_address[11:5] == tlmm_pkg::REG_CYCLES[11:5];

  always_comb begin
    geometry = '0;
    geometry[tlmm_pkg::GEOMETRY_PORTS_LSB+:tlmm_pkg::GEOMETRY_PORTS_WIDTH] = 4'(PORTS);
    geometry[tlmm_pkg::GEOMETRY_COLUMNS_LSB+:tlmm_pkg::GEOMETRY_COLUMNS_WIDTH] = 8'(COLUMNS);
    geometry[tlmm_pkg::GEOMETRY_TABLES_LSB+:tlmm_pkg::GEOMETRY_TABLES_WIDTH] =
        4'(tlmm_pkg::TABLES);
    geometry[tlmm_pkg::GEOMETRY_PORT_ROWS_LSB+:tlmm_pkg::GEOMETRY_PORT_ROWS_WIDTH] =
        4'(tlmm_pkg::PORT_ROWS);
    geometry[tlmm_pkg::GEOMETRY_GROUP_LSB+:tlmm_pkg::GEOMETRY_GROUP_WIDTH] = 4'(tlmm_pkg::GROUP);
    geometry[tlmm_pkg::GEOMETRY_QUEUE_DEPTH_LSB+:tlmm_pkg::GEOMETRY_QUEUE_DEPTH_WIDTH] =
        8'(QUEUE_DEPTH);

    limits = '0;
    limits[tlmm_pkg::LIMITS_MAX_ROW_BEATS_LSB+:tlmm_pkg::LIMITS_MAX_ROW_BEATS_WIDTH] = 16'(NB_MAX);
    limits[tlmm_pkg::LIMITS_ROW_SCALE_BIT] = ROW_SCALE;
    limits[tlmm_pkg::LIMITS_TERNARY_BIT] = 1'b1;
    limits[tlmm_pkg::LIMITS_MULTIPLES_BIT] = 1'b1;
    limits[tlmm_pkg::LIMITS_GLUE_BIT] = GLUE;
    limits[tlmm_pkg::LIMITS_QUERIES_LSB+:tlmm_pkg::LIMITS_QUERIES_WIDTH] = 4'(ATTENTION);
    limits[tlmm_pkg::LIMITS_ADDR_BITS_LSB+:tlmm_pkg::LIMITS_ADDR_BITS_WIDTH] = 8'(ADDR_BITS);

    status = '0;
    status[tlmm_pkg::STATUS_IDLE_BIT] = level == '0 && !queue_busy && !resetting && !reset_request;
    status[tlmm_pkg::STATUS_RESETTING_BIT] = resetting || reset_request;
    status[tlmm_pkg::STATUS_QUEUE_FULL_BIT] = full;
    status[tlmm_pkg::STATUS_QUEUE_LEVEL_LSB+:tlmm_pkg::STATUS_QUEUE_LEVEL_WIDTH] = 8'(level);
  end

  always_comb begin
    read_data = '0;
    case ({
      read_address[11:2], 2'b00
    })
      tlmm_pkg::REG_ID: read_data = tlmm_pkg::RESET_ID;
      tlmm_pkg::REG_VERSION: read_data = tlmm_pkg::RESET_VERSION;
      tlmm_pkg::REG_GEOMETRY: read_data = geometry;
      tlmm_pkg::REG_LIMITS: read_data = limits;
      tlmm_pkg::REG_CONTROL: begin
        read_data[tlmm_pkg::CONTROL_SOFT_RESET_BIT] = resetting || reset_request;
        read_data[tlmm_pkg::CONTROL_IRQ_ENABLE_BIT] = irq_enable;
      end
      tlmm_pkg::REG_STATUS: read_data = status;
      tlmm_pkg::REG_ERROR: read_data[6:0] = errors;
      tlmm_pkg::REG_ERROR_TAG: read_data = error_tag;
      tlmm_pkg::REG_WATCHDOG: read_data = watchdog_limit;
      tlmm_pkg::REG_IRQ: begin
        read_data[tlmm_pkg::IRQ_COMPLETED_BIT] = irq_completed;
        read_data[tlmm_pkg::IRQ_ERROR_BIT] = irq_error;
      end
      default: if (is_staged(read_address[11:2])) read_data = staged_word;
    endcase
    if (is_counter) read_data = counter_value;
  end

  // The staged word takes a cycle to come, in which the queue must not have been reading. And not
  // in the cycle of a push: what is read after it must count it.
  always_ff @(posedge clk) fetched <= read_held && !queue_busy && !read;
  assign read_ready = fetched && !hold && !push
      && (!is_counter || counter_visit == {read_address[7], read_address[4:2]});

  logic unused;
  assign unused = &{1'b0, write_address[1:0], read_address[1:0]};
endmodule
