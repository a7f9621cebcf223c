"""Traces are replayed token by token, however long they are."""

from __future__ import annotations

import tracemalloc

import numpy as np

from edgerun.offload.policies.scan_lru import ScanResistant
from edgerun.offload.replay import layer_hit_shares
from edgerun.offload.trace_file import CHOICE, Trace

TOKENS, LAYERS, EXPERTS, TOP_K = 2000, 3, 16, 2


def test_a_replay_takes_no_memory_for_each_token() -> None:
    choices = np.zeros((TOKENS, LAYERS, TOP_K), CHOICE)
    choices["expert"] = np.arange(TOKENS * LAYERS).reshape(TOKENS, LAYERS, 1) % EXPERTS
    choices["expert"][..., 1] = (choices["expert"][..., 0] + 1) % EXPERTS
    choices["weight"] = 0.5
    trace = Trace("model", tuple(range(LAYERS)), EXPERTS, 0, choices)
    tracemalloc.start()
    try:
        shares = layer_hit_shares(trace, EXPERTS * LAYERS, ScanResistant())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(1 - EXPERTS / TOKENS < share < 1 for share in shares)
    assert peak < 20 * TOKENS * LAYERS  # a step takes hundreds of bytes
