// Ternary table-lookup matrix multiplication: registers and shared constants.
// Made from registers.toml by `python -m edgerun_hw.registers --write`; do not edit.
/* verilator lint_off UNUSEDPARAM */
package tlmm_pkg;
  // bits of a weight code: a sign and a magnitude
  localparam int CODE_BITS = 5;
  // largest magnitude of a code; a table holds entries 0 to this
  localparam int MAX_MAGNITUDE = 13;
  // tables, and so codes of one row, per port beat
  localparam int TABLES = 5;
  // matrix rows per port beat
  localparam int PORT_ROWS = 5;
  // ternary weights in one code
  localparam int GROUP = 3;
  // bits of a table entry, signed
  localparam int ENTRY_BITS = 12;
  // bits of an activation, signed
  localparam int ACTIVATION_BITS = 8;
  // bits of an accumulator and of a result
  localparam int RESULT_BITS = 32;
  // bytes of a beat of every memory port; all addresses are multiples
  localparam int BEAT_BYTES = 16;
  // most weight ports; there is an address register pair for each
  localparam int MAX_PORTS = 4;
  // an int8 weight is SPLIT_RADIX * high digit + low digit
  localparam int SPLIT_RADIX = 27;
  // tokens of a port in a block of keys or values
  localparam int KV_TOKENS = 16;
  // blocks of keys that come before the first block of values
  localparam int KV_LEAD = 2;
  // beats of scales before a block of keys: two of keys, two of values
  localparam int KV_SCALE_BEATS = 4;
  // most heads of keys and values in an attention command
  localparam int MAX_KV_HEADS = 32;
  // most elements of a head, in units of 16
  localparam int MAX_HEAD_UNITS = 16;
  // most elements of all heads of keys, in units of 16
  localparam int MAX_KV_UNITS = 128;
  // most elements of a row in a glue command
  localparam int MAX_GLUE_LENGTH = 8192;
  localparam int REG_ADDR_BITS = 12;

  // ro: Says that this is the overlay: `TLMM`, its first letter in the top byte.
  localparam logic [11:0] REG_ID = 12'h000;
  localparam logic [31:0] RESET_ID = 32'h544c4d4d;

  // ro: Version of this register map. The driver accepts its own major number.
  localparam logic [11:0] REG_VERSION = 12'h004;
  localparam logic [31:0] RESET_VERSION = 32'h00010200;
  localparam int VERSION_PATCH_LSB = 0;  // patch number
  localparam int VERSION_PATCH_WIDTH = 8;
  localparam int VERSION_MINOR_LSB = 8;  // minor number: registers were added
  localparam int VERSION_MINOR_WIDTH = 8;
  localparam int VERSION_MAJOR_LSB = 16;  // major number: something changed its meaning
  localparam int VERSION_MAJOR_WIDTH = 16;

  // ro: How the engine was built.
  localparam logic [11:0] REG_GEOMETRY = 12'h008;
  localparam int GEOMETRY_PORTS_LSB = 0;  // weight ports, 1 to 4
  localparam int GEOMETRY_PORTS_WIDTH = 4;
  localparam int GEOMETRY_COLUMNS_LSB = 4;  // activation columns per weight stream
  localparam int GEOMETRY_COLUMNS_WIDTH = 8;
  localparam int GEOMETRY_TABLES_LSB = 12;  // tables per port beat
  localparam int GEOMETRY_TABLES_WIDTH = 4;
  localparam int GEOMETRY_PORT_ROWS_LSB = 16;  // matrix rows per port beat
  localparam int GEOMETRY_PORT_ROWS_WIDTH = 4;
  localparam int GEOMETRY_GROUP_LSB = 20;  // ternary weights in one code
  localparam int GEOMETRY_GROUP_WIDTH = 4;
  localparam int GEOMETRY_QUEUE_DEPTH_LSB = 24;  // commands that may be pushed and not complete
  localparam int GEOMETRY_QUEUE_DEPTH_WIDTH = 8;

  // ro: What a command may ask for.
  localparam logic [11:0] REG_LIMITS = 12'h00c;
  localparam int LIMITS_MAX_ROW_BEATS_LSB = 0;  // largest CMD_ROW_BEATS
  localparam int LIMITS_MAX_ROW_BEATS_WIDTH = 16;
  localparam int LIMITS_ROW_SCALE_BIT = 16;  // 1: results can be scaled to float32
  localparam int LIMITS_TERNARY_BIT = 17;  // 1: ternary mode is there
  localparam int LIMITS_MULTIPLES_BIT = 18;  // 1: multiples mode is there
  localparam int LIMITS_GLUE_BIT = 19;  // 1: norms, gates, residual sums and rounding are there
  localparam int LIMITS_QUERIES_LSB = 20;  // queries that share a read of keys and values; 0: no attention
  localparam int LIMITS_QUERIES_WIDTH = 4;
  localparam int LIMITS_ADDR_BITS_LSB = 24;  // bits of an address on the memory ports
  localparam int LIMITS_ADDR_BITS_WIDTH = 8;

  // rw: Reset and interrupts.
  localparam logic [11:0] REG_CONTROL = 12'h010;
  localparam logic [31:0] RESET_CONTROL = 32'h00000000;
  localparam int CONTROL_SOFT_RESET_BIT = 0;  // write 1 to reset engine and queue; reads 1 until that is done
  localparam int CONTROL_IRQ_ENABLE_BIT = 1;  // 1: the interrupt line follows IRQ

  // ro: What the overlay is doing.
  localparam logic [11:0] REG_STATUS = 12'h014;
  localparam int STATUS_IDLE_BIT = 0;  // 1: no command is queued or running
  localparam int STATUS_RESETTING_BIT = 1;  // 1: a soft reset is under way
  localparam int STATUS_QUEUE_FULL_BIT = 2;  // 1: a push would overflow
  localparam int STATUS_QUEUE_LEVEL_LSB = 8;  // commands pushed and not complete
  localparam int STATUS_QUEUE_LEVEL_WIDTH = 8;

  // rw1c: What went wrong. A command with a bad length is dropped and counted as completed; bits 1 to 5 stop the queue until a soft reset.
  localparam logic [11:0] REG_ERROR = 12'h018;
  localparam logic [31:0] RESET_ERROR = 32'h00000000;
  localparam int ERROR_BAD_LENGTH_BIT = 0;  // a length of 0 or over its limit, or a misaligned address
  localparam int ERROR_UNDERRUN_BIT = 1;  // RLAST came before the last beat of a burst
  localparam int ERROR_OVERRUN_BIT = 2;  // RLAST was missing on the last beat of a burst
  localparam int ERROR_READ_RESPONSE_BIT = 3;  // memory answered a read with an error
  localparam int ERROR_WRITE_RESPONSE_BIT = 4;  // memory answered a write with an error
  localparam int ERROR_WATCHDOG_BIT = 5;  // no progress for WATCHDOG cycles
  localparam int ERROR_QUEUE_OVERFLOW_BIT = 6;  // a command was pushed into a full queue and lost

  // ro: CMD_TAG of the first command in error.
  localparam logic [11:0] REG_ERROR_TAG = 12'h01c;

  // rw: Cycles without progress after which a running command is in error; 0 switches this off.
  localparam logic [11:0] REG_WATCHDOG = 12'h020;
  localparam logic [31:0] RESET_WATCHDOG = 32'h00100000;

  // ro: Commands pushed, modulo 2^32. Cleared by a soft reset.
  localparam logic [11:0] REG_SUBMITTED = 12'h024;

  // ro: Commands complete, modulo 2^32: the response to the last write has come. Cleared by a soft reset.
  localparam logic [11:0] REG_COMPLETED = 12'h028;

  // rw1c: Reasons of the interrupt.
  localparam logic [11:0] REG_IRQ = 12'h02c;
  localparam logic [31:0] RESET_IRQ = 32'h00000000;
  localparam int IRQ_COMPLETED_BIT = 0;  // a command completed
  localparam int IRQ_ERROR_BIT = 1;  // a bit of ERROR was set

  // rw: How the command's tables are filled and its results are written.
  localparam logic [11:0] REG_CMD_MODE = 12'h040;
  localparam int CMD_MODE_MULTIPLES_BIT = 0;  // 0: ternary mode, 1: multiples mode
  localparam int CMD_MODE_SCALE_BIT = 1;  // 1: results are float32, times the row's scale; 0: int32
  localparam int CMD_MODE_AFTER_BIT = 2;  // 1: activations, scales and rows are read when all commands before are complete
  localparam int CMD_MODE_GLUE_BIT = 3;  // 1: a gate or a sum, a norm and rounding of a row, in place of a matrix
  localparam int CMD_MODE_GATE_LSB = 4;  // glue: 0 none, 1 SwiGLU, 2 ReLU squared, 3 a residual sum
  localparam int CMD_MODE_GATE_WIDTH = 2;
  localparam int CMD_MODE_NORM_BIT = 6;  // glue: 1: there is a norm
  localparam int CMD_MODE_HEAD_UNITS_LSB = 20;  // attention: elements of a head over 16
  localparam int CMD_MODE_HEAD_UNITS_WIDTH = 5;
  localparam int CMD_MODE_KV_HEADS_LSB = 25;  // attention: heads of keys and values
  localparam int CMD_MODE_KV_HEADS_WIDTH = 6;
  localparam int CMD_MODE_ATTENTION_BIT = 31;  // 1: attention to keys and values, in place of a matrix

  // rw: Beats per tile: matrix rows over rows per beat, rounded up. Attention: beats of a block of keys and one of values, 32 * HEAD_UNITS + 4. Glue: beats of codes, elements over 15 rounded up.
  localparam logic [11:0] REG_CMD_ROW_BEATS = 12'h044;

  // rw: Tiles: activations over 15 (ternary) or 5 (multiples), rounded up. Attention: KV_HEADS times blocks of tokens, and two. Glue: elements of the row.
  localparam logic [11:0] REG_CMD_TILES = 12'h048;

  // rw: Activation columns of this command, 1 to GEOMETRY.COLUMNS; queries, 1 to LIMITS.QUERIES; of glue 1.
  localparam logic [11:0] REG_CMD_COLUMNS = 12'h04c;

  // rw: A number of the driver's own, shown in ERROR_TAG.
  localparam logic [11:0] REG_CMD_TAG = 12'h050;

  // rw: Address of the activations, of the queries, or of glue's gain, constants and row.
  localparam logic [11:0] REG_CMD_X_LO = 12'h054;
  localparam logic [11:0] REG_CMD_X_HI = 12'h058;

  // rw: Address of the row scales, or of the row that a gate multiplies by or that is added; else not used.
  localparam logic [11:0] REG_CMD_S_LO = 12'h05c;
  localparam logic [11:0] REG_CMD_S_HI = 12'h060;

  // rw: Address of the results.
  localparam logic [11:0] REG_CMD_Y_LO = 12'h064;
  localparam logic [11:0] REG_CMD_Y_HI = 12'h068;

  // rw: Address of the weights of one port, of its keys and values, or of its part of a norm's weights.
  localparam logic [11:0] REG_CMD_W0_LO = 12'h070;
  localparam logic [11:0] REG_CMD_W0_HI = 12'h074;
  localparam logic [11:0] REG_CMD_W1_LO = 12'h078;
  localparam logic [11:0] REG_CMD_W1_HI = 12'h07c;
  localparam logic [11:0] REG_CMD_W2_LO = 12'h080;
  localparam logic [11:0] REG_CMD_W2_HI = 12'h084;
  localparam logic [11:0] REG_CMD_W3_LO = 12'h088;
  localparam logic [11:0] REG_CMD_W3_HI = 12'h08c;

  // wo: Any write queues a command made of the CMD registers, which keep their values.
  localparam logic [11:0] REG_CMD_PUSH = 12'h090;

  // ro: Clock cycles. This and the counters below are modulo 2^32 and cleared by a soft reset.
  localparam logic [11:0] REG_CYCLES = 12'h0a0;

  // ro: Cycles in which a command was queued or running.
  localparam logic [11:0] REG_BUSY = 12'h0a4;

  // ro: Cycles in which a beat of weights was looked up.
  localparam logic [11:0] REG_LOOKUPS = 12'h0a8;

  // ro: Cycles lost waiting for weights.
  localparam logic [11:0] REG_STALL_WEIGHTS = 12'h0ac;

  // ro: Cycles lost waiting for tables to be filled.
  localparam logic [11:0] REG_STALL_TABLES = 12'h0b0;

  // ro: Cycles lost waiting for results to be taken.
  localparam logic [11:0] REG_STALL_OUTPUT = 12'h0b4;

  // ro: Beats read from memory on all ports.
  localparam logic [11:0] REG_READ_BEATS = 12'h0b8;

  // ro: Beats written to memory.
  localparam logic [11:0] REG_WRITE_BEATS = 12'h0bc;
endpackage
