"""A layer of experts shared with the stand-in for a GPU: what was planned and what it took.

    python -m tools.bench.standin [--rows 1 4 16] [--calls 60] [--experts 24 --top-k 8]
        [--hidden 2048 --width 1024] [--device memory=48M,link=2G,latency=20us] [--whole]
        [--real-time]

The stand-in is another process on one core, the processor's share runs on one thread, so two cores
must be free; ``--real-time`` (as root, Linux) lets all other programs wait. Weights are random
int4, routes those of a made-up trace (Zipf 0.6, reuse 0.3). In turns with it the same rows go
through the processor alone. The first half of the calls lets the estimates settle; figures are of
the second: medians in ms, and how often the layer ended before the bound of its schedule, which is
of average costs, and before its certificate, which is of the least ever seen. Nothing of it is
about any GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import Backend, Executable, Shape
from edgerun.formats import format_named
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.offload.places import F32
from edgerun.offload.sharing.backend import SharingBackend
from edgerun.offload.sharing.executable import SharedLayer
from edgerun.offload.sharing.tally import Tally
from edgerun.offload.standin import StandinBackend
from edgerun.offload.standin.link import LINK_THREAD
from edgerun.state import Batch, SequenceStore, same_attention
from tools.bench.synthetic_trace import Synthetic

REAL_TIME = 10  # priority
STATE = same_attention(1, 1, 16, "fp32")
COLUMNS = ["rows", "there", "uploaded", "CPU", "cut", "makespan", "planned", "bound"]
COLUMNS += ["certificate", "makespan / planned", "before the bound", "before the certificate"]
COLUMNS += ["whole call", "CPU alone"]


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        tally: what it added to the counts.
        shared_s: seconds that it took, with everything around the schedule.
        alone_s: seconds on the processor.
    """

    tally: Tally
    shared_s: float
    alone_s: float


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--calls", type=int, default=60)
    for name, value in (("experts", 24), ("top-k", 8), ("hidden", 2048), ("width", 1024)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="memory=48M,link=2G,latency=20us")
    parser.add_argument("--whole", action="store_true", help="cut no expert")
    parser.add_argument("--real-time", action="store_true", help="let other programs wait")
    options = parser.parse_args()
    graph = layer(options)
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n")
    for rows in options.rows:
        shared = StandinBackend()
        shared.configure({"threads": 1, "share_always": True})
        shared.use_device(options.device)
        each = {"whole": options.whole, "real_time": options.real_time}
        calls = measure(graph, rows, inputs(rows, options), shared, **each)
        sys.stdout.write(f"| {' | '.join(cells(rows, calls[len(calls) // 2 :]))} |\n")
        sys.stdout.flush()


def layer(options: argparse.Namespace) -> Graph:
    """One layer of experts with random weights."""
    rng, sides = np.random.default_rng(0), (options.width, options.hidden)
    stacks = {}
    for name, (n, k) in {"gate": sides, "up": sides, "down": sides[::-1]}.items():
        values = rng.standard_normal((options.experts, n, k), np.float32) / np.float32(k**0.5)
        stacks[name] = ExpertStack(tuple(format_named("int4").pack(each, 32) for each in values))
    attributes = {"top_k": options.top_k, "activation": "silu", "activations": "int8_block"}
    node = Node("experts", "layer", ("x", "routes", *stacks), ("out",), attributes)
    shapes = {"x": ValueShape(options.hidden), "routes": ValueShape(options.experts)}
    return Graph([node], ["x", "routes"], ["out"], {**stacks}, shapes=shapes)


