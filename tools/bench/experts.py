"""One bundle in edgerun and in onnxruntime, in turns: what layers of experts cost in each.

    python -m tools.bench.random_model olmoe-1b-7b CHECKPOINT --layers 1
    edgerun export CHECKPOINT --out BUNDLE --weights int4
    python -m tools.bench.experts BUNDLE [--rows 1 64] [--rounds 10] [--calls 5] [--threads N]
        [--rival OTHER ...]

Every call begins an empty sequence with random tokens and wants the logits of all, as onnxruntime
computes them: of the last alone edgerun would skip most of a model of one layer. Beside the whole
model edgerun's layers of experts are measured alone, with random routes. A rival is another bundle
of the same model for onnxruntime, of the genai profile for instance.

In a round each side has a pause, because threads of the one before still look for work, then a call
that is not timed and some that are, as in decoding, and the speed of memory is measured. The
table, in Markdown, has the least and the median time of all calls, the bytes of weights that such a
call reads if its rows choose experts evenly, how fast the fastest read them, the share of the
best speed of memory, and how many times as long as edgerun's the median was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, Shape, make_backend
from edgerun.backends.base import Backend, buckets
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.graph.shapes import node_work
from edgerun.kernels.host.cores import worker_threads
from edgerun.model.bundle import open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore
from tools.bench.peers.bandwidth import BandwidthMeter
from tools.bench.peers.models import unread_bytes

Ids: TypeAlias = NDArray[np.int32]
Prepare: TypeAlias = Callable[[Ids], Callable[[], Any]]
PAUSE_S = 0.2
VOCABULARY = 256  # ids that any model has
COLUMNS = ["rows", "", "ms", "median", "MB read", "GB/s", "of memory", "times edgerun"]


@dataclass(frozen=True, slots=True)
class Side:
    """Something that is measured.

    Attributes:
        name: of the line in the table.
        prepare: of some ids makes a call that can be timed.
        graph: whose weights it reads; None where nobody has counted them.
    """

    name: str
    prepare: Prepare
    graph: Graph | None = None


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--threads", type=int, default=worker_threads(None))
    parser.add_argument("--rival", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    rivals = [
        Side(f"onnxruntime, {folder.name}", onnxruntime_calls(folder, arguments.threads))
        for folder in (arguments.bundle, *arguments.rival)
    ]
    meter = BandwidthMeter(arguments.threads)
    sys.stdout.write(line(COLUMNS) + line(["---"] * len(COLUMNS)))
    with edgerun_sides(arguments.bundle, arguments.threads, arguments.rows) as ours:
        sides = [*ours, *rivals]
        for rows in arguments.rows:
            times, memory = measure(sides, rows, arguments.rounds, arguments.calls, meter)
            for side in sides:
                sys.stdout.write(line(figures(side, rows, times, memory, of=sides[0])))
            sys.stdout.flush()
    meter.close()


def line(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def figures(
    side: Side, rows: int, times: Mapping[str, list[float]], memory: float, of: Side
) -> list[str]:
    """The cells of a side; ``memory`` is in bytes a second."""
    least, median = min(times[side.name]), statistics.median(times[side.name])
    cells = [str(rows), side.name, f"{1e3 * least:.2f}", f"{1e3 * median:.2f}"]
    if side.graph is None:
        cells += [""] * 3
    else:
        nbytes = read_bytes(side.graph, rows)
        speed = nbytes / least
        cells += [f"{nbytes / 1e6:.1f}", f"{speed / 1e9:.1f}", f"{speed / memory:.2f}"]
    return [*cells, f"{median / statistics.median(times[of.name]):.2f}"]


def measure(
    sides: list[Side], rows: int, rounds: int, calls: int, meter: BandwidthMeter
) -> tuple[dict[str, list[float]], float]:
    """Seconds of each side's timed calls, and the best speed of memory, bytes a second."""
    generator = np.random.default_rng(rows)
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    memory = 0.0
    for _round in range(rounds):
        memory = max(memory, meter.measure(passes=1))
        for side in sides:
            time.sleep(PAUSE_S)
            runs = [
                side.prepare(generator.integers(0, VOCABULARY, rows, np.int32))
                for _call in range(calls + 1)
            ]
            seconds = [seconds_of(run) for run in runs]
            times[side.name] += seconds[1:]
    return times, memory


