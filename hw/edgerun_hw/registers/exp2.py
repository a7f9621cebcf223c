"""Writes the table of powers of two that the attention unit reads."""

from __future__ import annotations

from edgerun_hw.overlay.attention import exp2_table
from edgerun_hw.registers.description import Description

ROW = 16  # entries
HEAD = """\
// Powers of two: 2**(15 + fraction / 2048), rounded, two cycles later.
// Made from overlay/attention.py by `python -m edgerun_hw.registers --write`; do not edit.
module tlmm_attention_exp2 (
    input  logic        clk,
    input  logic [10:0] fraction,
    output logic [15:0] power
);
  (* rom_style = "block" *) logic [15:0] store[2048];
  logic [15:0] latch;

  always_ff @(posedge clk) begin
    latch <= store[fraction];
    power <= latch;
  end

  // Sixteen entries a row, the lowest at the right.
  localparam logic [32767:0] ROWS = {
"""
TAIL = """\
  };
  initial for (int i = 0; i < 2048; i++) store[i] = ROWS[16*i+:16];
endmodule
"""


def write_exp2(description: Description) -> str:
    """The module, with its table."""
    del description  # of registers, which the table has none of
    table = exp2_table()
    rows = [table[start : start + ROW] for start in range(0, len(table), ROW)]
    lines = ["    256'h" + "".join(f"{entry:04x}" for entry in row[::-1]) for row in rows[::-1]]
    return HEAD + ",\n".join(lines) + "\n" + TAIL
