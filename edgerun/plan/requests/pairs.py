"""Plans prompts and replies together, since keys and values go from one to the other.

Where they are computed by a device they are handed over to the pages, and where a device that
keeps its own copy decodes, they are read once if another left them. So both placements are one
search: dynamic programming over the nodes, whose state is a pair of back-ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from edgerun.backends.base import Backend, Phase, Shape
from edgerun.backends.estimates import kept_bytes
from edgerun.errors import UnsupportedError
from edgerun.graph.ir import Graph, Node
from edgerun.plan.tasks import Budget, Placed, Task
from edgerun.plan.workload import logit_nodes


@dataclass(frozen=True, slots=True)
class Pair:
    """Where the nodes of prompts and of replies go, and the seconds of a whole request."""

    seconds: float
    prompts: Placed
    replies: Placed


@dataclass(frozen=True, slots=True)
class Tasks:
    """Prompts and replies of one graph.

    Attributes:
        prompts: what prompts leave in the cache.
        replies: one token.
        budget: how much there is of both.
    """

    prompts: Task
    replies: Task
    budget: Budget

    @classmethod
    def of(cls, graph: Graph, prompts: Graph, budget: Budget) -> Tasks:
        """The tasks of a lowered graph, and of the part of it that prompts need."""
        prompt, reply = budget.prompt_tokens, budget.reply_tokens
        prefill = Shape(Phase.PREFILL, min(budget.call_rows, prompt), prompt // 2)
        decode = Shape(Phase.DECODE, 1, prompt + reply // 2)
        late = frozenset(logit_nodes(graph))
        return cls(Task(prompts, prefill, frozenset()), Task(graph, decode, late), budget)

    @property
    def calls(self) -> float:
        """Calls of a prompt."""
        return self.budget.prompt_tokens / self.prompts.shape.rows


def handover_seconds(nbytes: int, prompts: Backend, replies: Backend) -> float:
    """Seconds that keys and values of so many bytes take from one back-end to another.

    A device writes them into the pages, whoever reads them; a device that keeps its own copy reads
    once what it did not compute. One that does not reads them for every call, which is a cost of
    its nodes.
    """
    source, target = prompts.device_profile(), replies.device_profile()
    seconds = source.store_seconds(nbytes) if source else 0.0
    if target and target.mirrors and prompts is not replies:
        seconds += target.load_seconds(nbytes)
    return seconds


def launch_seconds(backend: Backend) -> float:
    """Seconds that the first call after a pause takes longer."""
    profile = backend.device_profile()
    return profile.launch_s if profile else 0.0


# Back-ends of the nodes before, for prompts and for replies.
_State: TypeAlias = "tuple[Backend | None, Backend | None]"
_Entry: TypeAlias = "tuple[Phase, tuple[Node, Backend, float]]"
_Step: TypeAlias = "Callable[[_State], Iterable[tuple[_State, float, _Entry]]]"
_Reached: TypeAlias = "dict[_State, tuple[float, Any]]"  # seconds, and a linked list of entries


def place_together(tasks: Tasks, backends: Sequence[Backend]) -> Pair:
    """The cheapest placements of a whole request.

    Raises:
        UnsupportedError: some node runs on none of the back-ends.
    """
    prompts, replies = _crossing(tasks.prompts), _crossing(tasks.replies)
    reached: _Reached = {(None, None): (0.0, None)}
    for node in tasks.replies.graph.nodes:
        if node.name in prompts:
            reached = _relax(reached, _prompt_step(tasks, node, backends, prompts[node.name]))
        nbytes = replies[node.name]
        reached = _relax(reached, _reply_step(tasks, node, backends, nbytes, node.name in prompts))
        if not reached:
            raise UnsupportedError(f"no back-end runs the node {node.name} of prompts and replies")
    seconds, link = min(reached.values(), key=lambda each: each[0])
    placed: dict[Phase, Placed] = {Phase.PREFILL: [], Phase.DECODE: []}
    while link is not None:
        link, (phase, entry) = link
        placed[phase].append(entry)
    return Pair(seconds, placed[Phase.PREFILL][::-1], placed[Phase.DECODE][::-1])


def place_alone(tasks: Tasks, backends: Sequence[Backend]) -> Pair | None:
    """The processor's own placement, if it is plain that none is cheaper; None if that is not.

    It is where all nodes together gain less elsewhere than entering a device costs once. Most
    models never leave the processor, and this takes a fraction of the search.
    """
    hosts = [backend for backend in backends if backend.device_profile() is None]
    if len(hosts) != 1 or len(backends) == 1:
        return None
    (host,), phases, total = hosts, [], 0.0
    others = [backend for backend in backends if backend is not host]
    for task, times in ((tasks.prompts, tasks.calls), (tasks.replies, tasks.budget.reply_tokens)):
        placed: Placed = []
        left = min(task.change_seconds(None, other, 0) for other in others)
        for node in task.graph.nodes:
            cost = task.cost(host, node)
            left -= max(cost - min(task.cost(other, node) for other in others), 0.0)
            if left < 0 or not task.able(host, node):
                return None
            placed.append((node, host, cost))
            total += times * cost
        total += times * task.change_seconds(None, host, 0)
        phases.append(placed)
    return Pair(total, *phases)


def _prompt_step(tasks: Tasks, node: Node, backends: Sequence[Backend], nbytes: int) -> _Step:
    task = tasks.prompts
    costs = {each: task.cost(each, node) for each in backends if task.able(each, node)}

    def step(state: _State) -> Iterable[tuple[_State, float, _Entry]]:
        before, other = state
        for after, cost in costs.items():
            change = task.change_seconds(before, after, nbytes)
            launch = 0.0 if before is after else launch_seconds(after)
            seconds = launch + tasks.calls * (change + cost)
            yield (after, other), seconds, (Phase.PREFILL, (node, after, cost))

    return step


def _reply_step(
    tasks: Tasks, node: Node, backends: Sequence[Backend], nbytes: int, is_prompts: bool
) -> _Step:
    task, tokens = tasks.replies, tasks.budget.reply_tokens
    prompt_bytes = tasks.budget.prompt_tokens * kept_bytes(node)
    costs = {each: task.cost(each, node) for each in backends if task.able(each, node)}

    def step(state: _State) -> Iterable[tuple[_State, float, _Entry]]:
        other, before = state
        for after, cost in costs.items():
            seconds = tokens * (task.change_seconds(before, after, nbytes) + cost)
            if is_prompts and other is not None:
                seconds += handover_seconds(prompt_bytes, other, after)
            yield (other, after), seconds, (Phase.DECODE, (node, after, cost))

    return step


def _relax(reached: _Reached, step: _Step) -> _Reached:
    """The best ways to the states behind a step."""
    better: _Reached = {}
    for state, (total, link) in reached.items():
        for after, seconds, entry in step(state):
            if after not in better or total + seconds < better[after][0]:
                better[after] = (total + seconds, (link, entry))
    return better


def _crossing(task: Task) -> dict[str, int]:
    """Bytes that cross if the back-end changes before a node, by its name."""
    names = (node.name for node in task.graph.nodes)
    return dict(zip(names, task.crossing_bytes(), strict=True))
