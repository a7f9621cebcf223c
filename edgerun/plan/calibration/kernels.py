"""Measures what the processor's kernels do, each as the CPU back-end starts it.

Figures are taken in several rounds, some seconds apart, and the best counts: a moment in which
another program had a core is then not what a figure says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np

from edgerun.backends.base import FEW_ROWS, CompileOptions, Executable, Progress, Shape, Values
from edgerun.backends.cpu.emit.attention import seen_in_pages
from edgerun.backends.cpu.families import REGROUPED, WEIGHT_BITS
from edgerun.backends.registry import make_backend
from edgerun.graph.ir import Constant, Graph, Node, ValueShape
from edgerun.kernels.isa import bfloat16_multiplier, selected_isa
from edgerun.machine.devices import ELEMENTS, interpolated
from edgerun.machine.profile import (
    GATE,
    MULTIPLY,
    attention_kind,
    family,
    outputs_kind,
    rounding_kind,
)
from edgerun.machine.row_times import BlockPath
from edgerun.machine.timing import best_time
from edgerun.plan.calibration.loads import Load, graph_of, random_weight
from edgerun.state import Batch, SequenceStore, State, same_attention

FAMILIES = tuple(
    (activations, weights)
    for activations, formats in (
        ("int8_row", ("trits", "ternary", "int2", "int4", "int8")),
        ("int8_block", ("int2", "int4", "int8", REGROUPED)),
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
CALL = "a call with next to nothing to do"
FAST_ROWS = (64, 256)  # of attention in bfloat16: tiles of more rows are fuller
ONE_ROW_STARTS, MANY_ROWS_STARTS, FAST_STARTS = 3, 4, 5  # of kernels of attention
Timed: TypeAlias = tuple[Executable, Callable[[], Values]]
Seconds: TypeAlias = Mapping[tuple[str, int], float]  # by name and rows of trials
Paths: TypeAlias = Mapping[str, Mapping[int, str]]  # by family and rows


@dataclass(frozen=True, slots=True)
class Rates:
    """What kernels do in a second.

    Attributes:
        rates: as ``MachineProfile.rates``.
        paths: as ``MachineProfile.paths``.
        others: as ``MachineProfile.other_rates``.
        call_s: as ``MachineProfile.call_s``.
    """

    rates: Mapping[str, Mapping[int, float]]
    paths: Mapping[str, Mapping[int, str]]
    others: Mapping[str, Mapping[int, float]]
    call_s: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A graph to time.

    Attributes:
        name: of what is timed.
        graph: whose inputs' shapes it states.
        rows: of the batch.
        states: that its layers keep.
        cached: tokens before the rows.
        pack: how ternary weights are to lie in memory.
        attention: ``"exact"``, or ``"fast"``, in bfloat16.
    """

    name: str
    graph: Graph
    rows: int
    states: tuple[State, ...] = NOTHING
    cached: int = 0
    pack: str = "two_bits"
    attention: str = "exact"


def time_trials(
    threads: int, progress: Progress, row_paths: Mapping[str, BlockPath] | None = None
) -> tuple[Seconds, Paths]:
    """The quickest run of every trial, and the paths that the families took.

    Args:
        threads: to measure with.
        progress: told what is measured next.
        row_paths: what multiplies blocks of rows, by family; None for what is used here.
    """
    seconds: dict[tuple[str, int], float] = {}
    paths: dict[str, dict[int, str]] = {}
    for number in range(1, ROUNDS + 1):
        progress(f"kernels, round {number} of {ROUNDS}")
        for trial in every_trial():
            with compiled(trial, threads, row_paths) as (executable, run):
                taken = best_time(run, SECONDS)
                taken_paths = executable.launches.paths if executable.launches else ()
            key = trial.name, trial.rows
            seconds[key] = min(taken, seconds.get(key, taken))
            special = [path for path in taken_paths if path != MULTIPLY]
            paths.setdefault(trial.name, {})[trial.rows] = (*special, MULTIPLY)[0]
    families = {family(*each) for each in FAMILIES}
    return seconds, {name: by_rows for name, by_rows in paths.items() if name in families}


