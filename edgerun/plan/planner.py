"""Plans a graph: which back-end runs which nodes, in each phase, and why.

A pure function of the graph, the back-ends' statements and their costs. Nodes stay in order, so
a plan is a sequence of segments; the cheapest one is found by dynamic programming over the
nodes, with a charge for every change of back-end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from edgerun.backends.base import (
    FEW_ROWS,
    Backend,
    Phase,
    Shape,
    Support,
)
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.shapes import value_shapes
from edgerun.ops.base import IDS, POSITIONS
from edgerun.plan.workload import logit_nodes

SWITCH_SECONDS = 5e-5  # to leave one back-end and enter another
SWITCH_BYTES_A_SECOND = 4e9  # of the values that cross: out of one memory, into another
CACHED = 512  # tokens that a sequence has, as a rule
# What estimates are made for.
TYPICAL = (
    Shape(Phase.PREFILL, 128, CACHED),
    Shape(Phase.FEW, FEW_ROWS // 4, CACHED),
    Shape(Phase.DECODE, 1, CACHED),
)
PROMPTS = "prompts"  # how a plan calls rows of prompts whose logits nobody wants
FLOAT_BYTES = 4
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
class Route:
    """Where rows of prompts go whose logits nobody wants: they leave keys and values alone.

    Attributes:
        segments: in order; nothing comes out of the last.
        refusals: back-ends that take no part.
        from_rows: of a sequence in a batch; fewer go where all others go.
    """

    segments: tuple[Segment, ...]
    refusals: tuple[Refusal, ...] = ()
    from_rows: int = FEW_ROWS + 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments of every phase, and what was turned down.

    Attributes:
        segments: in order, by phase; together they run every batch.
        refusals: back-ends that take no part in a phase.
        bases: what the estimates of a back-end stand on, where it says so.
        prompts: where most rows of prompts go instead.
    """

    segments: Mapping[Phase, tuple[Segment, ...]]
    refusals: Mapping[Phase, tuple[Refusal, ...]]
    bases: Mapping[str, str] = field(default_factory=dict)
    prompts: Route | None = None

    def backends(self) -> set[str]:
        """Names of those that run anything."""
        placed = [*self.segments.values(), self.prompts.segments if self.prompts else ()]
        return {segment.backend for segments in placed for segment in segments}

    def explain(self) -> list[Placement]:
        """What runs where, phase by phase, each followed by what was turned down."""
        rows: list[Placement] = []
        if self.prompts is not None:
            rows += self._lines(PROMPTS, self.prompts.segments, self.prompts.refusals)
        for phase, segments in self.segments.items():
            rows += self._lines(phase.value, segments, self.refusals[phase])
        return rows

    def _lines(
        self, phase: str, segments: Sequence[Segment], refusals: Sequence[Refusal]
    ) -> list[Placement]:
        chosen = [
            Placement(
                phase,
                segment.backend,
                True,
                segment.seconds,
                segment.count_ops(),
                basis=self.bases.get(segment.backend, ""),
            )
            for segment in segments
        ]
        refused = [
            Placement(phase, refusal.backend, False, reason=refusal.reason) for refusal in refusals
        ]
        return chosen + refused


