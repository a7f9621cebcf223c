"""Programs in stages: where they are cut, and what is kept of a batch between two of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from edgerun.backends.cpu.binder import LOGIT_ROWS, ROWS, Stage
from edgerun.backends.cpu.buffers import BufferPool
from edgerun.backends.cpu.stages import chunks_of, cuts_of, give_back, keep, room_for
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.state import Batch

MOST = 4
POOL = BufferPool(MOST)
NARROW, WIDE, LOGITS = POOL.take(3), POOL.take(300), POOL.take(5)
STAGES = [
    Stage(),
    Stage(2, ((NARROW, ROWS),)),
    Stage(4, ((NARROW, ROWS),)),
    Stage(6, ((WIDE, ROWS), (LOGITS, LOGIT_ROWS))),
    Stage(8, ((LOGITS, LOGIT_ROWS),)),
]


def test_a_program_is_cut_where_least_goes_on() -> None:
    """Behind the sum, after which its terms are needed no more."""
    nodes = [
        Node("embedding", "table", (), ("x",), {}),
        Node("experts", "first", ("x",), ("a",), {}),
        Node("add", "sum", ("x", "a"), ("b",), {}),
        Node("linear", "wide", ("b",), ("c",), {}),
        Node("add", "late", ("b", "c"), ("d",), {}),
        Node("experts", "second", ("d",), ("e",), {}),
        Node("add", "last", ("d", "e"), ("f",), {}),
    ]
    widths = dict.fromkeys("xabcdef", 8) | {"c": 80}
    shapes = {name: ValueShape(width) for name, width in widths.items()}
    graph = Graph(nodes, [], ["f"], {}, shapes=shapes)
    assert cuts_of(graph, [1, 5]) == [2]
    assert cuts_of(graph, [1, 3, 5]) == [2, 4]
    assert cuts_of(graph, [1]) == []


def test_every_chunk_finds_in_a_stage_what_it_left_in_the_last() -> None:
    """Also where values are as many, and as wide, as those before them, or are not."""
    logit_rows = np.array([1, 2, 3, 8], np.int32)
    batch = Batch(*(np.arange(10, dtype=np.int32) for _ in range(3)), logit_rows)
    chunks = chunks_of(batch, MOST)
    assert [chunk.batch.ids.tolist() for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [chunk.rows(LOGIT_ROWS) for chunk in chunks] == [slice(0, 3), slice(3, 3), slice(3, 4)]
    taken, arrays = room_for(STAGES[0], batch, []), []
    for number, (stage, following) in enumerate(pairwise(STAGES)):
        outputs = room_for(following, batch, taken)
        for chunk in chunks:
            give_back(stage, chunk, taken)
            for buffer, counted_by in stage.taken:
                rows = chunk.rows(counted_by)
                expected = value(number, buffer.width)[rows]
                np.testing.assert_array_equal(
                    buffer.array[: len(expected), : buffer.width], expected
                )
            for buffer, counted_by in following.taken:
                rows = chunk.rows(counted_by)
                buffer.array[: rows.stop - rows.start, : buffer.width] = value(
                    number + 1, buffer.width
                )[rows]
            keep(following, chunk, outputs, None)
            for buffer in (NARROW, WIDE, LOGITS):
                buffer.array[:] = -1
        arrays.append(outputs)
        taken = outputs
    np.testing.assert_array_equal(taken[0], value(4, 5)[:4])
    assert arrays[0][0] is arrays[1][0], "one array goes from stage to stage"


def value(stage: int, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """What a stage finds, of all rows."""
    return np.arange(10 * width, dtype=np.float32).reshape(10, width) + 1000 * stage
