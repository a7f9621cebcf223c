"""``edgerun bench --rows``: what a call costs by its rows, which is what batching lives on."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from edgerun.errors import InputError
from edgerun.values import shown, whole_number

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM
    from edgerun.state import Batch, SequenceStore

MOST_ROWS = 1024
SECONDS = 0.25  # at least, for each number of rows
MOST_CALLS = 200


def row_counts(text: str) -> list[int]:
    """Numbers of rows out of ``1,2,4``, ascending, and 1, with which the others are compared.

    Raises:
        InputError: a part is no number from 1 to ``MOST_ROWS``.
    """
    counts = {1}
    for part in text.split(","):
        number = whole_number(part.strip()) or 0
        if not 1 <= number <= MOST_ROWS:
            raise InputError(
                f"--rows {shown(text)}: {shown(part.strip())} is no number of rows; expected "
                f"numbers from 1 to {MOST_ROWS} with commas between them, such as 1,2,4,8,16"
            )
        counts.add(number)
    return sorted(counts)


def row_figures(
    llm: LLM, counts: list[int], prompt: list[int], repeat: int, show: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Times of one call by its rows, all of whose logits are wanted, after a prompt.

    The rows continue one sequence, so that they share keys and values as decoding sequences of one
    beginning do; programs see no difference. Numbers of rows take turns, ``repeat`` times.

    Raises:
        InputError: prompt and rows do not fit the model's context.
    """
    from edgerun.backends.cpu.transfer import NativeTransfer
    from edgerun.state import Batch, SequenceStore

    model = llm.model
    start, context = len(prompt), model.context
    if start + counts[-1] > context:
        raise InputError(
            f"{counts[-1]} rows after a prompt of {start} tokens do not fit the context of "
            f"{context}: ask for fewer --rows or --prompt-tokens"
        )
    store = SequenceStore(model.states, context, transfer=NativeTransfer())
    slot = store.open()
    store.reserve(slot, start + counts[-1])
    for first in range(0, start, model.chunk_rows):
        chunk = prompt[first : first + model.chunk_rows]
        model.programs.run(Batch.of(chunk, first, slot, logits="none"), store)
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(1, repeat + 1):
        for count in counts:
            show(f"calls of {count} row{'' if count == 1 else 's'}, turn {turn} of {repeat}")
            ids = [id_ % model.vocab_size for id_ in range(count)]
            batch = Batch.of(ids, start, slot, logits="all")
            seconds[count] += _timed(llm, batch, store)
    least = {count: min(times) for count, times in seconds.items()}
    return [
        {
            "rows": count,
            "ms": round(1e3 * least[count], 4),
            "median_ms": round(1e3 * median(seconds[count]), 4),
            "ratio": round(least[count] / least[1], 3),
            "rows_per_s": round(count / least[count], 1),
        }
        for count in counts
    ]


def _timed(llm: LLM, batch: Batch, store: SequenceStore) -> list[float]:
    """Seconds of each of some calls; the first of a batch warms up and is not among them."""
    llm.model.programs.run(batch, store)
    times: list[float] = []
    while not times or (sum(times) < SECONDS and len(times) < MOST_CALLS):
        began = time.perf_counter()
        llm.model.programs.run(batch, store)
        times.append(time.perf_counter() - began)
    return times


def row_lines(figures: list[dict[str, Any]]) -> list[str]:
    """The figures as a table."""
    from edgerun.cli.screen.tables import aligned

    return aligned(
        [
            {
                "rows": figure["rows"],
                "ms": f"{figure['ms']:.3f}",
                "of one row": f"{figure['ratio']:.2f}",
                "rows/s": f"{figure['rows_per_s']:.1f}",
            }
            for figure in figures
        ]
    )