def measure(
    graph: Graph,
    rows: int,
    pairs: list[tuple[F32, F32]],
    shared: SharingBackend,
    threads: int = 1,
    *,
    whole: bool = False,
    real_time: bool = False,
) -> list[Call]:
    """Calls of a device that shares the layer and of the processor alone, in turns.

    With ``whole`` they cut no expert, with ``real_time`` all other programs wait.
    """
    alone = make_backend("cpu", given={"threads": threads})
    backends: list[Backend] = [shared, alone]
    with precedence(real_time):
        programs = [each.compile(graph, Shape.of(rows), CompileOptions(STATE)) for each in backends]
    if whole and isinstance(programs[0], SharedLayer):
        programs[0]._cutter = None
    shared.preload()
    store, calls = SequenceStore(STATE, 1), []
    for x, routes in pairs:
        (tally,) = shared._tallies
        before = [getattr(tally, name) for name in Tally.__slots__]
        first, shared_s = timed(programs[0], store, x, routes)
        after = [getattr(tally, name) for name in Tally.__slots__]
        second, alone_s = timed(programs[1], store, x, routes)
        if not np.array_equal(first, second):
            raise SystemExit(f"{shared.title} computes other numbers than the processor")
        changes = [
            b if isinstance(b, type(tally.phase)) else b - a
            for a, b in zip(before, after, strict=True)
        ]
        calls.append(Call(Tally(*changes), shared_s, alone_s))
    for each in backends:
        each.close()
    return calls


@contextmanager
def precedence(is_wanted: bool) -> Iterator[None]:
    """Within it devices start that go before all other programs, as does this one from then on.

    The link sleeps most of the time, so it goes before the rest, as it would on an idle machine.

    Raises:
        SystemExit: the system does not allow it.
    """
    if is_wanted:
        _prefer(0, REAL_TIME)
    yield
    for thread in threading.enumerate() if is_wanted else ():
        if thread.name == LINK_THREAD and thread.native_id is not None:
            _prefer(thread.native_id, REAL_TIME + 1)


def _prefer(thread: int, priority: int) -> None:
    try:
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(priority))
    except (AttributeError, PermissionError) as error:
        raise SystemExit(f"--real-time needs a right that root has on Linux: {error}") from error


def timed(program: Executable, store: SequenceStore, x: F32, routes: F32) -> tuple[F32, float]:
    """What a call makes, and its seconds."""
    batch = Batch.of([0] * len(x), 0, 0, logits="none")
    begin = time.perf_counter()
    out = program(batch, store, {"x": x, "routes": routes})["out"].copy()
    return out, time.perf_counter() - begin


def inputs(rows: int, options: argparse.Namespace) -> list[tuple[F32, F32]]:
    """Rows and routes of all calls."""
    sizes = {"experts": options.experts, "top_k": options.top_k, "layers": 1}
    trace = Synthetic(tokens=rows * options.calls, zipf=0.6, reuse=0.3, **sizes).trace()
    rng, pairs = np.random.default_rng(1), []
    for start in range(0, trace.tokens, rows):
        choices = trace.choices[start : start + rows, 0]
        routes = np.zeros((rows, options.experts), np.float32)
        np.put_along_axis(routes, choices["expert"].astype(np.int64), choices["weight"], axis=1)
        pairs.append((rng.standard_normal((rows, options.hidden)).astype(np.float32), routes))
    return pairs


def cells(rows: int, calls: list[Call]) -> list[str]:
    """A row of the table."""
    tallies = [call.tally for call in calls]
    counts = [sum(getattr(t, name) for t in tallies) for name in ("cached", "uploaded", "here")]
    shares = [f"{count / sum(counts):.0%}" for count in counts]
    shares.append(f"{sum(t.cut for t in tallies) / len(tallies):.0%}")
    times = [
        1e3 * statistics.median(getattr(t, name) for t in tallies)
        for name in ("seconds", "planned_s", "bound_s", "certified_s")
    ]
    ratio = statistics.median(t.seconds / t.planned_s for t in tallies)
    early = sum(t.seconds < t.bound_s for t in tallies) / len(tallies)
    before = sum(t.early for t in tallies) / len(tallies)
    calls_ms = [
        1e3 * statistics.median(getattr(call, name) for call in calls)
        for name in ("shared_s", "alone_s")
    ]
    figures = [f"{each:.2f}" for each in times]
    return [str(rows), *shares, *figures, f"{ratio:.2f}", f"{early:.0%}", f"{before:.1%}"] + [
        f"{each:.2f}" for each in calls_ms
    ]


if __name__ == "__main__":
    main()
