"""Output heads alone: full and screened, for tests and without the model below them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Executable, Phase, make_backend
from edgerun.backends.cpu.screen_builder import ScreenPolicy
from edgerun.backends.cpu.screened import ScreenedExecutable
from edgerun.formats import format_named
from edgerun.formats.base import PackedWeight
from edgerun.graph.ir import Graph, Node
from edgerun.state import Batch, CacheSpec, KVCache, Leading

F32 = NDArray[np.float32]
SPEC = CacheSpec(1, 1, 16, "fp32")
NO_IDS = np.zeros(0, np.int64)
POLICY = ScreenPolicy(states=64, background=False, trial=0)


def head_graph(weight: PackedWeight) -> Graph:
    """A graph that selects rows and multiplies them."""
    nodes = [
        Node("select_rows", "select", ("state",), ("selected",)),
        Node("linear", "head", ("selected", "weight"), ("logits",), {"activations": "int8_block"}),
    ]
    return Graph(nodes, ["state"], ["logits"], {"weight": weight})


@dataclass
class Heads:
    """A head compiled twice."""

    full: Executable
    screened: ScreenedExecutable
    cache: KVCache

    def exact(self, state: F32) -> F32:
        """All logits, float32 ``[N]``."""
        return self._run(self.full, state, None)

    def screen(self, state: F32, count: int, ids: NDArray[np.int64] = NO_IDS) -> F32:
        """Logits of which only the leading ones count."""
        return self._run(self.screened, state, Leading(count, ids))

    def learn(self, states: F32, count: int = 1) -> None:
        """Shows states until the screen is in use or given up."""
        for state in states:
            self.screen(state, count)

    def _run(self, executable: Executable, state: F32, leading: Leading | None) -> F32:
        batch = Batch.of([0], 0, 0, leading=leading)
        return executable(batch, self.cache, {"state": state[None]})["logits"][0].copy()


@contextmanager
def heads(weight: PackedWeight, policy: ScreenPolicy = POLICY, threads: int = 1) -> Iterator[Heads]:
    """Compiles a head with and without a screen."""
    backend, graph = make_backend("cpu"), head_graph(weight)
    full = backend.compile(graph, Phase.DECODE, CompileOptions(threads, 1, SPEC))
    options = CompileOptions(threads, 1, SPEC, screen=True)
    screened = backend.compile(graph, Phase.DECODE, options)
    assert isinstance(screened, ScreenedExecutable)
    screened.follow(policy)
    try:
        yield Heads(full, screened, KVCache(SPEC, 64))
    finally:
        screened.close()
        full.close()
        backend.close()


def random_head(rows: int, k: int, block: int = 32, seed: int = 0) -> PackedWeight:
    """int8 rows of normal weights."""
    weight = np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32)
    return format_named("int8").pack(weight, block)


def likely_states(weight: PackedWeight, count: int, seed: int = 0) -> F32:
    """States as models have them: mostly in few directions, and near the row of some token."""
    rng = np.random.default_rng([seed, 1])
    rows = format_named("int8").unpack(weight)[rng.integers(0, weight.shape[0], count)]
    shared = rng.standard_normal((8, weight.shape[1]))
    common = rng.standard_normal((count, 8)) @ shared
    noise = rng.standard_normal((count, weight.shape[1]))
    parts = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (rows, common, noise)]
    states: F32 = (30 * (0.7 * parts[0] + parts[1] + 0.5 * parts[2])).astype(np.float32)
    return states


def leading_set(logits: F32, count: int) -> list[tuple[int, float]]:
    """Ids and values of the ``count`` largest, with all that equal the last of them."""
    least = np.partition(logits, -count)[-count]
    return [(int(index), float(logits[index])) for index in np.flatnonzero(logits >= least)]
