"""Low-bit linear layers of many rows by unpacking once (``kernels/linear/gemm.py, amx.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.backends.base import FEW_ROWS, Phase
from edgerun.backends.cpu.binder import ANY_LOGITS, LOGIT_ROWS, ONE, Binder
from edgerun.backends.cpu.buffers import Buffer
from edgerun.graph.ir import Node
from edgerun.kernels.lang.isa import Isa

# What the kernel that does blocks of rows is called, behind ``Isa.prompts``, by the one that does
# single rows.
IN_BLOCKS: Mapping[str, str] = {
    "linear_row": "row",
    "linear_block": "block",
    "gated_row": "gated_row",
    "gated_block": "gated_block",
}
GATED_IN_BLOCKS = ("gemm",)  # of ``Isa.prompts``, those with kernels of a gate and an up projection
# From how many rows a batch goes to AMX: those of a tile register, which costs the same however few
# of them there are, and which 16 rows fill without its being configured anew. Measured on two cores
# of a Xeon with AMX (November 2026), milliseconds of 4, 8 and 12 rows by the linear kernels, as
# they were, and of 16 by AMX, weights 6912 x 2560: ternary 0.30, 0.60, 0.87 and 0.64; int4 with
# scales of rows 0.34, 0.62, 0.89 and 0.87; int8 0.52, 0.83, 1.16 and 1.43; int4 in blocks, whose
# linear kernel has become three times as fast since, 1.6, 2.1, 3.8 and 2.3. Only ternary weights
# would gain before, from 11 rows on.
AMX_ROWS = FEW_ROWS


def by_gemm(binder: Binder, *, trits: bool = False) -> bool:
    """Whether a program is for batches of so many rows that unpacking weights once pays.

    Up to ``FEW_ROWS`` rows the linear kernels, which multiply while they unpack, are as fast or
    faster with every instruction set and format (``tools/bench/rows.py``; docs/benchmarks.md), with
    some they are for any number; but not for trits, which take more time to unpack than others.
    """
    return binder.shape.phase is Phase.PREFILL and (trits or binder.isa.unpacks)


def gemm_tokens(isa: Isa) -> int:
    """Rows of a block: a tile of two vectors of weight rows fills half of the registers.

    Blocks of AMX have any size from ``AMX_ROWS`` on; ``lookup_rows`` takes a negative number so.
    """
    if isa.prompts == "amx":
        return -AMX_ROWS
    return isa.registers // (4 * isa.partial)


def emit_gemm(
    binder: Binder,
    node: Node,
    single: tuple[str, dict[str, int | str], dict[str, Any], set[str]],
    out: Buffer,
    step: int,
) -> None:
    """Emits the product of the rows that fill blocks.

    ``single`` is the kernel that does the other rows: its name, parameters, arguments and inputs.
    """
    name, params, arguments, reads = single
    arguments = {key: value for key, value in arguments.items() if key != "lookup"}
    counted_by = binder.counted_by[node.inputs[0]]
    binder.emit(
        f"{binder.isa.prompts}_{IN_BLOCKS[name]}",
        params | {"tokens": gemm_tokens(binder.isa)},
        arguments | {"step": step},
        chunks=(ANY_LOGITS if counted_by == LOGIT_ROWS else ONE, arguments["panels"], step),
        reads=reads | ({out.key} if arguments["accumulate"] else set()),
        writes={out.key},
        label=f"{node.name}/product",
    )
