"""A golden mixture of experts, on the processor alone or shared with a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Backend, Phase, buckets
from edgerun.model.bundle import open_bundle
from edgerun.offload.estimates import Estimate, Estimates
from edgerun.offload.sharing.session import Session
from edgerun.offload.sharing.tally import Tally
from edgerun.offload.standin import StandinBackend
from edgerun.plan.planner import make_plan
from edgerun.plan.plans import Plan
from edgerun.plan.programs import Programs, compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tests.support.bundles import bundle_of

F32 = NDArray[np.float32]
PROMPT, TOKENS = [256, *range(20)], 64
ALL = "memory=8M"  # of a stand-in: room for all experts of golden models


class Running(NamedTuple):
    """What runs a model: the first back-end, programs, caches, and where everything is."""

    backend: Any
    programs: Programs
    store: SequenceStore
    plan: Plan


class Fixed(Estimate):
    """A cost that stays what it is: a device of tests would soon get nothing to do."""

    def _learn(self, kinds: object, expected: float, seconds: float) -> None:
        pass


def attract(backend: StandinBackend) -> None:
    """Makes the stand-in seem so fast that it gets something to do, however slow it is."""
    for estimates in filter(None, (backend._estimates, backend._inside)):
        estimates.cpu, estimates.device = Estimate(1.0), Estimate(1e-6)


def session_of(backend: StandinBackend) -> Session:
    assert backend._session is not None
    return backend._session


def tally_of(backend: StandinBackend) -> Tally:
    """What was counted of replies."""
    (tally,) = (each for each in backend._tallies if each.phase is Phase.DECODE)
    return tally


def nothing(backend: Any, token: int) -> None:
    """No fault."""


@contextmanager
def running(name: str, weights: str, backend: Backend | None, rows: int = 24) -> Iterator[Running]:
    """A model on the processor, and on a back-end beside it if there is one."""
    bundle = open_bundle(bundle_of(name, weights=weights))
    backends = [make_backend("cpu", given={"threads": 1})]
    if backend is not None:
        backends.insert(0, backend)
    states = states_of(bundle.graph, bundle.config, "fp32")
    plan = make_plan(bundle.graph, backends, backends[0].name)
    programs = compile_plan(plan, backends, buckets(rows), CompileOptions(states))
    try:
        backends[0].preload()
        yield Running(backends[0], programs, SequenceStore(states, 128, 1), plan)
    finally:
        programs.close()
        for each in backends:
            each.close()


def logits_of(
    name: str,
    weights: str,
    backend: Backend | None,
    event: Callable[[Any, int], None] = nothing,
    prompt: list[int] = PROMPT,
    tokens: int = TOKENS,
) -> list[F32]:
    """The logits of a prompt and of some tokens after it; ``event`` sees the back-end each time."""
    with running(name, weights, backend) as (_, programs, store, _):
        sequence, ids, length, logits = store.open(), prompt, 0, []
        for token in range(tokens):
            if backend is not None:
                event(backend, token)
            store.reserve(sequence, length + len(ids))
            batch = Batch.of(np.asarray(ids, np.int32), length, sequence, logits="last")
            logits.append(programs.run(batch, store)["logits"].copy())
            length += len(ids)
            store.commit(sequence, length)
            ids = [int(logits[-1][0].argmax())]
        return logits


def standin(device: str) -> StandinBackend:
    """A stand-in as it is asked for by ``--device``."""
    backend = StandinBackend()
    backend.configure({"threads": 1, "share_always": True})
    backend.use_device(device)
    return backend


class Even(StandinBackend):
    """A stand-in that seems as fast as the processor, and goes on seeming so."""

    prices = 1e-3, 1e-3

    def assumed_costs(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        return Estimates(*map(Fixed, self.prices), Fixed(1.0), Fixed(1e-9), Fixed(1e-9))

    def assumed_inside(self, shape: tuple[int, int], nbytes: int) -> Estimates:
        return self.assumed_costs(shape, nbytes)


class Helpful(Even):
    """One that seems a thousand times as fast."""

    prices = 1e-3, 1e-6


def standin_like(kind: type[Even], device: str = ALL, *, always: bool = True) -> Even:
    backend = kind()
    backend.configure({"threads": 1, "share_always": always})
    backend.use_device(device)
    return backend
