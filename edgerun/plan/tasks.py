"""What is to be placed, what it costs where, and segments made of where it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from edgerun.backends.base import FEW_ROWS, Backend, Phase, Shape, Support
from edgerun.graph.ir import Graph, Node, ValueShape
from edgerun.graph.shapes import value_shapes
from edgerun.machine.devices import USUAL_ROWS
from edgerun.ops.base import IDS, POSITIONS
from edgerun.plan.early_rows import select_early
from edgerun.plan.plans import Segment
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
FLOAT_BYTES = 4
SELECT = "select_rows"
LOGIT_ROWS = 1  # of a chunk of a prompt, as a rule


@dataclass(frozen=True, slots=True)
class Budget:
    """What is expected of the requests that a plan is made for.

    Attributes:
        prompt_tokens: of a request, as a rule.
        reply_tokens: of a request, as a rule.
        call_rows: most tokens of a call.
        memory_bytes: that are free for what devices hold of the weights; None: not to be counted.
    """

    prompt_tokens: int = 512
    reply_tokens: int = 128
    call_rows: int = USUAL_ROWS
    memory_bytes: int | None = None


USUAL = Budget()
Placed: TypeAlias = "list[tuple[Node, Backend, float]]"


@dataclass(frozen=True, slots=True)
class Task:
    """A graph in a shape; ``late`` are the nodes that see only rows whose logits are wanted."""

    graph: Graph
    shape: Shape
    late: frozenset[str]

    def shaped(self, shape: Shape) -> Task:
        """The same in another shape."""
        return replace(self, shape=shape)

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

    def change_seconds(self, before: Backend | None, after: Backend, nbytes: int) -> float:
        """Seconds to go from one back-end to another, or to begin, with values of so many bytes.

        What was measured counts; where neither back-end is a device that was, all changes cost
        the same. What becomes one program (``join``) is not left.
        """
        if before is after or (before is not None and self._becomes_one(before, after)):
            return 0.0
        entered, left = after.device_profile(), before.device_profile() if before else None
        if before is None and entered is None:
            return after.call_seconds()
        if entered is None and left is None:
            return SWITCH_SECONDS + nbytes / SWITCH_BYTES_A_SECOND
        seconds = left.store_seconds(nbytes) if left else 0.0
        if entered is not None:
            seconds += entered.calls_seconds(self.shape.rows) + entered.load_seconds(nbytes)
        return seconds

    def _becomes_one(self, before: Backend, after: Backend) -> bool:
        return any(
            each.joins(self.shape) and other.name in each.companions
            for each, other in ((before, after), (after, before))
        )

    def crossing_bytes(self) -> list[int]:
        """Bytes of the values alive before each node: they cross where the back-end changes."""
        graph, shapes = self.graph, value_shapes(self.graph)
        last_read = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
        alive: dict[str, int] = {}
        crossing = []
        for index, node in enumerate(graph.nodes):
            crossing.append(sum(alive[name] for name in alive if last_read.get(name, 0) >= index))
            for name in node.outputs:
                shape = shapes.get(name, ValueShape(0))  # an op that only its own back-end knows
                rows = min(self.shape.rows, LOGIT_ROWS) if shape.selected else self.shape.rows
                alive[name] = FLOAT_BYTES * shape.width * rows
        return crossing


def task_of(graph: Graph, shape: Shape) -> Task:
    """What batches of a shape compute of a graph: of prompts few logits are wanted."""
    computed = select_early(graph) if shape.phase is Phase.PREFILL else graph
    return Task(computed, shape, frozenset(logit_nodes(computed)))


def typical_segments(
    segments: Mapping[Phase, tuple[Segment, ...]], backend: str | None
) -> list[tuple[Graph, Shape]]:
    """What a back-end runs of a plan, in the shapes that estimates are made for.

    Args:
        segments: of the plan.
        backend: its name; None for what all of them run, with the rows before ``SELECT``.
    """
    parts = []
    for shape in TYPICAL:
        rows = shape.rows
        for segment in segments.get(shape.phase, ()):
            before = rows
            if any(node.op == SELECT for node in segment.graph.nodes):
                rows = LOGIT_ROWS  # from here on
            if backend is None:
                parts.append((segment.graph, replace(shape, rows=before)))
            elif segment.backend == backend:
                parts.append((segment.graph, replace(shape, rows=rows)))
    return parts


def segments_of(task: Task, placed: Placed) -> tuple[Segment, ...]:
    """Runs of nodes on the same back-end, as parts of the graph."""
    graph, rows = task.graph, task.shape.rows
    groups: list[tuple[str, list[Node], float]] = []
    for node, backend, cost in placed:
        if not groups or groups[-1][0] != backend.name:
            groups.append((backend.name, [], 0.0))
        name, nodes, seconds = groups[-1]
        nodes.append(node)
        groups[-1] = (name, nodes, seconds + cost)
    shapes = value_shapes(graph) if len(groups) > 1 else {}
    return tuple(
        Segment(name, _cut(graph, nodes, shapes), seconds, rows) for name, nodes, seconds in groups
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


@dataclass(frozen=True, slots=True)
class Joined:
    """Segments that are compiled together.

    Attributes:
        segment: all of them, under the name of the back-end that compiles them.
        own: those of them that this back-end was given; none where there is one segment alone.
        others: names of the back-ends that were given the rest.
    """

    segment: Segment
    own: tuple[Graph, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Names of all of them, "cpu and standin"."""
        return " and ".join((*self.others, self.segment.backend))