def every_trial() -> Iterator[Trial]:
    """What is timed."""
    yield Trial(CALL, attention(HEAD_DIMS[0], 1, 1), 1, same_attention(1, 1, HEAD_DIMS[0]))
    for name, graph_of_nodes in ELEMENT_GRAPHS.items():
        for count in (1, NODES):
            yield Trial(counted(name, count), graph_of_nodes(count), ELEMENT_ROWS)
    for head_dim in HEAD_DIMS:
        graph, states = attention(head_dim, HEADS, LAYERS), same_attention(LAYERS, HEADS, head_dim)
        for rows in ATTENTION_ROWS:
            yield Trial(attention_kind(head_dim), graph, rows, states, CACHED)
        for rows in FAST_ROWS if bfloat16_multiplier(selected_isa()) else ():
            kind = attention_kind(head_dim, fast=True)
            yield Trial(kind, graph, rows, states, CACHED, attention="fast")
    for activations, weights in FAMILIES:
        for load in loads_of(activations, weights):
            yield trial_of(family(activations, weights), load)
        narrow = narrow_load(activations, weights)
        yield trial_of(outputs_kind(family(activations, weights)), narrow)


def rates_of(seconds: Seconds, paths: Paths, start_s: float) -> Rates:
    """What the quickest runs of all trials say, without what calls and starts take.

    Args:
        seconds: by name and rows of the trials.
        paths: that were taken, by family and rows.
        start_s: what an instruction costs besides its kernel, which is not in the rates.
    """
    call_s = max(seconds[CALL, 1] - ONE_ROW_STARTS * start_s, 0.0)
    others = _element_rates(seconds, start_s) | _attention_rates(seconds, call_s, start_s)
    rates: dict[str, dict[int, float]] = {}
    for activations, weights in FAMILIES:
        name = family(activations, weights)
        rounding = others.get(rounding_kind(activations), {}).get(ELEMENT_ROWS)

        def net_of(kind: str, load: Load, rounding: float | None = rounding) -> float:
            starts = load.layers * start_s * (1 if load.rows <= FEW_ROWS else 2)
            rounded = load.rows * load.size[0] / rounding if rounding else 0.0  # once: all read it
            return _net(seconds[kind, load.rows], call_s + starts + rounded)

        rates[name] = {
            load.rows: load.multiply_adds / net_of(name, load)
            for load in loads_of(activations, weights)
        }
        narrow, kind = narrow_load(activations, weights), outputs_kind(name)
        net = net_of(kind, narrow)
        products = narrow.multiply_adds / interpolated(rates[name], narrow.rows)
        outputs = narrow.rows * narrow.size[1] * narrow.layers
        others[kind] = {narrow.rows: outputs / max(net - products, LEAST_OF_NET * net)}
    return Rates(rates, paths, others, call_s)


def _element_rates(seconds: Seconds, start_s: float) -> dict[str, dict[int, float]]:
    """Elements a second, by what many nodes take longer than one."""
    elements = ELEMENT_ROWS * WIDTH * (NODES - 1)
    node_s = {}
    for name in ELEMENT_GRAPHS:
        many, single = (seconds[counted(name, count), ELEMENT_ROWS] for count in (NODES, 1))
        node_s[name] = _net(many, single + (NODES - 1) * start_s) / elements
    plain = node_s[ELEMENTS]
    for activations in ROUNDED:
        both = node_s[rounding_kind(activations)]
        node_s[rounding_kind(activations)] = _net(both, plain)
    return {name: {ELEMENT_ROWS: 1 / each} for name, each in node_s.items()}


