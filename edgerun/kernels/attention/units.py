"""How attention is cut into pieces of work, and the memory that goes with it.

A *unit* is some rows of the batch and a range of pages that they all see. Rows of a long prompt
are taken in stacks, each with all its pages. Any other row has its context cut into blocks of
``BLOCK_PAGES`` pages, so that all threads can work on one token (after Lean Attention, Sanovar et
al. 2024), and rows whose page tables name the same pages in a block share a unit of it, so that a
common prefix is read once (Hydragen, Juravsky et al. 2024). A row with several blocks leaves a
partial result of each, which ``attention_combine`` merges in the order of the blocks, as a unit
of all blocks does by itself. So neither the number of threads nor the rest of the batch changes
what a row gets.

A unit begins with waiting for its first page and ends with nothing left to ask memory for, so
units of one row have several blocks at first, and one where threads are to end together: each has
at most one of ``PARTS`` parts of a thread's share of what is left (guided self-scheduling,
Polychronopoulos and Kuck 1987).
"""

from __future__ import annotations

from edgerun.kernels.host.caches import first_cache_bytes

PAGE_TOKENS = 64  # as in state/paged.py
BLOCK_PAGES = 8
PARTS = 4  # of a thread's share of the blocks that are left, of which a unit has one
DEEP = 32  # elements that a product of bfloat16 tiles adds up; heads are a multiple of it long
CODECS = ("fp32", "fp16", "int8")  # how keys and values may be stored
# What kernels read of a page pool: arrays of its codec, 0 for those that it has not, and its table.
CACHE = (
    *("key_data", "value_data", "key_scales", "value_scales"),
    *("page_table", "pages", "page_heads"),
)
CACHED = " ".join(f"{name}:cache" for name in CACHE)
# Partial results; rows beyond are not cut. The system commits what is used.
CAPACITY = 2048

# Rows that attend to a page at a time, of one prompt or with shared pages; more of a prompt where
# its keys are turned for them (``columns.py``), unless that makes more queries than caches hold.
STACK_ROWS, TURNED_STACK_ROWS, MOST_QUERIES = 8, 16, 128
PROMPT_ROWS = 128  # of a call, from which on there are units enough for all threads
FEWEST_TURNED = 16  # queries for which turning keys pays
# Lanes of vectors with which it does: of any unit, and of full ones of prompts alone, since with
# eight lanes turning takes as long as what it saves two to eight rows.
TURNED_LANES, PROMPT_LANES = 16, 8
MOST_DIMENSIONS = 256  # of a head whose keys are turned: all of them are unrolled

SMALL_CACHE_BYTES = 32 << 10  # of a core's first cache

# A unit: first row, rows, first page, end of its pages.
UNIT_ROW, UNIT_ROWS, UNIT_PAGE, UNIT_END, UNIT_INTS = 0, 1, 2, 3, 8
# Pages before ``UNIT_TURNED_END`` are in the order of tiles; ``UNIT_TURNED`` and the page's number
# are where. Such a page has an entry: a row that sees all that is there of it, and its number.
UNIT_TURNED, UNIT_TURNED_END = 4, 5
TURNED_ROW, TURNED_PAGE, TURNED_INTS = 0, 1, 2
# What is known of a row: where its partial results begin, its first block, how many it has, and
# the first block that has no unit yet.
ROW_SLOT, ROW_BLOCK, ROW_BLOCKS, ROW_NEXT, ROW_INTS = 0, 1, 2, 3, 4
# Numbers of units of one row, of units of several rows, of rows whose results are combined, and of
# pages that several units read in the order of tiles.
SINGLE, STACKED, SPLIT, TURNED, COUNTS = range(5)


def cache_of_pages() -> int:
    """The cache, 1 or 2, into which single rows ask for what they read next.

    A small first one is full with a page and what is asked for meanwhile, and a core can wait for
    few lines that are to come there. One of 48 KB is the faster place.
    """
    return 2 if 0 < first_cache_bytes() <= SMALL_CACHE_BYTES else 1


def turned_bytes(head_dim: int) -> int:
    """Of keys and values of a page and head in the order of tiles, bfloat16."""
    return 2 * PAGE_TOKENS * head_dim * 2


def turning_pays(dtype: str, head_dim: int, group: int, stack: int, lanes: int) -> bool:
    """Whether ``group`` queries of up to ``stack`` rows are to meet keys that were turned."""
    is_wide = lanes == TURNED_LANES or (lanes == PROMPT_LANES and stack == TURNED_STACK_ROWS)
    return (
        dtype != "int8"
        and group * stack >= FEWEST_TURNED
        and head_dim <= MOST_DIMENSIONS
        and is_wide
    )


def stack_rows(dtype: str, head_dim: int, group: int, lanes: int, rows: int) -> int:
    """Most rows of a unit that a kernel has room for, in calls of up to so many rows.

    Queries of ``group`` heads each share a key head.
    """
    stack = TURNED_STACK_ROWS
    turns = turning_pays(dtype, head_dim, group, stack, lanes)
    is_full = lanes == TURNED_LANES or rows >= PROMPT_ROWS
    fits = group > 1 and group * stack <= MOST_QUERIES
    return stack if turns and is_full and fits else STACK_ROWS
