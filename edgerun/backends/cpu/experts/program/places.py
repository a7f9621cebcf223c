"""The rows of a batch, spread over places: one for each row and expert of it.

Places are sorted by expert (``kernels/experts/rows.py``), so that an expert's rows lie one after
the other. What treats rows alike works on places as it does on rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu.binder import ONE, Binder, Rounded
from edgerun.backends.cpu.buffers import Buffer, BufferPool
from edgerun.graph.ir import Node
from edgerun.kernels.run.parts import PART_WORDS

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows of a batch go.

    Attributes:
        top_k: places of a row.
        rows: of the batch, at most.
        experts: how many there are.
        counted_by: word of the frame that counts the rows.
        pool: of buffers with a row for each place.
        parts: the experts that have rows, int64 ``[1 + experts * PART_WORDS]``.
        weights: of each place, float32.
        places: of each row, int32 ``[rows, top_k]``.
        key: stands for what the plan writes.
    """

    top_k: int
    rows: int
    experts: int
    counted_by: int
    pool: BufferPool
    parts: NDArray[np.int64]
    weights: NDArray[np.float32]
    places: NDArray[np.int32]
    key: str

    @property
    def count(self) -> int:
        """Places, at most."""
        return self.rows * self.top_k

    def give(self, *values: Buffer | Rounded) -> None:
        """Takes back what nothing reads any more."""
        for value in values:
            for buffer in value.buffers() if isinstance(value, Rounded) else [value]:
                self.pool.give(buffer)


def emit_plan(binder: Binder, node: Node, routes: Buffer, counted_by: int) -> Places:
    """Emits what sorts the batch; layers of one size share the memory."""
    rows, experts, top_k = binder.shape.rows, routes.width, node.attrs["top_k"]
    key = f"places{experts}x{top_k}by{counted_by}"
    if key not in binder.places:
        binder.places[key] = Places(
            top_k=top_k,
            rows=rows,
            experts=experts,
            counted_by=counted_by,
            pool=BufferPool(rows * top_k, f"{key}."),
            parts=np.zeros(1 + experts * PART_WORDS, np.int64),
            weights=np.zeros(rows * top_k, np.float32),
            places=np.zeros((rows, top_k), np.int32),
            key=key,
        )
    places = binder.places[key]
    assert isinstance(places, Places)
    binder.emit(
        "expert_plan",
        {},
        {
            "rows": binder.count(counted_by),
            "routes": routes,
            "stride": routes.stride,
            "experts": experts,
            "top_k": top_k,
            "parts": places.parts,
            "first": np.zeros(experts, np.int64),
            "weights": places.weights,
            "places": places.places,
        },
        chunks=(ONE, 1, 1),
        reads={routes.key},
        writes={key},
        label=f"{node.name}/plan",
    )
    return places


def emit_rows(binder: Binder, node: Node, x: Buffer, out: Buffer, places: Places) -> None:
    """Emits the copying of rows to their places."""
    each = x.array.itemsize
    binder.emit(
        "expert_rows",
        {},
        {
            "rows": binder.count(places.counted_by),
            "places": places.places,
            "top_k": places.top_k,
            "x": x,
            "x_stride": x.stride * each // FLOAT_BYTES,
            "spread": out,
            "spread_stride": out.stride * each // FLOAT_BYTES,
            "width": -(-x.width * each // FLOAT_BYTES),
        },
        chunks=(places.counted_by, 1, 1),
        reads={x.key, places.key},
        writes={out.key},
        label=f"{node.name}/rows",
    )


def emit_sum(binder: Binder, node: Node, results: Buffer, places: Places) -> None:
    """Emits the sum of a row's places, in the order of experts, times their weights."""
    out = binder.new(node.outputs[0], results.width, places.counted_by)
    binder.emit(
        "expert_sum",
        {"lanes": binder.isa.float_lanes},
        {
            "rows": binder.count(places.counted_by),
            "places": places.places,
            "weights": places.weights,
            "top_k": places.top_k,
            "results": results,
            "results_stride": results.stride,
            "out": out,
            "out_stride": out.stride,
            "width": results.width,
        },
        chunks=(places.counted_by, 1, 1),
        reads={results.key, places.key},
        writes={out.key},
        label=f"{node.name}/sum",
    )
