"""The terms that decide from how many tokens on prompts go elsewhere, of placements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgerun.backends.base import FEW_ROWS, Backend, Shape
from edgerun.backends.estimates import kept_bytes
from edgerun.machine.devices import worthwhile
from edgerun.plan.planner import cheapest_path
from edgerun.plan.requests.breakeven import Side, Split
from edgerun.plan.requests.forecast import Forecast, path_seconds
from edgerun.plan.requests.pairs import Tasks, handover_seconds, launch_seconds
from edgerun.plan.tasks import Placed, Task

POINTS = (1, 8, FEW_ROWS, FEW_ROWS + 1, 32, 64, 128, 256, 512)  # rows of calls to estimate


def split_of(tasks: Tasks, prompts: Placed, replies: Placed) -> Split:
    """The terms of prompts here and replies there.

    Args:
        tasks: both.
        prompts: where the nodes of prompts go.
        replies: where the nodes of replies go, and of prompts that are too short.
    """
    used = {backend.name: backend for _, backend, _ in prompts}
    bases = dict.fromkeys(basis for each in used.values() if (basis := each.cost_basis()))
    call_rows = tasks.budget.call_rows
    where = {node.name: backend for node, backend, _ in replies}
    whole = replace(tasks.prompts, graph=tasks.replies.graph, late=tasks.replies.late)
    there, here = _side(tasks.prompts, prompts, call_rows), _side(whole, replies, call_rows)
    launch_s = sum(launch_seconds(each) for each in used.values())
    handover_s = sum(
        handover_seconds(kept_bytes(node), backend, where[node.name])
        for node, backend, _ in prompts
    )
    sizes = tuple(there.calls) if there.is_padded else ()
    computed = (tasks.prompts, prompts), (whole, replies)
    return Split(
        there,
        here,
        launch_s,
        handover_s,
        decode_s=path_seconds(tasks.replies, replies),
        longest=call_rows,
        basis="; ".join(bases),
        forecast=Forecast(*computed, call_rows, sizes, launch_s, handover_s),
    )


def other_splits(
    tasks: Tasks, backends: Sequence[Backend], prompts: Placed, replies: Placed
) -> list[Split]:
    """What it would take if prompts went to a device that was measured and takes no part."""
    used = {backend.name for _, backend, _ in (*prompts, *replies)}
    splits = []
    for backend in backends:
        if backend.name in used or backend.device_profile() is None:
            continue
        _, placed = cheapest_path(tasks.prompts, backends, backend.name)
        if any(each is backend for _, each, _ in placed):
            splits.append(split_of(tasks, placed, replies))
    return splits


def _side(task: Task, placed: Placed, call_rows: int) -> Side:
    used = {backend.name: backend for _, backend, _ in placed}
    profiles = [profile for each in used.values() if (profile := each.device_profile())]
    chunks = sorted({rows for each in profiles for rows in each.chunks if rows > FEW_ROWS})
    points = chunks or [*(rows for rows in POINTS if rows < call_rows), call_rows]
    sizes = worthwhile(points, call_rows)

    def seconds(rows: int) -> float:
        shape = replace(Shape.of(rows), cached=task.shape.cached)
        return path_seconds(task.shaped(shape), placed)

    return Side(tuple(used), {rows: seconds(rows) for rows in sizes}, is_padded=bool(chunks))
