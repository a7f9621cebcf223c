"""How long the attention unit takes: cycles by its rules, held against the simulator."""

from __future__ import annotations

from edgerun_hw.overlay.attention import BLOCK_TOKENS
from edgerun_hw.overlay.attention_layout import KvLayout
from edgerun_hw.overlay.register_map import BEAT_BYTES, MAX_PORTS

# Of the RTL, checked against the simulator: between two blocks; from the last beat to the last
# result of the last head: softmax, sums, reciprocal and pipeline; and from submitting a command to
# its first beat, with its queries.
BLOCK_CYCLES = 1
LAST_CYCLES = 130
START_CYCLES = 120
# A block's softmax: its tokens, and what a walk through them takes besides.
SOFTMAX_CYCLES = BLOCK_TOKENS + 18


def attention_commands(group: int, rows: int, queries: int) -> int:
    """Commands of a layer: rows times heads of a group, so many queries at a time."""
    return -(-rows * group // queries)


def attention_cycles(kv_heads: int, head_dim: int, tokens: int) -> int:
    """Cycles of a command, however many its queries, memory not limiting."""
    layout = KvLayout(kv_heads, head_dim)
    pair = max(layout.pair_beats + 2 * BLOCK_CYCLES, SOFTMAX_CYCLES)
    return START_CYCLES + layout.pairs(tokens) * pair + head_dim + LAST_CYCLES


def layer_cycles(
    kv_heads: int, head_dim: int, group: int, rows: range, queries: int, window: int = 0
) -> int:
    """Cycles of all commands of a layer, memory not limiting.

    Args:
        kv_heads: of the layer.
        head_dim: elements of a head.
        group: heads that share keys and values.
        rows: positions of the rows.
        queries: most of a command: a row's heads of a group, then the next row's.
        window: tokens that a row sees at most; 0 for all.
    """
    cycles = 0
    for first in range(0, len(rows) * group, queries):
        last = min(first + queries, len(rows) * group) - 1
        position, limit = rows[first // group], rows[last // group] + 1
        # From the block of the first token that one of the queries sees.
        begin = max(position + 1 - window, 0) // BLOCK_TOKENS * BLOCK_TOKENS if window else 0
        cycles += attention_cycles(kv_heads, head_dim, limit - begin)
    return cycles


def attention_bytes(kv_heads: int, head_dim: int, tokens: int) -> int:
    """Bytes that a command reads of keys, values and scales, on all ports."""
    layout = KvLayout(kv_heads, head_dim)
    return MAX_PORTS * BEAT_BYTES * layout.pairs(tokens) * layout.pair_beats
