"""Writes the tables that the attention and the glue unit read."""

from __future__ import annotations

from edgerun_hw.overlay.attention import I64, exp2_table
from edgerun_hw.overlay.glue import reciprocal_table
from edgerun_hw.registers.description import Description

ROW = 16  # entries
MODULE = """\
// {purpose}, rounded, two cycles later.
// Made from {source} by `python -m edgerun_hw.registers --write`; do not edit.
module {name} (
    input  logic        clk,
    input  logic [10:0] fraction,
    output logic [15:0] {output}
);
  (* rom_style = "block" *) logic [15:0] store[2048];
  logic [15:0] latch;

  always_ff @(posedge clk) begin
    latch <= store[fraction];
    {output} <= latch;
  end

  // Sixteen entries a row, the lowest at the right.
  localparam logic [32767:0] ROWS = {{
{rows}
  }};
  initial for (int i = 0; i < 2048; i++) store[i] = ROWS[16*i+:16];
endmodule
"""


def write_exp2(description: Description) -> str:
    """The module with the powers of two."""
    del description  # of registers, which the table has none of
    return MODULE.format(
        purpose="Powers of two: 2**(15 + fraction / 2048)",
        source="overlay/attention.py",
        name="tlmm_exp2",
        output="power",
        rows=_rows(exp2_table()),
    )


def write_reciprocals(description: Description) -> str:
    """The module with the reciprocals."""
    del description
    return MODULE.format(
        purpose="Reciprocals: 2**16 / (1 + (fraction + 1/2) / 2048)",
        source="overlay/glue.py",
        name="tlmm_glue_reciprocal",
        output="reciprocal",
        rows=_rows(reciprocal_table()),
    )


def _rows(table: I64) -> str:
    rows = [table[start : start + ROW] for start in range(0, len(table), ROW)]
    lines = ["    256'h" + "".join(f"{entry:04x}" for entry in row[::-1]) for row in rows[::-1]]
    return ",\n".join(lines)
