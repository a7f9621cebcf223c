"""Rules by which others, and we, divide the experts of a layer: a function each, by its name.

A rule takes what the active experts cost, see ``machine.play``, and how many may be uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgerun.offload.schedule import MAX_EXPERTS, Scheduler
from tools.bench.offload.machine import CPU, DEVICE, UPLOAD, Division
from tools.bench.offload.profile import F64

Rule = Callable[[F64, int], Division]
PARTS = 32


def whole(cpu: NDArray[np.int64], device: NDArray[np.int64]) -> Division:
    """A division that cuts no expert."""
    return Division([(int(e), 1.0) for e in cpu], [(int(e), 1.0) for e in device])


def _by(costs: F64, experts: NDArray[np.int64], *, falling: bool) -> NDArray[np.int64]:
    """Experts by their load, which is what they cost on the processor."""
    loads = -costs[experts, CPU] if falling else costs[experts, CPU]
    return experts[np.argsort(loads, kind="stable")]


def static(costs: F64, room: int) -> Division:
    """What is on the device is computed there, all else on the processor."""
    return whole(np.flatnonzero(costs[:, UPLOAD]), np.flatnonzero(costs[:, UPLOAD] == 0))


def upload_all(costs: F64, room: int) -> Division:
    """Everything is computed on the device, as far as there is room."""
    missing = np.flatnonzero(costs[:, UPLOAD])
    cached = np.flatnonzero(costs[:, UPLOAD] == 0)
    return whole(missing[room:], np.concatenate([cached, missing[:room]]))


def fiddler(costs: F64, room: int) -> Division:
    """An expert that is missing is uploaded if that and its product take less than the processor.

    Source: Kamahori et al. 2024 (Fiddler, arXiv 2402.07033), section 3: each expert by itself.
    """
    is_missing = costs[:, UPLOAD] > 0
    pays = is_missing & (costs[:, UPLOAD] + costs[:, DEVICE] < costs[:, CPU])
    uploaded = np.flatnonzero(pays)[:room]
    here = np.setdiff1d(np.flatnonzero(is_missing), uploaded)
    return whole(here, np.concatenate([np.flatnonzero(~is_missing), uploaded]))


def fetch_ratio(costs: F64, room: int) -> Division:
    """The same share of missing experts is always uploaded: where processor and link are even."""
    missing = _by(costs, np.flatnonzero(costs[:, UPLOAD]), falling=True)
    cached = np.flatnonzero(costs[:, UPLOAD] == 0)
    cpu, upload = costs[missing][:, [CPU, UPLOAD]].sum(axis=0)
    count = min(room, round(len(missing) * cpu / (cpu + upload))) if len(missing) else 0
    return whole(missing[count:], np.concatenate([cached, missing[:count]]))


def hybrimoe(costs: F64, room: int) -> Division:
    """Greedy: of what each resource would do next, what ends first is done.

    The device takes cached experts with the highest load first; the processor those that are
    missing, the lowest load first, and when none is left cached ones, the lowest first; the link
    missing ones, the highest first. Source: Zhong et al. 2025 (HybriMoE, arXiv 2504.05897),
    section IV-B, for the priorities; that the candidate which ends first is taken is how we read
    its simulation of timelines.
    """
    cached = _by(costs, np.flatnonzero(costs[:, UPLOAD] == 0), falling=True).tolist()
    missing = _by(costs, np.flatnonzero(costs[:, UPLOAD]), falling=True).tolist()
    here, there = [], []
    cpu_s = device_s = link_s = 0.0
    while cached or missing:
        candidates = []
        if cached:
            candidates.append((device_s + costs[cached[0], DEVICE], DEVICE))
        if missing and room > 0:
            arrival = link_s + costs[missing[0], UPLOAD]
            candidates.append((max(device_s, arrival) + costs[missing[0], DEVICE], UPLOAD))
        candidates.append((cpu_s + costs[(missing or cached)[-1], CPU], CPU))
        end, resource = min(candidates)
        if resource == CPU:
            here.append((missing or cached).pop())
            cpu_s = end
            continue
        expert = (cached if resource == DEVICE else missing).pop(0)
        there.append(expert)
        device_s = end
        if resource == UPLOAD:
            link_s, room = link_s + costs[expert, UPLOAD], room - 1
    return whole(np.array(here, np.int64), np.array(there, np.int64))


@cache
def _scheduler() -> Scheduler:
    return Scheduler(MAX_EXPERTS, PARTS)


def ours(costs: F64, room: int) -> Division:
    """Ours: ``offload/schedule.py``, experts cut into ``PARTS``."""
    schedule = _scheduler()(*costs.T, room)
    shares = schedule.shares / PARTS
    return Division(
        [(int(e), 1 - shares[e]) for e in np.flatnonzero(shares < 1)],
        [(int(e), float(shares[e])) for e in schedule.order],
    )


RULES: Mapping[str, Rule] = {
    "static": static,
    "upload all": upload_all,
    "Fiddler": fiddler,
    "fetch ratio": fetch_ratio,
    "HybriMoE": hybrimoe,
    "edgerun": ours,
}