def seconds_of(run: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@contextmanager
def edgerun_sides(folder: Path, threads: int, rows: list[int]) -> Iterator[list[Side]]:
    """The CPU back-end with the whole model, and with its layers of experts alone."""
    bundle, backends = open_bundle(folder), [make_backend("cpu", given={"threads": threads})]
    states = states_of(bundle.graph, bundle.config, "fp16")
    options, plan = CompileOptions(states), make_plan(bundle.graph, backends)
    programs = compile_plan(plan, backends, buckets(max(rows)), options)
    store = SequenceStore(states, max(rows), 1)
    sequence = store.open()
    store.reserve(sequence, max(rows))
    alone = experts_alone(bundle.graph)
    yield [
        Side(
            "edgerun",
            lambda ids: partial(programs.run, Batch.of(ids, 0, sequence, logits="all"), store),
            bundle.graph,
        ),
        Side("its experts alone", experts_calls(alone, backends[0], rows, options), alone),
    ]
    programs.close()
    backends[0].close()


def experts_alone(graph: Graph) -> Graph:
    """The layers of experts of a model, each of which takes the same rows and routes."""
    nodes = [
        node.replace(inputs=("x", "routes", *node.inputs[2:]), outputs=(f"{node.name}/out",))
        for node in graph.nodes
        if node.op == "experts"
    ]
    constants = {name: graph.constants[name] for node in nodes for name in node.inputs[2:] if name}
    return Graph(nodes, ["x", "routes"], [node.outputs[0] for node in nodes], constants)


def experts_calls(
    graph: Graph, backend: Backend, rows: list[int], options: CompileOptions
) -> Prepare:
    """Calls of layers of experts with random rows, each of which goes to random experts."""
    first = graph.nodes[0]
    stack = graph.constants[first.inputs[2]]
    assert isinstance(stack, ExpertStack)
    experts, _, width = stack.shape
    programs = {count: backend.compile(graph, Shape.of(count), options) for count in rows}
    store = SequenceStore(options.states, max(rows), 1)
    generator = np.random.default_rng(0)

    def prepare(ids: Ids) -> Callable[[], Any]:
        order = generator.random((len(ids), experts)).argsort(axis=1)
        chosen = order < first.attrs["top_k"]
        values = {
            "x": generator.standard_normal((len(ids), width), np.float32),
            "routes": np.asarray(chosen / first.attrs["top_k"], np.float32),
        }
        return partial(programs[len(ids)], Batch.of(ids, 0, 0, logits="none"), store, values)

    return prepare


def onnxruntime_calls(folder: Path, threads: int) -> Prepare:
    """Calls of onnxruntime on a bundle's graph."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings)
    inputs = {value.name: value for value in session.get_inputs()}
    past = {
        name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for name, value in inputs.items()
        if name.startswith("past_key_values")
    }

    def prepare(ids: Ids) -> Callable[[], Any]:
        feeds = {
            "input_ids": ids[None].astype(np.int64),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        }
        given = {name: value for name, value in feeds.items() if name in inputs}
        return partial(session.run, None, given | past)

    return prepare


def read_bytes(graph: Graph, rows: int) -> float:
    """Bytes of weights that a call of so many rows reads, as they lie in memory."""
    return sum(
        node_work(graph, node, graph.shapes).read_nbytes(rows) - unread_bytes(graph, node, rows)
        for node in graph.nodes
    )


if __name__ == "__main__":
    main()
