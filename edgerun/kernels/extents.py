"""How many bytes of each operand a kernel may touch, from its other arguments.

Kernels are machine code over addresses. Whoever binds one compares these extents with the memory
that the addresses belong to, so that a mistake further up is an error and not a stray write.
Sizes are a kernel's integer arguments and compile-time constants, by name, and ``rows``, the most
rows a batch can have. The module imports nothing that compiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from edgerun.kernels.attention.units import CAPACITY, ROW_INTS, UNIT_INTS

Sizes: TypeAlias = Mapping[str, int]
Extent: TypeAlias = Callable[[Sizes], int]

BYTE, SHORT, WORD, LONG = 1, 2, 4, 8
STATE_FLOATS = 2  # maximum and sum of weights of a query
OPTIONAL = frozenset({"bias"})  # operands that may be absent


def _product(sizes: str) -> Extent:
    """The product of names and numbers."""
    names = [name for name in sizes.split() if not name.isdigit()]
    factor = math.prod(int(name) for name in sizes.split() if name.isdigit())

    def extent(known: Sizes) -> int:
        total = factor
        for name in names:
            total *= known[name] if name in known else _DERIVED[name](known)
        return total

    return extent


def _array(sizes: str, item: int = WORD) -> Extent:
    """An array whose dimensions are names or numbers."""
    return _product(f"{sizes} {item}")


def _rows(stride: str, width: str, item: int = WORD) -> Extent:
    """``[rows, stride]``, of whose last row a product of names is touched."""
    last = _product(width)
    return lambda known: item * ((known["rows"] - 1) * known[stride] + last(known))


def _padded(stride: str, width: str, item: int = WORD) -> Extent:
    """``[rows, stride]``, filled up with zeros behind ``width``."""
    return lambda known: (
        item * ((known["rows"] - 1) * known[stride] + max(known[stride], known[width]))
    )


_DERIVED: dict[str, Callable[[Sizes], int]] = {
    "tile": lambda known: 32 // known["bits"],  # weights of a row in a vector
    "panel": lambda known: known["lanes"] // 4,  # rows of a vector
    "width_blocks": lambda known: -(-known["width"] // known["block"]),
    "block_bytes": lambda known: known["block"] * known["bits"] // 8,
    "whole_rows": lambda known: -(-known["rows"] // known["tokens"]) * known["tokens"],
    "partial": lambda known: known["group"] * (known["head_dim"] + STATE_FLOATS),
}

_COUNT = {"rows": _array("1", LONG)}  # the address of how many rows the batch has
_NORM = _COUNT | {"weight": _array("size"), "epsilon": _array("1")}
_ROUNDED_ROW = {"q": _padded("q_stride", "width", BYTE), "scale": _array("rows")}
_ROUNDED_ROW |= {"sum": _array("rows")}
_ROUNDED_BLOCK = {"q": _padded("q_stride", "width", BYTE), "scale": _array("rows blocks")}
_ROUNDED_BLOCK |= {"sum": _array("rows blocks")}
_NORMED = {"q": _padded("q_stride", "size", BYTE)}
_FLOAT_ROW = _COUNT | {"x": _rows("x_stride", "width")}
_LOOKED_UP = _COUNT | {"ids": _array("rows"), "out": _rows("out_stride", "width")}

_OUT = _COUNT | {"bias": _array("n"), "out": _rows("out_stride", "n")}
_CODES = {"codes": _array("panels tiles lanes", BYTE)}
_BY_ROW = _OUT | _CODES | {"scales": _array("panels panel")}
_BY_ROW |= {"x_scale": _array("rows"), "x_sum": _array("rows")}
_BY_BLOCK = _OUT | _CODES | {"scales": _array("panels panel blocks")}
_LINEAR_ROW = _BY_ROW | {"x": _rows("x_stride", "tiles tile", BYTE)}
_LINEAR_BLOCK = _BY_BLOCK | {
    "x": _rows("x_stride", "tiles tile", BYTE),
    "x_scale": _array("rows blocks"),
    "x_sum": _array("rows blocks"),
}
_TRITS = _COUNT | {"trits": _array("panels tiles lanes", BYTE)}
_EXPANDED = _array("panels code_tiles lanes", BYTE)

_TOKENS = {"positions": _array("rows"), "sequences": _array("rows")}
_BLOCK = dict.fromkeys(("k", "v"), _array("tokens kv_heads head_dim"))
_RESULTS = {
    "row_blocks": _array(f"rows {ROW_INTS}"),
    "partials": _array(f"{CAPACITY} kv_heads partial"),
    "out": _rows("out_stride", "kv_heads group head_dim"),
}
_ATTENTION = (
    _TOKENS
    | _RESULTS
    | {
        "q": _rows("q_stride", "kv_heads group head_dim"),
        "scale": _array("1"),
        "units": _array(f"{CAPACITY} {UNIT_INTS}"),
    }
)

# By kernel, then by operand. The cache and the rotary table are bound later and not here.
EXTENTS: Mapping[str, Mapping[str, Extent]] = {
    "add": _COUNT | dict.fromkeys(("a", "b", "out"), _array("rows width")),
    "gate": _COUNT | {name: _rows(f"{name}_stride", "width") for name in ("gate", "up", "out")},
    "select_rows": _FLOAT_ROW | {"index": _array("rows"), "out": _rows("out_stride", "width")},
    "embedding_dense": _LOOKED_UP | {"table": _array("vocab width")},
    "embedding_block": _LOOKED_UP
    | {
        "codes": _array("vocab width_blocks block_bytes", BYTE),
        "scales": _array("vocab width_blocks"),
    },
    "rms_norm": _NORM
    | {"x": _rows("x_stride", "groups size"), "out": _rows("out_stride", "groups size")},
    "rms_norm_row": _NORM | _ROUNDED_ROW | _NORMED | {"x": _rows("x_stride", "size")},
    "rms_norm_block": _NORM | _ROUNDED_BLOCK | _NORMED | {"x": _rows("x_stride", "size")},
    "quantize_row": _FLOAT_ROW | _ROUNDED_ROW,
    "quantize_block": _FLOAT_ROW | _ROUNDED_BLOCK,
    "quantize_row_blocks": _FLOAT_ROW | _ROUNDED_BLOCK,
    "round_row": _FLOAT_ROW | {"out": _padded("out_stride", "width")},
    "linear_dense": _OUT
    | {"codes": _array("n tiles width"), "x": _rows("x_stride", "tiles width")},
    "linear_float": _BY_BLOCK | {"x": _rows("x_stride", "tiles tile")},
    "linear_row": _LINEAR_ROW,
    "gemm_row": _LINEAR_ROW,
    "amx_row": _LINEAR_ROW,
    "linear_block": _LINEAR_BLOCK,
    "gemm_block": _LINEAR_BLOCK,
    "amx_block": _LINEAR_BLOCK,
    "linear_trits": _BY_ROW | {"x": _rows("x_stride", "tiles 20", BYTE)},
    "trit_codes": _TRITS | {"codes": _EXPANDED},
    "trit_entries": _TRITS | {"entries": _EXPANDED},
    "lookup_entries": _COUNT | _CODES | {"entries": _CODES["codes"]},
    "lookup_columns": _COUNT
    | {
        "x": _rows("x_stride", "padded_k", BYTE),
        "columns": _array("whole_rows padded_k", SHORT),
    },
    "lookup_row": _OUT
    | _CODES
    | {
        "scales": _array("panels panel"),
        "x_scale": _array("rows"),
        "columns": _array("whole_rows padded_k", SHORT),
    },
    "rotary": _COUNT | {"positions": _array("rows"), "x": _rows("x_stride", "heads head_dim")},
    "cache_write": _COUNT
    | _TOKENS
    | {name: _rows(f"{name}_stride", "kv_heads head_dim") for name in ("k", "v")},
    "block_write": _BLOCK,
    "block_read": _BLOCK,
    "attention": _ATTENTION,
    "attention_many": _ATTENTION,
    "attention_combine": _RESULTS,
}