def join(
    segments: Sequence[Segment], backends: Mapping[str, Backend], shape: Shape
) -> list[Joined]:
    """Runs of segments that go into one program, in order.

    Args:
        segments: of a plan, that follow one another.
        backends: by name.
        shape: of batches.
    """
    joining = [name for name, backend in backends.items() if backend.joins(shape)]
    used = {segment.backend for segment in segments}
    host = next((name for name in joining if name in used), "")
    together = {host, *backends[host].companions} if host else set[str]()
    joined: list[Joined] = []
    for is_together, group in groupby(segments, lambda segment: segment.backend in together):
        run = list(group)
        if is_together and len(run) > 1:
            joined.append(_joined(host, run, segments))
        else:
            joined += map(Joined, run)
    return joined


def _joined(host: str, run: Sequence[Segment], segments: Sequence[Segment]) -> Joined:
    inside = {id(segment) for segment in run}
    others = [segment for segment in segments if id(segment) not in inside]
    whole = replace(
        run[0],
        backend=host,
        graph=_graph([segment.graph for segment in run], [each.graph for each in others]),
        seconds=sum(segment.seconds for segment in run),
    )
    rest = dict.fromkeys(each.backend for each in run if each.backend != host)
    return Joined(whole, tuple(each.graph for each in run if each.backend == host), (*rest,))


def _graph(parts: Sequence[Graph], others: Sequence[Graph]) -> Graph:
    """The graph that parts were cut from; what comes out is read elsewhere, or by nobody."""
    nodes = [node for part in parts for node in part.nodes]
    computed = {name for node in nodes for name in node.outputs}
    taken = dict.fromkeys(name for part in parts for name in part.inputs)
    inputs = [name for name in taken if name not in computed]
    elsewhere = {name for graph in others for name in graph.inputs}
    given = dict.fromkeys(name for part in parts for name in part.outputs)
    outputs = [name for name in given if name in elsewhere or name not in taken]
    constants = {name: each for part in parts for name, each in part.constants.items()}
    shapes = {name: each for part in parts for name, each in part.shapes.items() if name in inputs}
    return replace(
        parts[0], nodes=nodes, inputs=inputs, outputs=outputs, constants=constants, shapes=shapes
    )
