"""Measures devices beside the processor, through the contract of their back-ends.

Small networks are compiled and timed as a model's would be, calls as edgerun makes them: what is
copied into a device and out of it is in their time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

from edgerun.backends.base import Backend, CompileOptions, Executable, Progress, Shape
from edgerun.backends.cpu.transfer import NativeTransfer
from edgerun.backends.registry import backend_names, make_backend
from edgerun.errors import EdgerunError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.machine.devices import ATTENTION, ELEMENTS, Call, DeviceProfile, device_key
from edgerun.machine.profile import family
from edgerun.machine.timing import best_time
from edgerun.plan.calibration.device_process import measure_apart
from edgerun.plan.calibration.loads import Load, graph_of
from edgerun.plan.programs import with_fallback
from edgerun.state import Batch, SequenceStore, same_attention

logger = logging.getLogger(__name__)

FAMILIES = (
    ("int8_row", "ternary"),
    ("float", "int4"),
    ("float", "float32"),
)
SIZE, LAYERS = 1024, 4
HEADS, KV_HEADS, HEAD_DIM = 12, 4, 64  # three queries to a key, as in many models
PASTS = (256, 1024)  # tokens before the rows that attend to them
NORMS = 16
PAUSE_S, PAUSES = 0.5, 3
ROUNDS, SECONDS = 3, 0.08  # for each figure
COPIED_TOKENS, COPIED_LAYERS = 256, 32  # more than caches hold, as a model's are
LARGE = (2048, 8)  # size and layers of the network whose memory is measured
STATES = same_attention(1, KV_HEADS, HEAD_DIM)
TINY = 64


@dataclass(frozen=True, slots=True)
class Timed:
    """A graph to time.

    Attributes:
        graph: whose inputs' shapes it states.
        row_work: multiply-adds, or elements, for each row, and for each token where it attends.
        past: tokens in the cache before the rows.
    """

    graph: Graph
    row_work: int
    past: int = 0

    def work(self, rows: int) -> int:
        """In a call of so many rows, which attend to all tokens that there is room for."""
        return self.row_work * rows * (self.past + rows if self.past else 1)


def measure_devices(threads: int, progress: Progress) -> dict[str, DeviceProfile]:
    """Measures what all back-ends say that there is to measure; by ``device_key``.

    A device that seems to be here and does not work has no profile, and a line says why.
    """
    profiles = {}
    for name in backend_names():
        for device, version in make_backend(name).measures().items():
            title = f"{name}:{device}"
            progress(title)
            try:
                measured = measure_apart(name, device, threads)
            except EdgerunError as error:
                logger.warning("%s was not measured: %s", title, error)
            else:
                profiles[device_key(title, version)] = replace(measured, version=version)
    return profiles


def measure_device(name: str, device: str, threads: int) -> DeviceProfile:
    """Measures one device of a back-end; its version is not in the result."""
    given = {"threads": threads}
    with ExitStack() as owned:
        backend = make_backend(name, device, given)
        companions = [make_backend(each, given=given) for each in backend.companions]
        for each in (backend, *companions):
            owned.callback(each.close)
        by_name = {each.name: each for each in (backend, *companions)}
        options = with_fallback(by_name, backend.name, CompileOptions(STATES))
        bench = _Bench(backend, options)
        load_bytes_s, store_bytes_s = measure_copies()
        read_again = None if backend.mirrors else load_bytes_s
        call_s, launch_s = bench.empty_call()  # loads the libraries, whose memory is not counted
        compile_s, memory_bytes, weight_bytes = bench.memory()
        return DeviceProfile(
            calls=bench.calls(backend.chunks(), read_again),
            call_s=call_s,
            launch_s=launch_s,
            load_bytes_s=load_bytes_s,
            store_bytes_s=store_bytes_s,
            compile_s=compile_s,
            memory_bytes=memory_bytes,
            weight_bytes=weight_bytes,
            mirrors=backend.mirrors,
            measured=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        )


def measure_copies() -> tuple[float, float]:
    """Bytes of keys and values a second, as float32, out of pages and into them."""
    states = same_attention(COPIED_LAYERS, KV_HEADS, HEAD_DIM)
    store = SequenceStore(states, COPIED_TOKENS, transfer=NativeTransfer())
    slot, shape = store.open(), (len(states), 2, COPIED_TOKENS, KV_HEADS, HEAD_DIM)
    store.reserve(slot, COPIED_TOKENS)
    rows, out = np.ones(shape, np.float32), np.zeros(shape, np.float32)

    def write() -> None:
        for state, block in zip(states, rows, strict=True):
            store.write_block(state.name, slot, 0, tuple(block))

    def read() -> None:
        for state, block in zip(states, out, strict=True):
            store.read_block(state.name, slot, 0, COPIED_TOKENS, tuple(block))

    written = best_time(write)
    return rows.nbytes / best_time(read), rows.nbytes / written


class _Bench:
    """Compiles graphs for a device and times them."""

    def __init__(self, backend: Backend, options: CompileOptions) -> None:
        self._backend, self._options = backend, options

    def calls(
        self, chunks: Sequence[int], load_bytes_s: float | None
    ) -> dict[str, tuple[Call, ...]]:
        """All kinds of work, in calls of these sizes; without the past that each call reads.

        The quickest of several rounds over all of them counts, so that another program's moment
        is not what a figure says.
        """
        token_s = 8 * KV_HEADS * HEAD_DIM / load_bytes_s if load_bytes_s else 0.0
        kinds = {
            **{family(*each): [linear(*each)] for each in FAMILIES},
            ELEMENTS: [norms(SIZE, NORMS)],
            ATTENTION: [attention(past) for past in PASTS],
        }
        each_call = [
            (kind, timed, rows)
            for kind, all_timed in kinds.items()
            for timed in all_timed
            for rows in chunks
        ]
        with ExitStack() as owned:
            runs = [self._run(timed, rows, owned) for _, timed, rows in each_call]
            rounds = [[best_time(run, SECONDS) for run in runs] for _ in range(ROUNDS)]
        calls: dict[str, tuple[Call, ...]] = {}
        for (kind, timed, rows), times in zip(each_call, zip(*rounds, strict=True), strict=True):
            seconds = min(times)
            net = max(seconds - timed.past * token_s, seconds / 2)
            call = Call(rows, timed.work(rows), net, timed.past)
            calls[kind] = (*calls.get(kind, ()), call)
        return calls

    def empty_call(self) -> tuple[float, float]:
        """Seconds of a call with nothing to do, and how many more the first after a pause takes."""
        with ExitStack() as owned:
            run = self._run(norms(TINY, 1), 1, owned)
            usual = best_time(run)
            first = min(_after_pause(run) for _ in range(PAUSES))
            return usual, max(first - usual, 0.0)

    def memory(self) -> tuple[float, int, int]:
        """Of a large network: seconds to compile, bytes that it takes, and bytes of its weights."""
        import psutil

        size, layers = LARGE
        load = Load("float", "int4", 1, (size, size), layers, shared=False)
        timed = Timed(graph_of(load), load.multiply_adds)
        process = psutil.Process()
        with ExitStack() as owned:
            before, began = process.memory_info().rss, time.perf_counter()
            self._run(timed, 1, owned)
            took, seconds = process.memory_info().rss - before, time.perf_counter() - began
        weights = sum(constant.nbytes for constant in timed.graph.constants.values())
        return seconds, max(took, 0), weights

    def _run(self, timed: Timed, rows: int, owned: ExitStack) -> Callable[[], object]:
        graph, past = timed.graph, timed.past
        executable: Executable = self._backend.compile(graph, Shape.of(rows), self._options)
        owned.callback(executable.close)
        store = SequenceStore(STATES, past + rows, transfer=NativeTransfer())
        slot = store.open()
        store.reserve(slot, past + rows)
        for start in range(0, past, COPIED_TOKENS):
            block = np.zeros((min(COPIED_TOKENS, past - start), KV_HEADS, HEAD_DIM), np.float32)
            store.write_block(STATES[0].name, slot, start, (block, block))
        store.commit(slot, past)
        batch = Batch.of([0] * rows, past, slot, logits="none")
        rng = np.random.default_rng(0)
        values = {
            name: rng.standard_normal((rows, shape.width)).astype(np.float32)
            for name, shape in graph.shapes.items()
        }
        executable(batch, store, values)  # compiles the network that it needs
        return lambda: executable(batch, store, values)


def _after_pause(run: Callable[[], object]) -> float:
    """Seconds of a call after a pause."""
    time.sleep(PAUSE_S)
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def linear(activations: str, weights: str) -> Timed:
    """Layers that multiply."""
    load = Load(activations, weights, 1, (SIZE, SIZE), LAYERS, chained=True, shared=False)
    return Timed(graph_of(load), load.multiply_adds)


def norms(width: int, count: int) -> Timed:
    """Layers that do a little with every element."""
    nodes = [
        Node(
            "rms_norm", f"n{index}", (f"x{index}", "weight"), (f"x{index + 1}",), {"epsilon": 1e-5}
        )
        for index in range(count)
    ]
    weight = np.ones(width, np.float32)
    shapes = {"x0": ValueShape(width)}
    graph = Graph(nodes, ["x0"], [f"x{count}"], {"weight": weight}, shapes=shapes)
    return Timed(graph, width * count)


def attention(past: int) -> Timed:
    """A layer that attends to so many tokens."""
    sizes = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM}
    scores = {"scale": HEAD_DIM**-0.5, "window": 0, "softcap": 0.0}
    attributes = {"layer": 0, **sizes, **scores}
    node = Node("attention", "a", ("q", "k", "v"), ("out",), attributes)
    key_shape = ValueShape(KV_HEADS * HEAD_DIM)
    shapes = {"q": ValueShape(HEADS * HEAD_DIM), "k": key_shape, "v": key_shape}
    graph = Graph([node], ["q", "k", "v"], ["out"], {}, shapes=shapes)
    return Timed(graph, 2 * HEADS * HEAD_DIM, past)
