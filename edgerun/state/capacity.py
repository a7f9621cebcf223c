"""How many pages there are: what sequences may need, and what memory has room for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from edgerun.errors import InputError
from edgerun.state.memory import UNLIMITED, Memory
from edgerun.state.paged import PAGE_TOKENS, PagePool, Transfer, page_bytes, pages_of
from edgerun.state.policies.base import Policy
from edgerun.state.recurrent import RecurrentArrays, state_bytes
from edgerun.state.spec import AttentionState, RecurrentState, State, geometries
from edgerun.state.store import Slot

LONG_CALL_TOKENS = 4096
PARTIAL_PAGES = 3  # a windowed layer has one more than its rows see, and its ends in part only

Groups = Sequence[Sequence[AttentionState]]


def sequence_bytes(states: Sequence[State], tokens: int) -> int:
    """Bytes that a sequence of so many tokens takes."""
    groups = geometries(states)
    return fixed_bytes(states) + sum(_pages(group, tokens) * page_bytes(group) for group in groups)


def fixed_bytes(states: Sequence[State]) -> int:
    """Bytes that a sequence takes however long it is: of recurrent states, for two of each."""
    return sum(state_bytes(state) for state in states if isinstance(state, RecurrentState))


def cached_bytes(states: Sequence[State], tokens: int) -> int:
    """Bytes that so many tokens of a sequence take, those of pages that are not full left out."""
    return fixed_bytes(states) + token_bytes(states) * tokens


def moved_bytes(states: Sequence[State]) -> int:
    """Bytes of recurrent states that a call reads, and writes, for each sequence."""
    return sum(
        2 * array.nbytes
        for state in states
        if isinstance(state, RecurrentState)
        for array in state.arrays
    )


def token_bytes(states: Sequence[State]) -> int:
    """Bytes of keys and values that one token takes over all layers."""
    return sum(page_bytes(group) for group in geometries(states)) // PAGE_TOKENS


def largest_call(states: Sequence[State]) -> int:
    """Most tokens that a call may append, such that a sequence takes no more than its bytes."""
    calls = (
        state.call_tokens - PARTIAL_PAGES * PAGE_TOKENS
        for state in states
        if isinstance(state, AttentionState) and state.window
    )
    return min(calls, default=UNLIMITED)


def with_long_calls(states: Sequence[State], context: int) -> tuple[State, ...]:
    """States that take calls of ``LONG_CALL_TOKENS``, or of a context if that is shorter.

    For models whose calls cost much however few tokens they have. Layers with a window then have
    as many pages as others until a call has ended.
    """
    tokens = min(context, LONG_CALL_TOKENS) + PARTIAL_PAGES * PAGE_TOKENS
    return tuple(
        replace(state, call_tokens=max(state.call_tokens, tokens))
        if isinstance(state, AttentionState)
        else state
        for state in states
    )


def affordable_context(states: Sequence[State], limit: int, nbytes: int) -> int:
    """The longest sequence, up to ``limit`` tokens, that takes no more than so many bytes."""
    return bisect_right(range(1, limit + 1), nbytes, key=lambda n: sequence_bytes(states, n))


def check_context(states: Sequence[State], context: int, memory: Memory, weights: int = 0) -> None:
    """Makes sure that memory can hold one sequence of a context.

    Args:
        states: of the layers.
        context: tokens of the sequence.
        memory: as it is now.
        weights: bytes that will be taken before.

    Raises:
        InputError: it cannot; the message says what would fit.
    """
    needed, free = sequence_bytes(states, context), max(0, memory.look() - weights)
    if needed <= free:
        return
    left = f"{_size(free)} are free" + (f" beside {_size(weights)} of weights" if weights else "")
    most = affordable_context(states, context, free)
    if not most:
        least = _size(sequence_bytes(states, 1))
        raise InputError(
            f"a sequence of any length takes {least} of memory for {_kinds(states)}, and {left}: "
            "free some, or use a smaller model"
        )
    raise InputError(
        f"a context of {context} tokens takes {_size(needed)} of memory for {_kinds(states)}, and "
        f"{left}: choose one of at most {most} tokens, or a smaller type of kv_cache"
    )


def _kinds(states: Sequence[State]) -> str:
    """What there is to be kept, in words."""
    return "keys, values and states" if fixed_bytes(states) else "keys and values"


def make_pools(
    states: Sequence[State],
    context: int,
    slots: int,
    memory: Memory,
    policy: Callable[[], Policy],
    transfer: Transfer | None,
) -> list[PagePool]:
    """Pools for layers of one geometry each: for all sequences, if memory can hold them.

    ``policy`` makes what says which page goes first, for each pool its own.

    Raises:
        InputError: there is no memory for one sequence of ``context`` tokens.
    """
    check_context(states, context, memory)
    groups, free = geometries(states), memory.look()
    counts = _page_counts(groups, context, slots, free, fixed_bytes(states))
    try:
        return [
            PagePool(group, slots, context, count, memory, policy(), transfer)
            for group, count in zip(groups, counts, strict=True)
        ]
    except MemoryError as error:
        raise InputError(
            f"the system gives no memory for keys and values of {slots} sequences of {context} "
            "tokens: load the model with a smaller context or max_sessions"
        ) from error


def _page_counts(groups: Groups, context: int, slots: int, nbytes: int, fixed: int) -> list[int]:
    """Pages of each group, for whole contexts if all fit into so many bytes.

    Otherwise no group has so many that another would lack memory for what a sequence needs, of
    which ``fixed`` bytes are not in pages.
    """
    bytes_of = [page_bytes(group) for group in groups]
    whole = slots * pages_of(context)
    if whole * sum(bytes_of) + slots * fixed <= nbytes:
        return [whole] * len(groups)
    needs = [_pages(group, context) for group in groups]
    needed = fixed + sum(count * size for count, size in zip(needs, bytes_of, strict=True))
    sequences = min(slots, nbytes / needed)
    return [max(count, int(sequences * count)) for count in needs]


def make_arrays(states: Sequence[State], slots: int, memory: Memory) -> list[RecurrentArrays]:
    """Room for the states of fixed size of all sequences; nothing if no layer has any.

    Raises:
        InputError: the system does not give so much address space.
    """
    recurrent = [state for state in states if isinstance(state, RecurrentState)]
    try:
        return [RecurrentArrays(recurrent, slots, memory)] if recurrent else []
    except (MemoryError, OSError) as error:
        raise InputError(
            f"the system gives no memory for the states of {slots} sequences: load the model with "
            "a smaller max_sessions"
        ) from error


def spare_places(arrays: RecurrentArrays, memory: Memory, without: Sequence[Slot]) -> int:
    """Sequences whose states of fixed size there is room for, if some slots were closed."""
    spare, most = arrays.spare(without), len(arrays.turns)
    left = memory.left(arrays.place_bytes * most) // max(1, arrays.place_bytes)
    return min(most, spare + left)


def spare_pages(
    pools: Sequence[PagePool], memory: Memory, without: Sequence[Slot]
) -> tuple[int, int]:
    """Pages that can be taken if some slots were closed, and most that a sequence has at a time.

    Counted are pools of the layers that see most, each of which has room for so many. Layers that
    see less give pages back while a sequence grows, and take memory for a window's.
    """
    widest = max((pool.window for pool in pools), key=lambda window: window or UNLIMITED)
    spare = [(pool, pool.spare(without)) for pool in pools]
    most = min(count + pool.unwritten for pool, count in spare if pool.window == widest)
    context = pools[0].page_table.shape[1] * PAGE_TOKENS
    held = {pool: _pages(pool.states, context) for pool in pools if pool.window != widest}

    def new_bytes(pages: int) -> int:
        return sum(
            max(0, min(pages, held.get(pool, pages)) - count) * pool.page_bytes
            for pool, count in spare
        )

    left = memory.left(sum(pool.page_bytes * pool.page_table.shape[1] for pool in pools))
    pages = bisect_right(range(1, most + 1), left, key=new_bytes)
    limit = max(_pages(pool.states, context) for pool in pools if pool.window == widest)
    return pages, limit if widest else 0


def _pages(group: Sequence[AttentionState], tokens: int) -> int:
    """Pages that a sequence has at a time."""
    window, call = group[0].window, group[0].call_tokens
    return pages_of(min(tokens, window + call) if window else tokens)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"
