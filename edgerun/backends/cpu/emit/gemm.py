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
IN_BLOCKS: Mapping[str, str] = {"linear_row": "row", "linear_block": "block"}
AMX_ROWS = FEW_ROWS  # of a tile register, which costs the same however few of them there are


def by_gemm(binder: Binder) -> bool:
    """Whether a program is for batches of so many rows that unpacking once pays.

    Up to ``FEW_ROWS`` rows the linear kernels, which multiply while they unpack, are as fast or
    faster with every instruction set and format (``tools/bench/rows.py``; docs/benchmarks.md).
    """
    return binder.shape.phase is Phase.PREFILL


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
