"""Scores of texts whose model reads experts: the same numbers, and each expert once a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgerun.engine.scheduler import Limits, schedule
from edgerun.engine.sequence import Lease, Scoring
from edgerun.llm.llm import LLM
from edgerun.llm.scoring import _nats, _surprise
from tests.backends.experts.test_layered import (
    CHUNK,
    EXPERTS,
    GREEDY,
    LAYERS,
    calls_of,
    folder,
    ids,
    loaded,
    reads_by_expert,
)
from tests.engine.test_schedule import Store

__all__ = ["folder"]  # a fixture
WINDOW = 8 * CHUNK + 5


def nats_by_blocks(llm: LLM, text: list[int]) -> float:
    """As from logits that wait for their reader."""
    total, row = 0.0, 0
    for block in llm.logits(text[:-1]):
        row += len(block)
        total += float(_surprise(block, np.array(text[row - len(block) + 1 : row + 1])).sum())
    return total


def test_a_window_reads_each_expert_at_most_once_and_scores_the_same(folder: Path) -> None:
    text = ids(WINDOW, 7)
    with loaded(folder, None) as llm:
        expected = nats_by_blocks(llm, text)
        assert _nats(llm, text, 1) == expected
    with loaded(folder, 2.2 / LAYERS, threads=2) as llm:
        llm.generate(ids(3), max_tokens=30, **GREEDY)  # which leaves slots in use
        counts, before, budget = reads_by_expert(llm), llm.expert_reads(), llm.model.experts
        calls = calls_of(llm)
        assert _nats(llm, text, 1) == expected
        after = llm.expert_reads()
        assert before is not None and after is not None and budget is not None
        assert max(counts.values()) == 1
        assert after.since(before).read_bytes <= 1.02 * budget.stored_bytes
        assert calls == [WINDOW - 1]
        by_blocks = reads_by_expert(llm)
        assert nats_by_blocks(llm, text) == expected
        assert by_blocks.total() > 1.2 * LAYERS * EXPERTS, "which is why"


def test_logits_are_handed_over_block_by_block_and_none_is_kept(folder: Path) -> None:
    text, blocks = ids(2 * CHUNK + 3), []
    with loaded(folder, 0.6) as llm:
        returned: list[int] = []
        run = llm.model.programs.run

        def noted(*arguments: Any) -> Any:
            values = run(*arguments)
            returned.append(len(values["logits"]))
            return values

        llm.model.programs.run = noted  # type: ignore[method-assign]
        llm.take_logits(text, lambda block: blocks.append(block.copy()))
        assert [len(block) for block in blocks] == [CHUNK, CHUNK, 3]
        assert returned == [0]
        expected = np.concatenate([block.copy() for block in llm.logits(text)])
        np.testing.assert_array_equal(np.concatenate(blocks), expected)


def test_a_function_that_fails_ends_the_text_and_nothing_else(folder: Path) -> None:
    def fails(block: NDArray[np.float32]) -> None:
        raise ZeroDivisionError("of all things")

    with loaded(folder, 0.6) as llm:
        expected = llm.generate(ids(5), max_tokens=5, **GREEDY).ids
        for length in (CHUNK - 1, 3 * CHUNK):
            with pytest.raises(ZeroDivisionError, match="of all things"):
                llm.take_logits(ids(length), fails)
        assert llm.generate(ids(5), max_tokens=5, **GREEDY).ids == expected


def test_texts_beside_others_have_no_more_rows_than_logits_have_room() -> None:
    """For then they are returned."""
    limits = Limits(40, 64, call_rows=200)
    for count, rows in ((1, [150]), (2, [39, 1])):
        texts = [Scoring(list(range(150)), lambda block: None) for _ in range(count)]
        for text in texts:
            text.lease = Lease()
        parts, _ = schedule([*texts], [], Store(0, 999).room, limits)
        assert [part.rows for part in parts] == rows
