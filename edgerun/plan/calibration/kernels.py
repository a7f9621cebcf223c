"""Measures what the processor's kernels do, each as the CPU back-end starts it.

Figures are taken in several rounds, some seconds apart, and the best counts: a moment in which
another program had a core is then not what a figure says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np

from edgerun.backends.base import FEW_ROWS, CompileOptions, Executable, Progress, Shape, Values
from edgerun.backends.cpu.emit.attention import seen_in_pages
from edgerun.backends.cpu.families import WEIGHT_BITS
from edgerun.backends.registry import make_backend
from edgerun.graph.ir import Constant, Graph, Node, ValueShape
from edgerun.machine.devices import ELEMENTS
from edgerun.machine.profile import (
    GATE,
    MULTIPLY,
    attention_kind,
    family,
    outputs_kind,
    rounding_kind,
)
from edgerun.machine.timing import best_time
from edgerun.plan.calibration.loads import Load, graph_of, random_weight
from edgerun.state import Batch, SequenceStore, State, same_attention

FAMILIES = tuple(
    (activations, weights)
    for activations, formats in (
        ("int8_row", ("trits", "ternary", "int2", "int4", "int8")),
        ("int8_block", ("int2", "int4", "int8")),
        ("float", ("int2", "int4", "int8", "float32")),
    )
    for weights in formats
)
ROUNDED = {"int8_row": "ternary", "int8_block": "int4"}  # activations, and weights that want them
# One row reads a matrix of 256 kB again and again; many rows are bound by multiplication anyway.
HOT_BYTES, HOT_FEATURES, ROW_LAYERS = 256 << 10, 1024, 64
ROWS = (4, 16, 32, 64, 128, 256)  # beside 1
SIZE, LAYERS = 2048, 2
SLOW, SLOW_SIZE = "float", 1024  # kernels that take ten times as long
NARROW = 256
ROUNDS, SECONDS = 2, 0.06  # for each figure
WIDTH, NODES, ELEMENT_ROWS, LITTLE = 2048, 16, 64, 16
HEAD_DIMS, HEADS, CACHED, ATTENTION_ROWS = (64, 128), 8, 512, (1, 64)
LEAST_SHARE = 0.5  # of what was timed that is what was meant, whatever the rest is said to cost
LEAST_OF_NET = 0.01
NOTHING = same_attention(1, 1, 16)
Timed: TypeAlias = tuple[Executable, Callable[[], Values]]


@dataclass(slots=True)
class Rates:
    """What kernels do in a second.

    Attributes:
        rates: as ``MachineProfile.rates``.
        paths: as ``MachineProfile.paths``.
        others: as ``MachineProfile.other_rates``.
        call_s: as ``MachineProfile.call_s``.
    """

    rates: dict[str, dict[int, float]] = field(default_factory=dict)
    paths: dict[str, dict[int, str]] = field(default_factory=dict)
    others: dict[str, dict[int, float]] = field(default_factory=dict)
    call_s: float = float("inf")


def measure_rates(threads: int, start_s: float, progress: Progress) -> Rates:
    """Measures all kernels.

    Args:
        threads: to measure with.
        start_s: what an instruction costs besides its kernel, which is not in the rates.
        progress: told what is measured next.
    """
    measured = Rates()
    for number in range(ROUNDS):
        again = ", again" if number else ""
        progress(f"kernels of attention, norms and gates{again}")
        _measure_others(threads, start_s, measured)
        for activations, weights in FAMILIES:
            progress(f"kernels of {weights} weights, {activations} activations{again}")
            _measure_family(activations, weights, threads, start_s, measured)
    return measured


def loads_of(activations: str, weights: str) -> list[Load]:
    """What is timed of a kernel family: one row, and many."""
    k = HOT_FEATURES
    n = int(HOT_BYTES * 8 / WEIGHT_BITS[weights] / k)
    size, layers = (SLOW_SIZE, 1) if activations == SLOW else (SIZE, LAYERS)
    return [
        Load(activations, weights, 1, (k, n), ROW_LAYERS),
        *(Load(activations, weights, rows, (size, size), layers) for rows in ROWS),
    ]


def narrow_load(activations: str, weights: str) -> Load:
    """Many outputs that are sums of few products."""
    size = SLOW_SIZE if activations == SLOW else SIZE
    return Load(activations, weights, ELEMENT_ROWS, (NARROW, size), LAYERS)


def _measure_family(
    activations: str, weights: str, threads: int, start_s: float, measured: Rates
) -> None:
    name, narrow = family(activations, weights), narrow_load(activations, weights)
    rounding = measured.others.get(rounding_kind(activations), {}).get(ELEMENT_ROWS)
    for load in [*loads_of(activations, weights), narrow]:
        with compiled(load, threads) as (executable, run):
            seconds = best_time(run, SECONDS) - measured.call_s
            paths = executable.launches.paths if executable.launches else ()
        special = [path for path in paths if path != MULTIPLY]
        starts = load.layers * start_s * (1 if load.rows <= FEW_ROWS else 2)
        rounded = load.rows * load.size[0] / rounding if rounding else 0.0  # once: all read it
        net = max(seconds - starts - rounded, LEAST_SHARE * seconds)
        if load is narrow:
            of_outputs = net - load.multiply_adds / measured.rates[name][load.rows]
            outputs = load.rows * load.size[1] * load.layers
            kind = outputs_kind(name)
            _keep(measured.others, kind, load.rows, outputs / max(of_outputs, LEAST_OF_NET * net))
            continue
        _keep(measured.rates, name, load.rows, load.multiply_adds / net)
        measured.paths.setdefault(name, {})[load.rows] = (*special, MULTIPLY)[0]


def _measure_others(threads: int, start_s: float, measured: Rates) -> None:
    """What multiplies no weights: elements by what more nodes take longer, and attention."""
    others = measured.others
    least = _seconds(attention(HEAD_DIMS[0], 1, 1), 1, threads, same_attention(1, 1, HEAD_DIMS[0]))
    measured.call_s = min(measured.call_s, max(least - 3 * start_s, 0.0))
    elements = ELEMENT_ROWS * WIDTH * (NODES - 1)

    def rate(graph_of_nodes: Callable[[int], Graph]) -> float:
        many, one = (_seconds(graph_of_nodes(nodes), ELEMENT_ROWS, threads) for nodes in (NODES, 1))
        return elements / max(many - one - (NODES - 1) * start_s, LEAST_SHARE * many)

    plain = rate(norms)
    _keep(others, ELEMENTS, ELEMENT_ROWS, plain)
    _keep(others, GATE, ELEMENT_ROWS, rate(gates))
    for activations, weights in ROUNDED.items():
        rounded = rate(partial(rounded_norms, activations, weights))
        share = max(1 / rounded - 1 / plain, LEAST_SHARE / rounded)
        _keep(others, rounding_kind(activations), ELEMENT_ROWS, 1 / share)
    for head_dim, rows in product(HEAD_DIMS, ATTENTION_ROWS):
        states = same_attention(LAYERS, HEADS, head_dim)
        graph = attention(head_dim, HEADS, LAYERS)
        seconds = _seconds(graph, rows, threads, states, CACHED) - measured.call_s
        seconds -= LAYERS * start_s * (3 if rows == 1 else 4)
        work = 2 * HEADS * head_dim * LAYERS * seen_in_pages(CACHED, rows, 0)
        _keep(others, attention_kind(head_dim), rows, work / seconds)


def _keep(rates: dict[str, dict[int, float]], name: str, rows: int, rate: float) -> None:
    """The best of all rounds."""
    by_rows = rates.setdefault(name, {})
    by_rows[rows] = max(rate, by_rows.get(rows, 0.0))


def norms(count: int) -> Graph:
    """One after the other."""
    nodes = [
        Node("rms_norm", f"n{i}", (f"x{i}", "weight"), (f"x{i + 1}",), {"epsilon": 1e-5})
        for i in range(count)
    ]
    weight = {"weight": np.ones(WIDTH, np.float32)}
    return Graph(nodes, ["x0"], [f"x{count}"], {**weight}, shapes={"x0": ValueShape(WIDTH)})


def rounded_norms(activations: str, weights: str, count: int) -> Graph:
    """Norms of the same rows, each rounded for a layer that has next to no outputs."""
    nodes = []
    for i in range(count):
        nodes += [
            Node("rms_norm", f"n{i}", ("x", "weight"), (f"x{i}",), {"epsilon": 1e-5}),
            Node("linear", f"l{i}", (f"x{i}", "w"), (f"y{i}",), {"activations": activations}),
        ]
    constants: dict[str, Constant] = {
        "weight": np.ones(WIDTH, np.float32),
        "w": random_weight(weights, (WIDTH, LITTLE), 0),
    }
    return Graph(nodes, ["x"], [f"y{count - 1}"], constants, shapes={"x": ValueShape(WIDTH)})


def gates(count: int) -> Graph:
    """One after the other."""
    nodes = [
        Node("gate", f"g{i}", (f"x{i}", "x0"), (f"x{i + 1}",), {"activation": "silu"})
        for i in range(count)
    ]
    return Graph(nodes, ["x0"], [f"x{count}"], {}, shapes={"x0": ValueShape(WIDTH)})


def attention(head_dim: int, heads: int, layers: int) -> Graph:
    """Layers that attend, and do nothing else."""
    sizes = {"num_heads": heads, "num_kv_heads": heads, "head_dim": head_dim}
    attributes = {**sizes, "scale": head_dim**-0.5, "window": 0}
    nodes = [
        Node("attention", f"a{i}", ("q", "k", "v"), (f"y{i}",), {"layer": i, **attributes})
        for i in range(layers)
    ]
    shapes = {name: ValueShape(heads * head_dim) for name in ("q", "k", "v")}
    return Graph(nodes, ["q", "k", "v"], [f"y{layers - 1}"], {}, shapes=shapes)


def _seconds(
    graph: Graph, rows: int, threads: int, states: tuple[State, ...] = NOTHING, cached: int = 0
) -> float:
    with _compiled(graph, rows, threads, states, cached) as (_, run):
        return best_time(run, SECONDS)


def compiled(load: Load, threads: int) -> AbstractContextManager[Timed]:
    """Compiles a load on the CPU back-end; yields it and a function that runs it once."""
    pack = "trits" if load.weights == "trits" else "two_bits"
    return _compiled(graph_of(load), load.rows, threads, pack=pack)


@contextmanager
def _compiled(
    graph: Graph,
    rows: int,
    threads: int,
    states: tuple[State, ...] = NOTHING,
    cached: int = 0,
    pack: str = "two_bits",
) -> Iterator[Timed]:
    backend = make_backend("cpu", given={"threads": threads, "pack": pack})
    try:
        executable: Executable = backend.compile(graph, Shape.of(rows), CompileOptions(states))
        store = SequenceStore(states, cached + rows)
        slot = store.open()
        store.reserve(slot, cached + rows)  # what is there is zeros
        store.commit(slot, cached)
        batch = Batch.of([0] * rows, cached, slot, logits="none")
        rng = np.random.default_rng(0)
        values = {
            name: rng.standard_normal((rows, shape.width)).astype(np.float32)
            for name, shape in graph.shapes.items()
        }
        yield executable, lambda: executable(batch, store, values)
        executable.close()
    finally:
        backend.close()
