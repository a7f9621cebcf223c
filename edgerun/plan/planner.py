"""Plans a graph: which back-end runs which nodes, in each phase, and why.

A pure function of the graph, the back-ends' statements and their costs. Nodes stay in order, so
a plan is a sequence of segments; the cheapest one is found by dynamic programming over the
nodes, with a charge for every change of back-end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from edgerun import trace
from edgerun.backends.base import (
    NO_VALUES,
    Accelerator,
    Backend,
    CompileOptions,
    Executable,
    Expects,
    Explains,
    Phase,
    Support,
    Values,
)
from edgerun.backends.validate import ValidatingExecutable
from edgerun.backends.watch import WatchingExecutable
from edgerun.env import settings
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.ops import IDS, POSITIONS, SCHEMAS
from edgerun.graph.passes.attributes import is_unread
from edgerun.graph.shapes import value_shapes
from edgerun.plan.workload import logit_nodes
from edgerun.state import Batch, KVCache

SWITCH_SECONDS = 5e-5  # handing a value from one back-end to another
PHASE_ROWS = {Phase.PREFILL: 128, Phase.DECODE: 1}
LOGIT_ROWS = 1  # of a chunk of a prompt, as a rule


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive nodes on one back-end.

    Attributes:
        backend: name of the back-end.
        graph: the nodes, with what goes in and out.
        seconds: estimated time for the phase's typical number of rows.
    """

    backend: str
    graph: Graph
    seconds: float

    def count_ops(self) -> dict[str, int]:
        """Nodes by op."""
        return dict(Counter(node.op for node in self.graph.nodes))


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a back-end does not take part in a phase."""

    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments of every phase, and what was turned down.

    Attributes:
        segments: in order, by phase.
        refusals: back-ends that take no part in a phase.
        bases: what the estimates of a back-end stand on, where it says so.
    """

    segments: Mapping[Phase, tuple[Segment, ...]]
    refusals: Mapping[Phase, tuple[Refusal, ...]]
    bases: Mapping[str, str] = field(default_factory=dict)

    def explain(self) -> list[Placement]:
        """What runs where, phase by phase, each followed by what was turned down."""
        rows = []
        for phase, segments in self.segments.items():
            rows += [
                Placement(
                    phase.value,
                    one.backend,
                    True,
                    one.seconds,
                    one.count_ops(),
                    basis=self.bases.get(one.backend, ""),
                )
                for one in segments
            ]
            rows += [
                Placement(phase.value, one.backend, False, reason=one.reason)
                for one in self.refusals[phase]
            ]
        return rows


@dataclass(frozen=True, slots=True)
class Placement:
    """One line of an explained plan.

    Attributes:
        phase: ``prefill`` or ``decode``.
        backend: its name.
        chosen: whether it runs there.
        seconds: estimate for the phase's typical number of rows, ``PHASE_ROWS``.
        ops: nodes of the segment by op.
        reason: why it was turned down.
        basis: what the estimate stands on.
    """

    phase: str
    backend: str
    chosen: bool
    seconds: float | None = None
    ops: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    basis: str = ""


Placed: TypeAlias = "list[tuple[Node, Backend, float]]"


@dataclass(frozen=True, slots=True)
class _Task:
    """A graph in a phase; ``late`` are the nodes that see only rows whose logits are wanted."""

    graph: Graph
    phase: Phase
    late: frozenset[str]

    def able(self, backend: Backend, node: Node) -> Support:
        """Whether a back-end can run a node."""
        return backend.supports(self.graph, node, self.phase)

    def cost(self, backend: Backend, node: Node) -> float:
        """Seconds that a back-end estimates for a node."""
        rows = PHASE_ROWS[self.phase]
        rows = min(rows, LOGIT_ROWS) if node.name in self.late else rows
        return backend.cost(self.graph, node, self.phase, rows)


def make_plan(graph: Graph, backends: Sequence[Backend], preferred: str | None = None) -> Plan:
    """Chooses the cheapest placement for every phase.

    Args:
        graph: lowered.
        backends: candidates whose ``probe`` succeeded; one of them alone forces it.
        preferred: name of the one that takes every node it supports, whatever that costs.

    Raises:
        UnsupportedError: some node runs on none of them.
    """
    segments, refusals = {}, {}
    late = frozenset(logit_nodes(graph))
    for phase in Phase:
        task = _Task(graph, phase, late)
        segments[phase], refusals[phase] = _plan_phase(task, backends, preferred)
    bases = {one.name: one.cost_basis() for one in backends if isinstance(one, Explains)}
    return Plan(segments, refusals, bases)


