"""Attention of a segment on the fabric, and the copies of keys and values that it reads.

Every row's keys and values go into the cache first, as with any back-end, so that another one can
go on from there. What the device has is a copy of the cache's int8 codes (``kv_copy.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.graph.ir import Node
from edgerun.ops.base import rows_of
from edgerun.state import Batch, SequenceStore
from edgerun.state.spec import attention_name
from edgerun_hw.backend.kv_copy import KvCopy
from edgerun_hw.backend.products import WrongResultError
from edgerun_hw.backend.session import Session
from edgerun_hw.overlay.attention import (
    BLOCK_TOKENS,
    MAX_TOKENS,
    Cache,
    OutsideFormatError,
    attend,
    quantise_queries,
)
from edgerun_hw.overlay.attention_layout import KvLayout, pack_queries
from edgerun_hw.overlay.command import RESULT_BYTES, Command

F32: TypeAlias = NDArray[np.float32]
CODEC = "int8"
# Weights add up to one, but for roundings (``overlay.attention.error_bound``).
MARGIN = np.float32(1.01)
# Of commands one in so many is computed again: more would keep a board's processor too long.
CHECK_EVERY = 16


def obstacle(node: Node, storage: str, queries: int) -> str:
    """Why the fabric cannot run an attention layer; empty if it can.

    Args:
        node: of the layer.
        storage: of keys and values, by the name of its codec.
        queries: of a command of the overlay; 0 if it cannot attend.
    """
    if not queries:
        return "this overlay has no attention unit"
    if storage != CODEC:
        return f"keys and values are stored as {storage}; the fabric reads --kv-cache {CODEC}"
    if len(node.inputs) > 3 and node.inputs[3]:
        return "the fabric knows no attention sinks"
    if node.attrs["softcap"]:
        return "the fabric bounds no scores of attention"
    return KvLayout.obstacle(node.attrs["num_kv_heads"], node.attrs["head_dim"])


class FabricAttention:
    """An attention layer; what it computes is ``overlay.attention.attend``."""

    def __init__(self, node: Node, session: Session) -> None:
        """Takes no memory of the device yet."""
        self._node, self._session = node, session
        attrs: Any = node.attrs
        self._layout = KvLayout(attrs["num_kv_heads"], attrs["head_dim"])
        self._group = attrs["num_heads"] // attrs["num_kv_heads"]
        self._copies = session.copies
        self._turn = 0

    def run(self, batch: Batch, cache: SequenceStore, values: dict[str, F32]) -> F32:
        """Output ``[queries, num_heads * head_dim]``: of all rows of a batch, or of wanted ones.

        Raises:
            OutsideFormatError: a query or the context is beyond the unit's format.
            OverlayError: the device failed.
            MemoryError: the device has no room for the keys and values.
        """
        heads, dim = self._layout.kv_heads, self._layout.head_dim
        q, k, v = (values[name] for name in self._node.inputs[:3])
        keys, vectors = (part.reshape(-1, heads, dim) for part in (k, v))
        queries = q.reshape(len(q), heads, self._group, dim)
        out, rows = np.empty_like(queries), rows_of(q, batch)
        name = attention_name(self._node.attrs["layer"])
        for start, stop in batch.runs():
            slot, position = int(batch.sequences[start]), int(batch.positions[start])
            cache.write_block(name, slot, position, (keys[start:stop], vectors[start:stop]))
            end = int(batch.positions[stop - 1]) + 1
            copy = self._copies.setdefault((name, slot), KvCopy(self._layout))
            overlay = self._session.overlay
            try:
                copy.update(overlay, cache, name, slot, end)
            except MemoryError:
                if not self._session.forget_copies(batch.sequences):
                    raise
                copy.update(overlay, cache, name, slot, end)
            asked = np.flatnonzero((start <= rows) & (rows < stop))
            if asked.size:  # of a prompt's first chunks no logits are wanted
                limits = batch.positions[rows[asked]].astype(np.int64) + 1
                out[asked] = self._attend(copy, queries[asked], limits)
        return out.reshape(q.shape)

    def _attend(self, copy: KvCopy, queries: F32, limits: NDArray[np.int64]) -> F32:
        """Rows of one sequence, ``[rows, kv_heads, group, head_dim]``."""
        rows, heads, group, dim = queries.shape
        flat = queries.transpose(0, 2, 1, 3).reshape(rows * group, heads, dim)
        limit = np.repeat(limits, group)
        window = self._node.attrs["window"]
        first = np.maximum(limit - window, 0) if window else np.zeros_like(limit)
        most = self._session.overlay.capabilities.attention
        jobs = [
            _Job(copy, flat[i : i + most], first[i : i + most], limit[i : i + most])
            for i in range(0, len(flat), most)
        ]
        out = run_jobs(self._session, jobs, float(self._node.attrs["scale"]))
        bound = copy.largest(int(limits[-1]))[None, :, None]
        if not (np.abs(out) <= bound * MARGIN).all():
            raise WrongResultError("attention gave what keys and values cannot give")
        self._check(jobs, out)
        return out.reshape(rows, group, heads, dim).transpose(0, 2, 1, 3)

    def _check(self, jobs: list[_Job], out: F32) -> None:
        """Computes one head of one query of some commands again: all of them take turns.

        Raises:
            WrongResultError: the device gave something else.
        """
        start = 0
        for turn, job in enumerate(jobs, self._turn):
            if turn % CHECK_EVERY == 0:
                head, query = divmod(turn // CHECK_EVERY, len(job.queries))
                head, scale = head % self._layout.kv_heads, float(self._node.attrs["scale"])
                if not np.array_equal(out[start + query, head], job.recompute(query, head, scale)):
                    raise WrongResultError("attention gave what keys and values cannot give")
            start += len(job.queries)
        self._turn += len(jobs)


@dataclass(frozen=True)
class _Job:
    """Queries of one command: ``[queries, kv_heads, head_dim]``, and what each of them sees."""

    copy: KvCopy
    queries: F32
    first: NDArray[np.int64]
    limit: NDArray[np.int64]

    @property
    def block(self) -> int:
        """The first block of tokens that is read."""
        return int(self.first.min()) // BLOCK_TOKENS

    @property
    def tokens(self) -> int:
        """Tokens from there to the last one that is seen."""
        return int(self.limit.max()) - self.block * BLOCK_TOKENS

    def packed(self, scale: float) -> NDArray[np.uint8]:
        """The queries' bytes."""
        if self.tokens > MAX_TOKENS:
            raise OutsideFormatError(f"{self.tokens} tokens; the unit attends to {MAX_TOKENS}")
        begin = self.block * BLOCK_TOKENS
        scales = self.copy.scales[begin : begin + self.tokens]
        bounds = self.first - begin, self.limit - begin
        return pack_queries(quantise_queries(self.queries, scale, *bounds, scales))

    def recompute(self, query: int, head: int, scale: float) -> F32:
        """One head of a query by the definition, of what was copied to the device."""
        begin = self.block * BLOCK_TOKENS
        ports = [buffer.array for buffer in self.copy.buffers]
        stored = self.copy.layout.read(ports, begin + self.tokens)
        part = Cache(*(field[begin:, head : head + 1] for field in vars(stored).values()))
        chosen = slice(query, query + 1)
        bounds = self.first[chosen] - begin, self.limit[chosen] - begin
        vector = self.queries[chosen, head : head + 1]
        out: F32 = attend(quantise_queries(vector, scale, *bounds, part.value_scales), part)[0, 0]
        return out

    def command(self, x: int, y: int) -> Command:
        """The command, with its queries and results at these addresses."""
        layout = self.copy.layout
        offset = layout.offset(self.block)
        return Command(
            x=x,
            y=y,
            weights=tuple(buffer.address + offset for buffer in self.copy.buffers),
            row_beats=layout.pair_beats,
            tiles=layout.pairs(self.tokens),
            columns=len(self.queries),
            kv_heads=layout.kv_heads,
            head_units=layout.units,
        )


def run_jobs(session: Session, jobs: list[_Job], scale: float) -> F32:
    """Runs commands one behind another; their results ``[queries, kv_heads, head_dim]``."""
    overlay = session.overlay
    packed = [job.packed(scale) for job in jobs]
    starts = np.cumsum([0, *(part.size for part in packed)])
    sizes = [RESULT_BYTES * job.queries.size for job in jobs]
    places = np.cumsum([0, *sizes])
    x = session.scratch.take("queries", int(starts[-1]))
    y = session.scratch.take("attention", int(places[-1]))
    x.array[: starts[-1]] = np.concatenate(packed)
    x.flush()
    commands = [
        job.command(x.address + int(start), y.address + int(place))
        for job, start, place in zip(jobs, starts, places, strict=False)
    ]
    overlay.wait(overlay.submit_all(commands))
    session.count(len(commands))
    y.invalidate()
    outs = []
    for job, place, nbytes in zip(jobs, places, sizes, strict=False):
        count, heads, dim = job.queries.shape
        part = y.array[place : place + nbytes].view(np.float32)
        outs.append(part.reshape(heads, count, dim).transpose(1, 0, 2))
    return np.concatenate(outs)
