"""One bundle in edgerun and in onnxruntime, in turns: what layers of experts cost in each.

    python -m tools.bench.random_model olmoe-1b-7b CHECKPOINT --layers 1
    edgerun export CHECKPOINT --out BUNDLE --weights int4
    python -m tools.bench.experts BUNDLE [--rows 1 64] [--rounds 40] [--threads N]

Every call begins an empty sequence with random tokens and wants the logits of the last. A round is
a call of each; the table, in Markdown, has the least and the median time of both in milliseconds,
the bytes of weights that such a call reads if its rows choose experts evenly, and edgerun's speed
in reading them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import CompileOptions, make_backend
from edgerun.backends.base import buckets
from edgerun.graph.shapes import node_work
from edgerun.kernels.host.cores import worker_threads
from edgerun.model.bundle import open_bundle
from edgerun.plan.planner import make_plan
from edgerun.plan.programs import compile_plan
from edgerun.plan.states import states_of
from edgerun.state import Batch, SequenceStore

Ids: TypeAlias = NDArray[np.int32]
Call: TypeAlias = Callable[[Ids], Any]
WARM_ROUNDS = 2
COLUMNS = ["rows", "edgerun", "median", "onnxruntime", "median", "MB read", "GB/s"]


def main() -> None:
    """Measures what the command line names and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=worker_threads(None))
    arguments = parser.parse_args()
    theirs = onnxruntime_call(arguments.bundle, arguments.threads)
    sys.stdout.write(line(COLUMNS) + line(["---"] * len(COLUMNS)))
    with edgerun_call(arguments.bundle, arguments.threads, max(arguments.rows)) as ours:
        for rows in arguments.rows:
            mine, others = measure([ours, theirs], rows, arguments.rounds)
            nbytes = read_bytes(arguments.bundle, rows)
            cells = [min(mine), statistics.median(mine), min(others), statistics.median(others)]
            speeds = [nbytes / 1e6, nbytes / 1e9 / min(mine)]
            figures = [f"{1e3 * each:.2f}" for each in cells] + [f"{each:.1f}" for each in speeds]
            sys.stdout.write(line([str(rows), *figures]))
            sys.stdout.flush()


def line(cells: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |\n"


def measure(calls: list[Call], rows: int, rounds: int) -> list[list[float]]:
    """Seconds of each call, round by round, without those that warm up."""
    generator = np.random.default_rng(rows)
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(WARM_ROUNDS + rounds):
        ids = generator.integers(0, 256, rows, np.int32)
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call(ids)
            if turn >= WARM_ROUNDS:
                times.append(time.perf_counter() - start)
    return seconds


@contextmanager
def edgerun_call(folder: Path, threads: int, max_rows: int) -> Iterator[Call]:
    """A call of the CPU back-end."""
    bundle, backends = open_bundle(folder), [make_backend("cpu", given={"threads": threads})]
    states = states_of(bundle.graph, bundle.config, "fp16")
    plan = make_plan(bundle.graph, backends)
    programs = compile_plan(plan, backends, buckets(max_rows), CompileOptions(states))
    store = SequenceStore(states, max_rows, 1)
    sequence = store.open()
    store.reserve(sequence, max_rows)
    yield lambda ids: programs.run(Batch.of(ids, 0, sequence), store)
    programs.close()
    backends[0].close()


def onnxruntime_call(folder: Path, threads: int) -> Call:
    """A call of onnxruntime on the bundle's own graph."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings)
    past = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values")
    }

    def call(ids: Ids) -> Any:
        feeds = {
            "input_ids": ids[None].astype(np.int64),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        }
        return session.run(None, feeds | past)

    return call


def read_bytes(folder: Path, rows: int) -> float:
    """Bytes of weights that a call of so many rows reads."""
    graph = open_bundle(folder).graph
    return sum(node_work(graph, node, graph.shapes).read_nbytes(rows) for node in graph.nodes)


if __name__ == "__main__":
    main()