def expect(backends: Sequence[Backend], threads: int, *, trits: bool) -> None:
    """Tells the back-ends whose estimates depend on it how they will be compiled."""
    for one in backends:
        if isinstance(one, Expects):
            one.expect(threads, trits)


def _plan_phase(
    task: _Task, backends: Sequence[Backend], preferred: str | None
) -> tuple[tuple[Segment, ...], tuple[Refusal, ...]]:
    graph = task.graph
    mixing = [backend for backend in backends if not backend.whole_graph]
    placed = _cheapest_path(task, mixing, preferred)
    if placed:  # a graph of constants alone has no nodes to place
        return _segments(graph, placed), _refusals(task, backends, placed)
    for backend in backends:
        if backend.whole_graph and all(task.able(backend, node) for node in graph.nodes):
            seconds = sum(task.cost(backend, node) for node in graph.nodes)
            return (Segment(backend.name, graph, seconds),), _refusals(task, mixing, [])
    if not graph.nodes:
        raise UnsupportedError("the model's graph computes nothing: its outputs are constants")
    reasons = [f"{one.backend}: {one.reason}" for one in _refusals(task, backends, [])]
    said = "; ".join(reasons) or "none was given"
    raise UnsupportedError(
        f"no back-end runs this model's {task.phase.value}: {said}{_advice(graph, backends)}"
    )


def _advice(graph: Graph, backends: Sequence[Backend]) -> str:
    """What a user may try whose model the given back-ends cannot run; may be empty."""
    asked = {backend.name for backend in backends}
    if "reference" not in asked and all(node.op in SCHEMAS for node in graph.nodes):
        return "; --backend reference runs it, slowly"
    if "onnxruntime" not in asked and graph.source is not None:
        return "; if you trust the file, --backend onnxruntime may run it, without our limits"
    return ""


def _cheapest_path(
    task: _Task, backends: Sequence[Backend], preferred: str | None
) -> Placed | None:
    """Best back-end for every node, or None when a node has none (Viterbi's algorithm)."""
    best: dict[str, tuple[float, Placed]] = {"": (0.0, [])}
    for node in task.graph.nodes:
        reached: dict[str, tuple[float, Placed]] = {}
        able = [backend for backend in backends if task.able(backend, node)]
        for backend in [one for one in able if one.name == preferred] or able:
            cost = task.cost(backend, node)
            totals = {
                name: total + cost + (SWITCH_SECONDS if name not in ("", backend.name) else 0.0)
                for name, (total, _) in best.items()
            }
            previous = min(totals, key=lambda name: totals[name])
            path = [*best[previous][1], (node, backend, cost)]
            reached[backend.name] = (totals[previous], path)
        if not reached:
            return None
        best = reached
    return min(best.values(), key=lambda entry: entry[0])[1]


def _segments(graph: Graph, placed: Placed) -> tuple[Segment, ...]:
    groups: list[tuple[str, list[Node], float]] = []
    for node, backend, cost in placed:
        if not groups or groups[-1][0] != backend.name:
            groups.append((backend.name, [], 0.0))
        name, nodes, seconds = groups[-1]
        nodes.append(node)
        groups[-1] = (name, nodes, seconds + cost)
    shapes = value_shapes(graph) if len(groups) > 1 else {}
    return tuple(
        Segment(name, _cut(graph, nodes, shapes), seconds) for name, nodes, seconds in groups
    )