def _attention_rates(
    seconds: Seconds, call_s: float, start_s: float
) -> dict[str, dict[int, float]]:
    """Multiply-adds a second, of bfloat16 too if that was timed."""
    rates: dict[str, dict[int, float]] = {}
    for head_dim, fast in product(HEAD_DIMS, (False, True)):
        kind = attention_kind(head_dim, fast=fast)
        for rows in sorted(rows for name, rows in seconds if name == kind):
            many = FAST_STARTS if fast else MANY_ROWS_STARTS
            starts = LAYERS * start_s * (ONE_ROW_STARTS if rows == 1 else many)
            work = 2 * HEADS * head_dim * LAYERS * seen_in_pages(CACHED, rows, 0)
            net = _net(seconds[kind, rows], call_s + starts)
            rates.setdefault(kind, {})[rows] = work / net
    return rates


def _net(seconds: float, besides: float) -> float:
    """What is left of a time without what was measured apart, which is at most half of it."""
    return max(seconds - besides, LEAST_SHARE * seconds)


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


def trial_of(name: str, load: Load) -> Trial:
    """A load as what is timed."""
    pack = "trits" if load.weights == "trits" else "two_bits"
    return Trial(name, graph_of(load), load.rows, pack=pack)


def counted(name: str, count: int) -> str:
    """Name of a trial with so many nodes."""
    return f"{name}, {count} nodes"


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
    attributes = {**sizes, "scale": head_dim**-0.5, "window": 0, "softcap": 0.0}
    nodes = [
        Node("attention", f"a{i}", ("q", "k", "v"), (f"y{i}",), {"layer": i, **attributes})
        for i in range(layers)
    ]
    shapes = {name: ValueShape(heads * head_dim) for name in ("q", "k", "v")}
    return Graph(nodes, ["q", "k", "v"], [f"y{layers - 1}"], {}, shapes=shapes)


ELEMENT_GRAPHS: Mapping[str, Callable[[int], Graph]] = {
    ELEMENTS: norms,
    GATE: gates,
    **{rounding_kind(each): partial(rounded_norms, each, ROUNDED[each]) for each in ROUNDED},
}


@contextmanager
def compiled(
    trial: Trial, threads: int, row_paths: Mapping[str, BlockPath] | None = None
) -> Iterator[Timed]:
    """Compiles a graph on the CPU back-end; yields it and a function that runs it once.

    Args:
        trial: whose graph it is.
        threads: to run it with.
        row_paths: what multiplies blocks of rows, by family; None for what is used here.
    """
    with _opened(trial, threads, row_paths) as (executable, run_of):
        yield executable, run_of(trial.rows)


@contextmanager
def bound(
    trial: Trial, threads: int, row_paths: Mapping[str, BlockPath]
) -> Iterator[Callable[[int], Callable[[], Values]]]:
    """As ``compiled``; yields what makes functions that run some of the trial's rows."""
    with _opened(trial, threads, row_paths) as (_, run_of):
        yield run_of


@contextmanager
def _opened(
    trial: Trial, threads: int, row_paths: Mapping[str, BlockPath] | None
) -> Iterator[tuple[Executable, Callable[[int], Callable[[], Values]]]]:
    given = {
        "threads": threads,
        "pack": trial.pack,
        "row_paths": row_paths,
        "attention": trial.attention,
    }
    backend = make_backend("cpu", given=given)
    rows, states, cached = trial.rows, trial.states, trial.cached
    try:
        executable: Executable = backend.compile(
            trial.graph, Shape.of(rows), CompileOptions(states)
        )
        store = SequenceStore(states, cached + rows)
        slot = store.open()
        store.reserve(slot, cached + rows)  # what is there is zeros
        store.commit(slot, cached)
        rng = np.random.default_rng(0)
        values = {
            name: rng.standard_normal((rows, shape.width)).astype(np.float32)
            for name, shape in trial.graph.shapes.items()
        }

        def run_of(count: int) -> Callable[[], Values]:
            batch = Batch.of([0] * count, cached, slot, logits="none")
            some = {name: value[:count] for name, value in values.items()}
            return lambda: executable(batch, store, some)

        yield executable, run_of
        executable.close()
    finally:
        backend.close()