@dataclass(frozen=True, slots=True)
class Placement:
    """One line of an explained plan.

    Attributes:
        phase: a ``Phase``, or ``PROMPTS``.
        backend: its name.
        chosen: whether it runs there.
        seconds: estimate for the phase's typical number of rows, see ``TYPICAL``.
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
    """A graph in a shape; ``late`` are the nodes that see only rows whose logits are wanted."""

    graph: Graph
    shape: Shape
    late: frozenset[str]

    def able(self, backend: Backend, node: Node) -> Support:
        """Whether a back-end can run a node."""
        if self.graph.refusal and not backend.whole_graph:
            return Support(False, self.graph.refusal)
        return backend.supports(self.graph, node, self.shape)

    def cost(self, backend: Backend, node: Node) -> float:
        """Seconds that a back-end estimates for a node."""
        late = self.shape.phase is Phase.PREFILL and node.name in self.late
        shape = replace(self.shape, rows=LOGIT_ROWS) if late else self.shape
        return backend.cost(self.graph, node, shape)

    def total(self, backend: Backend) -> float:
        """Seconds that a back-end estimates for the graph."""
        return sum(self.cost(backend, node) for node in self.graph.nodes)


def plan_prompts(graph: Graph, backends: Sequence[Backend], preferred: str | None = None) -> Route:
    """Chooses the cheapest placement of rows whose logits nobody wants.

    Args:
        graph: what they leave in the cache, see ``routes.prompt_graph``.
        backends: see ``make_plan``.
        preferred: see ``make_plan``.

    Raises:
        UnsupportedError: some node runs on none of them.
    """
    task = _Task(graph, TYPICAL[0], frozenset())
    return Route(*_plan_phase(task, backends, preferred))


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
    for shape in TYPICAL:
        task = _Task(graph, shape, late)
        segments[shape.phase], refusals[shape.phase] = _plan_phase(task, backends, preferred)
    return Plan(segments, refusals, cost_bases(backends))


def cost_bases(backends: Sequence[Backend]) -> dict[str, str]:
    """What the estimates of back-ends stand on, of those that say so, by name."""
    bases = {backend.name: backend.cost_basis() for backend in backends}
    return {name: basis for name, basis in bases.items() if basis}


def _plan_phase(
    task: _Task, backends: Sequence[Backend], preferred: str | None
) -> tuple[tuple[Segment, ...], tuple[Refusal, ...]]:
    graph = task.graph
    mixing = [backend for backend in backends if not backend.whole_graph]
    seconds, placed = _cheapest_path(task, mixing, preferred)
    for backend in backends:
        if backend.whole_graph and all(task.able(backend, node) for node in graph.nodes):
            alone = [(node, backend, task.cost(backend, node)) for node in graph.nodes]
            if (total := sum(cost for *_, cost in alone)) < seconds:
                seconds, placed = total, alone
    if placed:
        return _segments(graph, placed), _refusals(task, backends, placed)
    if not graph.nodes:
        raise UnsupportedError(graph.refusal)
    reasons = [f"{refusal.backend}: {refusal.reason}" for refusal in _refusals(task, backends, [])]
    said = "; ".join(reasons) or "none was given"
    raise UnsupportedError(
        f"no back-end runs this model's {task.shape.phase.value}: {said}{_advice(graph, backends)}"
    )


def _advice(graph: Graph, backends: Sequence[Backend]) -> str:
    """What a user may try whose model the given back-ends cannot run; may be empty."""
    asked = {backend.name for backend in backends}
    if "reference" not in asked and not graph.refusal:
        return "; --backend reference runs it, slowly"
    if "onnxruntime" not in asked and graph.source is not None:
        return "; if you trust the file, --backend onnxruntime may run it, without our limits"
    return ""


def _cheapest_path(
    task: _Task, backends: Sequence[Backend], preferred: str | None
) -> tuple[float, Placed]:
    """Best back-end for every node (Viterbi's algorithm); no nodes where one has none.

    A change of back-end costs what the bytes that cross cost, and something for itself.
    """
    best: dict[str, tuple[float, Placed]] = {"": (0.0, [])}
    crossing = _crossing_seconds(task) if len(backends) > 1 else [0.0] * len(task.graph.nodes)
    for node, switch in zip(task.graph.nodes, crossing, strict=True):
        reached: dict[str, tuple[float, Placed]] = {}
        able = [backend for backend in backends if task.able(backend, node)]
        for backend in [candidate for candidate in able if candidate.name == preferred] or able:
            cost = task.cost(backend, node)
            totals = {
                name: total + cost + (switch if name not in ("", backend.name) else 0.0)
                for name, (total, _) in best.items()
            }
            previous = min(totals, key=lambda name: totals[name])
            path = [*best[previous][1], (node, backend, cost)]
            reached[backend.name] = (totals[previous], path)
        if not reached:
            return math.inf, []
        best = reached
    return min(best.values(), key=lambda entry: entry[0])


def _crossing_seconds(task: _Task) -> list[float]:
    """What it costs to change the back-end before each node: for the values alive there."""
    graph, shapes = task.graph, value_shapes(task.graph)
    last_read = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    alive: dict[str, int] = {}
    seconds = []
    for index, node in enumerate(graph.nodes):
        crossing = sum(bytes_ for name, bytes_ in alive.items() if last_read.get(name, 0) >= index)
        seconds.append(SWITCH_SECONDS + crossing / SWITCH_BYTES_A_SECOND)
        for name in node.outputs:
            shape = shapes.get(name, ValueShape(0))  # an op that only its own back-end knows
            rows = min(task.shape.rows, LOGIT_ROWS) if shape.selected else task.shape.rows
            alive[name] = FLOAT_BYTES * shape.width * rows
    return seconds


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
    computed = {output for node in nodes for output in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
    outside = {name for node in graph.nodes if node.name not in inside for name in node.inputs}
    segment = graph.with_nodes(nodes)
    inputs = [
        name
        for name in read
        if name not in computed and name not in graph.constants and name not in (IDS, POSITIONS)
    ]
    outputs = [
        name for name in dict.fromkeys([*computed]) if name in outside or name in graph.outputs
    ]
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    input_shapes = {name: shapes[name] for name in inputs if name in shapes}
    return replace(
        segment, inputs=inputs, outputs=outputs, constants=constants, shapes=input_shapes
    )


def _refusals(task: _Task, backends: Sequence[Backend], placed: Placed) -> tuple[Refusal, ...]:
    used = {backend.name for _, backend, _ in placed}
    refusals: list[Refusal] = []
    for backend in backends:
        if placed and backend.companions:
            refusals += _left_out(task, backend, placed)
            continue
        if backend.name in used:
            continue
        supports = [(node, task.able(backend, node)) for node in task.graph.nodes]
        unable = [pair for pair in supports if not pair[1]]
        if unable:
            node, support = unable[0]
            reason = task.graph.refusal or f"{node.name}: {support.reason}"
        else:
            reason = (
                f"slower by estimate: {task.total(backend) * 1e3:.2f} ms / {task.shape.rows} rows"
            )
        refusals.append(Refusal(backend.name, reason))
    return tuple(refusals)


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
            f"slower by estimate: {own * 1e3:.2f} ms / {task.shape.rows} rows for "
            f"{len(able)} nodes that take {others * 1e3:.2f} ms elsewhere"
        )
    return [Refusal(backend.name, text) for text in texts]