def _cut(graph: Graph, nodes: list[Node], shapes: Mapping[str, ValueShape]) -> Graph:
    """The sub-graph of some nodes: inputs are values made outside, outputs those read outside."""
    inside = {node.name for node in nodes}
    made = {output for node in nodes for output in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    outside = {name for node in graph.nodes if node.name not in inside for name in node.inputs}
    segment = graph.with_nodes(nodes)
    inputs = [
        name
        for name in read
        if name not in made and name not in graph.constants and name not in (IDS, POSITIONS)
    ]
    outputs = [name for name in dict.fromkeys([*made]) if name in outside or name in graph.outputs]
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    known = {name: shapes[name] for name in inputs if name in shapes}
    return replace(segment, inputs=inputs, outputs=outputs, constants=constants, shapes=known)


def _refusals(task: _Task, backends: Sequence[Backend], placed: Placed) -> tuple[Refusal, ...]:
    used = {backend.name for _, backend, _ in placed}
    found = []
    for backend in backends:
        if placed and isinstance(backend, Accelerator):
            found += _left_out(task, backend, placed)
            continue
        if backend.name in used:
            continue
        supports = [(node, task.able(backend, node)) for node in task.graph.nodes]
        unable = [pair for pair in supports if not pair[1]]
        if unable:
            # A node with an unknown attribute is why its neighbours are not recognised either.
            node, support = min(unable, key=lambda pair: not is_unread(pair[0]))
            reason = f"{node.name}: {support.reason}"
        else:
            seconds = sum(task.cost(backend, node) for node in task.graph.nodes)
            reason = f"slower by estimate: {seconds * 1e3:.2f} ms / {PHASE_ROWS[task.phase]} rows"
        found.append(Refusal(backend.name, reason))
    return tuple(found)


def _left_out(task: _Task, backend: Backend, placed: Placed) -> list[Refusal]:
    """Why nodes are not on a back-end that is made for some of them only, a line a reason."""
    nodes = [(node, cost) for node, other, cost in placed if other is not backend]
    supports = [task.able(backend, node) for node, _ in nodes]
    reasons = Counter(support.reason for support in supports if not support)
    texts = [f"{reason} ({count} nodes)" for reason, count in reasons.items()]
    able = [entry for entry, support in zip(nodes, supports, strict=True) if support]
    if able:
        own = sum(task.cost(backend, node) for node, _ in able)
        others = sum(cost for _, cost in able)
        texts.append(
            f"slower by estimate: {own * 1e3:.2f} ms / {PHASE_ROWS[task.phase]} rows for "
            f"{len(able)} nodes that take {others * 1e3:.2f} ms elsewhere"
        )
    return [Refusal(backend.name, text) for text in texts]


class Chain:
    """Executables of consecutive segments as one."""

    def __init__(self, parts: Sequence[Executable]) -> None:
        self._parts = list(parts)

    def __call__(self, batch: Batch, cache: KVCache, values: Values = NO_VALUES) -> Values:
        """Runs the parts in order, each seeing what the earlier ones produced."""
        known = dict(values)
        for part in self._parts:
            known.update(part(batch, cache, known))
        return known

    def close(self) -> None:
        """Closes the parts."""
        for part in self._parts:
            part.close()


def compile_plan(
    plan: Plan, backends: Sequence[Backend], options: Mapping[Phase, CompileOptions]
) -> dict[Phase, Executable]:
    """Compiles every segment; one executable per phase.

    With ``EDGERUN_VALIDATE=1`` every node of a back-end that mixes is checked as it runs, with
    ``EDGERUN_DEBUG=3`` its value is shown.
    """
    for row in plan.explain():
        what = dict(row.ops) if row.chosen else row.reason
        trace.say(trace.PLAN, f"{row.phase} {'' if row.chosen else 'not '}{row.backend}: {what}")
    by_name = {backend.name: backend for backend in backends}
    compiled: dict[Phase, Executable] = {}
    for phase, segments in plan.segments.items():
        parts = [
            _compile(
                by_name[segment.backend],
                segment.graph,
                phase,
                _with_fallback(by_name, segment.backend, options[phase]),
            )
            for segment in segments
        ]
        compiled[phase] = parts[0] if len(parts) == 1 else Chain(parts)
    return compiled


def _with_fallback(
    by_name: Mapping[str, Backend], name: str, options: CompileOptions
) -> CompileOptions:
    """Options from which an accelerator learns who stands in for it."""
    backend = by_name[name]
    if not isinstance(backend, Accelerator):
        return options
    companions = [by_name[one] for one in backend.companions if one in by_name]

    def compile_elsewhere(segment: Graph, phase: Phase) -> Executable:
        for other in companions:
            if all(other.supports(segment, node, phase) for node in segment.nodes):
                return other.compile(segment, phase, options)
        raise UnsupportedError(f"the back-end '{name}' failed and no other runs what it ran")

    return replace(options, fallback=compile_elsewhere)


def _compile(backend: Backend, segment: Graph, phase: Phase, options: CompileOptions) -> Executable:
    if settings().validate and not backend.whole_graph:
        return ValidatingExecutable(backend, segment, phase, options)
    if trace.enabled(trace.SHAPES) and not backend.whole_graph:
        return WatchingExecutable(backend, segment, phase, options)
    return backend.compile(segment, phase, options)
