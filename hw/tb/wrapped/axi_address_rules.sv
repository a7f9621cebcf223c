// What AXI and the wrapper's own interface attributes demand of an address channel that the overlay
// drives (ARM IHI 0022, section numbers of issue H). A broken rule is a failed assertion, which the
// harness lists among its violations.
module axi_address_rules #(
    parameter int ADDR_BITS = 40,
    parameter int MOST_BEATS = 64,  // MAX_BURST_LENGTH of the port
    parameter bit IDLE = 1'b0       // the geometry has no use for the port
) (
    input logic                 clk,
    input logic                 resetn,
    input logic                 valid,
    input logic                 ready,
    input logic [ADDR_BITS-1:0] addr,
    input logic [7:0]           len,
    input logic [2:0]           size,
    input logic [1:0]           burst,
    input logic [3:0]           cache,
    input logic [2:0]           prot
);
  localparam logic [2:0] SIXTEEN_BYTES = 3'd4;
  localparam logic [1:0] INCR = 2'b01;
  localparam logic [3:0] BUFFERABLE = 4'b0011;

  logic waiting = 1'b0;
  logic [ADDR_BITS-1:0] held_addr;
  logic [7:0] held_len;

  always @(posedge clk) begin
    waiting <= resetn && valid && !ready;
    held_addr <= addr;
    held_len <= len;
    if (resetn) begin
      // These do not change, whether or not an address is offered.
      assert (size == SIXTEEN_BYTES) else $error("A3.4.1: not all of the data bus");
      assert (burst == INCR) else $error("A3.4.1: not an incrementing burst");
      assert (cache == BUFFERABLE) else $error("A4.4: not normal, non-cacheable, bufferable");
      assert (prot == 3'b000) else $error("A4.7: not unprivileged, secure data");
      assert (!(IDLE && valid)) else $error("a port that the geometry does not have asks");
      // A3.2.1: an offer stands until it is taken.
      assert (!waiting || valid) else $error("A3.2.1: VALID falls before READY");
      assert (!waiting || (addr == held_addr && len == held_len)) else $error("A3.2.1: changed");
    end
    if (resetn && valid) begin
      assert (32'(len) < MOST_BEATS) else $error("longer than the port's MAX_BURST_LENGTH");
      assert (addr[3:0] == '0) else $error("not a multiple of 16 bytes");
      // A3.4.1: a burst stays within 4 KiB.
      assert ({1'b0, addr[11:4]} + {1'b0, len} < 9'd256) else $error("A3.4.1: crosses 4 KiB");
    end
  end
endmodule
