"""What shared layers cost a whole model beside its products: microseconds a layer.

    python -m tools.bench.offload.boundary_model BUNDLE [--threads 1] [--rows 1] [--calls 200]
        [--device memory=1G,link=4G] [--shares none half]

The same tokens twice, ``rows`` at a time: by the processor alone, in one native program, and with a
device that shares all layers of experts. Layers of replies are shared inside the program, so the
boundary is what Python takes more of a call, by layers, and what the two instructions of a layer
take that give experts away and take their results, without waiting for them. The least tenth and
the median; on a machine with other work the first says more. With ``half`` and ``none`` costs are
set before each call so that the device computes half of the experts, where it has them, or none.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Backend, Shape
from edgerun.kernels.run.program import Program, ThreadTeam
from edgerun.model.bundle import open_bundle
from edgerun.offload.standin import StandinBackend
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tools.bench.offload.boundary import COSTS, cost, shown

WARM_CALLS = 40


class Clock:
    """Counts the seconds that teams of threads spend in programs."""

    seconds = 0.0

    @classmethod
    def start(cls) -> None:
        """From here on."""
        run = ThreadTeam.run

        def counted(team: ThreadTeam, program: Program) -> None:
            begin = time.perf_counter()
            run(team, program)
            cls.seconds += time.perf_counter() - begin

        ThreadTeam.run = counted  # type: ignore[method-assign]


@dataclass(frozen=True)
class Replies:
    """Of each call: seconds of Python, of all, and the tokens.

    Attributes:
        python_s: float64 ``[calls]``.
        whole_s: the same.
        tokens: which they were.
    """

    python_s: NDArray[np.float64]
    whole_s: NDArray[np.float64]
    tokens: list[int]


def main() -> None:
    """Measures the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--device", default="memory=1G,link=4G")
    parser.add_argument("--shares", nargs="+", choices=[*COSTS], default=[*COSTS])
    options = parser.parse_args()
    Clock.start()
    for share in options.shares:
        measure(options, share)


def measure(options: argparse.Namespace, share: str) -> None:
    """Measures replies of which the device computes a share, and prints a line."""
    cpu = make_backend("cpu", given={"threads": options.threads})
    alone = replies(options, [cpu], lambda: None)
    device = StandinBackend()
    device.configure({"threads": options.threads, "share_always": True})
    device.use_device(options.device)
    device.use_companions([cpu])

    def set_costs() -> None:
        assert device._inside is not None
        cost(device._inside, *COSTS[share])

    shared = replies(options, [device, cpu], set_costs)
    if alone.tokens != shared.tokens:
        raise SystemExit("the device computes other tokens than the processor")
    (tally,) = device._tallies
    layers, native_us = tally.layers // options.calls, 1e6 * tally.native_s / tally.layers
    there = tally.cached / max(1, tally.cached + tally.here)
    for each in (device, cpu):
        each.close()
    python_us = 1e6 * (shared.python_s - np.median(alone.python_s)) / layers
    sys.stdout.write(
        f"{layers} layers, {there:.0%} of the experts there: {shown(python_us)} us of Python a "
        f"layer and {native_us:.1f} of native code; a call {shown(1e6 * alone.whole_s)} us "
        f"alone, {shown(1e6 * shared.whole_s)} shared\n"
    )


def replies(
    options: argparse.Namespace, backends: list[Backend], before: Callable[[], None]
) -> Replies:
    """A reply on the first of some back-ends and its companions, after ``before`` each call."""
    bundle = open_bundle(options.bundle)
    states = states_of(bundle.graph, bundle.config, "fp32")
    plan = make_plan(bundle.graph, backends, backends[0].name)
    programs = compile_plan(plan, backends, [Shape.of(options.rows)], CompileOptions(states))
    backends[0].preload()
    rows = options.rows
    store = SequenceStore(states, rows * options.calls + 16, 1)
    sequence, tokens, seconds = store.open(), [1] * rows, []
    for length in range(0, rows * options.calls, rows):
        store.reserve(sequence, length + rows)
        before()
        batch = Batch.of(tokens[-rows:], length, sequence)
        before_s, begin = Clock.seconds, time.perf_counter()
        logits = programs.run(batch, store)["logits"]
        whole_s = time.perf_counter() - begin
        seconds.append((whole_s - (Clock.seconds - before_s), whole_s))
        tokens += logits.argmax(axis=1).tolist()
        store.commit(sequence, length + rows)
    programs.close()
    return Replies(*np.array(seconds[WARM_CALLS:]).T, tokens)


if __name__ == "__main__":
    main()
