"""Words of the argument block that the instructions of an attention layer share."""

from __future__ import annotations

from edgerun.kernels.attention.units import CACHE, PAGE_TOKENS
from edgerun_hw.backend.native.request import COMMON_WORDS
from edgerun_hw.overlay.attention import BLOCK_TOKENS

assert PAGE_TOKENS == BLOCK_TOKENS  # a page of the cache is a block of the copy

# Rows are those of the batch, queries those of its rows whose results are wanted.
(
    ROWS,
    SEQUENCES,
    QUERY_ROWS,
    QUERY_POSITIONS,
    QUERY_SEQUENCES,
    COPIES,
    KV_HEADS,
    HEAD_DIM,
    GROUP,
    WINDOW,
    SCALE,
    Q,
    Q_STRIDE,
    OUT,
    OUT_STRIDE,
    X_MEMORY,
    X_ADDRESS,
    X_FIRST,
    X_BYTES,
    MOST_QUERIES,
    BOUNDS,
    CHECKS,
    EXPECTED,
    RESULTS,
    DEPTH,
    CACHE_WORDS,
) = range(COMMON_WORDS, COMMON_WORDS + 26)
# Words of how often results were computed again: runs of the program, and results.
K_RUNS, K_RESULTS, CHECK_WORDS = range(3)
# As kernels of the processor name them.
KEY_DATA, VALUE_DATA, KEY_SCALES, VALUE_SCALES, PAGE_TABLE, PAGES, PAGE_HEADS = (
    CACHE_WORDS + CACHE.index(name)
    for name in (
        *("key_data", "value_data", "key_scales", "value_scales"),
        *("page_table", "pages", "page_heads"),
    )
)
ARGUMENT_WORDS = CACHE_WORDS + len(CACHE)
