"""Many rows times ternary weights of 1.6 bits: expanded first, for kernels of two-bit codes."""

from __future__ import annotations

from typing import Any

from edgerun.backends.cpu.binder import ONE, Binder
from edgerun.backends.cpu.emit.lookup import CODE_CHUNKS_A_THREAD, expansion_memory
from edgerun.graph.ir import Node
from edgerun.kernels.layouts.trits import TritWeight

Single = tuple[str, dict[str, int | str], dict[str, Any], set[str]]


def expand_codes(
    binder: Binder, node: Node, weight: TritWeight, single: Single, tokens: int
) -> Single:
    """Emits the expansion to the stream layout of two-bit codes.

    ``single`` is the kernel that reads trits: its name, parameters, arguments and inputs; returned
    is the one that would read the codes. ``tokens`` are the rows of a block: a batch without
    one leaves the codes alone.
    """
    _, params, arguments, reads = single
    codes = expansion_memory(binder)
    step = max(1, arguments["panels"] // (binder.threads * CODE_CHUNKS_A_THREAD))
    binder.emit(
        "trit_codes",
        {"lanes": weight.lanes, "tokens": tokens, "isa": binder.isa.name},
        {
            "trits": weight.codes,
            "codes": codes,
            "panels": len(weight.codes),
            "code_tiles": weight.code_tiles,
            "tiles": weight.codes.shape[1],
            "step": step,
            "rows": arguments["rows"],
        },
        chunks=(ONE, arguments["panels"], step),
        reads=set(),
        writes={codes.key},
        label=f"{node.name}/codes",
    )
    expanded = {"codes": codes, "tiles": weight.code_tiles}
    return "linear_row", params | {"bits": 2}, arguments | expanded, reads | {codes.key}
